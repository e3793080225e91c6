"""Vector math through the scalar interpreter, against NumPy and the C library in float64, and mpmath."""

import importlib.util
import itertools
import math
import pathlib

import mpmath
import numpy as np
import pytest

import mlc
from mlc.codegen.target import get_target
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.dtype import bf16, f16, f32, f64
from mlc.ops import vecmath, vecmath_tables

CI = pathlib.Path(__file__).resolve().parents[2] / "ci"
inf, nan = math.inf, math.nan


def script(name):
    spec = importlib.util.spec_from_file_location(f"mlc_ci_{name}", CI / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


scan_ulp = script("scan_ulp")
UNARY = [name for name in scan_ulp.FUNCTIONS if name != "pow"]
# The contract of docs/numerics.md for f32; f64 is a few ulp.
BOUND = {f32: dict.fromkeys(scan_ulp.FUNCTIONS, 2.0) | dict.fromkeys(("pow", "tan", "expm1", "log1p", "cbrt", "logistic"), 3.0),
         f64: dict.fromkeys(scan_ulp.FUNCTIONS, 2.0) | dict.fromkeys(("tan", "logistic"), 3.0)}


def compute(name, dtype, *values):
    arrays = [np.atleast_1d(np.asarray(v)).astype(dtype.numpy) for v in values]
    return scan_ulp.interpreter(name, dtype)(*arrays)


def worst(name, dtype, *arrays):
    """(worst ulp, where) against the reference of the scan."""
    errors = scan_ulp.ulp_errors(compute(name, dtype, *arrays), scan_ulp.reference(name, dtype, arrays), dtype)
    top = int(np.argmax(errors))
    return errors[top], [a[top] for a in arrays]


def neighbours(centres, dtype, reach=64):
    """Every float within `reach` of each centre, both signs."""
    integer = dt.sint_of(dtype).numpy
    bits = np.array(centres, dtype.numpy).view(integer)[:, None] + np.arange(-reach, reach + 1, dtype=integer)
    values = np.maximum(bits, 1).ravel().view(dtype.numpy)
    return np.concatenate([values, -values])


SPECIAL = {
    "exp": [(0.0, 1), (-0.0, 1), (inf, inf), (-inf, 0.0), (1e4, inf), (-1e4, 0.0)],
    "exp2": [(0.0, 1), (inf, inf), (-inf, 0.0), (1e4, inf), (-1e4, 0.0), (10, 1024), (-3, 0.125)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (inf, inf), (-inf, -1), (1e4, inf), (-1e4, -1), (1e-40, 1e-40)],
    "log": [(1, 0.0), (0.0, -inf), (-0.0, -inf), (-1, nan), (-1e-7, nan), (inf, inf), (-inf, nan)],
    "log2": [(1, 0.0), (0.0, -inf), (-0.0, -inf), (-1, nan), (inf, inf), (-inf, nan), (8, 3), (0.25, -2)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1, -inf), (-1.5, nan), (inf, inf), (-inf, nan), (1e-40, 1e-40), (-1e-40, -1e-40)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (inf, 1), (-inf, -1), (50, 1), (-50, -1), (1e-40, 1e-40)],
    "logistic": [(0.0, 0.5), (-0.0, 0.5), (inf, 1), (-inf, 0.0), (1e4, 1), (-1e4, 0.0)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (inf, 1), (-inf, -1), (7, 1), (-7, -1)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (inf, nan), (-inf, nan), (1e-40, 1e-40), (-1e-40, -1e-40)],
    "cos": [(0.0, 1), (-0.0, 1), (inf, nan), (-inf, nan), (1e-40, 1)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (inf, nan), (-inf, nan), (1e-40, 1e-40)],
    "cbrt": [(0.0, 0.0), (-0.0, -0.0), (inf, inf), (-inf, -inf), (27, 3), (-8, -2), (1, 1)],
    "rsqrt": [(0.0, inf), (-0.0, -inf), (inf, 0.0), (-1, nan), (-inf, nan), (4, 0.5)],
}


