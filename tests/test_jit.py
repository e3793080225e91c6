"""`mlc.jit` from outside: variants and guards, static arguments, pytrees, ahead-of-time use, threads, results."""

import collections
import dataclasses
import enum
import functools
import os
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

import mlc
from mlc.errors import DtypeError, ShapeError, TraceError, UnsupportedError


@pytest.fixture(autouse=True)
def interpreter():
    with mlc.options(backend=os.environ.get("MLC_BACKEND", "interpreter"), check=1):
        yield


def counted(function, **kwargs):
    """A jitted function that counts how often it is recorded."""
    calls = []

    @functools.wraps(function)
    def traced(*args, **kw):
        calls.append(1)
        return function(*args, **kw)
    return mlc.jit(traced, **kwargs), calls


# --------------------------------------------------------------------------- variants
def test_one_recording_a_shape_dtype_and_weakness():
    f, calls = counted(lambda x: x * 2)
    for x in (np.ones(3, "f4"), np.zeros(3, "f4"), np.ones(4, "f4"), np.ones(3, "f8"), 1.0, 2.0, 1, True, np.float64(1), np.ones((), "f8")):
        f(x)
    assert len(calls) == 7  # f32[3], f32[4], f64[3], float, int, bool, f64[]


def test_scalars_are_traced_not_static():
    f, calls = counted(lambda x, n: x * n)
    assert [f(np.ones(2, "f4"), n).tolist() for n in (2, 3, -1)] == [[2, 2], [3, 3], [-1, -1]]
    assert len(calls) == 1


def test_tree_structure_selects_the_variant():
    f, calls = counted(lambda t: 1)
    for t in ((1, 2), [1, 2], (1, 2, None), {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "c": 2}, {1: 1}, {True: 1}, {1.0: 1}, ((1,), 2)):
        f(t)
    assert len(calls) == 9


def test_options_that_affect_code_select_the_variant():
    f, calls = counted(lambda x: x + 1)
    x = np.ones(2)
    f(x)
    with mlc.options(pass_limit=3):
        f(x)
        f(x)
    with mlc.options(dump="", threads=2):
        f(x)
    assert len(calls) == 2


def test_environment_options_are_seen(monkeypatch):
    f, calls = counted(lambda x: x + 1)
    f(1.0)
    monkeypatch.setenv("MLC_PASS_LIMIT", "5")
    f(1.0)
    f(1.0)
    assert len(calls) == 2


def test_closures_are_read_once_a_variant():
    scale = [2.0]
    f = mlc.jit(lambda x: x * scale[0])
    assert f(np.ones(1)) == 2
    scale[0] = 3.0
    assert f(np.ones(1)) == 2 and f(np.ones(2))[0] == 3


def test_captured_array_is_copied():
    w = np.ones(3)
    f = mlc.jit(lambda x: x + w)
    f(np.zeros(3))
    w[:] = 5
    assert f(np.zeros(3)).tolist() == [1, 1, 1]


def test_failed_recording_leaves_no_variant():
    broken = [True]

    def function(x):
        if broken[0]:
            raise RuntimeError("not yet")
        return x + 1
    f = mlc.jit(function)
    with pytest.raises(RuntimeError, match="not yet"):
        f(1.0)
    broken[0] = False
    assert f(1.0) == 2


# --------------------------------------------------------------------------- static arguments
class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float = 1.0
    name: str = "x"


DISTINCT = [1, True, 1.0, np.float32(1), np.float64(1), np.int64(1), 0.0, -0.0, 0, False, float("nan"), np.float32("nan"), None, "1", b"1",
            (1,), (1.0,), (True,), (-0.0,), (0.0,), frozenset({1}), frozenset({1.0}), Mode.FAST, Mode.SLOW,
            Config(), Config(scale=True), Config(scale=0.0), Config(scale=-0.0),
            slice(0, 1), slice(0, True), range(0), range(1, 1), 1j, complex(1.0, -0.0), np.dtype("f4"), np.float32, "f4", len]


def test_static_arguments_differ_by_type_and_bits():
    seen = []
    f = mlc.jit(lambda x, s: seen.append(s) or x, static_argnums=1)
    for _ in range(2):
        for s in DISTINCT:
            f(1.0, s)
    assert len(seen) == len(DISTINCT)
    assert all(type(a) is type(b) for a, b in zip(seen, DISTINCT))


