"""Inputs of checks: sizes at the ends of a range, dense repeatable values, and specs that are refused."""

import numpy as np
import pytest

from mlc.core.dims import parse_type
from mlc.core.errors import OptionError, ShapeError
from pytest_mlc import draws


def test_both_ends_of_a_range_are_tried_then_sizes_between():
    cases = draws.cases_of({"B": (1, 256)}, seed=0)
    assert cases[:2] == [{"B": 1}, {"B": 256}] and len(cases) > 2
    assert all(1 < case["B"] < 256 for case in cases[2:])


def test_two_dims_do_not_move_in_step():
    cases = draws.cases_of({"B": (1, 256), "T": (1, 256)}, seed=0)
    assert any(case["B"] != case["T"] for case in cases)


def test_every_size_of_a_list_is_tried():
    assert {case["B"] for case in draws.cases_of({"B": [1, 6, 11, 64, 130, 131, 132]}, seed=3)} == {1, 6, 11, 64, 130, 131, 132}


@pytest.mark.parametrize("dims, cases", [(None, [{}]), ({"B": 7}, [{"B": 7}]), ({"B": (5, 5)}, [{"B": 5}])])
def test_what_leaves_no_choice_is_one_case(dims, cases):
    assert draws.cases_of(dims, seed=0) == cases


@pytest.mark.parametrize("dims", [{"B": (9, 1)}, {"B": "1..9"}, {"B": []}, {"B": -1}, {"B": (1, 2, 3)}])
def test_dims_that_make_no_sense_are_refused(dims):
    with pytest.raises(OptionError, match="dims: B="):
        draws.sizes_of(dims)


def test_values_repeat_with_the_seed_and_change_with_it():
    first, again = (draws.draw({"x": "f32[3,B]", "n": "i32[B]"}, {"B": 5}, 1, 0) for _ in range(2))
    other = draws.draw({"x": "f32[3,B]"}, {"B": 5}, 2, 0)
    assert first["x"].shape == (3, 5) and first["x"].dtype == np.float32
    np.testing.assert_array_equal(first["x"], again["x"])
    assert not (first["x"] == other["x"]).any()


def test_an_added_input_leaves_the_others_alone():
    alone = draws.draw({"x": "f32[8]"}, {}, 0, 0)
    together = draws.draw({"a": "f32[8]", "x": "f32[8]"}, {}, 0, 0)
    np.testing.assert_array_equal(alone["x"], together["x"])
    assert not (together["a"] == together["x"]).any()


@pytest.mark.parametrize("type", ["bool[40]", "i8[40]", "u8[40]", "i64[40]", "u64[40]", "f16[40]", "bf16[40]", "f64[40]", "f32[]"])
def test_every_dtype_can_be_drawn(type):
    parsed = parse_type(type)
    array = draws.draw_array(parsed, np.random.default_rng(0))
    assert array.dtype == parsed.dtype.numpy and array.shape == parsed.shape
    assert array.ndim == 0 or len(set(array.astype(np.float64).tolist())) >= 2


def test_a_range_is_kept_and_its_ends_occur_for_integers():
    array = draws.draw({"i": ("i32[400]", 0, 9)}, {}, 0, 0)["i"]
    assert set(array.tolist()) == set(range(10))
    floats = draws.draw({"x": ("f32[400]", 0.5, 2.0)}, {}, 0, 0)["x"]
    assert floats.min() >= 0.5 and floats.max() <= 2.0


def test_trees_arrays_numbers_and_callables():
    given = np.arange(3.0)
    drawn = draws.draw({"p": {"w": "f32[2,B]", "rest": [given, 2.5, None]}, "f": lambda rng, B: rng.normal(size=B)}, {"B": 4}, 0, 0)
    assert drawn["p"]["w"].shape == (2, 4) and drawn["p"]["rest"][0] is given and drawn["p"]["rest"][1:] == [2.5, None]
    assert drawn["f"].shape == (4,)


@pytest.mark.parametrize("inputs, dims, error, message", [
    ({"x": "f32[B]"}, None, ShapeError, r"input x: dim B has no sizes; add dims=\{'B': \(1, 256\)\}"),
    ({"x": {"w": "f33[4]"}}, None, OptionError, r"input x\['w'\]: unknown dtype 'f33'"),
    ({"x": "f32[4]"}, {"B": (1, 2)}, OptionError, "no input has the dim B"),
    ({"x": lambda rng, T: 0}, {}, ShapeError, "dim T has no sizes"),
])
def test_specs_that_cannot_be_drawn_are_refused(inputs, dims, error, message):
    with pytest.raises(error, match=message):
        draws.validate(inputs, dims)


def test_a_range_past_the_dtype_is_refused():
    with pytest.raises(OptionError, match=r"-1\.\.4 does not fit u8"):
        draws.draw({"x": ("u8[2]", -1, 4)}, {}, 0, 0)


@pytest.mark.parametrize("spec, sizes, says", [
    ("f32[1000000000000]", {}, r"input w\['a'\]: f32\[1000000000000\] takes 4,000,000,000,000 bytes"),
    (("i8[B,4]", 0, 9), {"B": 10**13}, r"input w\['a'\]: i8\[10000000000000,4\] takes 40,000,000,000,000 bytes"),
    ("f64[B,B,B]", {"B": 10**9}, "takes 8,000,000,000,000,000,000,000,000,000 bytes"),
])
def test_an_input_that_memory_cannot_hold_is_named_with_its_shape_and_bytes(spec, sizes, says):
    with pytest.raises(ShapeError, match=says):
        draws.draw({"x": "f32[2]", "w": {"a": spec}}, sizes, 0, 0)
