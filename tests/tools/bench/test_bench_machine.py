"""Floors from measured limits; the probes' code; the ulp that results are judged by."""

import json
import math

import numpy as np
import pytest

from mlc.codegen.target import assembly, compile_object, get_target
from mlc.tools.bench import probe, probe_ir
from mlc.tools.bench.machine import Limits, Machine, envelope
from mlc.tools.bench.peers import new_record, set_floors
from mlc.tools.bench.worker import looped, reason, ulp
from mlc.tools.bench.workloads import COMPILED, GROUPS, Workload, all_workloads, leaves, select, tree_map

BANDWIDTH = {"read": [[1e3, 100.0], [1e5, 50.0]], "write": [[1e3, 80.0], [1e5, 20.0]], "write_nt": [[1e5, 60.0]], "copy": [[1e3, 90.0], [1e5, 40.0]]}
LIMITS = Limits({"f32": 1000.0, "f64": 500.0}, BANDWIDTH, {"exp": 0.5})


# --------------------------------------------------------------------------- floors
def test_the_rate_falls_with_the_logarithm_of_the_size():
    assert LIMITS.rate("read", 1e4) == pytest.approx(75.0)
    assert (LIMITS.rate("read", 10), LIMITS.rate("read", 1e9)) == (100.0, 50.0)


def test_the_better_way_to_store_counts():
    assert LIMITS.rate("write", 1e5) == 60.0


def test_a_disturbed_small_size_cannot_be_slower_than_a_larger_one():
    assert envelope([[1, 10.0], [2, 30.0], [4, 20.0]]) == [[1, 30.0], [2, 30.0], [4, 20.0]]


@pytest.mark.parametrize("read, written, seconds", [
    (500, 500, 1000 / 90), (900, 100, 200 / 90 + 800 / 100), (100, 900, 200 / 90 + 800 / 80), (1000, 0, 10.0), (0, 0, 0.0)])
def test_what_is_read_and_written_pairs_up_as_a_copy(read, written, seconds):
    assert LIMITS.traffic(read, written) == pytest.approx(seconds)


def test_the_three_floors_stand_apart():
    assert LIMITS.parts("f32", 4000, 1000, 0, {"exp": 14}) == {"compute": 4.0, "memory": 10.0, "functions": 7.0}


def test_a_dtype_without_instructions_of_its_own_computes_as_f32():
    assert (LIMITS.operations("f64"), LIMITS.operations("bf16")) == (500.0, 1000.0)


@pytest.mark.parametrize("peak, operations", [(2000.0, 2000.0), (500.0, 1000.0)])
def test_bf16_computes_as_f32_where_its_own_instruction_is_slower(peak, operations):
    assert Limits({"f32": 1000.0, "bf16": peak}, {}).operations("bf16") == operations


def test_a_slower_clock_moves_compute_but_not_memory():
    assert LIMITS.parts("f32", 4000, 1000, 0, {"exp": 14}, clock=0.5) == {"compute": 8.0, "memory": 10.0, "functions": 14.0}


def test_two_probings_merge_to_the_better_of_each_figure():
    other = Limits({"f32": 900.0, "f64": 700.0}, {k: [[s, r + 5] for s, r in v] for k, v in BANDWIDTH.items()}, {"exp": 0.25})
    merged = Machine("x", {1: LIMITS}).merged(Machine("x", {1: other})).limits[1]
    assert (merged.peak, merged.functions, merged.bandwidth["read"]) == ({"f32": 1000.0, "f64": 700.0}, {"exp": 0.25}, [[1e3, 105.0], [1e5, 55.0]])


def test_a_machine_survives_json():
    machine = Machine("cpu", {1: LIMITS, 2: LIMITS})
    assert Machine.from_json(json.loads(json.dumps(machine.to_json()))) == machine


def a_workload(**more):
    fields = dict(name="w", group="matmul", build=lambda xp, nn: None, args=list, flops=4e6, read=0.0, written=0.0) | more
    return Workload(**fields)


@pytest.mark.parametrize("rates, clock", [([], 1.0), ([900.0, 950.0, 10.0], 0.9), ([500.0], 1.0), ([1100.0], 1.0)],
                         ids=["unknown", "median", "shared-core", "faster-than-probed"])
def test_the_floor_follows_the_clock_that_was_measured_beside(rates, clock):
    record = new_record(a_workload())
    if rates:
        record["clock"]["1"] = rates
    set_floors(record, Machine("x", {1: LIMITS}))
    assert record["floor_us"]["1"] == pytest.approx(4e9 / clock) and record["bound"]["1"] == "compute"


# --------------------------------------------------------------------------- probes
@pytest.mark.parametrize("target", ["native", "generic", "golden-v3"])
def test_every_probe_compiles_for_every_target(target):
    target = get_target(target)
    for text in [probe_ir.memory(name, target) for name in probe_ir.MEMORY] + [text for text, _ in probe_ir.computing(target).values()]:
        assert compile_object(text, target)


