"""Machine code against the loop interpreter, bit for bit, on random loop kernels: both follow the written order exactly."""

import sys
from pathlib import Path

import numpy as np
import pytest
from random_kernels import make_inputs, random_kernel

from mlc.core import dtype as dt
from mlc.loop.interp import run
from mlc.loop.text import print_kernel

sys.path.append(str(Path(__file__).parents[1] / "codegen"))
import machine


def check(seeds: range, target: str, dtypes: tuple[dt.DType, ...] = dt.ALL) -> None:
    """One module with the kernels of these seeds computes what the interpreter does; what no kernel writes stays as it was."""
    kernels = [random_kernel(seed, dtypes) for seed in seeds]
    arrays = [make_inputs(kernel, np.random.default_rng(seed)) for seed, kernel in zip(seeds, kernels)]
    results = machine.run(kernels, arrays, target)
    for kernel, given, found in zip(kernels, arrays, results):
        wanted = {name: array.copy() for name, array in given.items()}
        run(kernel, wanted)
        for name, array in wanted.items():
            same = machine.same_bits(found[name], array)
            at = int(np.argmin(same)) if same.size else 0
            assert same.all(), (f"{target}: %{name}[{at}] is {found[name][at]!r}, the interpreter says {array[at]!r}, "
                                f"{np.sum(~same)} of {same.size} differ\n{print_kernel(kernel)}")


@pytest.mark.parametrize("target", machine.runnable_targets())
@pytest.mark.parametrize("start", range(0, 60, 20))
def test_machine_code_is_the_interpreter(target, start):
    check(range(start, start + 20), target)


@pytest.mark.parametrize("dtypes", [(dt.f32,), (dt.f64,), (dt.f16, dt.bf16), (dt.i8, dt.u8, dt.bool_), (dt.i64, dt.u64, dt.f32)], ids=str)
def test_machine_code_is_the_interpreter_among_few_dtypes(dtypes):
    check(range(1000, 1020), "native", dtypes)


@pytest.mark.nightly
@pytest.mark.parametrize("target", machine.runnable_targets())
def test_machine_code_is_the_interpreter_on_many_kernels(target):
    for start in range(2000, 6000, 20):
        check(range(start, start + 20), target)
