"""Names of `mlc.numpy` that cannot be served yet: each says why, and what to write instead."""

from __future__ import annotations

from mlc.core.errors import UnsupportedError
from mlc.frontend.api import NUMPY, public

_SCAN = "running sums need a scan op, which is not there yet"
_SORT = "sorting is not there yet"
_GATHER = "data-dependent indices need gather and scatter, which are not there yet; use where, or one_hot and a matmul"
_SHAPE = "its shape depends on data, and shapes are fixed when a function is recorded; use a mask and where"
_DECOMPOSITION = "matrix decompositions are not there; compute them outside with NumPy"

REASONS = {
    **dict.fromkeys(("cumsum", "cumprod", "cumulative_sum", "cumulative_prod", "cummax", "cummin"), _SCAN),
    **dict.fromkeys(("sort", "argsort", "lexsort", "partition", "argpartition", "median", "quantile", "percentile", "searchsorted",
                     "digitize"), _SORT),
    **dict.fromkeys(("take_along_axis", "put_along_axis", "put", "choose", "compress", "bincount", "histogram"), _GATHER),
    **dict.fromkeys(("nonzero", "argwhere", "flatnonzero", "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values",
                     "extract"), _SHAPE),
    **dict.fromkeys(("fft", "ifft", "convolve", "correlate"), "transforms and convolutions are not there yet"),
    **dict.fromkeys(("inv", "solve", "svd", "eigh", "qr", "cholesky", "det", "slogdet", "pinv", "matrix_rank"), _DECOMPOSITION),
}


def _refuse(name: str, reason: str):
    def function(*args, **kwargs):
        raise UnsupportedError(f"{name} is not available: {reason}")
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Not available: {reason}."
    return public(function)


for _name, _reason in REASONS.items():
    if _name not in NUMPY:
        _refuse(_name, _reason)
