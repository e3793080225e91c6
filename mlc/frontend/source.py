"""Where in the user's program a node or an error comes from: the innermost frame that is neither mlc's nor NumPy's.

Tracing asks once a node, so what is known of a code object is remembered; a look-up costs about a microsecond.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from types import CodeType, FrameType, TracebackType

import numpy as np

from mlc.core.errors import DtypeError, MlcError, ShapeError, TraceError, UnsupportedError
from mlc.graph.graph import Meta

_INTERNAL = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (os.path.join(__file__, os.pardir), np.__file__))
_INTERNAL += (contextlib.__file__,)  # whose frame stands around functions that a context manager decorates
_MODELS = os.path.join(_INTERNAL[0], "tools", "bench", "")  # the models that mlc.tools measures are a user's
_GENERATED = "<__array_function__ internals>"
# Around the command line there is only what launched it: a console script, or runpy.
_COMMAND = os.path.join(_INTERNAL[0], "tools", "cli.py")

# By id, because hashing a code object hashes its bytecode; holding the object keeps the id its own.
_codes: dict[int, tuple[CodeType, bool | None, dict[int, Meta]]] = {}


def _facts(code: CodeType) -> tuple[CodeType, bool | None, dict[int, Meta]]:
    """The code object; whether it is internal, None where nothing around it is the user's; `Meta` by line."""
    found = _codes.get(id(code))
    if found is None:
        path = code.co_filename
        full = os.path.abspath(path)
        internal = path == _GENERATED or (full.startswith(_INTERNAL) and not full.startswith(_MODELS))
        found = _codes[id(code)] = (code, None if full == _COMMAND else internal, {})
    return found


def _name(code: CodeType) -> str:
    """The function's own name, also for a comprehension inside it."""
    names = [n for n in code.co_qualname.split(".") if n not in _NAMELESS]
    return names[-1] if names else code.co_name


_NAMELESS = ("<locals>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


def user_frame() -> FrameType | None:
    """The innermost frame of the caller's stack that is the user's own."""
    frame = sys._getframe(1)
    while frame is not None and _facts(frame.f_code)[1]:
        frame = frame.f_back
    return frame if frame is not None and _facts(frame.f_code)[1] is False else None


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the user's line."""
    frame = user_frame()
    warnings.warn_explicit(message, category, *((frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("mlc", 0)))


def here() -> Meta | None:
    """`Meta` naming the user's file, line and function; None when only mlc is on the stack."""
    frame, known = sys._getframe(1), _codes.get
    while frame is not None:  # some frames for each node: nothing is called for those that are known
        code = frame.f_code
        _, internal, metas = known(id(code)) or _facts(code)
        if not internal:
            if internal is None:
                return None
            line = frame.f_lineno
            meta = metas.get(line)
            if meta is None:
                meta = metas[line] = Meta(f"{os.path.basename(code.co_filename)}:{line}", _name(code))
            return meta
        frame = frame.f_back
    return None


def at_here() -> str:
    """` at model.py:41 (loss)`, or nothing when there is no user frame."""
    meta = here()
    return f" at {meta}" if meta else ""


_LOCATED = (ShapeError, DtypeError, UnsupportedError, TraceError)


def locate(error: MlcError, name: str) -> MlcError:
    """Put the op's name as the user called it, and the user's line, in front of the error's text; returns the error.

    An outer function (softmax) overwrites the name that an inner one (exp) gave.
    """
    if isinstance(error, _LOCATED) and not getattr(error, "complete", False):
        detail = getattr(error, "detail", None)
        if detail is None:
            detail = str(error)
            head, _, rest = detail.partition(": ")
            error.detail = detail = rest if rest and head.isidentifier() else detail
        error.args = (f"{name}{at_here()}: {detail}",)
    return error


def user_line(trace: TracebackType | None, besides: tuple[str, ...] = ()) -> str:
    """` at model.py:41 (loss)`: the innermost frame of a traceback that is neither mlc's nor NumPy's nor under `besides`."""
    found = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if _facts(code)[1] is False and not code.co_filename.startswith(besides):
            found = f" at {os.path.basename(code.co_filename)}:{trace.tb_lineno} ({_name(code)})"
        trace = trace.tb_next
    return found


def in_package(trace: TracebackType | None, folders: tuple[str, ...]) -> bool:
    """Whether a traceback passes through a file under one of the folders."""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(folders):
            return True
        trace = trace.tb_next
    return False
