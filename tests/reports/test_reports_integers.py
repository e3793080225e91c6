"""Integer arithmetic where processors trap or disagree: division by zero, shifts past the width, negative floors, powers."""

import numpy as np
from report_values import I32, I32_MAX, I32_MIN, I64, U8, U32, i32, operation, same

import mlc.numpy as mnp


def test_division_by_zero_and_overflow_have_answers(run):
    # openxla/stablehlo#3009: -1, the dividend, the least integer, 0
    a, b = i32(7, -7, 0, I32_MIN, I32_MIN, I32_MAX, 5), i32(0, 0, 0, -1, 0, -1, -2)
    quotient, rest = i32(-1, -1, -1, I32_MIN, -1, -I32_MAX, -2), i32(7, -7, 0, 0, I32_MIN, 0, 1)
    same(run(lambda a, b: (operation("div", a, b), operation("rem", a, b)), a, b), quotient, rest)
    same(run(lambda: (operation("div", mnp.asarray(a), mnp.asarray(b)), operation("rem", mnp.asarray(a), mnp.asarray(b)))), quotient, rest)


def test_division_by_zero_has_answers_in_every_width(run):
    # openxla/stablehlo#3009
    for name in ("int8", "int16", "int64", "uint8", "uint16", "uint32", "uint64"):
        info = np.iinfo(name)
        a, b = np.array([info.max, info.min, 5, 0, info.min], name), np.array([0, 0, 0, 0, info.max], name)
        by_zero = np.array(-1, I64).astype(name)
        last = int(info.min) // int(info.max) + (1 if info.min else 0)  # truncated
        same(run(lambda a, b: (operation("div", a, b), operation("rem", a, b)), a, b),
             np.array([by_zero] * 4 + [np.array(last, I64).astype(name)], name),
             np.array([*a[:4], np.array(int(info.min) - last * int(info.max), I64).astype(name)], name))


def test_a_guarded_division_does_not_trap(run):
    # openxla/stablehlo#2151
    n, d = np.tile(i32(10, 20, I32_MIN, 40, -7), 7), np.tile(i32(0, 3, -1, 0, 2), 7)
    safe = np.where(d == 0, 1, d).astype(I64)
    same(run(lambda n, d: (mnp.where(d != 0, n // d, 0), mnp.where(d != 0, n % d, -5)), n, d),
         np.where(d == 0, 0, (n.astype(I64) // safe).astype(I32)), np.where(d == 0, -5, (n.astype(I64) % safe).astype(I32)))


def test_the_lanes_past_the_end_do_not_divide(run):
    # openxla/stablehlo#2151: 5 of 8 or 16 lanes are there; what fills the others must not trap
    for n in (1, 3, 5, 17):
        x = np.arange(1, n + 1, dtype=I32)
        same(run(lambda x: (100 // x, 100 % x), x), 100 // x, 100 % x)


def test_floors_and_remainders_of_negative_numbers(run):
    # tinygrad/tinygrad#10229, tinygrad/tinygrad#9674, apache/tvm#5505
    i = np.arange(-20, 20, dtype=I32)

    def answers(i):
        return ((i * 4 - 9) // 5, (i * 4 - 9) % 5, (i - 7) % 3 + (i - 7) // 3 * 3, ((i * 6 + 3) // 4) % 3, (i // 8) * 8 + i % 8, -(i * 2) // 4,
                i // -3, i % -3, (i * 4) // 4, (i * 4 + 2) // 4)
    same(run(answers, i), *answers(i))


def test_index_arithmetic_made_in_the_program_floors_too(run):
    # apache/tvm#5505: iota folded with divisions by constants
    i = np.arange(40, dtype=I32)
    same(run(lambda: ((mnp.arange(40, dtype=mnp.int32) - 20) // 7, (mnp.arange(40, dtype=mnp.int32) - 20) % 7)), (i - 20) // 7, (i - 20) % 7)


def test_shifts_past_the_width_give_zero_or_the_sign(run):
    # openxla/stablehlo#1150
    a, s = i32(1, -1, 12345, -12345, I32_MIN, 7), i32(31, 32, 33, 64, 100, -1)
    found = run(lambda a, s: (operation("shift_left", a, s), operation("shift_right_arithmetic", a, s), operation("shift_right_logical", a, s)), a, s)
    same(found, i32(I32_MIN, 0, 0, 0, 0, 0), i32(0, -1, 0, -1, -1, 0), i32(0, 0, 0, 0, 0, 0))
    same(run(lambda: (mnp.asarray(a) << mnp.asarray(s), mnp.asarray(a) >> mnp.asarray(s))), found[0], found[1])


def test_shifts_of_other_widths_past_the_width(run):
    # openxla/stablehlo#1150
    u, w = np.array([255, 1, 128, 7], U8), np.array([7, 8, 200, 3], U8)
    x, y = np.array([2 ** 63 - 1, -1, -2 ** 63, 5], I64), np.array([63, 64, 65, -1], I64)
    same(run(lambda u, w, x, y: (u << w, u >> w, x << y, x >> y, u.astype(mnp.uint32) >> np.uint32(40)), u, w, x, y),
         np.array([128, 0, 0, 56], U8), np.array([1, 0, 0, 0], U8), np.array([-2 ** 63, 0, 0, 0], I64), np.array([0, -1, -1, 0], I64),
         np.zeros(4, U32))


def test_integer_powers_with_large_exponents_wrap(run):
    # jax-ml/jax#5987
    a, b = i32(0, 0, 1, -1, 2, 3, -2, 10, 7), i32(64, 0, 1000, 1001, 31, 40, 33, 10, 5)
    exact = i32(*((pow(int(x), int(y)) + 2 ** 31) % 2 ** 32 - 2 ** 31 for x, y in zip(a, b)))
    same(run(lambda a, b: (mnp.power(a, b), mnp.power(a, 64), a ** 3), a, b),
         exact, i32(*((pow(int(x), 64) + 2 ** 31) % 2 ** 32 - 2 ** 31 for x in a)), i32(*(int(x) ** 3 for x in a)))


def test_the_least_integer_has_no_absolute_value(run):
    # openxla/stablehlo#3009: negation and abs wrap
    x = i32(I32_MIN, I32_MAX, -5, 0)
    same(run(lambda x: (-x, mnp.abs(x), mnp.sign(x), x - 1, x * x), x), i32(I32_MIN, -I32_MAX, 5, 0), i32(I32_MIN, I32_MAX, 5, 0), i32(-1, 1, -1, 0),
         i32(I32_MAX, I32_MAX - 1, -6, -1), i32(0, 1, 25, 0))


def test_comparisons_of_unsigned_integers_are_unsigned(run):
    # jax-ml/jax#16836: 128 and above taken for negative
    x, y = np.array([128, 255, 0, 200], U8), np.array([127, 1, 128, 200], U8)
    same(run(lambda x, y: (x > y, mnp.maximum(x, y), mnp.minimum(x, y), mnp.max(x), mnp.argmax(x), x.astype(mnp.float32)), x, y),
         x > y, np.maximum(x, y), np.minimum(x, y), np.array(255, U8), np.array(1, I64), x.astype(np.float32))
