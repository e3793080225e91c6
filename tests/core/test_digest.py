"""Digests of constant data: the keyed sums against whole numbers, and what they tell apart."""

import numpy as np
import pytest

from mlc.core import digest
from mlc.core.literal import Literal
from mlc.runtime.bulk import block_sums

SUMS = {"numpy": digest.plain_sums, "machine code": block_sums}


def data(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def exact(block, key):
    """NH by Python's whole numbers."""
    x, k, word = [int(v) for v in block.view("<u4")], [int(v) for v in digest.keys()[key]], 1 << 32
    return sum((x[i] + k[i]) % word * ((x[i + 1] + k[i + 1]) % word) for i in range(0, len(x), 2)) % (1 << 64)


@pytest.mark.parametrize("sums", SUMS.values(), ids=SUMS)
@pytest.mark.parametrize("block", [data(digest.BLOCK), np.zeros(digest.BLOCK, np.uint8), np.full(digest.BLOCK, 255, np.uint8)],
                         ids=["random", "zeros", "ones"])
def test_sums_of_a_block_are_exact(sums, block):
    assert bytes(sums(block)[0]) == b"".join(exact(block, key).to_bytes(8, "little") for key in range(digest.KEYS))


@pytest.mark.parametrize("blocks", [1, 2, 63, 64, 65, 200])
def test_machine_code_sums_as_numpy_does(blocks):
    found = data(blocks * digest.BLOCK)
    assert np.array_equal(block_sums(found), digest.plain_sums(found))


def test_machine_code_reads_bytes_wherever_they_lie():
    raw = data(digest.BLOCK + 3)
    assert np.array_equal(block_sums(raw[3:]), digest.plain_sums(raw[3:].copy()))


def test_keys_differ_from_each_other():
    keys = digest.keys()
    assert keys.shape == (digest.KEYS, digest.BLOCK // 4) and len(np.unique(keys)) == keys.size and not keys.flags.writeable


def test_every_bit_of_large_data_counts():
    """One flipped bit anywhere: in whole blocks, at their edges, in what is left over."""
    size = digest.LEAST + digest.BLOCK + 77
    found, seen = data(size), set()
    places = [*range(0, size, 997), digest.BLOCK - 1, digest.BLOCK, size - 78, size - 77, size - 1]
    for at in places:
        for bit in (1, 128):
            changed = found.copy()
            changed[at] ^= bit
            seen.add(digest.digest("x", changed))
    assert len(seen | {digest.digest("x", found)}) == 2 * len(set(places)) + 1


def test_swapped_words_and_blocks_count():
    found = data(digest.LEAST).view(np.uint32)
    words = found.copy()
    words[[0, 1]] = words[[1, 0]]
    pairs = found.copy()
    pairs[[0, 1, 2, 3]] = pairs[[2, 3, 0, 1]]
    blocks = np.roll(found, digest.BLOCK // 4)
    assert len({digest.digest("x", v.view(np.uint8)) for v in (found, words, pairs, blocks)}) == 4


def test_the_header_counts():
    found = np.zeros(digest.LEAST, np.float32)
    assert len({Literal(v).digest for v in (found, found.view(np.int32), found.reshape(2, -1), found[:-1])}) == 4


@pytest.mark.parametrize("sums", SUMS.values(), ids=SUMS)
def test_digests_of_large_data_are_stable(sums, monkeypatch):
    monkeypatch.setattr(digest, "sums", sums)
    assert Literal(np.arange(100_000, dtype=np.int32)).digest == "f28fb61e1fef4fc90c7b2d7d61ab953f"


def test_less_than_a_few_blocks_is_hashed_as_it_is(monkeypatch):
    monkeypatch.setattr(digest, "sums", lambda found: pytest.fail("summed"))
    assert digest.digest("", data(digest.LEAST - 1)) != digest.digest("", data(digest.LEAST - 1, seed=1))


def test_constants_of_one_digest_are_still_told_apart(monkeypatch):
    monkeypatch.setattr(digest, "sums", lambda found: np.zeros((len(found) // digest.BLOCK, 8 * digest.KEYS), np.uint8))
    one, other = np.zeros((2, digest.LEAST), np.uint8)
    other[digest.LEAST // 2] = 1
    a, b = Literal(one), Literal(other)
    assert a.digest == b.digest and a != b and Literal(one) == a
