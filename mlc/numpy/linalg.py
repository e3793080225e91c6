"""`mlc.numpy.linalg`: the array API's linear algebra extension, as far as it is products and norms."""

from __future__ import annotations

from mlc.frontend.linalg import cross, diagonal, matmul, matrix_norm, norm, outer, tensordot, trace, vecdot, vector_norm
from mlc.frontend.manipulation import matrix_transpose

__all__ = ["cross", "diagonal", "matmul", "matrix_norm", "matrix_transpose", "norm", "outer", "tensordot", "trace", "vecdot", "vector_norm"]
