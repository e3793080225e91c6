"""The stream of programs: what takes turns in it, and what large programs are spared."""

from collections import Counter

from mlc.graph import parse_graph
from pytest_mlc.settings import Settings
from pytest_mlc.stream import INTERPRETERS, MOST_INTERPRETED, Stream, work


def test_interpreters_run_small_programs_only():
    stream, seen = Stream(Settings(seed=3)), Counter()
    for i in range(1, 600, 3):
        fresh = stream.case(i)
        seen[fresh.variant] += 1
        assert fresh.variant not in INTERPRETERS or work(fresh.program.graph) <= MOST_INTERPRETED
    assert min(seen[name] for name in INTERPRETERS) > 10, seen


def test_work_counts_what_reductions_read_and_contractions_add():
    total = parse_graph("graph @main(%x: f32[100,50]) -> f32[100] {\n  %0 = reduce_sum %x {axes=[1]} : f32[100]\n  return %0\n}")
    product = parse_graph("graph @main(%x: f32[20,1000], %y: f32[1000,30]) -> f32[20,30] {\n"
                          "  %0 = dot_general %x, %y {contract=([1],[0])} : f32[20,30]\n  return %0\n}")
    assert work(total) == 5000 and work(product) == 30000 + 6000


def test_every_float_probe_comes_round_within_a_few_hundred_cases():
    stream = Stream(Settings(seed=0))
    found = {probe for i in range(600) for probe in stream._config(i).probes}
    wanted = {probe for probe in stream.probes if probe[1].is_float}
    assert wanted <= found and len(wanted) > 100
