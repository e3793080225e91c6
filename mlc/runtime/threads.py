"""Threads of parallel loops: how many there are. The pool itself is native code, see `mlc.runtime.threads_ir`.

Generated code calls `mlc_parallel(fn, ctx, n, bytes)`; with one thread, or before `use_threads`, it runs the loop itself. The number is
the process's: it follows the option `threads` where a program is loaded and where an `mlc.options(threads=...)` block begins and ends,
in whichever Python thread. Calls read it, at no cost; answers do not depend on it.
"""

from __future__ import annotations

import ctypes

from mlc.core import options
from mlc.runtime.once import once
from mlc.runtime.support import support


@once
def _words() -> tuple[ctypes.c_int32, ctypes.c_int32]:
    """How many threads a loop may use, and how many workers have been started (by any loop of this process)."""
    library = support()
    return tuple(ctypes.c_int32.from_address(library.address(name)) for name in ("mlc_wanted", "mlc_started"))


def use_threads(count: int | None = None) -> None:
    """Let parallel loops of this process use `count` threads (None: the option `threads`), the caller's included.

    Cheap. Workers start at the first parallel loop that wants them; a system that refuses threads gets fewer.
    """
    _words()[0].value = int(options.get("threads")) if count is None else count


def _follow_option() -> None:
    """Nothing is loaded for an option's sake: the first program asks for it anyway."""
    if support.loaded():
        use_threads()


options.watch("threads", _follow_option)


def threads_in_use() -> int:
    """The number of threads that parallel loops may use now."""
    return _words()[0].value


def workers_started() -> int:
    """The number of worker threads that exist."""
    return _words()[1].value
