"""For each seeded fault a program written by hand whose answer it spoils: what shows that the fault is alive, apart from the fuzzer."""

from __future__ import annotations

import os
import tempfile

import numpy as np

from mlc.compile import compile_graph
from mlc.core.options import options
from mlc.graph.text import parse_graph

SQUARE = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
COUNT = np.arange(1, 22, dtype=np.float32)
WEIGHTS = (np.arange(64 * 64).reshape(64, 64) * 7 % 11 - 5).astype(np.float32)
LONG = np.arange(20001, dtype=np.float32) % 7
INTS = np.array([7, -7, 5], np.int32)

# name: (graph, arguments, expected)
WITNESSES = {
    "cse_ignores_axes": ("""graph @main(%x: f32[3,3]) -> f32[3] {
        %0 = reduce_sum %x {axes=[0]} : f32[3]
        %1 = reduce_sum %x {axes=[1]} : f32[3]
        %2 = sub %0, %1 : f32[3]
        return %2 }""", [SQUARE], SQUARE.sum(0) - SQUARE.sum(1)),
    "fold_computes_in_f32": ("""graph @main() -> f64[] {
        %0 = constant {value=3.0} : f64[]
        %1 = div 1.0, %0 : f64[]
        return %1 }""", [], np.float64(1) / 3),
    "product_with_zero_is_zero": ("""graph @main(%x: f32[2]) -> f32[2] {
        %0 = mul %x, 0.0 : f32[2]
        return %0 }""", [np.array([np.nan, 1], np.float32)], np.array([np.nan, 0], np.float32)),
    "fusion_drops_a_broadcast": ("""graph @main(%x: f32[3,3], %b: f32[3]) -> f32[3,3] {
        %0 = broadcast_in_dim %b {dims=[1]} : f32[3,3]
        %1 = add %x, %0 : f32[3,3]
        return %1 }""", [SQUARE, SQUARE[0]], SQUARE + SQUARE[0]),
    "maximum_starts_from_zero": ("""graph @main(%x: f32[21]) -> f32[] {
        %0 = reduce_max %x {axes=[0]} : f32[]
        return %0 }""", [-COUNT], np.float32(-1)),
    "lifetimes_end_a_step_early": ("""graph @main(%x: f32[64,64]) -> f32[64,64] {
        %0 = dot_general %x, %x {contract=([1],[0]), batch=([],[])} : f32[64,64]
        %1 = dot_general %x, %0 {contract=([1],[0]), batch=([],[])} : f32[64,64]
        %2 = dot_general %1, %x {contract=([1],[0]), batch=([],[])} : f32[64,64]
        return %2 }""", [np.sign(WEIGHTS)], np.linalg.matrix_power(np.sign(WEIGHTS), 4)),
    "in_place_at_another_index": ("""graph @main(%x: f32[64,64]) -> f32[64,64] {
        %0 = dot_general %x, %x {contract=([1],[0]), batch=([],[])} : f32[64,64]
        %1 = transpose %0 {perm=[1,0]} : f32[64,64]
        %2 = abs %1 : f32[64,64]
        %3 = dot_general %2, %x {contract=([1],[0]), batch=([],[])} : f32[64,64]
        return %3 }""", [np.sign(WEIGHTS)], np.abs(np.sign(WEIGHTS) @ np.sign(WEIGHTS)).T @ np.sign(WEIGHTS)),
    "cache_key_without_dtype": ("""graph @main(%x: f32[3,3]) -> f32[3,3] {
        %0 = add %x, %x : f32[3,3]
        return %0 }""", [SQUARE], SQUARE + SQUARE),
    "vector_tail_one_short": ("""graph @main(%x: f32[21]) -> f32[21] {
        %0 = neg %x : f32[21]
        return %0 }""", [COUNT], -COUNT),
    "max_drops_nan": ("""graph @main(%x: f32[2], %y: f32[2]) -> f32[2] {
        %0 = max %x, %y : f32[2]
        return %0 }""", [np.array([np.nan, 1], np.float32), np.array([1, 2], np.float32)], np.array([np.nan, 2], np.float32)),
    "signed_division_unguarded": ("""graph @main(%x: i32[3], %y: i32[3]) -> i32[3] {
        %0 = div %x, %y : i32[3]
        return %0 }""", [INTS, np.zeros(3, np.int32)], np.array([-1, -1, -1], np.int32)),
    "shift_past_the_width_raw": ("""graph @main(%x: i32[], %y: i32[]) -> i32[] {
        %0 = shift_left %x, %y : i32[]
        return %0 }""", [np.array(7, np.int32), np.array(33, np.int32)], np.int32(0)),
    "inlined_arguments_reversed": ("""graph @main(%x: f32[3,3], %y: f32[3,3]) -> f32[3,3] {
        %0 = call %x, %y { graph @difference(%a: f32[3,3], %b: f32[3,3]) -> f32[3,3] {
            %0 = sub %a, %b : f32[3,3]
            return %0 } } : (f32[3,3])
        %1 = tuple_get %0 {index=0} : f32[3,3]
        return %1 }""", [SQUARE, SQUARE.T.copy()], SQUARE - SQUARE.T),
    "conversions_merge_through_anything": ("""graph @main(%x: f32[2]) -> f32[2] {
        %0 = convert_element_type %x : i32[2]
        %1 = convert_element_type %0 : f32[2]
        return %1 }""", [np.array([1.5, -2.75], np.float32)], np.array([1, -2], np.float32)),
    "transposed_reads_fuse": ("""graph @main(%x: f32[64,64]) -> f32[64,64] {
        %0 = dot_general %x, %x {contract=([1],[0]), batch=([],[])} : f32[64,64]
        %1 = transpose %0 {perm=[1,0]} : f32[64,64]
        %2 = add %x, %1 : f32[64,64]
        return %2 }""", [WEIGHTS], WEIGHTS + (WEIGHTS @ WEIGHTS).T),
    "chunk_remainder_forgotten": ("""graph @main(%x: f32[20001]) -> f32[] {
        %0 = reduce_sum %x {axes=[0]} : f32[]
        return %0 }""", [LONG], LONG.sum()),
    "last_tile_a_row_early": ("""graph @main(%x: f32[23,64], %y: f32[64,64]) -> f32[23,64] {
        %0 = dot_general %x, %y {contract=([1],[0]), batch=([],[])} : f32[23,64]
        return %0 }""", [WEIGHTS[:23].copy(), WEIGHTS], WEIGHTS[:23] @ WEIGHTS),
    # exp(log(2.02)): 2.02 to the last bit or two.
    "exp_half_is_off": ("""graph @main(%x: f32[21]) -> bool[21] {
        %0 = exp %x : f32[21]
        %1 = sub %0, 2.02 : f32[21]
        %2 = abs %1 : f32[21]
        %3 = lt %2, 0.000001 : bool[21]
        return %3 }""", [np.full(21, np.log(2.02), np.float32)], np.ones(21, bool)),
    # log(2^-140): -97 and a little.
    "log_without_subnormals": ("""graph @main(%x: f32[2]) -> f32[2] {
        %0 = log %x : f32[2]
        %1 = floor %0 : f32[2]
        return %1 }""", [np.array([2.0 ** -140, 2], np.float32)], np.array([-98, 0], np.float32)),
    "strided_arguments_read_as_contiguous": ("""graph @main(%x: f32[3,3]) -> f32[3,3] {
        %0 = neg %x : f32[3,3]
        return %0 }""", [SQUARE.T], -SQUARE.T),
    "unsigned_compared_as_signed": ("""graph @main(%x: u8[21], %y: u8[21]) -> bool[21] {
        %0 = lt %x, %y : bool[21]
        return %0 }""", [np.full(21, 3, np.uint8), np.full(21, 200, np.uint8)], np.ones(21, bool)),
    "saturation_one_short": ("""graph @main(%x: f32[2]) -> i8[2] {
        %0 = convert_element_type %x : i8[2]
        return %0 }""", [np.array([300, -300], np.float32)], np.array([127, -128], np.int8)),
    "reversed_tail_forward": ("""graph @main(%x: f32[21]) -> f32[21] {
        %0 = rev %x {axes=[0]} : f32[21]
        %1 = neg %0 : f32[21]
        return %1 }""", [COUNT], -COUNT[::-1]),
    "cse_sorts_all_operands": ("""graph @main(%x: f32[3,3], %y: f32[3,3]) -> f32[3,3] {
        %0 = sub %x, %y : f32[3,3]
        %1 = sub %y, %x : f32[3,3]
        %2 = max %0, %1 : f32[3,3]
        return %2 }""", [SQUARE, SQUARE.T.copy()], np.abs(SQUARE - SQUARE.T)),
    # 1 / 49 rounds so that 49 times it is not 1.
    "division_by_any_constant_multiplies": ("""graph @main(%x: f64[2]) -> f64[2] {
        %0 = div %x, 49.0 : f64[2]
        return %0 }""", [np.array([49.0, 98.0])], np.array([1.0, 2.0])),
    "and_of_i16_starts_positive": ("""graph @main(%x: i16[21]) -> i16[] {
        %0 = reduce_and %x {axes=[0]} : i16[]
        return %0 }""", [np.full(21, -3, np.int16)], np.int16(-3)),
    "interior_padding_dropped": ("""graph @main(%x: f32[3], %z: f32[]) -> f32[5] {
        %0 = pad %x, %z {pads=[[0,0,1]]} : f32[5]
        return %0 }""", [SQUARE[0], np.float32(9)], np.array([SQUARE[0, 0], 9, SQUARE[0, 1], 9, SQUARE[0, 2]], np.float32)),
    # erf(2), to eleven digits.
    "a_far_coefficient_of_erf_is_off": ("""graph @main(%x: f64[3]) -> bool[3] {
        %0 = erf %x : f64[3]
        %1 = sub %0, 0.9953222650189527 : f64[3]
        %2 = abs %1 : f64[3]
        %3 = lt %2, 0.00000000001 : bool[3]
        return %3 }""", [np.full(3, 2.0)], np.ones(3, bool)),
    "cache_key_without_splats": ("""graph @main(%x: f32[3,3]) -> f32[3,3] {
        %0 = mul %x, 3.0 : f32[3,3]
        return %0 }""", [SQUARE], SQUARE * 3),
    "strided_loads_too_close": ("""graph @main(%x: f32[210]) -> f32[21] {
        %0 = slice %x {start=[0], limit=[210], strides=[10]} : f32[21]
        %1 = neg %0 : f32[21]
        return %1 }""", [np.arange(210, dtype=np.float32)], -np.arange(0, 210, 10, dtype=np.float32)),
    "narrowing_saturates": ("""graph @main(%x: i32[3]) -> i8[3] {
        %0 = convert_element_type %x : i8[3]
        return %0 }""", [np.array([300, -300, 5], np.int32)], np.array([44, -44, 5], np.int8)),
    # 1 + 2^-8 lies half way, 1 + 3 * 2^-8 too: to nearest even.
    "bf16_truncates": ("""graph @main(%x: f32[2]) -> f32[2] {
        %0 = convert_element_type %x : bf16[2]
        %1 = convert_element_type %0 : f32[2]
        return %1 }""", [1 + np.array([1, 3], np.float32) / 256], np.array([1, 1.015625], np.float32)),
}


