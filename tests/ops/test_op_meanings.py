"""What ops compute, by their own kernel-side definitions (scalar expression, pieces, generator, fold), and whether their facts hold."""

import math
from fractions import Fraction

import numpy as np
import pytest
from op_samples import ELEMENTWISE_OPS, OPS, UNARY, arguments, infer, named, run_numpy, same_values, samples, ulps, values, wide

from mlc.compile import compile_graph
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core import scalar_eval
from mlc.core.dims import TensorType, parse_type
from mlc.core.dtype import FLOATS, as_dtype
from mlc.core.errors import DtypeError
from mlc.graph import Graph, evaluate
from mlc.ops.base import COMMUTATIVE, DISCONTINUOUS, EVEN, EXACT, IDEMPOTENT, INVOLUTION, MONOTONE, ODD, REDUCTION, REGISTRY, Domain, Range


# --------------------------------------------------------------------------- scalar
@pytest.mark.parametrize("op", ELEMENTWISE_OPS, ids=named)
def test_the_scalar_expression_means_what_numpy_means(op):
    """Exactly where the op rounds at most once; within its own ulp bound of the widened value otherwise."""
    for types, attrs, given in samples(op):
        result = infer(op, types, attrs, given)
        args = arguments(op, types, seed=1)
        extra = {"shape": result.shape, "dtype": result.dtype} if op.typed else {}
        body = op.scalar(*[ex.arg(k, t.dtype) for k, t in enumerate(types)], **attrs, **extra)
        assert body.dtype is result.dtype
        (found,) = scalar_eval.evaluate([body], lambda leaf: args[leaf.attr])  # noqa: B023
        found = np.broadcast_to(found, result.shape)
        with np.errstate(all="ignore"):
            bound = op.ulp_of(result.dtype, attrs)
            if bound <= 0.5 or not result.dtype.is_float:
                assert same_values(found, run_numpy(op, args, attrs, result)), (types, attrs)
            else:
                wider = np.longdouble if result.dtype is dt.f64 else np.float64
                want = op.numpy(*[a.astype(wider) for a in args], **attrs)
                far = ulps(found, want, result.dtype)
                assert far.max() <= bound + 0.01, (types, attrs, far.max(), [a.reshape(-1)[far.argmax()] for a in args])


@pytest.mark.parametrize("op", ELEMENTWISE_OPS, ids=named)
def test_the_bound_in_ulp_is_given_per_dtype(op):
    for types, attrs, given in samples(op):
        bound = op.ulp_of(infer(op, types, attrs, given).dtype, attrs)
        assert 0.5 <= bound <= 12
    if op.has(EXACT):
        assert op.ulp == {}, "an exact op rounds nothing"


# --------------------------------------------------------------------------- pieces, generate, reduce
@pytest.mark.parametrize("op", [o for o in OPS if o.pieces is not None], ids=named)
def test_pieces_say_where_each_element_comes_from(op):
    for types, attrs, given in samples(op):
        result = infer(op, types, attrs, given)
        args = arguments(op, types)
        found = np.zeros(result.shape, result.dtype.numpy)
        written = np.zeros(result.shape, bool)
        for piece in op.pieces(types, attrs, result):
            assert len(piece.source) == types[piece.operand].rank
            for index in np.ndindex(*piece.shape):
                to = tuple(s + i * k for s, i, k in zip(piece.start, index, piece.stride))
                source = tuple(offset + sum(index[axis] * c for axis, c in terms) for offset, terms in piece.source)
                assert all(0 <= i < n for i, n in zip(source, types[piece.operand].shape)), "read in bounds"
                assert all(0 <= i < n for i, n in zip(to, result.shape)), "written in bounds"
                found[to] = args[piece.operand][source]
                written[to] = True
        assert written.all(), "every element is written"
        assert found.tobytes() == np.ascontiguousarray(run_numpy(op, args, attrs, result)).tobytes()


@pytest.mark.parametrize("op", [o for o in OPS if o.generate is not None], ids=named)
def test_generators_give_the_value_at_each_index(op):
    for types, attrs, given in samples(op):
        if "value" in attrs and not attrs["value"].is_scalar:
            continue  # array data is loaded, not generated
        result = infer(op, types, attrs, given)
        body = op.generate([ex.index(f"i{k}") for k in range(result.rank)], attrs, result)
        grid = np.indices(result.shape)
        (found,) = scalar_eval.evaluate([body], lambda leaf: grid[int(leaf.attr[1:])])  # noqa: B023
        assert np.broadcast_to(found, result.shape).tobytes() == run_numpy(op, [], attrs, result).tobytes()


