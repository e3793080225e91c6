"""Frontend tests run graphs through the interpreter, so that they judge capture and nothing else; JAX is the reference, in x64."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

import mlc


@pytest.fixture(autouse=True)
def interpreter():
    with mlc.options(backend=os.environ.get("MLC_BACKEND", "interpreter"), check=1):
        yield


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield
