"""`mlc.errors`: every error that mlc raises on purpose, and the warning that recording a function may give.

Other warnings: `mlc.core.errors.OptionWarning` (an unknown MLC_... variable), `mlc.cache.store.CacheWarning`.
"""

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
