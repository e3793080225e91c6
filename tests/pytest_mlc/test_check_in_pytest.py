"""Checks as tests: fixtures, parameters, methods, selection, what a failure prints, and notes in the summary."""

import numpy as np

from pytest_mlc.check import compare

pytest_plugins = ["pytester"]

# In-process runs drop the modules that they import, so all that they need is imported here, by doing what they do.
compare(lambda x: x @ x + 1, np.ones((2, 2), np.float32))

SUITE = """
import numpy as np, pytest, mlc, mlc.numpy as mnp

@pytest.fixture
def scale():
    return 3.0

@pytest.mark.parametrize("power", [1, 2])
@mlc.check(inputs={"x": "f32[B,4]"}, dims={"B": (1, 9)})
def test_with_fixture(x, scale, power, tmp_path):
    assert tmp_path.exists()
    return x ** power * scale

class TestModel:
    @mlc.check(inputs={"x": "f32[3,4]"})
    @pytest.mark.parametrize("shift", [0.0, 1.0])
    def test_method(self, x, shift):
        return mnp.tanh(x + shift)

def test_by_hand(mlc_check):
    mlc_check(lambda w, x: x @ w, np.ones((4, 2), "f4"), np.ones((3, 4), "f4"))

@mlc.check(inputs={"x": "f32[4]"})
def test_noted(x):
    return np.exp(x)

@mlc.check(inputs={"x": "f32[4]"})
def test_capture(x):
    return x + (1.0 if type(x).__name__ == "Tracer" else 2.0)

@mlc.check(inputs={"x": "f32[4]"})
def test_nothing(x):
    x + 1
"""


def test_checks_are_ordinary_tests(pytester):
    pytester.makepyfile(test_models=SUITE)
    result = pytester.runpytest("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    result.assert_outcomes(passed=6, failed=2)
    result.stdout.fnmatch_lines(["*CheckFailed: mlc-check: CAPTURE*", "*run again:  pytest test_models.py::test_capture",
                                 "*TraceError: test_nothing at test_models.py:* returned None*"])
    result.stdout.fnmatch_lines(["*mlc notes*", "test_models.py::test_noted: *rendered as JAX*"])
    assert "compared.py" not in result.stdout.str()


def test_notes_travel_from_workers_of_xdist(pytester):
    pytester.makepyfile(test_it="from pytest_mlc.check import NOTES\ndef test_noted():\n    NOTES.append('remark')\n")
    result = pytester.runpytest_subprocess("-q", "-n1")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*mlc notes*", "test_it.py::test_noted: remark"])


def test_k_selects_checks(pytester):
    pytester.makepyfile(test_models=SUITE)
    pytester.runpytest("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-k", "method or by_hand").assert_outcomes(passed=3, deselected=5)