def test_nan_is_one_static_value():
    f, calls = counted(lambda x, s: x, static_argnums=(1,))
    f(1.0, float("nan"))
    f(1.0, float("nan"))
    assert len(calls) == 1


@pytest.mark.parametrize("value, advice", [([1], "tuple"), ({"a": 1}, "pairs"), ({1}, "frozenset"), (np.ones(2), "ordinary"), ((1, [2]), "tuple"),
                                           (dataclasses.make_dataclass("D", ["a"])(1), "hash")])
def test_mutable_static_argument_is_refused(value, advice):
    f = mlc.jit(lambda x, n: x, static_argnames="n")
    with pytest.raises(TraceError, match=rf"static argument n.* of .*{advice}"):
        f(1.0, value)
    with pytest.raises(TraceError, match=advice):
        f(1.0, n=value)


def test_static_by_name_and_by_position_find_each_other():
    def power(x, n, *, flip=False):
        return (x ** n if n > 1 else x) * (-1 if flip else 1)
    for f in (mlc.jit(power, static_argnums=1, static_argnames="flip"), mlc.jit(power, static_argnames=("n", "flip")),
              mlc.jit(power, static_argnums=(-1,), static_argnames=["flip"])):
        assert f(np.array([3.0]), 2) == 9
        assert f(np.array([3.0]), n=2, flip=True) == -9


def test_static_position_before_traced_ones():
    f = mlc.jit(lambda axis, x, y: x.sum(axis) + y, static_argnums=0)
    assert f(0, np.ones((2, 3)), 1).tolist() == [3, 3, 3]
    assert f(1, np.ones((2, 3)), 1).tolist() == [4, 4]


@pytest.mark.parametrize("kwargs", [{"static_argnums": 3}, {"static_argnums": -4}, {"static_argnames": "z"}, {"donate_argnums": 7},
                                    {"static_argnums": 0, "donate_argnums": 0}])
def test_wrong_argument_numbers_are_refused_when_decorating(kwargs):
    with pytest.raises(ValueError, match=r"mlc\.jit"):
        mlc.jit(lambda x, y: x, **kwargs)


def test_donation_leaves_the_callers_array_alone():
    f = mlc.jit(lambda x: x + 1, donate_argnums=(0,))
    x = np.ones(3)
    f(x)
    assert x.tolist() == [1, 1, 1]


# --------------------------------------------------------------------------- decorators and names
def test_decorator_forms():
    @mlc.jit
    def f(x):
        """Doubles."""
        return x * 2

    @mlc.jit(static_argnums=1)
    def g(x, n):
        return x * n
    assert f(2.0) == 4 and g(2.0, 3) == 6
    assert f.__name__ == "f" and f.__doc__ == "Doubles." and f.__wrapped__(3) == 6
    with pytest.raises(TypeError, match="by name"):
        mlc.jit(3)


def test_methods_partials_lambdas_and_callables():
    class Model:
        def __init__(self):
            self.w = np.array([2.0])

        @functools.partial(mlc.jit, static_argnums=0)
        def forward(self, x):
            return x * self.w

        def __call__(self, x):
            return x - 1
    m = Model()
    assert m.forward(np.array([3.0])) == 6
    assert mlc.jit(m)(3.0) == 2
    assert mlc.jit(m.__call__)(3.0) == 2
    assert mlc.jit(functools.partial(lambda a, b: a - b, b=1.0))(3.0) == 2
    assert mlc.jit(np.exp)(0.0) == 1
    assert mlc.jit(lambda β: β + 1).lower(1).as_text().startswith("graph @lambda(%_: i64[])")


def test_parameters_are_named_after_arguments_and_keys():
    def loss(params, x, *rest, flag, **more):
        return x
    low = mlc.jit(loss).lower({"w1": 1.0, "layer/2": [2.0, (3.0, None)]}, 1.0, 2.0, flag=1.0, z=2.0)
    assert low.graph.param_names() == ["params.layer_2.0", "params.layer_2.1.0", "params.w1", "x", "rest.0", "flag", "z"]


def test_parameter_names_are_unique_and_parse():
    f = mlc.jit(lambda t: t["a b"] + t["a_b"] + t["é"] + t["ü"] + t["a-b"])
    low = f.lower({"a b": 1.0, "a_b": 2.0, "é": 3.0, "ü": 4.0, "a-b": 5.0})
    assert len(set(low.graph.param_names())) == 5
    from mlc.graph import parse_graph
    assert parse_graph(low.as_text()) == low.graph


