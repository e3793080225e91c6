"""The compiler's own `dataclass` against the standard library's: the same classes, decorated by both."""

import copy
import dataclasses
import pickle
import subprocess
import sys

import pytest

from mlc.core import dataclass as own


@own.dataclass(frozen=True)
class Point:
    x: int
    y: float = 2.5


@own.dataclass(frozen=True)
class Named(Point):
    name: str = "p"


def make(decorate, **options):
    @decorate(**options)
    class Thing:
        a: int
        b: tuple = (1, 2)
        c: list = dataclasses.field(default_factory=list)
    return Thing


@pytest.fixture(autouse=True, params=[0, own.FEW], ids=["written", "not yet written"])
def few(request, monkeypatch):
    """Methods that are written at once, and those that are not."""
    monkeypatch.setattr(own, "FEW", request.param)
    return request.param


@pytest.fixture(params=[{}, {"frozen": True}, {"eq": False}, {"frozen": True, "eq": False}, {"kw_only": True}], ids=str)
def pair(request):
    return make(own.dataclass, **request.param), make(dataclasses.dataclass, **request.param)


def test_values_repr_and_equality_are_the_standard_ones(pair):
    mine, theirs = ([cls(a=1), cls(a=1), cls(a=2), cls(a=1, b=(3,)), cls(a=1, c=[4])] for cls in pair)
    assert [repr(v) for v in mine] == [repr(v) for v in theirs]
    assert [vars(v) for v in mine] == [vars(v) for v in theirs]
    assert [[v == w for w in mine] for v in mine] == [[v == w for w in theirs] for v in theirs]
    assert mine[0] != theirs[0]


@pytest.mark.parametrize("args, kwargs", [((), {}), ((1, 2, 3, 4), {}), ((1,), {"d": 2}), ((1,), {"a": 2})])
def test_wrong_arguments_are_refused(pair, args, kwargs):
    for cls in pair:
        with pytest.raises(TypeError):
            cls(*args, **kwargs)


def test_parameters_are_in_the_standard_order(pair):
    mine, theirs = pair
    for _ in range(own.FEW + 1):
        mine(a=1)
    assert mine.__match_args__ == theirs.__match_args__
    assert mine.__init__.__code__.co_varnames[:4] == ("self", "a", "b", "c")
    assert mine.__init__.__code__.co_kwonlyargcount == theirs.__init__.__code__.co_kwonlyargcount


def test_a_default_is_made_for_each_instance():
    cls = make(own.dataclass)
    one, other = cls(1), cls(1)
    one.c.append(5)
    assert other.c == [] and not hasattr(cls, "c") and cls.b == (1, 2)


def test_hashes_follow_equality_and_mutable_classes_have_none():
    assert hash(Point(1, 2.0)) == hash(Point(1, 2.0)) != hash(Point(2, 1.0))
    assert {Point(1): "found"}[Point(1, 2.5)] == "found"
    with pytest.raises(TypeError, match="unhashable"):
        hash(make(own.dataclass)(1))
    cls = make(own.dataclass, eq=False)
    assert len({cls(1), cls(1)}) == 2


def test_methods_of_the_class_are_kept():
    @own.dataclass(frozen=True)
    class Odd:
        a: int

        def __eq__(self, other): return True
        def __hash__(self): return 7
        def __repr__(self): return "odd"
    assert Odd(1) == Odd(2) and hash(Odd(1)) == 7 and repr(Odd(1)) == "odd"


def test_frozen_instances_refuse_changes():
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        Point(1).x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del Point(1).x


def test_fields_are_inherited_and_bases_stay_apart():
    assert vars(Named(1, name="q")) == {"x": 1, "y": 2.5, "name": "q"}
    assert Named(1) != Point(1) and repr(Point(1)).startswith("Point(")
    assert [f.name for f in dataclasses.fields(Named)] == ["x", "y", "name"] and len(dataclasses.fields(Point)) == 2


@pytest.mark.parametrize("replace", [own.replace, dataclasses.replace], ids=["own", "standard"])
def test_replace_changes_only_what_is_given(replace):
    before = Named(1, 0.5, "q")
    assert vars(replace(before, y=7.0)) == {"x": 1, "y": 7.0, "name": "q"} and before.y == 0.5
    with pytest.raises(TypeError):
        replace(before, z=1)


def test_instances_are_dataclasses_for_the_standard_library():
    assert dataclasses.is_dataclass(Point) and dataclasses.asdict(Point(1)) == {"x": 1, "y": 2.5}
    match Point(3, 4.0):
        case Point(x, y):
            assert (x, y) == (3, 4.0)


def test_instances_are_copied_and_pickled():
    assert pickle.loads(pickle.dumps(Named(1))) == copy.deepcopy(Named(1)) == Named(1)


def test_two_threads_may_make_the_first_instances_at_once():
    import threading
    for _ in range(20):
        cls, found, start = make(own.dataclass, frozen=True), [], threading.Barrier(4)

        def one(cls=cls, found=found, start=start):
            start.wait()
            found.append(cls(1, (2,)) == cls(1, (2,)))
        threads = [threading.Thread(target=one) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert found == [True] * 4


def test_importing_the_compiler_writes_no_methods():
    code = ("import dataclasses\nseen = []\nkept = dataclasses._process_class\n"
            "dataclasses._process_class = lambda cls, *a, **k: (seen.append(cls.__module__), kept(cls, *a, **k))[1]\n"
            "import mlc.stages\nprint([m for m in seen if m.startswith('mlc')])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
