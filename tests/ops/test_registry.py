"""One test per field of an op's definition, over all ops: a literal that lacks one, or whose fields disagree, fails here.

What an op computes element by element, and its facts, are in test_op_meanings.py.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_samples import COMPUTING, OPS, arguments, infer, named, run_numpy, same_values, samples, ulps

from mlc.core import dtype as dt
from mlc.core.dims import TensorType
from mlc.core.dtype import as_dtype
from mlc.core.errors import MlcError
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