# --------------------------------------------------------------------------- pytrees
Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Layer:
    w: object
    b: object = None
    act: str = dataclasses.field(default="relu", metadata={"static": True})


def test_every_kind_of_tree_comes_back():
    def function(d, n, layer, empty):
        return {"b": d["a"] + 1, "a": (n.x, [n.y, None]), "n": Point(n.y, n.x), "l": Layer(layer.w * 2, layer.b, layer.act), "e": empty, 3: 1}
    with pytest.raises(TraceError, match="cannot be sorted"):
        mlc.jit(function)({"a": 1}, Point(1, 2), Layer(1.0), ())

    def function(d, n, layer, empty):
        return {"b": d["a"] + 1, "a": (n.x, [n.y, None]), "n": Point(n.y, n.x), "l": Layer(layer.w * 2, layer.b, layer.act), "e": empty}
    y = mlc.jit(function)({"a": np.int8(1)}, Point(1.5, 2.5), Layer(np.ones(2, "f4"), act="gelu"), ({}, []))
    assert list(y) == ["a", "b", "e", "l", "n"]
    assert y["b"] == 2 and y["b"].dtype == np.int8 and isinstance(y["b"], np.ndarray)
    assert y["a"][0] == 1.5 and y["a"][1][1] is None and y["e"] == ({}, [])
    assert isinstance(y["n"], Point) and y["n"] == Point(2.5, 1.5)
    assert isinstance(y["l"], Layer) and y["l"].w.tolist() == [2, 2] and y["l"].b is None and y["l"].act == "gelu"


def test_static_fields_select_the_variant():
    f, calls = counted(lambda layer: layer.w)
    f(Layer(1.0, act="a"))
    f(Layer(2.0, act="b"))
    f(Layer(3.0, act="a"))
    assert len(calls) == 2


def test_dicts_sort_their_keys_and_ordered_ones_keep_them():
    f = mlc.jit(lambda d: d)
    assert list(f({"b": 1, "a": 2})) == ["a", "b"]
    y = f(collections.OrderedDict(b=1, a=2))
    assert isinstance(y, collections.OrderedDict) and list(y) == ["b", "a"]
    z = f(collections.defaultdict(list, {"k": 1}))
    assert isinstance(z, collections.defaultdict) and z.default_factory is list and z["k"] == 1


def test_trees_registered_with_jax():
    import jax

    @jax.tree_util.register_pytree_with_keys_class
    class Pair:
        def __init__(self, a, b, tag):
            self.a, self.b, self.tag = a, b, tag

        def tree_flatten_with_keys(self):
            key = jax.tree_util.GetAttrKey
            return ((key("a"), self.a), (key("b"), self.b)), self.tag

        @classmethod
        def tree_unflatten(cls, tag, children):
            return cls(*children, tag)
    f = mlc.jit(lambda p: Pair(p.b, p.a * 2, p.tag))
    y = f(Pair(1.0, np.ones(2), "t"))
    assert isinstance(y, Pair) and y.tag == "t" and y.a.tolist() == [1, 1] and y.b == 2
    assert f.lower(Pair(1.0, 2.0, "t")).graph.param_names() == ["p.a", "p.b"]


def test_a_tree_that_contains_itself_is_an_error():
    t = []
    t.append(t)
    with pytest.raises(TraceError, match="contains itself"):
        mlc.jit(lambda x: 1)(t)


def test_none_result_and_no_arguments():
    assert mlc.jit(lambda: None)() is None
    assert mlc.jit(lambda: (1, 2.5))() == (1, 2.5)
    assert mlc.jit(lambda *a, **k: (a, k))() == ((), {})


# --------------------------------------------------------------------------- arguments
def test_strides_alignment_and_byte_order():
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    raw = bytearray(4 * 6 * 4 + 1)
    crooked = np.frombuffer(raw, np.float32, 24, 1).reshape(4, 6)
    crooked[:] = base
    f = mlc.jit(lambda x: x * 2 + 1)
    for x in (base[::-1], base[:, ::2], base.T, np.asfortranarray(base), np.broadcast_to(base[0], (3, 6)), crooked, base.astype(">f4"),
              base[::2, ::-3]):
        y = f(x)
        np.testing.assert_array_equal(y, np.asarray(x, np.float32) * 2 + 1)
        assert y.dtype == np.float32 and y.flags.c_contiguous
    read_only = base.copy()
    read_only.flags.writeable = False
    np.testing.assert_array_equal(f(read_only), base * 2 + 1)


