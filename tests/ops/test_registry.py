"""One test per field of an op's definition, over all ops: a literal that lacks one, or whose fields disagree, fails here."""

import inspect
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core import scalar_eval
from mlc.core.dims import TensorType
from mlc.core.dtype import as_dtype
from mlc.core.errors import MlcError
from mlc.core.literal import Literal
from mlc.graph import Graph, parse_graph, print_graph, verify
from mlc.ops import base
from mlc.ops.base import (
    COMMUTATIVE,
    CONTRACTION,
    DISCONTINUOUS,
    ELEMENTWISE,
    EVEN,
    EXACT,
    FRESH,
    IDEMPOTENT,
    INJECTIVE,
    INPLACE,
    INVOLUTION,
    LEAF,
    MONOTONE,
    ODD,
    OPAQUE,
    REDUCTION,
    REGISTRY,
    VIEW,
    Domain,
    OpDef,
    Range,
)

OPS = list(REGISTRY.values())
COMPUTING = [op for op in OPS if op.numpy is not None]  # all but parameter, call, tuple_get
ELEMENTWISE_OPS = [op for op in OPS if op.fusion == ELEMENTWISE]
UNARY = [op for op in ELEMENTWISE_OPS if op.arity == 1 and not op.typed and not op.attrs]


def named(op):
    return op.name


# --------------------------------------------------------------------------- samples: operand shapes and attributes of the ops that need them
# name -> list of (operand shapes, attributes, result shape or None, result dtype or None for the operands' own)
SAMPLES = {
    "broadcast_in_dim": [([(3, 1)], {"dims": (1, 2)}, (2, 3, 4), None), ([()], {"dims": ()}, (2, 3), None)],
    "reshape": [([(4, 6)], {}, (3, 8), None), ([(2, 0)], {}, (0, 5), None)],
    "transpose": [([(2, 3, 4)], {"perm": (2, 0, 1)}, None, None), ([()], {"perm": ()}, None, None)],
    "slice": [([(7, 5)], {"start": (1, 0), "limit": (7, 4), "strides": (3, 2)}, None, None),
              ([(3,)], {"start": (2,), "limit": (2,), "strides": (1,)}, None, None)],
    "rev": [([(3, 4)], {"axes": (1,)}, None, None), ([(2, 3, 2)], {"axes": (0, 1, 2)}, None, None)],
    "concatenate": [([(2, 3), (2, 1), (2, 4)], {"axis": 1}, None, None), ([(2,), (0,)], {"axis": 0}, None, None)],
    "pad": [([(3, 4), ()], {"pads": ((1, 2, 0), (-1, 3, 2))}, None, None), ([(5,), ()], {"pads": ((-2, -1, 0),)}, None, None),
            ([(4,), ()], {"pads": ((-3, 1, 1),)}, None, None), ([(0, 2), ()], {"pads": ((1, 1, 3), (0, 0, 0))}, None, None),
            ([(), ()], {"pads": ()}, None, None)],
    "iota": [([], {"axis": 1}, (3, 5), None), ([], {"axis": 0}, (300,), None)],
    "constant": [([], {"value": "splat"}, (2, 3), None), ([], {"value": "data"}, (2, 3), None)],
    "dot_general": [([(4, 5), (5, 3)], {"contract": ((1,), (0,)), "batch": ((), ())}, (4, 3), None),
                    ([(2, 4, 5), (3, 2, 5)], {"contract": ((2,), (2,)), "batch": ((0,), (1,))}, (2, 4, 3), None),
                    ([(3, 4, 5), (5, 3)], {"contract": ((2, 0), (0, 1)), "batch": ((), ())}, (4,), None),
                    ([(4, 0), (0, 3)], {"contract": ((1,), (0,)), "batch": ((), ())}, (4, 3), None),
                    ([(4,), (3,)], {"contract": ((), ()), "batch": ((), ())}, (4, 3), None)],
    "integer_pow": [([(64,)], {"y": y}, None, None) for y in (3, 0, 1, 2, 7, -1, -2)],
    **{op.name: [([(3, 4, 5)], {"axes": axes}, tuple(n for i, n in enumerate((3, 4, 5)) if i not in axes), dt.i32 if op.typed else None)
                 for axes in ((1,), (0, 2), (0, 1, 2), *(() if op.typed else ((),)))] for op in OPS if op.fusion == REDUCTION},
}


