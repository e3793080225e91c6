"""Every report's program is compiled to machine code afresh: for this CPU, for the plainest one, and with every stage checked."""

from collections.abc import Callable

import pytest
import report_values

import mlc

WAYS = {
    "native": {"target": "native"},
    "generic": {"target": "generic"},
    "checked": {"target": "native", "check": 2, "threads": 2},
}


def runner(**options: object) -> Callable:
    def run(function: Callable, *args: object) -> list:
        """The leaves of what `function` compiles to and answers."""
        with mlc.options(backend="llvm", cache=False, **options):
            return report_values.leaves(mlc.jit(function)(*args))
    return run


@pytest.fixture(params=WAYS)
def run(request) -> Callable:
    """`run(function, *args)`: compiled and called, in each of the ways."""
    return runner(**WAYS[request.param])


@pytest.fixture
def run_native(request) -> Callable:
    """The same for this CPU only, for programs that are large."""
    return runner(target="native")
