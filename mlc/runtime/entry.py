"""The native entry: programs as built-in functions that check their arguments, allocate, run and return in native code.

A call costs some tens of nanoseconds besides the program. Layouts of CPython's and NumPy's objects that the code relies
on are proved at first use; where they differ (another Python, a free-threaded build) there is no native entry and
callers use `Program.run`, which does the same in Python.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import numpy as np

from mlc.core.aligned import address
from mlc.core.dtype import parse_dtype
from mlc.core.errors import CodegenError
from mlc.runtime import dispatch_ir, entry_ir, pool_ir
from mlc.runtime.once import once
from mlc.runtime.orc import Library
from mlc.runtime.support import call_table, load_library, support

_METH_FASTCALL = 0x80
_NEW_FROM_DESCR, _GET_HANDLER = 94, 305  # places in NumPy's table: PyArray_NewFromDescr, PyDataMem_GetHandler
_MOST_BUFFERS = 1 << 14  # addresses are passed on the stack


class _MethodDef(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


class _Context(np.ndarray):
    """A program's tables, the `self` of its built-in function; `keep` holds alive what the tables point to."""

    keep: tuple = ()


class _Native:
    """The entry's library with its table filled in; it lives as long as the process, since arrays outlive programs."""

    def __init__(self) -> None:
        reason = _layout_problem()
        if reason:
            raise CodegenError(reason)
        self.library: Library = load_library(pool_ir.text() + entry_ir.text() + dispatch_ir.text(),
                                             (*pool_ir.EXPORTS, *entry_ir.EXPORTS, *dispatch_ir.EXPORTS), (support(),))
        api = (ctypes.c_uint64 * entry_ir.API_SLOTS).from_address(self.library.address("mlc_api"))
        self.handler = _capsule(self.library.address("mlc_handler"))
        api[entry_ir.ARRAY_TYPE] = id(np.ndarray)
        api[entry_ir.NEW_FROM_DESCR] = _numpy_api()[_NEW_FROM_DESCR]
        api[entry_ir.MEMORY_HANDLER] = id(self.handler)
        api[entry_ir.NOT_IMPLEMENTED] = id(NotImplemented)
        self.retained = ctypes.c_uint64.from_address(self.library.address("mlc_retained"))
        self.retain_limit = ctypes.c_uint64.from_address(self.library.address("mlc_retain_limit"))
        # One definition for all programs: CPython reads it when a function dies, after what the function keeps is gone.
        self.method = _MethodDef(b"mlc_program", self.library.address("mlc_entry"), _METH_FASTCALL, None)
        self.new_function = ctypes.pythonapi.PyCFunction_NewEx
        self.new_function.restype = ctypes.py_object
        self.new_function.argtypes = ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p

    def function(self, table: int, inputs: list, outputs: list, constants: list[int], temporaries: tuple[int, int], heavy: bool,
                 fallback: Callable | None, keep: object) -> Callable:
        """A built-in function of the program with this call table; inputs and outputs are (shape, NumPy dtype), constants are
        addresses, `temporaries` the bytes of arena and workspace."""
        dtypes = [dtype for _, dtype in (*inputs, *outputs)]
        input_table = _table([[id(dtype), len(shape), *shape] for shape, dtype in inputs])
        output_table = _table([[id(dtype), len(shape), _bytes(shape, dtype), *shape] for shape, dtype in outputs])
        constant_table = _table([constants])
        slots = [0] * entry_ir.CONTEXT_SLOTS
        slots[entry_ir.PROGRAM] = table
        slots[entry_ir.INPUTS], slots[entry_ir.OUTPUTS], slots[entry_ir.CONSTANTS] = len(inputs), len(outputs), len(constants)
        slots[entry_ir.HEAVY], slots[entry_ir.ARENA], slots[entry_ir.WORKSPACE] = int(heavy), *temporaries
        slots[entry_ir.INPUT_TABLE], slots[entry_ir.OUTPUT_TABLE] = address(input_table), address(output_table)
        slots[entry_ir.CONSTANT_TABLE] = address(constant_table)
        slots[entry_ir.FALLBACK] = 0 if fallback is None else id(fallback)
        slots[entry_ir.BUFFERS] = len(inputs) + len(outputs) + len(constants) + 2
        context = np.array(slots, np.uint64).view(_Context)
        context.keep = (dtypes, input_table, output_table, constant_table, fallback, keep)
        return self.new_function(ctypes.addressof(self.method), context, None)


def _table(rows: list[list[int]]) -> np.ndarray:
    return np.array([value for row in rows for value in row], np.uint64)


def _bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    count = dtype.itemsize
    for extent in shape:
        count *= extent
    return count


def _capsule(pointer: int) -> object:
    """A capsule around NumPy's memory handler."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(pointer, _HANDLER_NAME, None)


_HANDLER_NAME = ctypes.create_string_buffer(b"mem_handler")  # a capsule keeps the address of its name


def _numpy_api() -> ctypes.Array:
    """NumPy's C API table (numpy/__multiarray_api.h)."""
    from numpy._core import _multiarray_umath
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return (ctypes.c_void_p * (_GET_HANDLER + 1)).from_address(get(_multiarray_umath._ARRAY_API, None))


