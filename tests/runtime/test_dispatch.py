"""Dispatch notices objects that are not laid out as its code expects."""

import pytest

from mlc.runtime import dispatch, dispatch_ir


def test_the_layouts_are_those_of_this_python():
    assert dispatch._layout_problem() is None


@pytest.mark.parametrize(("name", "shift", "noticed"), [
    ("SIZE", 8, "tuples"), ("ITEMS", 8, "tuples"), ("ITEMS", -8, "tuples"), ("VALUE", -8, "floats")])
def test_another_layout_is_noticed(monkeypatch, name, shift, noticed):
    monkeypatch.setattr(dispatch_ir, name, getattr(dispatch_ir, name) + shift)
    assert dispatch._layout_problem.__wrapped__() == noticed


@pytest.mark.parametrize("offset", [16, 32])
def test_another_place_of_the_version_is_noticed(monkeypatch, offset):
    monkeypatch.setattr(dispatch, "_DICT_VERSION", offset)
    assert dispatch._layout_problem.__wrapped__() == "dict versions"


def test_setting_a_variable_changes_the_version(monkeypatch):
    before = dispatch.Dispatcher.environment_version()
    monkeypatch.setenv("MLC_LIMIT", "3")
    between = dispatch.Dispatcher.environment_version()
    monkeypatch.delenv("MLC_LIMIT")
    assert len({before, between, dispatch.Dispatcher.environment_version()}) == 3
