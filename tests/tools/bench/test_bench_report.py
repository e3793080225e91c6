"""Tables, summary, comparison and chart of stored runs."""

import copy
import re
import xml.etree.ElementTree as ElementTree

import pytest

from mlc.tools.bench import chart, compare, report, summary
from mlc.tools.bench.machine import Limits, Machine


def a_record(name, group, one, two=None, **more):
    """A record with the times of one thread (and two), five equal rounds each."""
    us = {"1": one} | ({"2": two} if two else {})
    fields = {"workload": name, "group": group, "dtype": "f32", "flops": 1.0, "read": 1.0, "written": 1.0, "functions": {}, "dram": False,
              "constants": 0, "exact_ulp": False, "floor_us": {n: 9.0 for n in us}, "bound": {n: "memory" for n in us}, "us": us,
              "rounds": {n: {k: [v] * 5 for k, v in times.items()} for n, times in us.items()},
              "first_ms": {"mlc": 1.5}, "ulp": {}, "skip": {}, "cold_ms": {}, "warm_ms": {}, "grown": {}, "memory": {}, "clock": {}}
    return fields | more


def a_run(*records, threads=(1,), **more):
    limits = Limits({"f32": 1e11}, {k: [[1e4, 1e11]] for k in ("read", "write", "copy")}, {})
    return {"format": 1, "date": "2026-11-30 10:00", "seconds": 7, "versions": {}, "libraries": ["mlc", "jax", "numpy"], "broken": {},
            "threads": list(threads), "machine": Machine("cpu <x>", {n: limits for n in threads}).to_json(),
            "function_ulp": {"jax": {"tanh": 4.3}, "numpy": {"tanh": 1.3}}, "results": list(records)} | more


