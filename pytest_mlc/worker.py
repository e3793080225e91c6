"""The child side: `python -m pytest_mlc.worker mlc` compiles and runs graphs, `... jax` is the reference.

Reads length-prefixed pickled requests from standard input and answers on what was standard output; anything that prints
goes to standard error. A request that raises is answered with the exception's name, message and traceback.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable

# One service a role: a module with `serve(request) -> answer, or a generator of answers`.
ROLES = {"mlc": "pytest_mlc.executor", "jax": "pytest_mlc.reference"}


def _read(stream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = stream.read(count - len(data))
        if not more:
            sys.exit(0)
        data += more
    return data


# Where the modules of mlc belong among blame's levels, and the names that VerifyError has for the same.
LEVELS = {"mlc.passes.kernelize": "kernels", "mlc.passes.fuse": "kernels", "mlc.kernel": "kernels", "mlc.loop": "loops", "mlc.plan": "memory",
          "mlc.memory": "memory", "mlc.codegen": "machine code", "mlc.runtime": "machine code", "mlc.cache": "cache"}
STAGES = {"fuse": "kernels", "lowering": "loops"}


def stage_of(error: BaseException) -> str:
    """The level in which an exception arose: what a VerifyError says, else that of the outermost module that belongs to one; or ""."""
    named = getattr(error, "stage", "")
    if isinstance(named, str) and named:
        return STAGES.get(named, named)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        level = next((level for name, level in LEVELS.items() if f"{module}.".startswith(f"{name}.")), "")
        if level:
            return level
    return ""


def failure(error: BaseException) -> dict:
    """An exception as an answer."""
    return {"error": type(error).__name__, "message": str(error), "traceback": "".join(traceback.format_exception(error)),
            "stage": stage_of(error)}


def _answers(serve: Callable, request: object) -> Iterable[object]:
    try:
        yield from serve(request)
    except Exception as error:  # every fault of the code under test is an answer, not the end of the worker
        yield failure(error)


def preload(role: str) -> None:
    """Before anything is compiled, run what `MLC_FUZZ_PRELOAD=module[:function]` names, in the process under test only: so a compiler
    developer fuzzes a patched mlc. What the campaign itself uses (the referee, JAX) stays as it is."""
    module, _, function = os.environ.get("MLC_FUZZ_PRELOAD", "").partition(":")
    if role == "mlc" and module:
        loaded = importlib.import_module(module)
        if function:
            getattr(loaded, function)()


def main(role: str) -> None:
    """Serve until standard input ends."""
    faulthandler.enable(sys.stderr)
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    serve = importlib.import_module(ROLES[role]).serve
    try:
        preload(role)
    except Exception as error:  # told to whoever asks whether this process is ready
        refusal = failure(error)

        def serve(request: object) -> Iterable[dict]:
            return [refusal]
    gc.freeze()  # what is loaded stays
    while True:
        request = pickle.loads(_read(requests, int.from_bytes(_read(requests, 8), "little")))
        for answer in _answers(serve, request):
            payload = pickle.dumps(answer, protocol=5)
            answers.write(len(payload).to_bytes(8, "little") + payload)
            answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