def samples(op):
    """(operand types, attributes, result type given to a typed op) for every sample and every dtype the op takes."""
    if op.name == "convert_element_type":
        yield from (([TensorType((64,), a)], {}, TensorType((64,), b)) for a, b in itertools.product(dt.ALL, dt.ALL))
        return
    default = [([(64,)] * (op.arity or 1), {}, None, None)]
    for shapes, attrs, result, wanted in SAMPLES.get(op.name, default if op.fusion == ELEMENTWISE else []):
        for dtype in op.dtypes:
            if op.name == "integer_pow" and attrs["y"] < 0 and not dtype.is_float:
                continue  # jax refuses it, and so do the frontends
            types = [TensorType(s, dtype) for s in shapes]
            if op.name == "select":
                types[0] = types[0].with_dtype(dt.bool_)
            filled = dict(attrs)
            if op.name == "constant":
                data = values(Domain(), (2, 3), dtype, np.random.default_rng(5))
                filled["value"] = Literal(data if attrs["value"] == "data" else data[0, 0])
            yield types, filled, TensorType(result, wanted or dtype) if op.typed else None


def values(domain, shape, dtype, rng):
    """Random values of a domain, its edges first; subnormals are left out (JAX flushes them)."""
    size = math.prod(shape)
    if dtype is dt.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_int:
        drawn = rng.integers(max(math.ceil(domain.lo), dtype.min), min(math.floor(domain.hi), dtype.max), size, endpoint=True, dtype=np.int64)
        found = drawn.astype(dtype.numpy)
        ends = np.array([dtype.min, dtype.max, 0, 1], dtype.numpy)
    else:
        with np.errstate(all="ignore"):
            found = rng.uniform(domain.lo, domain.hi, size).astype(dtype.numpy)
            ends = np.array(domain.edges, np.float64).astype(dtype.numpy)
            smallest = 2.0 ** dt.MIN_EXPONENT[dtype]
            ends = ends[~((np.abs(ends.astype(np.float64)) < smallest) & (ends != 0))]
    rng.shuffle(ends)
    found[:len(ends)] = ends[:size]
    rng.shuffle(found)
    return found.reshape(shape)


def arguments(op, types, seed=0):
    rng = np.random.default_rng([seed, sum(map(ord, op.name))])
    domains = op.inputs if len(op.inputs) == len(types) else op.inputs * len(types)
    return [values(d, t.shape, t.dtype, rng) for d, t in zip(domains, types)]


def infer(op, types, attrs, given):
    return op.infer(types, attrs, given if op.typed else None)


def run_numpy(op, args, attrs, result):
    extra = {"shape": result.shape, "dtype": result.dtype.numpy} if op.typed else {}
    return np.asarray(op.numpy(*args, **attrs, **extra))


def wide(x):
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(np.float64)


def ulps(found, want, dtype):
    """Distance in units of the last place of `want` (which may be wider); 0 where both are NaN or equal."""
    with np.errstate(all="ignore"):
        found, exact = wide(found), wide(want)
        overflow = 2.0 ** dt.MAX_EXPONENT[dtype] * (2 - 2.0 ** -dt.MANTISSA[dtype])
        exact = np.where(np.abs(exact) >= overflow, np.copysign(np.inf, exact), exact)
        exponent = np.maximum(np.frexp(exact)[1] - 1, dt.MIN_EXPONENT[dtype])
        distance = np.abs(found - exact) / np.ldexp(1.0, exponent - dt.MANTISSA[dtype] + 1)
        return np.where((found == exact) | (np.isnan(found) & np.isnan(exact)), 0.0, np.where(np.isnan(distance), np.inf, distance))


def same_values(found, want):
    """Equal values (zeros of either sign, any NaN), equal dtype and shape."""
    found, want = np.asarray(found), np.asarray(want)
    return found.dtype == want.dtype and found.shape == want.shape and bool(np.all((found == want) | ((found != found) & (want != want))))


# --------------------------------------------------------------------------- completeness
@pytest.mark.parametrize("field", [
    "name", "version", "arity", "attrs", "dtypes", "infer", "numpy", "jax", "fusion", "alias", "facts", "ulp", "inputs"])
def test_a_literal_without_a_field_is_refused(field):
    """No field that matters has a default: aliasing, above all."""
    add = REGISTRY["add"]
    given = {f: getattr(add, f) for f in OpDef.__dataclass_fields__}
    assert OpDef(**given).name == "add"
    del given[field]
    with pytest.raises(TypeError, match=field):
        OpDef(**given)