def fold(op, row, dtype, result):
    """A reduction by its own definition, from left to right, element by element."""
    r = op.reduce
    acc = r.accumulator(dtype)
    names = [ex.var(f"a{k}", d) for k, d in enumerate(acc)]
    lifted = r.lift(ex.convert(ex.var("x", dtype), acc[0]), ex.var("p", dt.i64))
    step = r.combine(tuple(names), lifted)
    state = scalar_eval.evaluate(r.identity(dtype), None)
    for position, x in enumerate(row):
        known = {"x": np.array(x), "p": np.array(position, np.int64), **{f"a{k}": s for k, s in enumerate(state)}}
        state = scalar_eval.evaluate(step, lambda leaf: known[leaf.attr])  # noqa: B023
    known = {f"a{k}": s for k, s in enumerate(state)}
    return scalar_eval.evaluate([r.finish(tuple(names), result)], lambda leaf: known[leaf.attr])[0]


@pytest.mark.parametrize("op", [o for o in OPS if o.fusion == REDUCTION], ids=named)
def test_the_fold_means_what_numpy_means(op):
    rng = np.random.default_rng(3)
    for dtype in op.dtypes:
        result = dt.i32 if op.typed else dtype
        for trial in range(4):
            row = values(op.inputs[0], (7,), dtype, rng) if trial else (np.array([1, 3, 3, 2, 3, 1, 0]) % 2 ** 7).astype(dtype.numpy)
            found = fold(op, row, dtype, result)
            with np.errstate(all="ignore"):
                want = run_numpy(op, [row], {"axes": (0,)}, TensorType((), result))
            assert found.dtype == want.dtype
            if op.has(EXACT) or not dtype.is_float:
                assert same_values(found, want), (dtype, row)
            else:
                scale = np.abs(wide(row)[np.isfinite(wide(row))]).sum() if op.name == "reduce_sum" else abs(float(wide(want)))
                close = abs(float(wide(found)) - float(wide(want))) <= 8 * dtype.eps * scale
                assert close or same_values(found, want), (dtype, row, found, want)


@pytest.mark.parametrize("op", [o for o in OPS if o.fusion == REDUCTION and not o.typed], ids=named)
def test_the_identity_is_what_nothing_reduces_to(op):
    for dtype in op.dtypes:
        want = run_numpy(op, [np.zeros((0, 2), dtype.numpy)], {"axes": (0,)}, TensorType((2,), dtype))
        assert (fold(op, [], dtype, dtype) == want).all()


# --------------------------------------------------------------------------- facts
def evaluate_scalar(op, dtype, *args):
    body = op.scalar(*[ex.arg(k, dtype) for k in range(len(args))])
    (found,) = scalar_eval.evaluate([body], lambda leaf: args[leaf.attr])
    return np.broadcast_to(found, args[0].shape)


def bits_agree(a, b):
    """Equal bits, or both NaN."""
    with np.errstate(all="ignore"):
        nan = np.asarray((a != a) & (b != b))
        signs = np.asarray(a == b) & (np.signbit(wide(a)) == np.signbit(wide(b))) if a.dtype.kind not in "biu" else np.asarray(a == b)
        return bool(np.all(nan | signs))


def points(op, dtype, domain=None):
    """Dense and special points of a domain in one dtype."""
    rng = np.random.default_rng(11)
    return values(domain or op.inputs[0], (400,), dtype, rng)


@pytest.mark.parametrize("op", [o for o in OPS if o.has(COMMUTATIVE)], ids=named)
def test_commutative_ops_do_not_care_for_order(op):
    assert op.arity == 2
    for dtype in op.dtypes:
        x, y = points(op, dtype), np.roll(points(op, dtype), 7)
        assert bits_agree(evaluate_scalar(op, dtype, x, y), evaluate_scalar(op, dtype, y, x))
        assert bits_agree(np.asarray(op.numpy(x, y)), np.asarray(op.numpy(y, x)))


def test_ops_that_are_commutative_say_so():
    for op in ELEMENTWISE_OPS:
        if op.arity == 2 and not op.attrs and not op.has(COMMUTATIVE):
            dtype = op.dtypes[-1]
            x, y = points(op, dtype, Domain(1, 9)), np.roll(points(op, dtype, Domain(1, 9)), 7)
            assert not bits_agree(evaluate_scalar(op, dtype, x, y), evaluate_scalar(op, dtype, y, x)), op.name


@pytest.mark.parametrize("op", [o for o in UNARY if o.has(ODD) or o.has(EVEN)], ids=named)
def test_odd_and_even_ops(op):
    for dtype in (d for d in op.dtypes if d.kind in "fi"):
        x = points(op, dtype)
        with np.errstate(all="ignore"):
            plain, mirrored = evaluate_scalar(op, dtype, x), evaluate_scalar(op, dtype, -x)
            assert bits_agree(mirrored, -plain if op.has(ODD) else plain) or dtype.kind == "i"