def row(text, name):
    """The cells of a table's row."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def goal(data, start):
    return next(line for line in summary.lines(data) if line.goal.startswith(start))


# --------------------------------------------------------------------------- tables
def test_a_row_names_the_best_peer_and_the_share_of_the_floor():
    data = a_run(a_record("w", "matmul", {"mlc": 10.0, "jax": 15.0, "numpy": 12.0}))
    assert row(report.times(data, 1), "w") == ["w", "10.0", "15.0", "12.0", "9.00", "memory", "90%", "1.20 (numpy)", "-"]


def test_a_peer_past_4_ulp_has_a_column_of_its_own():
    data = a_run(a_record("tanh", "functions", {"mlc": 10.0, "jax": 5.0, "numpy": 20.0}, functions={"tanh": 1.0}))
    assert row(report.times(data, 1), "tanh")[-2:] == ["2.00 (numpy)", "0.50 (jax)"]


def test_an_inexact_function_does_not_count_against_a_program():
    data = a_run(a_record("block", "programs", {"mlc": 10.0, "jax": 5.0}, functions={"tanh": 1.0}))
    assert row(report.times(data, 1), "block")[-2:] == ["0.50 (jax)", "-"]


@pytest.mark.parametrize("ulp, near", [(300.0, True), (3000.0, False)])
def test_sums_may_differ_by_their_order_but_not_by_their_dtype(ulp, near):
    record = a_record("w", "matmul", {"mlc": 1.0}, ulp={"mlc": 10.0, "jax": ulp})
    assert report.is_near(record, "jax", {}) is near


def test_a_workload_that_mlc_cannot_run_is_told_with_the_reason():
    data = a_run(a_record("w", "programs", {"jax": 15.0}, skip={"mlc": "UnsupportedError: no sort"}))
    text = report.everything(data)
    assert row(text, "w")[1:3] == ["-", "15.0"] and "- w, mlc: UnsupportedError: no sort" in text


def test_a_library_that_does_not_work_is_told_once():
    assert report.everything(a_run(broken={"torch.compile": "no C++ compiler"})).count("no C++ compiler") == 1


def test_two_threads_show_the_speed_up():
    data = a_run(a_record("w", "matmul", {"mlc": 10.0}, {"mlc": 5.5}), threads=(1, 2))
    assert row(report.times(data, 2), "w")[-1] == "1.82"


def test_means_are_geometric_and_by_kind():
    data = a_run(a_record("a", "matmul", {"mlc": 1.0, "jax": 2.0}), a_record("b", "matmul", {"mlc": 1.0, "jax": 8.0}),
                 a_record("c", "rows", {"mlc": 1.0, "jax": 3.0}), a_record("d", "skinny", {"mlc": 1.0, "jax": 99.0}))
    assert report.means(data, 1) == pytest.approx({"matmul": 4.0, "memory-bound": 3.0})


def test_first_calls_and_memory_stand_in_one_table():
    data = a_run(a_record("w", "programs", {"mlc": 1.0}, cold_ms={"mlc": 50.0, "jax": 200.0}, warm_ms={"mlc": 8.0, "jax": 40.0},
                          start_ms={"mlc": 150.0, "jax": 600.0}, loaded_ms={"mlc": 30.0, "jax": 200.0}, warm_steady_ms={"mlc": 3.0},
                          memory={"mlc": {"arena": 1500.0, "packed": 500.0, "workspace": 700.0}, "jax": {"temp": 3e6}}, grown={"mlc": 12e6}))
    assert row(report.first_calls(data), "w") == [
        "w", "150", "600", "50.0", "200", "30.0", "200", "8.00", "40.0", "5.00", "-", "1.50", "-", "-", "2.00 KB", "3.00 MB", "700 B", "12.0 MB", "-"]


@pytest.mark.parametrize("value, text", [(0.0951, "0.0951"), (1.0, "1.00"), (12345.6, "12,346"), (0.0, "0"), (None, "-"), (float("inf"), "inf")])
def test_numbers_have_three_digits_and_no_exponent(value, text):
    assert report.number(value) == text


# --------------------------------------------------------------------------- goals
def test_a_slower_workload_fails_the_first_goal_by_name():
    line = goal(a_run(a_record("slow", "rows", {"mlc": 10.0, "jax": 8.0}), a_record("quick", "rows", {"mlc": 1.0, "jax": 2.0})), "1 thread: best")
    assert not line.passed and line.found == "1 of 2; below: slow 0.80"


def test_a_workload_that_does_not_run_fails_too():
    line = goal(a_run(a_record("w", "rows", {"jax": 8.0}, skip={"mlc": "boom"})), "1 thread: best")
    assert line.passed is False


def test_what_was_not_measured_neither_passes_nor_fails():
    data = a_run(a_record("w", "calls", {"mlc": 1.0}))
    assert goal(data, "matmul 128 to 2048").passed is None
    assert "of 0 goals met" in summary.text(data)


@pytest.mark.parametrize("share, passed", [(0.951, True), (0.949, False)])
def test_cubes_need_95_percent_of_the_floor(share, passed):
    data = a_run(a_record("matmul 512", "matmul", {"mlc": 9.0 / share}))
    assert goal(data, "matmul 128 to 2048").passed is passed


@pytest.mark.parametrize("ours, jax, passed", [(0.3, 4.0, True), (0.3, 2.0, False), (0.5, 9.0, False), (0.3, None, True)])
def test_tiny_calls_need_both_speed_and_distance(ours, jax, passed):
    us = {"mlc": ours} | ({"jax": jax} if jax else {})
    assert goal(a_run(a_record("call 3 tiny arrays", "calls", us)), "call 3").passed is passed


@pytest.mark.parametrize("deep, passed", [(250.0, True), (350.0, False)])
def test_a_deep_transformer_costs_little_more_than_its_block(deep, passed):
    data = a_run(a_record("12-layer transformer 128x256", "compile", {}, cold_ms={"mlc": deep, "jax": 3000.0}),
                 a_record("block 128x256", "programs", {}, cold_ms={"mlc": 100.0, "jax": 400.0}))
    assert goal(data, "12-layer transformer, cold").passed is passed
    assert goal(data, "12-layer transformer, in a running").passed is None


@pytest.mark.parametrize("key, start", [("cold_ms", "first call, cold (from import on"), ("start_ms", "first call, cold, from the process's start"),
                                        ("loaded_ms", "first call, cold, both")])
def test_cold_calls_are_judged_by_the_mean_of_the_programs(key, start):
    data = a_run(*(a_record(str(q), "programs", {}, **{key: {"mlc": 10.0, "jax": 10.0 * q}}) for q in (2, 18)))
    assert goal(data, start).found == "6.00" and goal(data, start).passed
    assert sum(line.passed is None for line in summary.lines(data) if line.goal.startswith("first call")) == 2


def test_warm_calls_are_judged_with_and_without_the_time_of_a_call():
    data = a_run(a_record("block 512x768", "programs", {}, warm_ms={"mlc": 40.0, "jax": 130.0}, warm_steady_ms={"mlc": 30.0, "jax": 35.0}))
    assert goal(data, "warm cache: block's first call, 12 ms").found == "0 of 1; below: block 512x768 0.30"
    assert goal(data, "warm cache: block's first call, jax").found == "0 of 1; below: block 512x768 3.25"
    assert goal(data, "warm cache: the same less one steady call, 12 ms").found == "1 of 1; least: block 512x768 1.20"
    assert goal(data, "warm cache: the same less one steady call, jax").found == "1 of 1; least: block 512x768 9.50"


def test_memory_must_not_exceed_that_of_jax():
    def found(**parts: float):
        return goal(a_run(a_record("w", "programs", {}, memory={"mlc": parts, "jax": {"temp": 200.0, "constants": 50.0}})), "memory")
    assert found(arena=300.0).passed is False and found(arena=250.0).passed
    assert found(arena=240.0, workspace=900.0).passed and found(arena=240.0, workspace=900.0).found.endswith("a workspace, at most 900 B (w)")


def test_a_speed_up_needs_both_thread_counts():
    record = a_record("matmul 512", "matmul", {"mlc": 10.0}, {"mlc": 5.0})
    assert goal(a_run(record, threads=(1, 2)), "2 threads at least 1.8").passed is True
    assert goal(a_run(record, threads=(2,)), "2 threads at least 1.8").passed is None


# --------------------------------------------------------------------------- comparison
def changed(**us):
    """What is told when w took 10 us and now takes this."""
    before, after = (a_run(a_record("w", "matmul", {"mlc": 10.0, "jax": 20.0})) for _ in range(2))
    after["results"][0]["us"]["1"].update(us)
    return before, after


def test_a_change_is_told_with_its_factor():
    rows, _ = compare.changes(*changed(mlc=15.0))
    assert rows == [["w", "us, 1 thread", "10.0", "15.0", "1.50", "slower or larger"]]
    rows, _ = compare.changes(*changed(mlc=5.0))
    assert rows == [["w", "us, 1 thread", "10.0", "5.00", "2.00", "better"]]


def test_small_changes_are_noise():
    assert compare.changes(*changed(mlc=10.2))[0] == []


def test_rounds_that_vary_allow_for_more():
    before, after = changed(mlc=11.5)
    assert compare.changes(before, after)[0]
    after["results"][0]["rounds"]["1"]["mlc"] = [11.5, 12.1, 10.9, 12.5, 10.5]
    assert compare.changes(before, after)[0] == []


def test_what_the_machine_did_is_read_off_the_peers():
    assert compare.changes(*changed(jax=30.0))[1] == pytest.approx(1.5)


def test_memory_and_first_calls_are_compared_too():
    before, after = changed()
    for run, cold, arena, workspace in ((before, 100.0, 64.0, 640.0), (after, 140.0, 128.0, 1920.0)):
        run["results"][0]["cold_ms"]["mlc"], run["results"][0]["memory"]["mlc"] = cold, {"arena": arena, "workspace": workspace}
    assert {row[1]: row[4] for row in compare.changes(before, after)[0]} == {"memory": "2.00", "workspace": "3.00", "cold first call, ms": "1.40"}


def test_workloads_that_stopped_running_come_first():
    before, after = changed(mlc=30.0)
    before["results"].append(a_record("x", "rows", {"mlc": 1.0}))
    after["results"].append(a_record("x", "rows", {}, skip={"mlc": "boom"}))
    assert [row[0] for row in compare.changes(before, after)[0]] == ["x", "w"]


def test_a_run_against_itself_has_nothing_to_tell():
    before, _ = changed()
    assert "nothing changed beyond the noise" in compare.text(before, copy.deepcopy(before))


# --------------------------------------------------------------------------- chart
SVG = "{http://www.w3.org/2000/svg}"


def test_the_chart_has_a_dot_for_each_peer_and_a_bar_for_each_floor():
    data = a_run(a_record("a < b", "matmul", {"mlc": 10.0, "jax": 20.0, "numpy": 5.0}, {"mlc": 8.0, "jax": 9.0}), threads=(1, 2))
    root = ElementTree.fromstring(chart.svg(data))
    assert [t.text for t in root.iter(f"{SVG}title")] == [
        "floor 9 us, 90% reached", "jax 20 us, 2.00 x mlc", "numpy 5 us, 0.50 x mlc", "floor 9 us, 112% reached", "jax 9 us, 1.12 x mlc"]
    assert "a < b" in [t.text for t in root.iter(f"{SVG}text")]


def test_the_chart_follows_the_colour_scheme():
    assert "prefers-color-scheme:dark" in chart.svg(a_run(a_record("a", "rows", {"mlc": 1.0})))


def test_the_chart_stays_inside_its_frame():
    svg = chart.svg(a_run(a_record("a", "rows", {"mlc": 1.0, "jax": 1e6, "numpy": 1e-6})))
    width = float(re.search(r'viewBox="0 0 (\S+)', svg)[1])
    assert all(0 < float(x) < width for x in re.findall(r'cx="([^"]+)"', svg))


def test_the_chart_says_what_does_not_run():
    assert "does not run" in chart.svg(a_run(a_record("a", "rows", {"jax": 1.0}, skip={"mlc": "boom"})))


def test_positions_are_logarithmic():
    assert chart.position(2) - chart.position(1) == pytest.approx(chart.position(8) - chart.position(4), abs=0.2)