def test_a_second_op_of_a_name_is_refused():
    with pytest.raises(ValueError, match="'add' is defined twice"):
        base.register(REGISTRY["add"])


@pytest.mark.parametrize("op", OPS, ids=named)
def test_names_and_versions(op):
    assert REGISTRY[op.name] is op and base.op(op.name) is op
    assert op.name.isidentifier() and op.name == op.name.lower() and type(op.version) is int and op.version >= 1
    assert op.cost > 0


def test_unknown_names_raise_key_error():
    with pytest.raises(KeyError):
        base.op("frobnicate")


@pytest.mark.parametrize("op", OPS, ids=named)
def test_classes_are_known(op):
    assert op.fusion in (ELEMENTWISE, INJECTIVE, REDUCTION, CONTRACTION, OPAQUE, LEAF)
    assert op.alias in (FRESH, INPLACE, VIEW)
    assert all(f in (COMMUTATIVE, ODD, EVEN, MONOTONE, IDEMPOTENT, INVOLUTION, EXACT, DISCONTINUOUS) or isinstance(f, Range) for f in op.facts)
    assert op.dtypes and set(op.dtypes) <= set(dt.ALL)
    assert all(isinstance(name, str) and kind in ("axes", "ints", "int", "pairs", "dtype", "literal", "str") for name, kind in op.attrs.items())


@pytest.mark.parametrize("op", OPS, ids=named)
def test_the_meaning_fits_the_class(op):
    """Elementwise ops have a scalar expression, reductions a fold, injective ops an index map or a generator."""
    assert (op.scalar is not None) == (op.fusion == ELEMENTWISE)
    assert (op.reduce is not None) == (op.fusion == REDUCTION)
    if op.fusion == INJECTIVE:
        assert op.pieces is not None or op.generate is not None or op.alias == VIEW
    if op.generate is not None:
        assert op.arity == 0
    assert (op.numpy is None) == (op.jax is None) == (op.name in ("parameter", "call", "tuple_get"))


@pytest.mark.parametrize("op", OPS, ids=named)
def test_inputs_tell_how_to_generate_each_operand(op):
    if op.numpy is not None:
        assert len(op.inputs) == (op.arity if op.arity is not None else 1)
    for domain in op.inputs:
        assert isinstance(domain, Domain) and domain.lo < domain.hi and all(type(e) is float for e in domain.edges)


@pytest.mark.parametrize("op", COMPUTING, ids=named)
def test_there_are_samples(op):
    assert list(samples(op))


# --------------------------------------------------------------------------- infer, numpy
@pytest.mark.parametrize("op", COMPUTING, ids=named)
def test_numpy_gives_the_inferred_type(op):
    for types, attrs, given in samples(op):
        result = infer(op, types, attrs, given)
        with np.errstate(all="ignore"):
            found = run_numpy(op, arguments(op, types), attrs, result)
        assert found.dtype == result.dtype.numpy and found.shape == result.shape, (types, attrs)


@pytest.mark.parametrize("op", COMPUTING, ids=named)
def test_numpy_leaves_its_operands_alone(op):
    types, attrs, given = next(iter(samples(op)))
    args = arguments(op, types)
    copies = [a.copy() for a in args]
    for a in args:
        a.flags.writeable = False
    with np.errstate(all="ignore"):
        run_numpy(op, args, attrs, infer(op, types, attrs, given))
    assert all(a.tobytes() == c.tobytes() for a, c in zip(args, copies))


@pytest.mark.parametrize("op", [o for o in COMPUTING if o.arity != 0], ids=named)
def test_infer_refuses_foreign_dtypes_and_unlike_operands(op):
    types, attrs, given = next(iter(samples(op)))
    for foreign in set(dt.ALL) - set(op.dtypes):
        with pytest.raises(MlcError):
            infer(op, [t.with_dtype(foreign) for t in types], attrs, given.with_dtype(foreign) if given is not None else None)
    if op.fusion == ELEMENTWISE and op.arity > 1:
        with pytest.raises(MlcError, match=f"{op.name}: .*shapes must be equal"):
            infer(op, [*types[:-1], TensorType((63,), types[-1].dtype)], attrs, given)
        other = next(d for d in (dt.f32, dt.i32) if d is not types[-1].dtype)
        with pytest.raises(MlcError, match=f"{op.name}: "):
            infer(op, [*types[:-1], types[-1].with_dtype(other)], attrs, given)