@pytest.mark.parametrize("op", [o for o in UNARY if o.has(MONOTONE)], ids=named)
def test_monotone_ops_never_fall_by_more_than_their_error(op):
    for dtype in op.dtypes:
        x = points(op, dtype)
        with np.errstate(all="ignore"):
            order = np.argsort(wide(x), kind="stable")
            y = wide(evaluate_scalar(op, dtype, x))[order]
            y = y[~np.isnan(y)]
            slack = 2 * op.ulp_of(dtype, {}) * dtype.eps * np.abs(y[:-1]) if dtype.is_float else 0
            assert np.all((y[1:] >= y[:-1]) | (y[1:] >= y[:-1] - slack) | np.isinf(y[:-1]) & (y[1:] >= y[:-1])), dtype


@pytest.mark.parametrize("op", [o for o in UNARY if o.has(IDEMPOTENT) or o.has(INVOLUTION)], ids=named)
def test_idempotent_and_involutive_ops(op):
    for dtype in op.dtypes:
        x = points(op, dtype)
        once = evaluate_scalar(op, dtype, x)
        twice = evaluate_scalar(op, dtype, once)
        assert bits_agree(twice, once if op.has(IDEMPOTENT) else x)


@pytest.mark.parametrize("op", [o for o in UNARY if any(isinstance(f, Range) for f in o.facts)], ids=named)
def test_results_lie_in_their_range(op):
    bounds = next(f for f in op.facts if isinstance(f, Range))
    for dtype in op.dtypes:
        y = wide(evaluate_scalar(op, dtype, points(op, dtype)))
        if dtype.kind == "i":
            y = y[y != dtype.min]  # |INT_MIN| wraps
        assert np.all(np.isnan(y) | ((y >= bounds.lo) & (y <= bounds.hi)))


@pytest.mark.parametrize("op", ELEMENTWISE_OPS, ids=named)
def test_bools_and_integers_made_of_floats_are_marked_discontinuous(op):
    """The error analysis must know where a small error may flip an outcome."""
    for types, attrs, given in samples(op):
        result = infer(op, types, attrs, given)
        if types[-1].dtype.is_float and not result.dtype.is_float:
            assert op.has(DISCONTINUOUS)


def interpreted_and_compiled(name, attrs, *operands):
    """An op's values by the interpreter of graphs and by machine code."""
    graph = Graph("one")
    parameters = [graph.parameter(f"x{k}", TensorType(x.shape, as_dtype(x.dtype))) for k, x in enumerate(operands)]
    graph.set_outputs([graph.add(name, parameters, attrs)])
    return evaluate(graph, operands)[0], compile_graph(graph).run(operands)[0]


def test_negative_integer_powers_are_the_exact_power_truncated_towards_zero():
    bases, exponents = np.array([0, 1, 2, -1, -1, -2, 3, -128], np.int8), np.array([-1, -1, -1, -1, -2, -1, -3, -128], np.int8)
    for found in interpreted_and_compiled("pow", {}, bases, exponents):
        np.testing.assert_array_equal(found, [0, 1, 0, -1, 1, 0, 0, 0])


@pytest.mark.parametrize("power", [-1, -2, -3, -5, -10, -33, -200])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_negative_integer_powers_hold_their_ulp_up_to_both_ends_of_the_range(dtype, power):
    """Also where the positive power overflows or is subnormal, but its reciprocal is a number."""
    rng, digits, lowest, highest = np.random.default_rng(0), dt.MANTISSA[dtype] - 1, dt.MIN_EXPONENT[dtype], dt.MAX_EXPONENT[dtype]
    exponents = np.concatenate([rng.uniform(lowest - digits, lowest + 3, 150), rng.uniform(highest - 3, highest + 0.9, 150)])
    largest = (2 - dtype.eps) * 2.0 ** highest
    size = np.clip(np.exp2(np.minimum(exponents / power, 1023.9)), 2.0 ** (lowest - digits), largest)
    x = (size * rng.choice([-1, 1], 300)).astype(dtype.numpy)
    bound = REGISTRY["integer_pow"].ulp_of(dtype, {"y": power})
    for found in interpreted_and_compiled("integer_pow", {"y": power}, x):
        for base, value in zip(map(float, x), map(float, found)):
            exact = Fraction(base) ** power
            if math.isinf(value):
                assert abs(exact) > largest
                continue
            exponent = max(math.frexp(exact)[1] - 1, lowest)
            assert abs(Fraction(value) - exact) <= bound * Fraction(2) ** (exponent - digits), (base, value)


def test_integers_refuse_a_static_negative_power():
    assert REGISTRY["integer_pow"].infer([parse_type("f32[3]")], {"y": -2}, None) == parse_type("f32[3]")
    with pytest.raises(DtypeError, match="integer_pow: operand is i32"):
        REGISTRY["integer_pow"].infer([parse_type("i32[3]")], {"y": -2}, None)
