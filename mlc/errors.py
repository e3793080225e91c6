"""`mlc.errors`: every error that mlc raises on purpose, and every warning that it gives: `CacheWarning`, `OptionWarning`, `WideningWarning`.

What a passing `mlc.check` outside of pytest has to say is a `pytest_mlc.check.CheckNote`.
"""

from mlc.core.errors import (
    ArtifactError,
    CacheWarning,
    CodegenError,
    DtypeError,
    MlcError,
    OptionError,
    OptionWarning,
    ParseError,
    ShapeError,
    TraceError,
    UnsupportedError,
    VerifyError,
    WideningWarning,
)

__all__ = [
    "ArtifactError", "CacheWarning", "CodegenError", "DtypeError", "MlcError", "OptionError", "OptionWarning", "ParseError", "ShapeError",
    "TraceError", "UnsupportedError", "VerifyError", "WideningWarning",
]