@pytest.mark.parametrize("dtype", dt.FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_special_values(name, dtype):
    with np.errstate(all="ignore"):
        x, want = (np.array(c).astype(dtype.numpy) for c in zip(*SPECIAL[name], (nan, nan), (-nan, nan)))
        got = compute(name, dtype, x).astype(np.float64)
        want = want.astype(np.float64)
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    assert (np.signbit(got) == np.signbit(want))[numbers].all()


def edges(name, dtype):
    """Where ranges end, arguments fold, or results become subnormal."""
    low, high = dt.MIN_EXPONENT[dtype], dt.MAX_EXPONENT[dtype] + 1
    smallest = low - dt.MANTISSA[dtype] + 1
    ln2 = math.log(2)
    tiny = [2.0 ** smallest, 2.0 ** low, 2.0 ** (low + 1), 2.0 ** -dt.MANTISSA[dtype], 2.0 ** -(dt.MANTISSA[dtype] // 2)]
    ends = [k * ln2 for k in (0.5, 1, 1.5, 2, 7, 24.5, high - 1, high, -low, -smallest, -smallest + 1, high / 2)]
    turns = [k * math.pi / 4 for k in (1, 2, 3, 4, 5, 6, 7, 8, 1000, 1001, 1002, 2**20 + 1, 2**20 + 2)]
    powers = [2.0 ** k for k in (-20, -1, 0, 1, 2, 5, 23, 24, 52, 53, 75, 76, 77, 100, high - 1)]
    return [*tiny, *ends, *turns, *powers, math.sqrt(0.5), math.sqrt(2), 1 - math.sqrt(0.5), math.sqrt(2) - 1, 0.625, 1.0, 3.9, 5.9, 9.01,
            19.0, float(-low), float(high), float(-smallest), float(-smallest + 1)]


@pytest.mark.parametrize("dtype", (f32, f64))
@pytest.mark.parametrize("name", UNARY)
def test_error_near_the_edges(name, dtype):
    x = neighbours(edges(name, dtype), dtype, 64 if dtype is f32 else 3)
    error, where = worst(name, dtype, x)
    assert error <= BOUND[dtype][name], where


@pytest.mark.parametrize("name", UNARY)
def test_f32_error_over_all_sizes(name):
    for arrays in scan_ulp.bit_patterns(16411):
        error, where = worst(name, f32, *arrays)
        assert error <= BOUND[f32][name], where


# Functions that have a formula of their own for targets with tables in registers, and how many instructions it has.
WITH_TABLES = {"exp": 13, "tanh": 22, "erf": 24, "log": 19}


@pytest.mark.parametrize("name", WITH_TABLES)
def test_formulas_for_targets_with_tables_keep_the_same_promises(name):
    with vecmath.formulas(scales=True):
        nodes = ex.topological([getattr(vecmath, name)(ex.arg(0, f32))], rare=False)
        assert sum(n.op not in ("const", "arg", "bitcast") for n in nodes) == WITH_TABLES[name]
        assert {"table", *(["scale"] if name == "exp" else [])} <= {n.op for n in nodes}
        for dtype in dt.FLOATS:
            test_special_values(name, dtype)
        test_error_near_the_edges(name, f32)
        test_f32_error_over_all_sizes(name)
    assert "table" not in {n.op for n in ex.topological([getattr(vecmath, name)(ex.arg(0, f32))])}


@pytest.mark.parametrize("target", ("golden-v3", "native"))
@pytest.mark.parametrize("name", WITH_TABLES)
def test_a_folded_function_has_the_bits_of_the_targets_code(name, target):
    values = np.linspace(-100, 88, 1001).astype(np.float32)
    function = mlc.nn.erf if name == "erf" else getattr(mlc.numpy, name)
    with mlc.options(target=target, cache=False):
        folded = mlc.jit(lambda: function(mlc.numpy.asarray(values)))()
        np.testing.assert_array_equal(folded, mlc.jit(function)(values))


@pytest.mark.nightly
@pytest.mark.parametrize("name, scales", [*((name, False) for name in scan_ulp.FUNCTIONS), *((name, True) for name in WITH_TABLES)])
def test_f32_error_over_eight_million_inputs(name, scales):
    with vecmath.formulas(scales):
        _, error, where = scan_ulp.scan(name, f32, scan_ulp.interpreter(name, f32), 499, 0)
    assert error <= BOUND[f32][name], where


DENSE = {"exp": (-745, 709), "exp2": (-1074, 1024), "expm1": (-38, 709), "log": (0.3, 3), "log2": (0.3, 3), "log1p": (-0.6, 0.6), "tanh": (-2, 2),
         "logistic": (-740, 40), "erf": (-6, 6), "sin": (-20, 20), "cos": (-20, 20), "tan": (-20, 20), "cbrt": (-3, 3), "rsqrt": (0, 3)}


@pytest.mark.parametrize("name", UNARY)
def test_f64_error_against_mpmath(name):
    x = np.concatenate([scan_ulp.drawn(f64, 400, 3), np.random.default_rng(4).uniform(*DENSE[name], 400)])
    error, where = worst(name, f64, x)
    assert error <= BOUND[f64][name], where


def test_f64_log1p_where_jax_lost_129_ulp():
    """jax-ml/jax#39707."""
    x = np.linspace(-0.4145, -0.4138, 300)
    assert worst("log1p", f64, x)[0] <= 2


@pytest.mark.parametrize("name", ("sin", "cos", "tan"))
def test_angles_nearest_to_multiples_of_a_quarter_turn(name):
    # The double nearest to one (Muller, "Elementary Functions", sec. 11), its neighbours, and multiples rounded to f64 and f32.
    hard = [6381956970095103.0 * 2.0 ** 797, 5.319372648326541e255, 1e22, 3.0 ** 600, math.pi, math.pi / 2]
    with mpmath.workprec(400):
        multiples = [float(k * mpmath.pi / 2) for k in (3, 355, 10 ** 5, 10 ** 9 + 7, 10 ** 15, 2 ** 60 + 1, 10 ** 40, 10 ** 300)]
    x = np.array(hard + multiples)
    assert worst(name, f64, np.concatenate([x, -x, np.nextafter(x, inf)]))[0] <= BOUND[f64][name]
    single = neighbours([16367173 * 2.0 ** 72, *(m for m in x if m < 3e38)], f32, 2)
    assert worst(name, f32, single)[0] <= BOUND[f32][name]


@pytest.mark.parametrize("dtype", (f16, bf16))
@pytest.mark.parametrize("name", UNARY)
def test_halves_are_within_one_ulp_on_every_input(name, dtype):
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    with np.errstate(all="ignore"):
        want = scan_ulp.FUNCTIONS[name][1](x.astype(np.float64))
        errors = scan_ulp.ulp_errors(compute(name, dtype, x), want, dtype)
    assert errors.max() <= 1, x[np.argmax(errors)]


# --------------------------------------------------------------------------- exactness and structure
@pytest.mark.parametrize("dtype", (f32, f64))
def test_exp2_and_log2_are_exact_on_powers_of_two(dtype):
    low, high = dt.MIN_EXPONENT[dtype] - dt.MANTISSA[dtype] + 1, dt.MAX_EXPONENT[dtype]
    n = np.arange(low, high + 1)
    powers = np.ldexp(1.0, n).astype(dtype.numpy)
    np.testing.assert_array_equal(compute("exp2", dtype, n), powers)
    np.testing.assert_array_equal(compute("log2", dtype, powers), n)


@pytest.mark.parametrize("dtype", (f32, f64))
@pytest.mark.parametrize("name", ("expm1", "tanh", "erf", "sin", "tan", "cbrt", "log1p"))
def test_functions_through_the_origin_keep_subnormals(name, dtype):
    smallest = 2.0 ** (dt.MIN_EXPONENT[dtype] - dt.MANTISSA[dtype] + 1)
    x = np.array([smallest * k for k in (1, 2, 3, 5, 1001, 4097)])
    got = compute(name, dtype, np.concatenate([x, -x]))
    if name in ("erf", "cbrt"):
        assert (got != 0).all()
    else:
        np.testing.assert_array_equal(got, np.concatenate([x, -x]))


@pytest.mark.parametrize("dtype", (f32, f64))
@pytest.mark.parametrize("name", ("tanh", "erf", "sin", "tan", "cbrt"))
def test_odd_and_even_functions_are_so_bit_for_bit(name, dtype):
    x = np.abs(scan_ulp.drawn(dtype, 2000, 6))
    np.testing.assert_array_equal(compute(name, dtype, -x), -compute(name, dtype, x))
    np.testing.assert_array_equal(compute("cos", dtype, -x), compute("cos", dtype, x))


# Instructions that reach the machine (constants, the argument and bitcasts do not), so that speed is not lost unnoticed.
BUDGET = {"exp": 18, "exp2": 21, "expm1": 22, "log": 25, "log2": 31, "log1p": 34, "tanh": 30, "logistic": 22, "erf": 36, "sin": 33, "cos": 31,
          "tan": 36, "cbrt": 33, "rsqrt": 2}


@pytest.mark.parametrize("name", BUDGET)
def test_instructions_stay_few(name):
    nodes = ex.topological([scan_ulp.FUNCTIONS[name][0](ex.arg(0, f32))], rare=False)
    assert sum(n.op not in ("const", "arg", "bitcast") for n in nodes) <= BUDGET[name]


@pytest.mark.parametrize("dtype", dt.FLOATS)
def test_only_instructions_of_the_set_are_used_and_dtypes_stay(dtype):
    known = ex.UNARY | ex.BINARY | ex.LEAVES | {"fma", "select", "mostly", "convert", "bitcast", "scale", "table"}
    for name, (scalar, _, _) in scan_ulp.FUNCTIONS.items():
        root = scalar(*(ex.arg(i, dtype) for i in range(2 if name == "pow" else 1)))
        assert root.dtype is dtype
        assert {n.op for n in ex.topological([root])} <= known


# --------------------------------------------------------------------------- pow
CORNERS = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, inf, -inf, nan, 2.5, -2.5, 1e30, -1e30, 16777216.0, 16777217.0, 8388607.0, 0.33]


@pytest.mark.parametrize("dtype", dt.FLOATS)
def test_pow_corners_are_those_of_c99(dtype):
    with np.errstate(all="ignore"):
        x, y = (np.array(c).astype(dtype.numpy) for c in zip(*itertools.product(CORNERS, repeat=2)))
        got, a, b = (v.astype(np.float64) for v in (compute("pow", dtype, x, y), x, y))
        want = np.power(a, b).astype(dtype.numpy).astype(np.float64)  # the C library's pow
    special = ~np.isfinite(want) | (want == 0) | (np.abs(want) == 1)
    np.testing.assert_array_equal(got[special], want[special])
    numbers = ~np.isnan(want)
    assert (np.signbit(got) == np.signbit(want))[numbers].all()
    np.testing.assert_allclose(got, want, rtol=2 * dtype.eps)


def test_pow_of_a_negative_base():
    got = compute("pow", f32, [-2.0, -2.0, -8.0, -0.0, -0.0, -1.0, -1.0], [3.0, 4.0, 1 / 3, -1.0, -2.0, inf, 2.0 ** 24 + 2])
    np.testing.assert_array_equal(got, np.float32([-8, 16, nan, -inf, inf, 1, 1]))


@pytest.mark.parametrize("dtype,points", ((f32, 60000), (f64, 1500)))
def test_pow_error_down_to_subnormal_results(dtype, points):
    error, where = worst("pow", dtype, *scan_ulp.pairs(dtype, points, 7))
    assert error <= BOUND[dtype]["pow"], where


@pytest.mark.parametrize("dtype", (f32, f64))
def test_pow_error_where_the_base_is_near_one(dtype):
    rng = np.random.default_rng(8)
    x = (1 + rng.uniform(-1, 1, 600) * 2.0 ** -rng.integers(2, dt.MANTISSA[dtype] - 1, 600)).astype(dtype.numpy)
    x = x[x != 1]
    y = (rng.uniform(dt.MIN_EXPONENT[dtype], dt.MAX_EXPONENT[dtype], x.size) / np.log2(x.astype(np.float64))).astype(dtype.numpy)
    error, where = worst("pow", dtype, x, y)
    assert error <= BOUND[dtype]["pow"], where


# --------------------------------------------------------------------------- machine code, tables, the scan's own ruler
@pytest.mark.parametrize("dtype", dt.FLOATS)
def test_machine_code_has_the_interpreters_bits(dtype):
    from mlc.ops.base import REGISTRY
    with np.errstate(all="ignore"):
        x = neighbours(edges("", f32), f32, 2).astype(dtype.numpy) if dtype is not f64 else neighbours(edges("", f64), f64, 3)
        x = np.concatenate([x, scan_ulp.drawn(dtype, 2000, 9), np.array([nan, inf, -inf, 0.0, -0.0]).astype(dtype.numpy)])
        for name in (n for n in scan_ulp.FUNCTIONS if n in REGISTRY):
            arrays = (x, x[::-1].copy()) if name == "pow" else (x,)
            got = np.asarray(scan_ulp.machine_code(name, dtype)(*arrays)).astype(np.float64)
            with vecmath.formulas(get_target("native").avx512):
                want = compute(name, dtype, *arrays).astype(np.float64)
            np.testing.assert_array_equal(got, want, err_msg=name)


def test_fitting_again_gives_the_tables():
    fitted = script("fit_vecmath")
    for name in ("EXP_SMALL", "TANH", "SIN"):
        namespace = {"f32": f32, "f64": f64}
        exec(fitted.table(name), namespace)
        assert namespace[name] == getattr(vecmath_tables, name)


def test_fitting_segments_again_gives_their_rows():
    namespace = {}
    exec(script("fit_vecmath").segments("ERF_SEGMENTS"), namespace)
    assert namespace["ERF_SEGMENTS"] == vecmath_tables.ERF_SEGMENTS


@pytest.mark.parametrize("name,limit", (("tanh", 16.0), ("erf", 4.0)))
def test_odd_functions_by_segments_hold_at_every_seam(name, limit):
    seams = np.float32([2.0 ** k * (1 + q / 4) for k in range(-8, 5) for q in range(4)])
    x = neighbours(seams[seams <= 2 * limit], f32, 3)
    x = np.concatenate([x, -x])
    with vecmath.formulas(scales=True):
        error, where = worst(name, f32, x)
        assert error <= 1.0, where
        assert np.abs(compute(name, f32, x)).max() == 1


@pytest.mark.nightly
def test_fitting_everything_again_gives_the_file():
    assert script("fit_vecmath").source() == (CI.parent / "mlc" / "ops" / "vecmath_tables.py").read_text()


def test_ulp_errors_measure_what_they_say():
    one, top = np.float32(1), np.finfo(np.float32).max
    up = np.nextafter(one, np.float32(2))
    cases = [(up, 1.0, 1.0), (np.nextafter(one, np.float32(0)), 1.0, 0.5), (one, 1.0, 0.0), (np.float32(nan), 1.0, inf), (one, nan, inf),
             (np.float32(nan), nan, 0.0), (np.float32(inf), 1e39, 0.0), (top, 1e39, None), (np.float32(-0.0), 0.0, inf),
             (np.float32(1e-45), 2.8e-45, 1.0), (np.float32(inf), float(top), 1.0), (-one, 1.0, 2.0 ** 24)]
    for got, want, expected in cases:
        error = scan_ulp.ulp_errors(np.array([got]), np.array([want]), f32)[0]
        assert error > 1e6 if expected is None else error == pytest.approx(expected, rel=1e-2), (got, want)


def test_scan_prints_one_row_a_function(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["scan_ulp.py", "exp", "pow", "--stride", "1000003"])
    assert scan_ulp.main() == 0
    rows = capsys.readouterr().out.splitlines()
    assert [r.split()[0] for r in rows] == ["function", "exp", "pow"]
    assert all(0 < float(r.split()[3]) <= 3 for r in rows[1:])