class Foreign:
    """Another library's array: all that is known of it is dlpack."""

    def __init__(self, array, broken=False):
        self.array, self.broken = array, broken

    def __dlpack__(self, **kwargs):
        if self.broken:
            raise BufferError("needs a gradient")
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_foreign_arrays():
    f = mlc.jit(lambda x: x + 1)
    assert f(Foreign(np.arange(3, dtype=np.float32))).tolist() == [1, 2, 3]
    assert f(Foreign(np.arange(6).reshape(2, 3).T)).tolist() == [[1, 4], [2, 5], [3, 6]]
    assert mlc.jit(lambda x: x * Foreign(np.ones(2)))(np.ones(2)).tolist() == [1, 1]
    with pytest.raises(TraceError, match=r"argument x of <lambda> is a Foreign that cannot be read through dlpack \(needs a gradient"):
        f(Foreign(np.ones(2), broken=True))
    assert f(mlc.asarray([1.0, 2.0]) * 2).tolist() == [3, 5]


def test_jax_arrays():
    import jax.numpy as jnp
    f = mlc.jit(lambda x: x + 1)
    assert f(jnp.arange(3, dtype=jnp.int32)).tolist() == [1, 2, 3]
    y = f(jnp.ones(2, jnp.bfloat16))
    assert y.dtype == ml_dtypes.bfloat16 and y.tolist() == [2, 2]
    assert mlc.jit(lambda x: (x.astype(jnp.float16), mlc.numpy.zeros(2, jnp.bfloat16)))(1)[1].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("value, error, match", [
    (np.array([1, "a"], object), TraceError, "argument p.a of f is a NumPy object array"),
    (np.array([1j]), DtypeError, "argument p.a of f has the dtype complex128"),
    (np.ones(2, ml_dtypes.int4), DtypeError, "has the dtype int4, which mlc does not have; convert it with .astype first"),
    (1j, DtypeError, "argument p.a of f is complex"),
    (np.array(["a"]), DtypeError, "strings"),
    (np.array(["2020-01-01"], "M8[D]"), DtypeError, "datetime64.*reference date"),
    (np.zeros(2, [("a", "f4")]), DtypeError, "fields"),
    (np.longdouble(1), DtypeError, "float128|longdouble|dtype"),
    ("text", TraceError, "argument p.a of f is a str.*static"),
    (object(), TraceError, "argument p.a of f is a object"),
    (np.ma.masked_array([1.0], [True]), TraceError, "masked"),
    (2 ** 70, DtypeError, "argument p.a of f.*64 bits|argument p.a.*64 bits"),
    (mlc.spec("f32[2]"), TraceError, "argument p.a of f is the spec.*lower"),
])
def test_bad_argument_is_named(value, error, match):
    def f(p):
        return p["a"]
    with pytest.raises(error, match=match):
        mlc.jit(f)({"a": value})


def test_bad_result_is_named():
    with pytest.raises(TraceError, match=r"the result a\.1 of <lambda> is a str"):
        mlc.jit(lambda x: {"a": (x, "s")})(1.0)
    with pytest.raises(TraceError, match=r"the result of <lambda> is a object"):
        mlc.jit(lambda x: object())(1.0)


# --------------------------------------------------------------------------- results
def test_results_are_fresh_arrays():
    f = mlc.jit(lambda x: (x, x, x + 1, x.reshape(-1), x[:]))
    x = np.ones((2, 2))
    ys = f(x)
    for i, y in enumerate(ys):
        assert y is not x and not np.shares_memory(x, y) and y.flags.writeable
        assert not any(np.shares_memory(y, z) for z in ys[i + 1:])
    y = ys[0]
    y[:] = 7
    assert f(x)[0].tolist() == [[1, 1], [1, 1]]


def test_constant_results_are_fresh():
    w = np.arange(3.0)
    f = mlc.jit(lambda x: (w, mlc.numpy.zeros(2), w))
    first = f(1.0)
    first[0][:] = 9
    first[1][:] = 9
    again = f(1.0)
    assert again[0].tolist() == [0, 1, 2] and again[1].tolist() == [0, 0] and again[2].tolist() == [0, 1, 2]


def test_scalar_results_are_rank_0_arrays():
    y = mlc.jit(lambda x: (x.sum(), 3, 2.5, True))(np.ones(3))
    assert [type(v) for v in y] == [np.ndarray] * 4 and [v.dtype for v in y] == [np.float64, np.int64, np.float64, np.bool_]