@pytest.mark.parametrize("op", COMPUTING, ids=named)
def test_widened_operands_give_widened_results(op):
    """The referee runs the same functions on float64 and longdouble."""
    for types, attrs, given in samples(op):
        result = infer(op, types, attrs, given)
        dtype = types[0].dtype if types else result.dtype
        if not dtype.is_float or op.name == "constant":
            continue
        wider = np.longdouble if dtype is dt.f64 else np.float64
        args = [a.astype(wider) if t.dtype.is_float else a for a, t in zip(arguments(op, types), types)]
        extra = {"shape": result.shape, "dtype": np.dtype(wider) if result.dtype.is_float else result.dtype.numpy} if op.typed else {}
        with np.errstate(all="ignore"):
            found = np.asarray(op.numpy(*args, **attrs, **extra))
        assert found.shape == result.shape and (found.dtype == wider or not result.dtype.is_float), (types, found.dtype)


# --------------------------------------------------------------------------- jax
# Where JAX itself is far off: exp2 near overflow, log1p in f64, integer powers of which it takes six bits (jax-ml/jax#5987).
JAX_INPUTS = {
    "exp2": lambda args: [a % a.dtype.type(16) if a.dtype.itemsize > 1 else a for a in args],
    "pow": lambda args: args if args[1].dtype.kind not in "iu" else [args[0], args[1] & args[1].dtype.type(63)],
}
JAX_ULPS = {"log1p": 256}


def jax_ulps(op, attrs, dtype):
    """What is allowed between NumPy's value and JAX's: each may be off, JAX by 12 ulp in the tails of its approximations."""
    if op.name in JAX_ULPS:
        return JAX_ULPS[op.name]
    if op.fusion in (REDUCTION, CONTRACTION):
        return 0 if op.has(EXACT) or not dtype.is_float else 16
    return 0 if op.ulp_of(dtype, attrs) <= 0.5 else max(16, 4 * op.ulp_of(dtype, attrs))


@pytest.mark.parametrize("op", COMPUTING, ids=named)
def test_jax_means_the_same(op):
    parameters = list(inspect.signature(op.jax).parameters)
    assert parameters[:2] == ["jnp", "lax"], "jax is handed in, never imported"
    cases = []
    for types, attrs, given in samples(op):
        result = infer(op, types, attrs, given)
        with np.errstate(all="ignore"):
            cases.append((JAX_INPUTS.get(op.name, lambda args: args)(arguments(op, types)), attrs, result))

    def all_of_them(operands):
        """One program for all samples: compiling them one by one takes a minute over all ops."""
        typed = [{"shape": result.shape, "dtype": result.dtype.numpy} if op.typed else {} for _, _, result in cases]
        return [op.jax(jnp, jax.lax, *args, **attrs, **extra) for args, (_, attrs, _), extra in zip(operands, cases, typed)]

    with jax.enable_x64(True):
        wanted = [np.asarray(w) for w in jax.jit(all_of_them)([args for args, _, _ in cases])]
    for (args, attrs, result), want in zip(cases, wanted):
        with np.errstate(all="ignore"):
            found = run_numpy(op, args, attrs, result)
        case = ([a.dtype.name for a in args], attrs, result)
        assert want.dtype == found.dtype and want.shape == found.shape, (case, want.dtype, want.shape)
        allowed = jax_ulps(op, attrs, result.dtype)
        if allowed == 0:
            assert same_values(found, want), (case, args, found, want)
        else:
            far = ulps(found, want, result.dtype)
            assert far.max(initial=0) <= allowed, (case, far.max(), [a.reshape(-1)[far.argmax() % a.size] for a in args])


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


def test_points(op, dtype, domain=None):
    """Dense and special points of a domain in one dtype."""
    rng = np.random.default_rng(11)
    return values(domain or op.inputs[0], (400,), dtype, rng)


test_points.__test__ = False


@pytest.mark.parametrize("op", [o for o in OPS if o.has(COMMUTATIVE)], ids=named)
def test_commutative_ops_do_not_care_for_order(op):
    assert op.arity == 2
    for dtype in op.dtypes:
        x, y = test_points(op, dtype), np.roll(test_points(op, dtype), 7)
        assert bits_agree(evaluate_scalar(op, dtype, x, y), evaluate_scalar(op, dtype, y, x))
        assert bits_agree(np.asarray(op.numpy(x, y)), np.asarray(op.numpy(y, x)))


