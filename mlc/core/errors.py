"""The exceptions mlc raises, and the warnings it gives. Every message says what was found, where, and what to do about it."""

from __future__ import annotations


class MlcError(Exception):
    """Base of every error that mlc raises on purpose."""


class TraceError(MlcError):
    """A Python function did something that cannot be recorded (branching on a traced value, leaking one, ...)."""


class ShapeError(MlcError, ValueError):
    """Shapes, axes or ranks that do not fit."""


class DtypeError(MlcError, TypeError):
    """A dtype that an op, or mlc as a whole, does not accept."""


class UnsupportedError(MlcError, NotImplementedError):
    """A well-formed request that this version cannot serve; the message says what to use instead."""


class ParseError(MlcError, ValueError):
    """Malformed IR text; carries the line and column."""


class OptionError(MlcError, ValueError):
    """An unknown option, or a value outside an option's range."""


class CodegenError(MlcError, RuntimeError):
    """LLVM refused what mlc emitted: always a bug in mlc."""


class ArtifactError(MlcError, ValueError):
    """A saved executable that is damaged, foreign, or made for another CPU or version."""


class OptionWarning(UserWarning):
    """An option that is set where nobody reads it."""


class CacheWarning(UserWarning):
    """The compilation cache cannot be used, or holds damaged entries; results are right, compiling is slower."""


class WideningWarning(UserWarning):
    """A NumPy float64 scalar turned a narrower float computation into float64."""


class VerifyError(MlcError, AssertionError):
    """An IR broke an invariant of its level. Fields: ``invariant``, ``where``, ``found``, ``expected``, and ``stage``, what was run last."""

    def __init__(self, invariant: str, where: str, found: object, expected: object, stage: str = ""):
        self.invariant, self.where, self.found, self.expected, self.stage = invariant, where, found, expected, stage
        after = f" after {stage}" if stage else ""
        super().__init__(f"{invariant}{after} at {where}: found {found}, expected {expected}")

    def __reduce__(self):
        return type(self), (self.invariant, self.where, self.found, self.expected, self.stage)
