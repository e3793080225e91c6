"""Panels by machine code, against those by NumPy; sums of blocks are in tests/core/test_digest.py."""

import numpy as np
import pytest

from mlc.core import panels
from mlc.core.aligned import aligned_empty
from mlc.runtime import bulk


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "u1"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("depth, columns, width", [(300, 256, 32), (301, 270, 64), (1, 70_000, 48), (9, 7777, 64), (513, 130, 40), (200, 500, 512)])
def test_machine_code_packs_as_numpy_does(depth, columns, width, dtype, transposed):
    constant = np.random.default_rng(1).integers(0, 200, (columns, depth) if transposed else (depth, columns)).astype(dtype)
    found = bulk.pack(constant, depth, columns, width, transposed, aligned_empty)
    assert found.shape == (depth * columns,) and found.dtype == constant.dtype
    assert np.array_equal(found, panels.pack(constant, depth, columns, width, transposed))


def test_much_is_packed_by_machine_code(monkeypatch):
    monkeypatch.setattr(panels, "pack", lambda *args: pytest.fail("by NumPy"))
    found = bulk.pack(np.arange(1 << 15, dtype=np.float32).reshape(256, 128), 256, 128, 32, False, aligned_empty)
    assert list(found[[0, 31, 32, 8192]]) == [0, 31, 128, 32]