# --------------------------------------------------------------------------- ahead of time
def test_lower_compile_and_call():
    def mlp(params, x):
        return mlc.numpy.maximum(x @ params["w"] + params["b"], 0)
    params = {"w": mlc.spec("f32[4,3]"), "b": mlc.spec("f32[3]")}
    low = mlc.jit(mlp).lower(params, mlc.spec("f32[2,4]"))
    assert low.as_text().startswith("graph @mlp(%params.b: f32[3], %params.w: f32[4,3], %x: f32[2,4]) -> f32[2,3] {")
    assert "test_jit.py" in low.as_text(locations=True) and "(mlp)" in low.as_text(locations=True)
    exe = low.compile()
    p = {"w": np.ones((4, 3), "f4"), "b": np.zeros(3, "f4")}
    assert exe(p, np.ones((2, 4), "f4")).tolist() == [[4, 4, 4]] * 2
    assert exe.as_text("graph") == low.as_text() and isinstance(exe.pass_log, list)
    with pytest.raises(ShapeError, match=r"argument x of mlp: compiled for f32\[2,4\], got f32\[3,4\]"):
        exe(p, np.ones((3, 4), "f4"))
    with pytest.raises(DtypeError, match=r"argument params.b of mlp: compiled for f32\[3\], got f64\[3\]"):
        exe({**p, "b": np.zeros(3)}, np.ones((2, 4), "f4"))
    with pytest.raises(TraceError, match="was compiled for arguments"):
        exe(p)
    with pytest.raises(mlc.errors.OptionError):
        exe.as_text("nonsense")


def test_lower_with_statics_and_python_scalars():
    exe = mlc.jit(lambda x, n, s: x * s if n else x, static_argnums=1).lower(mlc.spec("f32[2]"), 1, 2.0).compile()
    y = exe(np.ones(2, "f4"), 3.0)
    assert y.tolist() == [3, 3] and y.dtype == np.float32


def test_shape_dtype_structs_are_specs():
    import jax
    low = mlc.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((2, 3), np.int8))
    assert "%x: i8[2,3]" in low.as_text()


def test_text_is_no_spec_by_itself():
    with pytest.raises(TraceError, match=r"argument x of <lambda> is a str; a spec is written mlc.spec"):
        mlc.jit(lambda x: x).lower("f32[2]")


def test_named_dims_are_not_available_yet():
    with pytest.raises(UnsupportedError, match="symbolic dim 'B'"):
        mlc.jit(lambda x: x).lower(mlc.spec("f32[B,4]"))


@pytest.fixture
def native(tmp_path):
    with mlc.options(backend="llvm", cache_dir=str(tmp_path / "cache")):
        yield


def test_saved_executable_loads_with_its_trees(native, tmp_path):
    def model(params, x):
        h = x @ params["w"] + params["b"]
        return {"h": h, "pair": Point(h.sum(), x), "same": x}
    p = {"w": np.arange(6, dtype="f4").reshape(3, 2), "b": np.ones(2, "f4")}
    x = np.arange(12, dtype="f4").reshape(4, 3)
    exe = mlc.jit(model).lower(p, x).compile()
    exe.save(tmp_path / "model.mlc")
    loaded = mlc.load(tmp_path / "model.mlc")
    want, got = exe(p, x), loaded(p, x)
    assert isinstance(got["pair"], Point) and got["same"] is not x and not np.shares_memory(got["same"], got["pair"].y)
    for a, b in ((want["h"], got["h"]), (want["pair"].x, got["pair"].x), (x, got["same"])):
        np.testing.assert_array_equal(a, b)
    assert loaded.as_text("graph") == exe.as_text("graph") and loaded.cost_analysis() == exe.cost_analysis()
    assert loaded.memory_analysis() == exe.memory_analysis()
    with pytest.raises(ShapeError, match=r"argument x of model: compiled for f32\[4,3\]"):
        loaded(p, x[:2])
    with pytest.raises(mlc.errors.ArtifactError):
        (tmp_path / "broken").write_bytes((tmp_path / "model.mlc").read_bytes()[:-7])
        mlc.load(tmp_path / "broken")


