"""Arrays that start a cache line."""

import mmap

import numpy as np
import pytest

from mlc.core.aligned import ALIGNMENT, Block, address, aligned_empty, lasting_bytes


def test_arrays_start_a_cache_line():
    for shape in ((), (1,), (3, 5), (0,), (1000,)):
        found = aligned_empty(shape, np.dtype("f4"))
        assert found.shape == shape and found.flags.c_contiguous and (found.size == 0 or address(found) % ALIGNMENT == 0)


@pytest.mark.parametrize("size", [1 << 20, 100])
def test_arrays_of_one_block_do_not_meet(size):
    """Also where the block is too small for all of them, or for the largest."""
    shapes = [(3,), (16, 4), (0,), (1,), (7, 5)]
    block = Block(size)
    found = [block.empty(shape, np.dtype("f4")) for shape in shapes]
    for k, array in enumerate(found):
        assert array.shape == shapes[k] and array.flags.writeable and address(array) % ALIGNMENT == 0
        array[...] = k
    assert all((array == k).all() for k, array in enumerate(found))


@pytest.mark.parametrize("size", [0, 1, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 7_654_321])
def test_lasting_bytes_are_as_many_as_asked_for(size):
    found = lasting_bytes(size)
    found[...] = 7
    assert found.shape == (size,) and (not size or address(found) % ALIGNMENT == 0)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="a system without large pages")
def test_memory_that_the_system_refuses_is_a_memory_error():
    with pytest.raises(MemoryError):
        lasting_bytes(1 << 60)
