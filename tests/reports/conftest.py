"""Every report's program is compiled to machine code afresh: for this CPU, for the plainest one, and with every stage checked."""

import contextlib
import ctypes
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


@pytest.fixture
def flushing():
    """A context manager: this thread flushes subnormals to zero, as some libraries leave it."""
    from mlc.codegen.target import compile_object, get_target
    from mlc.runtime.orc import Library
    if not get_target("generic").is_x86:
        pytest.skip("the control word is x86's")
    text = ("declare void @llvm.x86.sse.ldmxcsr(ptr)\n"
            "define void @set(i32 %v) {\n  %p = alloca i32\n  store i32 %v, ptr %p\n  call void @llvm.x86.sse.ldmxcsr(ptr %p)\n  ret void\n}\n")
    library = Library(compile_object(text, get_target("generic")), ("set",))
    control = library.function("set", None, ctypes.c_uint32)

    @contextlib.contextmanager
    def flush():
        control(0x9FC0)
        try:
            yield
        finally:
            control(0x1F80)
    return flush
