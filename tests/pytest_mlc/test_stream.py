"""The stream of programs: what takes turns in it, and what large programs are spared."""

from collections import Counter

from mlc_strategies.path_goals import PATHS

from mlc.graph import parse_graph
from pytest_mlc.settings import Settings
from pytest_mlc.stream import INTERPRETERS, MOST_INTERPRETED, TWIN_EVERY, Stream, options_for, path_of, work


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


def test_every_way_of_computing_has_a_case_of_its_own_within_150():
    assert {path_of(i) for i in range(150)} == {"", *PATHS}
    assert all(options_for(i)["fork_us"] == "0" for i in range(600) if path_of(i) == "split")
    assert any(options_for(i).get("stream_kb") == "0" for i in range(20))


def test_a_twin_and_its_model_are_compiled_alike_and_use_the_cache():
    stream, checks = Stream(Settings(seed=2)), Counter()
    for i in range(120):
        fresh = stream.case(i)
        checks[fresh.options["check"]] += 1
        if i % TWIN_EVERY == TWIN_EVERY - 1:
            model = stream._model(i)[0]
            assert i - TWIN_EVERY < model < i and fresh.options == stream.case(model).options
            assert fresh.options == {**options_for(model), "check": "0"}  # with checks the cache is neither read nor written
    assert 50 <= checks["0"] <= 70 and checks["2"] >= 8 and checks["1"] > 40, checks


def test_the_kinds_of_cases_leave_room_for_each_other():
    stream = Stream(Settings(seed=1))
    configs = [stream._config(i) for i in range(480)]
    assert sum(bool(c.path) for c in configs) == 40 and all(c.lengths == c.special == c.long == False for c in configs if c.path)  # noqa: E712
    assert sum(c.long for c in configs) == 20 and sum(c.lengths for c in configs) > 80 and sum(c.special for c in configs) > 100
