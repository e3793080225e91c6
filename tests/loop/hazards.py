"""What instructions on bf16 would flush: operands and results that are subnormal."""

import numpy as np
from ml_dtypes import bfloat16

SMALLEST = np.float32(2.0 ** -133)
# An operand, and a result, each beside numbers that keep the other side's exponents high.
HAZARDS = {
    "a subnormal operand of a": ((0, 3), SMALLEST * 3, None, 2.0 ** 100),
    "a subnormal operand of b": (None, 2.0 ** 100, (3, 0), SMALLEST * 5),
    "a subnormal result": ((0, 3), 2.0 ** -70, (3, 0), 2.0 ** -62),
    "the least operand": ((31, 15), SMALLEST, (15, 31), 2.0 ** 127),
}


def operands(name: str, m: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """a[m, k] and b[k, n] of the hazard of this name, zero elsewhere."""
    at_a, value_a, at_b, value_b = HAZARDS[name]
    a, b = np.zeros((m, k), bfloat16), np.zeros((k, n), bfloat16)
    a[at_a or np.s_[0:m:5]], b[at_b or np.s_[:, 0:n:3]] = bfloat16(value_a), bfloat16(value_b)
    return a, b
