"""The exceptions: one base, the right built-in families, picklable, messages in the order they are needed."""

import inspect
import pickle
import re
from pathlib import Path

import pytest

from mlc.core import errors
from mlc.core.errors import MlcError, VerifyError

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, MlcError)]


@pytest.mark.parametrize("error", CLASSES, ids=lambda c: c.__name__)
def test_every_error_is_an_mlc_error_with_a_docstring(error):
    assert issubclass(error, MlcError) and error.__doc__


@pytest.mark.parametrize("name, family", [
    ("ShapeError", ValueError), ("DtypeError", TypeError), ("ParseError", ValueError), ("OptionError", ValueError),
    ("UnsupportedError", NotImplementedError), ("VerifyError", AssertionError), ("CodegenError", RuntimeError)])
def test_errors_join_the_built_in_families(name, family):
    assert issubclass(getattr(errors, name), family)


def test_every_error_and_warning_of_mlc_has_a_public_name():
    import mlc
    from mlc import errors as public
    sources = [path.read_text(encoding="utf-8") for path in Path(mlc.__file__).parent.rglob("*.py")]
    warnings = {name for text in sources for name in re.findall(r"^class (\w+)\(\w*Warning\)", text, re.M)}
    assert warnings == {"CacheWarning", "OptionWarning", "WideningWarning"}
    assert sorted(warnings | {c.__name__ for c in CLASSES}) == public.__all__
    assert all(issubclass(getattr(public, name), UserWarning) for name in warnings)


def test_a_verify_error_reads_invariant_stage_place_found_expected():
    error = VerifyError("types_match_the_rules", "graph @g node 4 (sub)", "f32[3]", "f32[2]", "pass cse")
    assert str(error) == "types_match_the_rules after pass cse at graph @g node 4 (sub): found f32[3], expected f32[2]"
    assert str(VerifyError("x", "y", 1, 2)) == "x at y: found 1, expected 2"


@pytest.mark.parametrize("error", [c for c in CLASSES if c is not VerifyError], ids=lambda c: c.__name__)
def test_errors_survive_pickling(error):
    again = pickle.loads(pickle.dumps(error("what and where")))
    assert type(again) is error and str(again) == "what and where"
