"""Identities of real numbers that machine numbers break, and simplifications worth getting wrong: patterns without a result.

Nothing says whether a compiler rewrites them. Whatever it does must give the same bits, or bits within the bound.
"""

from __future__ import annotations

from mlc.passes.pattern import Splat, Term, Var, term

x, y, z, c = Var("x"), Var("y"), Var("z"), Var("c")
add, sub, mul, div, rem, neg, absolute, sign = map(term, ("add", "sub", "mul", "div", "rem", "neg", "abs", "sign"))
maximum, minimum, clamp, select, power = map(term, ("max", "min", "clamp", "select", "pow"))
and_, or_, xor, not_ = map(term, ("and", "or", "xor", "not"))
eq, ne, lt, le, gt, ge, finite = map(term, ("eq", "ne", "lt", "le", "gt", "ge", "is_finite"))
exp, log, sqrt, rsqrt, floor, tanh, logistic = map(term, ("exp", "log", "sqrt", "rsqrt", "floor", "tanh", "logistic"))
left, right, arithmetic = map(term, ("shift_left", "shift_right_logical", "shift_right_arithmetic"))
convert, integer_pow, broadcast, transpose, reshape = map(term, ("convert_element_type", "integer_pow", "broadcast_in_dim", "transpose", "reshape"))
total, largest, smallest, rev, concatenate, slice_ = map(term, ("reduce_sum", "reduce_max", "reduce_min", "rev", "concatenate", "slice"))
ZERO, NEGATIVE_ZERO, ONE, TWO, HALF, MINUS = Splat(0), Splat(-0.0), Splat(1), Splat(2), Splat(0.5), Splat(-1)

