"""Lazy arrays record outside `mlc.jit` and run when a value is asked for."""

import threading

import numpy as np
import pytest
from frontend_samples import numbered

import mlc
from mlc.frontend import lazy


def executables():
    return len(lazy._executables)


def test_nothing_runs_before_a_value_is_asked_for():
    a = mlc.asarray(np.arange(6.0).reshape(2, 3))
    before = executables()
    b = (a + 1) @ a.T
    assert b.shape == (2, 2) and b.dtype == np.float64 and executables() == before
    np.testing.assert_array_equal(b.eval(), (np.arange(6.0).reshape(2, 3) + 1) @ np.arange(6.0).reshape(2, 3).T)
    assert executables() == before + 1


@pytest.mark.parametrize("ask", numbered(lambda a: a.eval(), np.asarray, lambda a: np.array(a), lambda a: a.tolist(), lambda a: np.from_dlpack(a)))
def test_ways_to_ask_for_an_array(ask):
    assert np.asarray(ask(mlc.asarray([1, 2, 3]) * 2)).tolist() == [2, 4, 6]


def test_ways_to_ask_for_a_scalar():
    a = mlc.asarray(np.array([1.5, 2.5])).sum()
    assert float(a) == 4 and int(a) == 4 and bool(a) and a.item() == 4 and [1, 2, 3, 4, 5][mlc.asarray(4) + 0] == 5
    assert f"{a:.1f}" == "4.0" and str(a) == "4.0" and repr(mlc.asarray([1, 2]) + 1) == "mlc.array([2, 3])"


def test_if_works_on_lazy_values():
    a = mlc.asarray(np.arange(3))
    assert ("yes" if (a > 1).any() else "no") == "yes"


def test_same_program_compiles_once():
    def run(seed):
        x = mlc.asarray(np.full(5, seed, np.float32))
        return mlc.numpy.exp(x * 3 + 1).eval()
    run(0.0)
    before = executables()
    assert run(1.0)[0] != run(0.5)[0]
    assert executables() == before


def test_scalar_data_is_an_input_not_a_constant():
    total = mlc.asarray(np.float32(0))
    total.eval()
    (total + 1).eval()
    before = executables()
    for _ in range(5):
        total = total + 1
        total.eval()
    assert float(total) == 5 and executables() == before


def test_later_writes_to_the_callers_array_are_not_seen():
    x = np.ones(3)
    a = mlc.asarray(x)
    b = a + x
    x[:] = 9
    assert b.eval().tolist() == [2, 2, 2]


def test_values_are_read_only_and_kept():
    a = mlc.asarray(np.ones(3)) + 1
    value = a.eval()
    assert not value.flags.writeable and a.eval() is value


def test_numpy_functions_stay_lazy():
    a = mlc.asarray(np.arange(4.0))
    for b in (np.exp(a), np.sum(a), np.concatenate([a, a]), np.ones(4) + a, np.float32(2) * a, a.reshape(2, 2), np.where(a > 1, a, 0)):
        assert isinstance(b, lazy.LazyArray)
    assert np.concatenate([a, np.ones(1)]).eval().tolist() == [0, 1, 2, 3, 1]


def test_creation_is_lazy_outside_and_traced_inside():
    assert isinstance(mlc.numpy.zeros(3), lazy.LazyArray)
    assert mlc.numpy.zeros((2, 3), "int8").eval().shape == (2, 3) and mlc.numpy.full(2, 7).eval().tolist() == [7, 7]
    assert mlc.jit(lambda x: type(mlc.numpy.zeros(3)).__name__ == "Tracer")(1.0)


def test_lazy_values_enter_recordings_as_constants():
    a = mlc.asarray(np.ones(3)) + 1
    f = mlc.jit(lambda x: x + a)
    assert f(np.zeros(3)).tolist() == [2, 2, 2]


def test_shared_parts_and_long_chains():
    x = mlc.asarray(np.ones(2))
    for _ in range(30):
        x = x + x
    assert x.eval()[0] == 2.0 ** 30
    y = mlc.asarray(np.zeros(2))
    for _ in range(3000):
        y = y + 1
    assert y.eval()[0] == 3000


def test_weak_scalars_stay_weak():
    s = mlc.asarray(2.0) * 3
    assert (mlc.asarray(np.ones(2, np.float32)) * s).dtype == np.float32
    assert mlc.jit(lambda x, s: x * s)(np.ones(2, np.float32), s).dtype == np.float32


def test_threads_evaluate_one_array():
    x = mlc.asarray(np.ones(3))
    for _ in range(50):
        x = x + 1
    parts = [x + k for k in range(8)]
    found, start = [None] * 8, threading.Barrier(8)

    def work(k):
        start.wait()
        found[k] = parts[k].eval()[0] + x.eval()[0]
    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert found == [102 + k for k in range(8)]


def test_errors_name_the_line_at_once():
    with pytest.raises(mlc.errors.ShapeError, match=r"add at test_lazy.py:\d+"):
        mlc.asarray(np.ones(3)) + np.ones(4)
