"""Arrays that start a cache line."""

import numpy as np

from mlc.core.aligned import ALIGNMENT, address, aligned_empty, in_one_block


def test_arrays_start_a_cache_line():
    for shape in ((), (1,), (3, 5), (0,), (1000,)):
        found = aligned_empty(shape, np.dtype("f4"))
        assert found.shape == shape and found.flags.c_contiguous and (found.size == 0 or address(found) % ALIGNMENT == 0)


def test_arrays_of_one_block_do_not_meet():
    shapes = [(3,), (16, 4), (0,), (1,), (7, 5)]
    empty = in_one_block(sum(4 * int(np.prod(shape)) + ALIGNMENT for shape in shapes))
    found = [empty(shape, np.dtype("f4")) for shape in shapes]
    for k, array in enumerate(found):
        assert array.shape == shapes[k] and address(array) % ALIGNMENT == 0
        array[...] = k
    assert all((array == k).all() for k, array in enumerate(found))
