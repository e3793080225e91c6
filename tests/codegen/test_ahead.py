"""What loops ask memory for: the rows to come, in the last loop that reads a row; everything in a loop that reads alone."""

import re

import pytest
from machine import WIDE

from mlc.codegen.ahead import NARROW_ROWS_FAR_BYTES, READ_AHEAD, ROW_BYTES, ROWS_FAR_BYTES
from mlc.codegen.module import emit_module
from mlc.codegen.target import get_target
from mlc.loop.text import parse_kernel


def asked(rows, columns, second, first="%a0[{c}*i + j]", target=WIDE):
    """The distances that the first and the second loop over a row ask for, with the last line of the second."""
    text = f"""loops @rows(%a0: f32[{rows * columns}] in, %o0: f32[{rows * columns}] out) {{
  for i in {rows} {{
    var %t: f32<16> = 0.0
    vector(16) j in {columns} {{
      %0 = add %t, {first} : f32
      %t = %0
    }}
    fold %s = %t {{
      %0 = add %a.0, %b.0 : f32
      yield %0
    }}
    vector(16) k in {columns} {{
      %0 = sub {second}, %s : f32
      %o0[{{c}}*i + k] = %0
    }}
  }}
}}
""".replace("{c}", str(columns))
    lines = emit_module([(parse_kernel(text), [(0, 0), (1, 0)])], target).text.split("fsub", 1)
    split = lines[0].rindex("loop")
    return [sorted(map(int, re.findall(r"getelementptr i8, ptr %\w+, i64 (\d+)", part))) for part in (lines[0][:split], lines[0][split:])]


def test_the_last_loop_that_reads_a_row_asks_for_the_rows_to_come():
    assert asked(1 << 13, 1024, "%a0[{c}*i + k]") == [[], [READ_AHEAD]]


def test_only_rows_that_are_read_again_are_asked_for_where_vectors_are_narrow():
    narrow, rows = get_target("golden-v3"), NARROW_ROWS_FAR_BYTES >> 12
    assert asked(rows, 1024, "%a0[{c}*i + k]", target=narrow) == [[], [READ_AHEAD]]
    assert asked(rows - 1, 1024, "%a0[{c}*i + k]", target=narrow) == asked(1 << 13, 1024, "1.0", target=narrow) == [[], []]


def test_what_is_asked_for_lies_behind_the_row():
    assert asked(1 << 12, ROW_BYTES // 4, "%a0[{c}*i + k]") == [[], [ROW_BYTES]]


def test_rows_too_long_for_the_first_cache_are_asked_for_by_every_loop():
    assert asked(1 << 11, ROW_BYTES // 2, "%a0[{c}*i + k]") == [[READ_AHEAD]] * 2


@pytest.mark.parametrize("second", ("%a0[{c}*i + -1*k + 1023]", "%a0[{c}*i]", "1.0"))
def test_a_loop_whose_row_no_other_reads_lane_by_lane_asks_itself(second):
    assert asked(1 << 13, 1024, second)[0] == [READ_AHEAD]


def test_rows_read_again_are_asked_for_where_they_come_from_l3():
    assert asked(ROWS_FAR_BYTES >> 12, 1024, "%a0[{c}*i + k]") == [[], [READ_AHEAD]]
    assert asked((ROWS_FAR_BYTES >> 12) - 1, 1024, "%a0[{c}*i + k]") == [[], []]


def test_rows_read_once_are_asked_for_where_they_come_from_memory():
    assert asked(1 << 12, 1024, "1.0") == [[], []]


def test_of_pieces_of_rows_that_lie_apart_the_next_ones_are_asked_for():
    def distances(columns, pitch, rows=1 << 12):
        text = f"""loops @pieces(%a0: f32[{rows * pitch}] in, %o0: f32[{rows * columns}] out) {{
  for i in {rows} {{
    vector(16) j in {columns} {{
      %o0[{columns}*i + j] = %a0[{pitch}*i + j]
    }}
  }}
}}
"""
        found = emit_module([(parse_kernel(text), [(0, 0), (1, 0)])], WIDE).text
        return list(map(int, re.findall(r"getelementptr i8, ptr %\w+, i64 (\d+)", found)))
    assert distances(READ_AHEAD // 4, 4096) == [4 * 4096]
    assert distances(READ_AHEAD // 8, 4096) == [2 * 4 * 4096]
    assert distances(1 << 12, 1 << 12) == distances(1 << 11, 1 << 11, 1 << 13) == distances(1 << 12, 1 << 13) == [READ_AHEAD]
