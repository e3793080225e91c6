"""Conversions to and from f16 and bf16 as LLVM IR text, for CPUs that lack the instructions.

LLVM calls compiler-rt's functions by name then, and a Python process need not have them. Rounded once, to nearest even,
straight from the source type; NaNs stay NaNs (made quiet, the top of the payload kept).
"""

from __future__ import annotations

EXPORTS = ("__extendhfsf2", "__truncsfhf2", "__truncdfhf2", "__truncsfbf2", "__truncdfbf2")

# Integer arithmetic on the bits of a double. With M mantissa bits and the smallest normal exponent L (bias 1 - L):
# the 53-bit significand is shifted right so that the result's last bit is the units place, further for subnormals, and
# rounded there; adding it to the exponent field lets a carry do the right thing.
_ROUND = """
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

define internal i16 @mlc_round_double(i64 %bits, i64 %mantissa, i64 %lowest) alwaysinline nounwind {
entry:
  %sign = lshr i64 %bits, 63
  %sign15 = shl i64 %sign, 15
  %abs = and i64 %bits, 9223372036854775807
  %infinite = shl i64 32767, %mantissa                    ; exponent field all ones, cut to 15 bits below
  %infinity = and i64 %infinite, 32767
  %drop = sub i64 52, %mantissa
  %nan = icmp ugt i64 %abs, 9218868437227405312
  br i1 %nan, label %quiet, label %number

quiet:
  %payload = lshr i64 %abs, %drop
  %top = sub i64 %mantissa, 1
  %quietbit = shl i64 1, %top
  %kept = or i64 %payload, %quietbit
  %nanbits = or i64 %kept, %infinity
  %nan15 = and i64 %nanbits, 32767
  br label %done

number:
  %field = lshr i64 %abs, 52
  %exponent = sub i64 %field, 1023
  %fraction = and i64 %bits, 4503599627370495
  %significand = or i64 %fraction, 4503599627370496
  %below = sub i64 %lowest, %exponent
  %extra = call i64 @llvm.smax.i64(i64 %below, i64 0)
  %wanted = add i64 %drop, %extra
  %shift = call i64 @llvm.umin.i64(i64 %wanted, i64 55)   ; from 55 on everything rounds to zero
  %units = lshr i64 %significand, %shift
  %whole = shl i64 %units, %shift
  %rest = sub i64 %significand, %whole
  %halfshift = sub i64 %shift, 1
  %half = shl i64 1, %halfshift
  %odd = and i64 %units, 1
  %tiebreak = sub i64 %half, %odd                         ; at a tie, an odd result goes up
  %up = icmp ugt i64 %rest, %tiebreak
  %one = zext i1 %up to i64
  %rounded = add i64 %units, %one
  %above = sub i64 %exponent, %lowest
  %scale = call i64 @llvm.smax.i64(i64 %above, i64 0)
  %place = shl i64 %scale, %mantissa
  %packed = add i64 %place, %rounded
  %finite = call i64 @llvm.umin.i64(i64 %packed, i64 %infinity)
  br label %done

done:
  %magnitude = phi i64 [ %nan15, %quiet ], [ %finite, %number ]
  %result = or i64 %magnitude, %sign15
  %short = trunc i64 %result to i16
  ret i16 %short
}
"""

_EXTEND = """
define float @__extendhfsf2(half %x) nounwind {
entry:
  %bits = bitcast half %x to i16
  %wide = zext i16 %bits to i32
  %sign = and i32 %wide, 32768
  %sign31 = shl i32 %sign, 16
  %abs = and i32 %wide, 32767
  %low = icmp ult i32 %abs, 1024
  br i1 %low, label %subnormal, label %normal

subnormal:
  %integer = uitofp i32 %abs to float
  %value = fmul float %integer, 0x3E70000000000000        ; 2^-24: exact
  %valuebits = bitcast float %value to i32
  br label %done

normal:
  %shifted = shl i32 %abs, 13
  %high = icmp uge i32 %abs, 31744
  %bias = select i1 %high, i32 1879048192, i32 939524096  ; (255 - 31) << 23, (127 - 15) << 23
  %rebiased = add i32 %shifted, %bias
  %nan = icmp ugt i32 %abs, 31744
  %quietbit = select i1 %nan, i32 4194304, i32 0
  %quiet = or i32 %rebiased, %quietbit
  br label %done

done:
  %magnitude = phi i32 [ %valuebits, %subnormal ], [ %quiet, %normal ]
  %all = or i32 %magnitude, %sign31
  %result = bitcast i32 %all to float
  ret float %result
}
"""


def _truncate(name: str, source: str, result: str, mantissa: int, lowest: int) -> str:
    widen = "fpext float %x to double" if source == "float" else "fadd double %x, -0.0"
    return f"""
define {result} @{name}({source} %x) nounwind {{
  %wide = {widen}
  %bits = bitcast double %wide to i64
  %short = call i16 @mlc_round_double(i64 %bits, i64 {mantissa}, i64 {lowest})
  %result = bitcast i16 %short to {result}
  ret {result} %result
}}
"""


def text() -> str:
    """The functions of EXPORTS."""
    functions = [_truncate(f"__trunc{short}{half}2", source, result, mantissa, lowest)
                 for short, source in (("sf", "float"), ("df", "double"))
                 for half, result, mantissa, lowest in (("hf", "half", 10, -14), ("bf", "bfloat", 7, -126))]
    return _ROUND + _EXTEND + "".join(functions)
