"""The paths that a campaign counts: which ways of computing the schedules of a program chose."""

import pytest

from mlc.compile import compile_graph
from mlc.graph import parse_graph
from pytest_mlc.executor import paths_of
from pytest_mlc.tally import Tally


def paths(type, body, result):
    return set(paths_of(compile_graph(parse_graph(f"graph @main(%x: {type}) -> {result} {{\n{body}\n}}"))))


@pytest.mark.parametrize("n, tail", [(64, False), (67, True)])
def test_a_rest_of_a_vector_loop_is_a_tail(n, tail):
    found = paths(f"f32[{n}]", f"  %0 = neg %x : f32[{n}]\n  return %0", f"f32[{n}]")
    assert "vectorize" in found and ("tail" in found) == tail


def test_contractions_have_tiles_and_large_loops_are_parallel():
    assert "tile" in paths("f32[32,32]", "  %0 = dot_general %x, %x {contract=([1],[0])} : f32[32,32]\n  return %0", "f32[32,32]")
    assert "parallel" in paths("f32[1000000]", "  %0 = tanh %x : f32[1000000]\n  return %0", "f32[1000000]")
    assert "parallel" not in paths("f32[8]", "  %0 = tanh %x : f32[8]\n  return %0", "f32[8]")


def test_contractions_tell_more_than_their_schedules_say():
    assert {"tile", "tail"} <= paths("f32[17,65]", "  %0 = dot_general %x, %x {contract=([0],[0])} : f32[65,65]\n  return %0", "f32[65,65]")
    assert "stream" in paths("f32[1,300]", "  %0 = dot_general %x, %x {contract=([0],[0])} : f32[300,300]\n"
                             "  %1 = dot_general %x, %0 {contract=([1],[0])} : f32[1,300]\n  return %1", "f32[1,300]")


def test_the_summary_adds_paths_up_over_processes():
    one, other = Tally(), Tally()
    one.paths.update(["tile", "tail"])
    other.paths.update(["tile"])
    one.add(Tally.loads(other.dumps()))
    assert one.summary()["paths"] == {"tail": 1, "tile": 2}