TEMPTATIONS: dict[str, Term] = {
    "x + 0": add(x, ZERO), "x - -0": sub(x, NEGATIVE_ZERO), "0 - x": sub(ZERO, x), "-0 - x": sub(NEGATIVE_ZERO, x), "x * 0": mul(x, ZERO),
    "x - x": sub(x, x), "x / x": div(x, x), "x rem x": rem(x, x), "0 / x": div(ZERO, x), "1 / x": div(ONE, x), "x / 0": div(x, ZERO),
    "x rem 0": rem(x, ZERO), "x / 3": div(x, Splat(3)), "x / 2": div(x, TWO), "x / 4": div(x, Splat(4)), "x rem 2": rem(x, TWO),
    "x rem 4": rem(x, Splat(4)), "x * 2": mul(x, TWO), "x * 8": mul(x, Splat(8)), "x + x": add(x, x), "x == x": eq(x, x), "x != x": ne(x, x),
    "x <= x": le(x, x), "x < x": lt(x, x), "x - y + y": add(sub(x, y), y), "x + y - y": sub(add(x, y), y), "x * y / y": div(mul(x, y), y),
    "x / y * y": mul(div(x, y), y), "x + 1 - 1": add(add(x, ONE), MINUS), "x * 2 * 3": mul(mul(x, TWO), Splat(3)),
    "x / 2 / 4": div(div(x, TWO), Splat(4)), "x + y + z": add(x, add(y, z)), "x * y + x * z": add(mul(x, y), mul(x, z)),
    "x * y + z": add(mul(x, y), z), "x * y - x": sub(mul(x, y), x), "-x + y": add(neg(x), y), "-x * y": mul(neg(x), y), "x / -y": div(x, neg(y)),
    "-(x - y)": neg(sub(x, y)), "-(x + y)": neg(add(x, y)), "-x - y": sub(neg(x), y), "-(x * y)": neg(mul(x, y)),
    "sqrt(x * x)": sqrt(mul(x, x)), "sqrt(x) * sqrt(x)": mul(sqrt(x), sqrt(x)), "1 / sqrt(x)": div(ONE, sqrt(x)), "x / sqrt(y)": div(x, sqrt(y)),
    "rsqrt squared": mul(rsqrt(x), rsqrt(x)), "exp(log(x))": exp(log(x)), "log(exp(x))": log(exp(x)), "exp(x) * exp(y)": mul(exp(x), exp(y)),
    "x * (1 / y)": mul(x, div(ONE, y)), "1 / (1 / x)": div(ONE, div(ONE, x)), "x ** 0": power(x, ZERO), "x ** 1": power(x, ONE),
    "x ** 2": power(x, TWO), "x ** 0.5": power(x, HALF), "x ** -1": power(x, MINUS), "1 ** x": power(ONE, x),
    "(x ** a) ** b": integer_pow(integer_pow(x)),
    "max(min(x, y), y)": maximum(minimum(x, y), y), "min(max(x, y), x)": minimum(maximum(x, y), x), "max(-x, -y)": maximum(neg(x), neg(y)),
    "max(x, -x)": maximum(x, neg(x)), "max(x, 0)": maximum(x, ZERO), "min(max(x, 0), 1)": minimum(maximum(x, ZERO), ONE),
    "max(x, x + 1)": maximum(x, add(x, ONE)), "min(x, 0) + max(x, 0)": add(minimum(x, ZERO), maximum(x, ZERO)),
    "clamp(y, x, y)": clamp(y, x, y), "clamp(1, x, 0)": clamp(ONE, x, ZERO), "clamp(clamp)": clamp(x, clamp(y, z, c), c),
    "x < y ? x : y": select(lt(x, y), x, y), "x > y ? x : y": select(gt(x, y), x, y), "x == y ? x : y": select(eq(x, y), x, y),
    "x != y ? x : y": select(ne(x, y), x, y), "x > 0 ? x : 0": select(gt(x, ZERO), x, ZERO), "x >= 0 ? x : -x": select(ge(x, ZERO), x, neg(x)),
    "c ? x : c ? y : z": select(c, x, select(c, y, z)), "c ? x + y : x + z": select(c, add(x, y), add(x, z)), "c ? 1 : 0": select(c, ONE, ZERO),
    "abs(x * y)": absolute(mul(x, y)), "abs(x) * abs(y)": mul(absolute(x), absolute(y)), "sign(x) * abs(x)": mul(sign(x), absolute(x)),
    "abs(x - y) == abs(y - x)": eq(absolute(sub(x, y)), absolute(sub(y, x))), "x - y == 0": eq(sub(x, y), ZERO), "-x < -y": lt(neg(x), neg(y)),
    "x + 1 > x": gt(add(x, ONE), x), "x * 2 < y * 2": lt(mul(x, TWO), mul(y, TWO)), "x < 0": lt(x, ZERO), "x >= 0": ge(x, ZERO),
    "not x < y": not_(lt(x, y)), "not x >= y": not_(ge(x, y)), "finite": finite(sub(x, x)), "lt and ge": and_(lt(x, y), ge(x, y)),
    "x & ~x": and_(x, not_(x)), "x | ~x": or_(x, not_(x)), "x ^ y ^ y": xor(xor(x, y), y), "(x & y) | (x & z)": or_(and_(x, y), and_(x, z)),
    "~x & ~y": and_(not_(x), not_(y)), "x << 2 >> 2": right(left(x, TWO), TWO), "x >> 2 << 2": left(right(x, TWO), TWO),
    "x >> 1 >> 1": arithmetic(arithmetic(x, ONE), ONE), "x << 64": left(x, Splat(64)), "x & 1": and_(x, ONE), "x << y << z": left(left(x, y), z),
    "convert(x + y)": convert(add(x, y)), "convert(x) + convert(y)": add(convert(x), convert(y)), "three conversions": convert(convert(convert(x))),
    "floor(convert)": floor(convert(x)), "convert(floor)": convert(floor(x)), "convert(convert(x)) == x": eq(convert(convert(x)), x),
    "tanh(-x)": tanh(neg(x)), "1 - logistic(x)": sub(ONE, logistic(x)), "sum(-x)": total(neg(x)), "sum(x * c)": total(mul(x, Splat(3))),
    "max(-x)": largest(neg(x)), "min(rev x)": smallest(rev(x)), "sum(rev x)": total(rev(x)), "sum(broadcast)": total(broadcast(x)),
    "sum(x * y)": total(mul(x, y)), "sum(sum x)": total(total(x)), "max(reshape)": largest(reshape(x)),
    "max(concatenate)": largest(concatenate(Var("xs", rest=True))),
    "sum(x) - sum(x)": sub(total(x), total(x)), "broadcast of a sum": sub(x, broadcast(total(x))), "transpose of reshape": transpose(reshape(x)),
    "reshape of transpose": reshape(transpose(x)), "slice of reshape": slice_(reshape(x)), "slice of rev": slice_(rev(x)),
    "rev of slice": rev(slice_(x)),
    "slice of transpose": slice_(transpose(x)), "transpose of slice": transpose(slice_(x)), "slice of sum": slice_(total(x)),
}