def test_the_peak_loop_keeps_its_accumulators_in_registers():
    target = get_target("golden-v3")
    text, operations = probe_ir.compute(probe_ir.peaks(target)[0], target)
    loop = [line for line in assembly(text, target).splitlines() if "vfmadd" in line]
    assert len(loop) == 12 and not any("(" in line for line in loop) and operations == 12 * 2 * 8


def test_streaming_stores_are_what_they_are_called():
    target = get_target("golden-v3")
    assert "vmovntps" in assembly(probe_ir.memory("copy_nt", target), target) and "vmovntps" not in assembly(probe_ir.memory("copy", target), target)


def test_probed_figures_are_of_the_right_size(monkeypatch):
    monkeypatch.setattr(probe, "SIZES", (1 << 14, 1 << 18, 1 << 24))
    limits = probe.probe_limits(1, 0.0005, [])
    assert 1e9 < limits.peak["f64"] < limits.peak["f32"] < 1e12
    assert {"read", "write", "copy", "write_nt", "copy_nt"} <= limits.bandwidth.keys()
    assert all(1e8 < rate < 1e13 for curve in limits.bandwidth.values() for _, rate in curve)
    assert limits.rate("read", 1 << 14) > limits.rate("read", 1 << 24)


def test_a_team_adds_the_rates_of_its_threads():
    rate = probe.Team(2, []).rate([lambda n: None, lambda n: None], 1.0, 0.0)
    assert rate > probe.Team(1, []).rate([lambda n: sum(range(50 * n))], 1.0, 0.0)


def test_a_function_that_does_not_compile_leaves_the_others_their_figures(monkeypatch, capsys):
    def broken(x):
        raise ValueError("no erf today")
    monkeypatch.setattr("mlc.nn.erf", broken)
    monkeypatch.setattr(probe, "FUNCTIONS", ("erf", "exp"))
    assert probe.probe_functions(0.001).keys() == {"exp"} and "erf is not probed: ValueError: no erf today" in capsys.readouterr().err


# --------------------------------------------------------------------------- accuracy
def test_ulp_of_an_element_counts_in_its_own_spacing():
    wanted = np.array([1.0, 1000.0])
    got = np.array([1.0, np.nextafter(np.float32(1000.0), np.float32(2000.0))], np.float32)
    assert ulp(got, wanted, exact=True) == 1.0


def test_ulp_of_a_sum_near_zero_counts_in_the_typical_element():
    wanted, got = np.array([4.0, 4.0, 1e-6, 4.0]), np.array([4.0, 4.0, 2e-6, 4.0], np.float32)
    assert ulp(got, wanted, exact=False) == pytest.approx(1e-6 / 2**-22, rel=1e-3)
    assert ulp(got, wanted, exact=True) > 1e6


def test_ulp_of_what_is_not_a_number_where_it_should_be_is_infinite():
    assert ulp(np.array([np.nan], np.float32), np.array([1.0]), exact=True) == math.inf
    assert ulp(np.array([np.inf], np.float32), np.array([np.inf]), exact=True) == 0.0


def test_ulp_of_bf16_and_of_integers():
    assert ulp(np.array([1.0078125], np.float32), np.array([1.0]), True, "bfloat16") == 1.0
    assert ulp(np.array([7], np.int32), np.array([5]), True) == 2.0


# --------------------------------------------------------------------------- workloads
def test_workloads_have_names_and_groups_of_their_own():
    found = all_workloads()
    assert len({w.name for w in found}) == len(found) >= 25
    assert {w.group for w in found} == set(GROUPS) and COMPILED <= {w.name for w in found}


@pytest.mark.parametrize("words, some", [(["skinny"], "matvec 1024x1024"), (["matmul 3"], "matmul 32"), (["tanh 1M"], "gelu tanh 1M")])
def test_workloads_are_selected_by_group_or_by_part_of_the_name(words, some):
    assert some in [w.name for w in select(words)] and len(select(words)) < 10


def test_quick_is_a_part_and_yields_to_names():
    assert 15 <= len(select([], quick=True)) < len(select([])) / 2
    assert [w.name for w in select(["matmul 2048"], quick=True)] == ["matmul 2048"]


def test_trees_are_mapped_and_flattened_in_order():
    tree = [{"a": 1, "b": (2, [3])}, 4]
    assert tree_map(lambda x: x * 10, tree) == [{"a": 10, "b": (20, [30])}, 40] and list(leaves(tree)) == [1, 2, 3, 4]


def test_a_loop_calls_with_all_arguments_and_waits():
    seen, waited = [], []
    looped(lambda *args: seen.append(args), [1, 2], None)(3)
    looped(lambda *args: args, [5], waited.append)(2)
    assert seen == [(1, 2)] * 3 and waited == [(5,)] * 2


def test_a_reason_is_one_line():
    assert reason(ValueError("\n  first\nsecond")) == "ValueError: first" and reason(KeyError()) == "KeyError"
