"""What parallel loops of one kernel hand over to each other: shared buffers, which are private to nobody."""

import numpy as np
import pytest

from mlc.core.errors import VerifyError
from mlc.loop.interp import run
from mlc.loop.text import parse_kernel, print_kernel
from mlc.loop.verify import verify

HANDED_OVER = """\
loops @handed(%x: f32[8] in, %out: f32[8] out, %t: f32[8] shared) {
  parallel p in 8 {
    %0 = mul %x[p], 3.0 : f32
    %t[p] = %0
  }
  parallel q in 8 {
    %out[q] = %t[-q + 7]
  }
}
"""


def kernel(body: str, role: str = "shared"):
    return parse_kernel(f"loops @k(%x: f32[8] in, %out: f32[8] out, %t: f32[8] {role}) {{ {body} }}")


def test_a_parallel_loop_reads_what_the_one_before_left():
    handed = verify(parse_kernel(HANDED_OVER))
    assert print_kernel(handed) == HANDED_OVER
    for backwards in (False, True):
        buffers = {"x": np.arange(8, dtype=np.float32), "out": np.zeros(8, np.float32)}
        run(handed, buffers, reverse_parallel=backwards)
        assert buffers["out"].tolist() == [21, 18, 15, 12, 9, 6, 3, 0]


@pytest.mark.parametrize("body", [
    "parallel p in 8 { for i in 8 { %t[i] = %x[p] } for j in 1 { %out[p] = %t[p] } }",   # fine only if each thread had its own
    "parallel p in 7 { %t[p + 1] = %x[p] %out[p] = %t[p] }",
    "parallel p in 4 { %t[0] = %x[p] }"])
def test_shared_buffers_may_not_be_raced_for(body):
    with pytest.raises(VerifyError, match="parallel_iterations_are_independent"):
        verify(kernel(body))


def test_scratch_is_what_each_iteration_has_of_its_own():
    verify(kernel("parallel p in 8 { for i in 8 { %t[i] = %x[p] } for j in 1 { %out[p] = %t[p] } }", "scratch"))
    with pytest.raises(VerifyError, match="scratch_stays_inside_its_iteration"):
        verify(parse_kernel(HANDED_OVER.replace("shared", "scratch")))


def test_shared_buffers_stand_last():
    with pytest.raises(VerifyError, match="buffers_are_well_formed"):
        verify(parse_kernel("loops @k(%t: f32[8] shared, %x: f32[8] in) { }"))