def test_ops_that_are_commutative_say_so():
    for op in ELEMENTWISE_OPS:
        if op.arity == 2 and not op.attrs and not op.has(COMMUTATIVE):
            dtype = op.dtypes[-1]
            x, y = test_points(op, dtype, Domain(1, 9)), np.roll(test_points(op, dtype, Domain(1, 9)), 7)
            assert not bits_agree(evaluate_scalar(op, dtype, x, y), evaluate_scalar(op, dtype, y, x)), op.name


@pytest.mark.parametrize("op", [o for o in UNARY if o.has(ODD) or o.has(EVEN)], ids=named)
def test_odd_and_even_ops(op):
    for dtype in (d for d in op.dtypes if d.kind in "fi"):
        x = test_points(op, dtype)
        with np.errstate(all="ignore"):
            plain, mirrored = evaluate_scalar(op, dtype, x), evaluate_scalar(op, dtype, -x)
            assert bits_agree(mirrored, -plain if op.has(ODD) else plain) or dtype.kind == "i"


@pytest.mark.parametrize("op", [o for o in UNARY if o.has(MONOTONE)], ids=named)
def test_monotone_ops_never_fall_by_more_than_their_error(op):
    for dtype in op.dtypes:
        x = test_points(op, dtype)
        with np.errstate(all="ignore"):
            order = np.argsort(wide(x), kind="stable")
            y = wide(evaluate_scalar(op, dtype, x))[order]
            y = y[~np.isnan(y)]
            slack = 2 * op.ulp_of(dtype, {}) * dtype.eps * np.abs(y[:-1]) if dtype.is_float else 0
            assert np.all((y[1:] >= y[:-1]) | (y[1:] >= y[:-1] - slack) | np.isinf(y[:-1]) & (y[1:] >= y[:-1])), dtype


@pytest.mark.parametrize("op", [o for o in UNARY if o.has(IDEMPOTENT) or o.has(INVOLUTION)], ids=named)
def test_idempotent_and_involutive_ops(op):
    for dtype in op.dtypes:
        x = test_points(op, dtype)
        once = evaluate_scalar(op, dtype, x)
        twice = evaluate_scalar(op, dtype, once)
        assert bits_agree(twice, once if op.has(IDEMPOTENT) else x)


@pytest.mark.parametrize("op", [o for o in UNARY if any(isinstance(f, Range) for f in o.facts)], ids=named)
def test_results_lie_in_their_range(op):
    bounds = next(f for f in op.facts if isinstance(f, Range))
    for dtype in op.dtypes:
        y = wide(evaluate_scalar(op, dtype, test_points(op, dtype)))
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


# --------------------------------------------------------------------------- alias, text
@pytest.mark.parametrize("op", COMPUTING, ids=named)
def test_aliasing_is_possible_as_declared(op):
    """In place: the result fits into an operand, and index i needs only index i. A view: the same elements in the same order."""
    for types, attrs, given in samples(op):
        result = infer(op, types, attrs, given)
        if op.alias == INPLACE:
            assert op.fusion == ELEMENTWISE and any(t.shape == result.shape and t.dtype is result.dtype for t in types)
        if op.alias == VIEW:
            args = arguments(op, types)
            assert run_numpy(op, args, attrs, result).tobytes() == args[0].tobytes() and types[0].dtype is result.dtype


@pytest.mark.parametrize("op", COMPUTING, ids=named)
def test_a_node_of_every_sample_reads_back_from_text(op):
    for types, attrs, given in samples(op):
        graph = Graph("g")
        inputs = [graph.parameter(f"x{k}", t) for k, t in enumerate(types)]
        graph.set_outputs([graph.constant(attrs["value"], given) if op.name == "constant" else graph.add(op, inputs, attrs, given)])
        text = print_graph(verify(graph))
        again = parse_graph(text, graph.constants())
        assert print_graph(again) == text and again.nodes[again.outputs[0]].attrs == graph.nodes[graph.outputs[0]].attrs


def test_ops_pickle_to_themselves():
    import pickle
    assert all(pickle.loads(pickle.dumps(op)) is op for op in OPS)


def test_the_registry_imports_no_jax():
    import subprocess
    import sys
    code = "import sys, mlc.ops; sys.exit(any(m.split('.')[0] in ('jax', 'pytest', 'hypothesis') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_every_dtype_of_numpy_arguments_is_known():
    assert all(as_dtype(d.numpy) is d for d in dt.ALL)