def test_native_results_are_fresh_and_strides_do_not_matter(native):
    f = mlc.jit(lambda x: (x, x.reshape(-1), x * 2, x))
    x = np.arange(12, dtype="f4").reshape(3, 4).T[::-1]
    ys = f(x)
    for i, y in enumerate(ys):
        np.testing.assert_array_equal(y, [x, x.reshape(-1), x * 2, x][i])
        assert y.flags.writeable and not np.shares_memory(x, y) and not any(np.shares_memory(y, z) for z in ys[i + 1:])


# --------------------------------------------------------------------------- nesting and threads
def test_jitted_functions_inline_into_each_other():
    inner = mlc.jit(lambda x, n: x * n + 1, static_argnums=1)
    outer, calls = counted(lambda x, s: inner(x, 2) + inner(x * s, 3) + inner(np.ones(2, "f4"), 1))
    y = outer(np.ones(2, "f4"), 2.0)
    assert y.tolist() == [12, 12] and y.dtype == np.float32
    assert not inner._variants and len(calls) == 1


def test_executable_inside_a_recording_is_refused():
    exe = mlc.jit(lambda x: x + 1).lower(1.0).compile()
    with pytest.raises(TraceError, match=r"argument x of <lambda> is traced: an executable"):
        mlc.jit(lambda x: exe(x))(1.0)


def test_inlined_scalars_are_traced():
    inner = mlc.jit(lambda x, n: x if n > 1 else -x)
    with pytest.raises(TraceError, match="bool"):
        mlc.jit(lambda x: inner(x, 2))(1.0)


def test_many_threads_share_one_recording():
    f, calls = counted(lambda x: (x * 2).sum())
    start, wrong = threading.Barrier(8), []

    def work(k):
        start.wait()
        for i in range(50):
            x = np.full(3, k + i, np.float32)
            if f(x) != 6 * (k + i):
                wrong.append((k, i))
    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong and len(calls) == 1


def test_threads_record_different_functions_at_once():
    start, results = threading.Barrier(6), {}

    def work(k):
        def function(x):
            for _ in range(30):
                x = x + k
            return x
        start.wait()
        results[k] = float(mlc.jit(function)(np.float64(0)))
    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert results == {k: 30 * k for k in range(6)}


# --------------------------------------------------------------------------- the package
def test_importing_mlc_is_light():
    code = ("import sys, mlc; heavy = [m for m in ('jax', 'pytest', 'hypothesis', 'llvmlite', 'pytest_mlc', 'torch') if m in sys.modules]; "
            "assert not heavy, heavy; mlc.numpy; mlc.nn; mlc.jit(lambda x: x + 1).lower(1.0); "
            "assert 'jax' not in sys.modules and 'pytest' not in sys.modules; "
            "print(mlc.__version__, callable(mlc.check), callable(mlc.load))")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert out.returncode == 0, out.stderr
    assert out.stdout.split()[1:] == ["True", "True"]


def test_a_call_under_another_check_is_compiled_and_checked_anew(monkeypatch):
    from mlc.compile import compile_graph
    from mlc.core.options import get
    levels = []
    monkeypatch.setattr("mlc.variants.compile_graph", lambda graph: (levels.append(get("check")), compile_graph(graph))[1])
    f, x = mlc.jit(lambda x: x * 2 + 1), np.arange(3.0)
    with mlc.options(backend="llvm"):
        for _ in range(2):
            for level in (0, 1, 2):
                with mlc.options(check=level):
                    np.testing.assert_array_equal([f(x) for _ in range(4)], [x * 2 + 1] * 4)
    assert levels == [0, 1, 2]


def test_deep_chains_record_and_run():
    def chain(x):
        for _ in range(5000):
            x = x + 1
        return x
    with mlc.options(check=0):
        low = mlc.jit(chain).lower(mlc.spec("f32[2]"))
    assert len(low.graph) > 5000


@pytest.mark.parametrize("name", ["t", "c", "out", "a", "k", "x0"])
def test_argument_names_do_not_collide_with_names_inside(native, name):
    table = np.arange(40.0).reshape(4, 10)

    def body(xs):
        y = [x * 2 + table[i] for i, x in enumerate(xs)]
        return [y[0] @ y[1], y[2].sum(), *y, xs[0]]
    namespace = {"body": body}
    exec(f"def f({name}): return body({name})", namespace)
    xs = [np.arange(10.0) + i for i in range(4)]
    found, expected = mlc.jit(namespace["f"])(xs), body(xs)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b)
    with_constant = mlc.jit(lambda t: (1, t[0]))
    assert with_constant((5,)) == (1, 5)
