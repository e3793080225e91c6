"""What holds for every test: a compilation cache of the session's own, and JAX on the CPU."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"

_own_cache = pytest.StashKey[str]()


def pytest_configure(config):
    """Before anything is collected, because some modules compile while they are imported. Workers of xdist inherit the folder and share it.
    A campaign has a cache of its own already, and keeps what JAX compiled for the next one in the user's."""
    if "PYTEST_XDIST_WORKER" not in os.environ and not config.getoption("--mlc-fuzz", False) and not config.getoption("--mlc-fuzz-replay", None):
        config.stash[_own_cache] = os.environ["MLC_CACHE_DIR"] = tempfile.mkdtemp(prefix="mlc-tests-")


def pytest_unconfigure(config):
    if _own_cache in config.stash:
        shutil.rmtree(config.stash[_own_cache], ignore_errors=True)


@pytest.fixture
def kept_jax_programs(monkeypatch) -> None:
    """What JAX compiles for one campaign serves the others of this session, though each has a cache of its own, or none."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", os.path.join(os.environ["MLC_CACHE_DIR"], "jax"))


@pytest.fixture
def in_a_child() -> Callable[[Callable[[], bool]], bool]:
    """Whether something holds in a forked child, which has half a minute to find out (systems that fork)."""
    def holds(check: Callable[[], bool]) -> bool:
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(30)
                os._exit(7 if check() else 1)
            finally:  # an exception must not run the rest of the tests here
                os._exit(2)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    return holds