# What is compiled before the witness where the cache is at fault: a change of its text, and the dtype of the arguments.
ANOTHER_FIRST = {"cache_key_without_dtype": (("f32", "i32"), np.int32), "cache_key_without_splats": (("3.0", "5.0"), np.float32)}


def _answer(name: str) -> bool:
    text, args, expected = WITNESSES[name]
    (found,) = compile_graph(parse_graph(text)).run(args)
    return np.array_equal(np.asarray(found), expected, equal_nan=np.asarray(expected).dtype.kind == "f")


def _outputs_in_order() -> bool:
    """Two outputs of one type, each told from the other."""
    text = """graph @main(%x: f32[3,3]) -> (f32[3,3], f32[3,3]) {
        %0 = neg %x : f32[3,3]
        %1 = abs %x : f32[3,3]
        return %0, %1 }"""
    first, second = compile_graph(parse_graph(text)).run([SQUARE])
    return np.array_equal(first, -SQUARE) and np.array_equal(second, SQUARE)


def right(name: str) -> bool:
    """Whether mlc gives the witness's answer in this process."""
    if name == "outputs_of_one_type_swapped":
        return _outputs_in_order()
    if name not in ANOTHER_FIRST:
        return _answer(name)
    # The other program comes first, into a cache of this program's own.
    (old, new), dtype = ANOTHER_FIRST[name]
    with tempfile.TemporaryDirectory() as folder, options(cache=True, cache_dir=os.path.join(folder, "cache")):
        text, args, _ = WITNESSES[name]
        compile_graph(parse_graph(text.replace(old, new))).run([a.astype(dtype) for a in args])
        return _answer(name)
