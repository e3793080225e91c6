"""Vectors divided by what a loop does not change: the bits of a division, whatever the operands, and the shorter way where it is exact."""

import numpy as np
import pytest

import mlc
from mlc.codegen.module import emit_module
from mlc.codegen.target import get_target
from mlc.loop.text import parse_kernel

ROWS, COLUMNS = 64, 1027
# Pairs whose quotient lies so close to a middle that x * high + x * low, without the last step, is the wrong neighbour (found by random search).
CLOSE = ((0x3ADA5020, 0x3A74722B), (0xCAA46FD5, 0x4A3A904B), (0xBE0D4409, 0x4CEF45BB), (0x224B0B09, 0x354DFB77), (0x3031A577, 0x36E64FDB),
         (0xB424159E, 0x33C33ECB), (0x377164D2, 0x36FFFF6B), (0x5BF164D2, 0x457FFF6B), (0xB106FA73, 0x30B9DFC7))


def exponents(bits, low, high, rng):
    """The same signs and mantissas with exponents from `low` to `high`, exclusive."""
    return (bits & 0x807FFFFF) | (rng.integers(low + 127, high + 127, bits.shape).astype(np.uint32) << 23)


def operands(kind, seed):
    rng = np.random.default_rng(seed)
    x, b = (rng.integers(0, 1 << 32, shape, np.uint64).astype(np.uint32) for shape in ((ROWS, COLUMNS), (ROWS, 1)))
    if kind == "any bits":
        return x.view(np.float32), b.view(np.float32)
    if kind == "ordinary over any bits":
        return exponents(x, -63, 65, rng).view(np.float32), b.view(np.float32)
    if kind == "ends of the ranges":
        x = np.where(rng.integers(0, 2, x.shape) == 1, exponents(x, -66, -60, rng), exponents(x, 62, 68, rng))
        b = np.where(rng.integers(0, 2, b.shape) == 1, exponents(b, -33, -27, rng), exponents(b, 27, 33, rng))
        return x.view(np.float32), b.view(np.float32)
    b = exponents(b, -29, 30, rng)
    b[::4] |= 0x7FFFF0  # mantissas of many ones, and of many zeros
    b[1::4] &= 0xFF80000F
    b = b.view(np.float32)
    if kind == "anything over ordinary divisors":
        x[:, ::7] = rng.choice(np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x807FFFFF], np.uint32), x[:, ::7].shape)
        return x.view(np.float32), b
    # Quotients next to the middle between two floats, as products that are off by some bits.
    middle = (1 + (2.0 * rng.integers(0, 1 << 23, x.shape) + 1) * 2.0**-24) * 2.0 ** rng.integers(-20, 20, x.shape)
    near = (b.astype(np.float64) * middle).astype(np.float32).view(np.uint32)
    return (near + rng.integers(-1, 2, x.shape).astype(np.int32).view(np.uint32)).view(np.float32), b


def check(x, b):
    with np.errstate(all="ignore"):
        wanted = x / b
    with mlc.options(cache=False):
        found = mlc.jit(lambda x, b: x / b)(x, b)
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found.view(np.uint32)[~nan], wanted.view(np.uint32)[~nan])


def test_quotients_closest_to_a_middle():
    pairs = np.array(CLOSE, np.uint32)
    check(np.repeat(pairs[:, :1], 256, axis=1).view(np.float32), pairs[:, 1:].copy().view(np.float32))


def closest_to_middles(divisors):
    """For divisors of 24 bits, dividends of 24 bits whose quotient lies closest to the middle between two floats: x * 2^s = b m + k for an
    odd m of 25 bits, s = 24 (the quotient is more than 1) or 25, and k from -7 to 7. Solved for m modulo 2^s; a column of 1 where there is none."""
    b = divisors.astype(np.int64)
    found = []
    even = np.int64(np.log2(b & -b))
    odd, inverse = b >> even, np.ones_like(b)
    for _ in range(5):
        inverse = inverse * (2 - odd * inverse)
    for k in (k for k in range(-7, 8) if k):
        for s in (24, 25):
            fits = (k & -k) == 1 << even
            for step in range(4):
                period = np.int64(1) << (s - even)
                m = (-(k >> even) * inverse) % period + step * period
                m += np.where((s == 24) & (m < 1 << 24), 1 << 24, 0)
                x = (b * m + k) >> s
                good = fits & (m >> 24 == 1) & ((b * m + k) % (1 << s) == 0) & (x >> 23 == 1)
                found.append(np.where(good, x, 1 << 23))
    return np.stack(found, axis=1)


def check_middles(divisors):
    x = closest_to_middles(divisors)
    assert (x != 1 << 23).mean() > 0.02
    check(x.astype(np.float32), divisors.astype(np.float32)[:, None])


def test_a_dividend_closest_to_a_middle_is_found():
    x, b = closest_to_middles(np.array([0xFFFFFF])), 0xFFFFFF
    distances = [abs(2 * (int(v) << s) - b * (2 * ((int(v) << s) // b) + 1)) for v in x[0] for s in (23, 24) if (int(v) << s) // b >> 23 == 1]
    assert min(distances) <= 7


def test_quotients_next_to_middles():
    rng = np.random.default_rng(5)
    check_middles(np.concatenate([rng.integers(1 << 23, 1 << 24, 4000), np.arange(1 << 23, (1 << 23) + 50), np.arange((1 << 24) - 50, 1 << 24)]))


@pytest.mark.nightly
def test_quotients_next_to_middles_of_every_divisor():
    for start in range(1 << 23, 1 << 24, 1 << 16):
        check_middles(np.arange(start, start + (1 << 16)))


@pytest.mark.parametrize("kind", ("any bits", "ordinary over any bits", "ends of the ranges", "anything over ordinary divisors", "middles"))
@pytest.mark.parametrize("seed", range(4))
def test_a_row_over_its_divisor_is_the_quotient_of_the_machine(kind, seed):
    check(*operands(kind, seed))


def text(target, divisor, width=32):
    return emit_module([(parse_kernel(f"""loops @over(%a0: f32[4096] in, %a1: f32[4096] in, %o0: f32[4096] out) {{
  for i in 4 {{
    vector({width}) j in 1024 {{
      %0 = div %a0[1024*i + j], {divisor} : f32
      %o0[1024*i + j] = %0
    }}
  }}
}}
"""), [(0, 0), (1, 0), (2, 0)])], get_target(target)).text


@pytest.mark.parametrize("target", [name for name in ("golden-v3", "native") if get_target(name).is_x86 and get_target(name).fma])
def test_only_what_a_loop_does_not_change_is_divided_by_multiplying(target):
    assert "usual" in text(target, "%a1[i]") and "usual" in text(target, "3.0")
    assert "usual" not in text(target, "%a1[1024*i + j]") and "usual" not in text(target, "%a1[i]", 4)


def test_without_fma_vectors_are_divided():
    assert "usual" not in text("generic", "%a1[i]") and text("generic", "%a1[i]").count("fdiv <32 x float>") == 1
