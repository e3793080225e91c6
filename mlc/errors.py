"""`mlc.errors`: every error that mlc raises on purpose, and the warning it gives."""

from mlc.core.errors import (
    ArtifactError,
    CodegenError,
    DtypeError,
    MlcError,
    OptionError,
    ParseError,
    ShapeError,
    TraceError,
    UnsupportedError,
    VerifyError,
    WideningWarning,
)

__all__ = [
    "ArtifactError", "CodegenError", "DtypeError", "MlcError", "OptionError", "ParseError", "ShapeError", "TraceError", "UnsupportedError",
    "VerifyError", "WideningWarning",
]