def _layout_problem() -> str | None:
    """Why the native entry cannot be used here, None if every layout it relies on is as expected."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little":
        return "not a 64-bit little-endian CPython"
    if "t" in getattr(sys, "abiflags", ""):
        return "a CPython without the GIL"
    if object.__basicsize__ != 16 or np.ndarray.__basicsize__ < 96:
        return "objects have unusual headers"
    table = _numpy_api()
    version = ctypes.CFUNCTYPE(ctypes.c_uint)(table[0])()
    if table[2] != id(np.ndarray) or version >> 24 != 2:
        return f"NumPy's C API has version {version:#x}"
    return _array_problem()


def _array_problem() -> str | None:
    """Compare the fields of a sample array, read at their offsets, with what Python says they are."""
    owner = np.arange(120, dtype=np.float32)
    sample = owner.reshape(4, 5, 6)[1:, ::2]
    at = id(sample)

    def pointer(offset: int) -> int:
        return ctypes.c_uint64.from_address(at + offset).value

    def integer(offset: int) -> int:
        return ctypes.c_int32.from_address(at + offset).value
    flags = sample.flags.num
    fields = {
        "type": pointer(entry_ir.TYPE) == id(np.ndarray), "data": pointer(entry_ir.DATA) == address(sample), "nd": integer(entry_ir.ND) == 3,
        "base": pointer(entry_ir.BASE) == id(owner), "descr": pointer(entry_ir.DESCR) == id(sample.dtype),
        "flags": integer(entry_ir.FLAGS) == flags and bool(flags & 0x100), "mem_handler": pointer(entry_ir.HANDLER) == 0,
        # Dimensions and strides lie in one piece of memory: known to be pointers before the first is followed.
        "dimensions": pointer(entry_ir.DIMS) + 8 * 3 == pointer(entry_ir.DIMS + 8) != 24,
        "owner's mem_handler": ctypes.c_uint64.from_address(id(owner) + entry_ir.HANDLER).value == _current_handler(),
    }
    wrong = [name for name, right in fields.items() if not right]
    if not wrong and tuple((ctypes.c_int64 * 3).from_address(pointer(entry_ir.DIMS))) != sample.shape:
        wrong = ["dimensions"]
    return f"unexpected array fields: {', '.join(wrong)}" if wrong else None


def _current_handler() -> int:
    """The address of the memory handler that new arrays get."""
    get = ctypes.PYFUNCTYPE(ctypes.py_object)(_numpy_api()[_GET_HANDLER])
    return id(get())


def _self_test(native: _Native) -> None:
    """Run the entry once around a copy of one number, and look at the array that comes back."""
    f64 = np.dtype(np.float64)
    table = call_table([("mlc_identity", 0, 0, ((0, 0), (1, 0)), ())], native.library.address)
    function = native.function(ctypes.addressof(table), [((1,), f64)], [((1,), f64)], [], (64, 64), True, None, table)
    result = function(np.array([2.5]))
    handler = np._core.multiarray.get_handler_name(result) if type(result) is np.ndarray else None
    right = handler == "mlc_pool" and result.tolist() == [2.5] and result.dtype is f64 and result.flags.owndata and result.flags.carray
    if not right or function(1.0) is not NotImplemented:
        raise CodegenError("the native entry's self-test failed")


@once
def _native() -> _Native | str:
    """The native entry of this process, or why there is none."""
    try:
        native = _Native()
        _self_test(native)
        return native
    except (CodegenError, ImportError, AttributeError) as error:
        return str(error)


def unavailable() -> str | None:
    """Why this process has no native entry; None if it has one."""
    native = _native()
    return native if isinstance(native, str) else None


def native_function(program: object, fallback: Callable | None = None) -> Callable | None:
    """The program as a built-in function of its positional arguments, or None where native entries are unavailable.

    Called with exactly what the manifest says (plain ndarrays, right dtype and shape, C-contiguous, aligned), it returns
    the output, or a tuple if there is not exactly one. For anything else it returns `fallback(*args)`, or NotImplemented
    without a fallback. It keeps the program's code and constants alive, not the Program.
    """
    native = _native()
    manifest = program.manifest
    if isinstance(native, str) or len(manifest.inputs) + len(manifest.outputs) + len(program.residents) >= _MOST_BUFFERS:
        return None
    specs = [[(spec.shape, parse_dtype(spec.dtype).numpy) for spec in group] for group in (manifest.inputs, manifest.outputs)]
    return native.function(ctypes.addressof(program.table), *specs, [address(array) for array in program.residents],
                           (manifest.arena_bytes, manifest.workspace_bytes), manifest.heavy, fallback,
                           (tuple(program.libraries), program.table, program.residents))
