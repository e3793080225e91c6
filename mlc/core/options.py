"""Options: one table; each is a keyword of `mlc.options` and an environment variable `MLC_<NAME>`.

`affects_code` marks what belongs to a cache key: two compilations that differ in such an option never share code.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from mlc.core.dataclass import dataclass
from mlc.core.errors import OptionError


def _int(lo: int, hi: int) -> Callable[[object], int]:
    def convert(value: object) -> int:
        try:
            number = int(str(value))
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not lo <= number <= hi:
            raise ValueError(f"must lie in {lo}..{hi}")
        return number
    return convert


def _choice(*names: str) -> Callable[[object], str]:
    def convert(value: object) -> str:
        if str(value) not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return str(value)
    return convert


def _flag(value: object) -> bool:
    text = str(value).lower()
    if text not in ("0", "1", "true", "false", "on", "off"):
        raise ValueError("must be 0 or 1")
    return text in ("1", "true", "on")


@dataclass(frozen=True)
class Option:
    """One option: its default, how a value is read, whether it changes the generated code, and what it means."""

    default: object
    convert: Callable[[object], object]
    affects_code: bool
    help: str


OPTIONS: dict[str, Option] = {
    # It shapes code: with checks, memory that nobody may read any more is overwritten between steps.
    "check": Option(0, _int(0, 2), True, "0 no checks; 1 verify after every stage; 2 also round-trip text and interpret"),
    "threads": Option(1, _int(1, 256), False, "threads of a parallel loop, the caller's included"),
    "fork_us": Option(4, _int(0, 1 << 40), True, "loops of at least so many microseconds, as estimated, are parallel"),
    "stream_kb": Option(1 << 15, _int(0, 1 << 40), True, "outputs of at least so many KiB that nothing reads again are stored past the caches"),
    "bf16_pairs": Option("auto", _choice("auto", "on", "off"), True,
                         "products of bf16 by the CPU's dot-product instruction, where it has one: auto means where it is known to be fast, and "
                         "there are no matrix registers"),
    "matrix": Option("auto", _choice("auto", "off"), True, "products of bytes and bf16 by matrix registers (AMX), where the CPU has them"),
    "target": Option("native", _choice("native", "generic", "golden-v3"), True, "the CPU to generate code for"),
    "backend": Option("llvm", _choice("llvm", "interpreter"), True, "what runs the kernels"),
    "cache": Option(True, _flag, False, "use the persistent compilation cache of programs (mlc's own functions lie beside its bytecode, where Python "
                                        "writes that)"),
    "cache_dir": Option("", str, False, "where the persistent cache lives; empty: the user's cache folder"),
    "cache_max_mb": Option(512, _int(1, 1 << 20), False, "size bound of the persistent cache in MiB"),
    "dump": Option("", str, False, "folder that receives every stage of every compilation as text"),
    "pass_limit": Option(16, _int(1, 1000), True, "most rounds of the pass pipeline before non-convergence is logged"),
    "limit": Option(-1, _int(-1, 1 << 40), True, "apply only the first so many rewrites (for bisection); -1: all of them"),
    "disable_passes": Option("", str, True, "comma-separated names of passes to leave out (for bisection)"),
}

# The texts of a compilation, in order: what `dump` writes, `as_text` shows and `mlc explain` prints.
STAGES = ("graph", "passes", "optimized", "kernels", "loops", "memory", "llvm", "asm")

# Environment variables that are no options: of the fuzzer's own processes.
OTHER_VARIABLES = ("MLC_FUZZ_PRELOAD", "MLC_FUZZ_TIMEOUT")
_warned: set[str] = set()


def unknown_variables() -> Iterator[str]:
    """What to warn of: each environment variable MLC_... that means nothing here, once a process. A misspelt one would be ignored in silence."""
    unknown = [name for name in os.environ if name.startswith("MLC_") and name not in _warned
               and name[4:].lower() not in OPTIONS and name not in OTHER_VARIABLES]
    for name in sorted(unknown):
        import difflib
        _warned.add(name)
        known = ["MLC_" + option.upper() for option in OPTIONS]
        near = difflib.get_close_matches(name, known, 1)
        meant = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        yield f"the environment variable {name} is unknown to mlc and ignored; {meant}"


# What is told when a block that sets an option begins or ends: for values that native code holds a copy of.
_watchers: dict[str, Callable[[], None]] = {}


def watch(name: str, told: Callable[[], None]) -> None:
    """Call `told` whenever an `options` block that sets this option begins or ends."""
    _watchers[name] = told


def _tell(names: Iterable[str]) -> None:
    for name in names:
        if name in _watchers:
            _watchers[name]()


_overrides: contextvars.ContextVar[dict[str, object] | None] = contextvars.ContextVar("mlc_options", default=None)


def _convert(name: str, value: object, source: str) -> object:
    try:
        return OPTIONS[name].convert(int(value) if isinstance(value, bool) else value)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{source}={value!r}: {error} ({OPTIONS[name].help})") from None


def get(name: str) -> object:
    """The value in force: `mlc.options(...)` first, then the environment, then the default."""
    current = _overrides.get()
    if current is not None and name in current:
        return current[name]
    text = os.environ.get("MLC_" + name.upper())
    return OPTIONS[name].default if text is None or text == "" else _convert(name, text, "MLC_" + name.upper())


def affecting_code() -> dict[str, object]:
    """Every option that changes generated code, with its value: part of the cache key and of `jit`'s guards."""
    return {name: get(name) for name, option in OPTIONS.items() if option.affects_code}


@contextmanager
def restored(values: dict[str, object]) -> Iterator[None]:
    """Values that `affecting_code` once gave are in force again for a block."""
    token = _overrides.set({**(_overrides.get() or {}), **values})
    try:
        yield
    finally:
        _overrides.reset(token)


@contextmanager
def options(**values: object) -> Iterator[None]:
    """Set options for a block: ``with mlc.options(check=2, threads=1): ...``.

    Raises OptionError for an unknown name or a value out of range. Nested blocks override outer ones; a block
    is local to its thread and context (but the number of threads that loops use is the whole process's).
    """
    for name in values:
        if name not in OPTIONS:
            raise OptionError(f"unknown option {name!r}; known: {', '.join(sorted(OPTIONS))}")
    merged = dict(_overrides.get() or {})
    merged.update((name, _convert(name, value, name)) for name, value in values.items())
    token = _overrides.set(merged)
    try:
        _tell(values)
        yield
    finally:
        _overrides.reset(token)
        _tell(values)
