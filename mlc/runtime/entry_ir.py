"""The native entry as LLVM IR text: one METH_FASTCALL function that serves every program, and the memory it hands out.

`mlc_entry(self, args, nargs)` reads its program's tables through `self` (an ndarray whose data they are), compares each
argument with them by reading the array's fields, allocates the outputs, runs and returns; on any mismatch it calls the
fallback or returns NotImplemented. No address is part of the code: CPython's functions are imported as symbols, NumPy's
come from the table @mlc_api. `mlc.runtime.entry` fills the tables and proves the layouts assumed here at start.

Outputs, arenas and workspaces are blocks of `mlc.runtime.pool_ir`: as many workspaces as calls run at once serve all programs.
"""

from __future__ import annotations

# Offsets into PyObject and NumPy 2's PyArrayObject_fields (numpy/ndarraytypes.h); checked at start.
TYPE, DATA, ND, DIMS, BASE, DESCR, FLAGS, HANDLER = 8, 16, 24, 32, 48, 56, 64, 88
CONTIGUOUS_ALIGNED = 0x101   # NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED
CARRAY = 0x501               # the same and NPY_ARRAY_WRITEABLE
OWNDATA = 0x4

# Slots of @mlc_api; the last three are the addresses of the environment's version and of the number of recordings under
# way, and the context variable of overridden options (see `mlc.runtime.dispatch`).
(ARRAY_TYPE, NEW_FROM_DESCR, MEMORY_HANDLER, NOT_IMPLEMENTED, NONE, TRUE, FLOAT_TYPE, INT_TYPE, BOOL_TYPE, DICT_TYPE, ENVIRONMENT, LIVE,
 OVERRIDES) = range(13)
API_SLOTS = 13
# Slots of a program's context.
(PROGRAM, INPUTS, OUTPUTS, CONSTANTS, HEAVY, ARENA, WORKSPACE, CONSTANT_TABLE, INPUT_TABLE, OUTPUT_TABLE, FALLBACK, BUFFERS, HITS) = range(13)
CONTEXT_SLOTS = 13

EXPORTS = ("mlc_entry", "mlc_api", "mlc_identity")


def _load(result: str, ty: str, base: str, offset: int) -> str:
    """IR that loads a field `offset` bytes behind `base`."""
    return f"  {result}.at = getelementptr i8, ptr {base}, i64 {offset}\n  {result} = load {ty}, ptr {result}.at, align {4 if ty == 'i32' else 8}\n"


def _api(result: str, slot: int, ty: str = "ptr") -> str:
    return _load(result, ty, "@mlc_api", 8 * slot)


def _context(result: str, slot: int, ty: str = "i64") -> str:
    return _load(result, ty, "%context", 8 * slot)


_GLOBALS = f"""
@mlc_api = global [{API_SLOTS} x i64] zeroinitializer, align 64

declare ptr @PyErr_NoMemory()
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @mlc_call(ptr, ptr)

define void @mlc_identity(ptr %bufs) nounwind {{
  %from = load ptr, ptr %bufs
  %to.at = getelementptr ptr, ptr %bufs, i64 1
  %to = load ptr, ptr %to.at
  %x = load i64, ptr %from
  store i64 %x, ptr %to
  ret void
}}
"""

# A new array of the descriptor and shape at %row (descriptor, nd, bytes, dims...), which owns a block of the pool.
_NEW_ARRAY = f"""
define internal ptr @mlc_new_array(ptr %row) nounwind {{
entry:
{_load("%descr", "ptr", "%row", 0)}{_load("%nd64", "i64", "%row", 8)}{_load("%bytes", "i64", "%row", 16)}\
  %dims = getelementptr i8, ptr %row, i64 24
  %payload = call ptr @mlc_alloc(i64 %bytes)
  %failed = icmp eq ptr %payload, null
  br i1 %failed, label %nomemory, label %make
nomemory:
  %null = call ptr @PyErr_NoMemory()
  ret ptr null
make:
  %nd = trunc i64 %nd64 to i32
{_api("%type", ARRAY_TYPE)}{_api("%new", NEW_FROM_DESCR)}{_api("%handler", MEMORY_HANDLER)}\
  call void @Py_IncRef(ptr %descr)
  %array = call ptr %new(ptr %type, ptr %descr, i32 %nd, ptr %dims, ptr null, ptr %payload, i32 {CARRAY}, ptr null)
  %refused = icmp eq ptr %array, null
  br i1 %refused, label %drop, label %own
drop:
  call void @mlc_release(ptr %payload)
  ret ptr null
own:
{_load("%flags", "i32", "%array", FLAGS)}\
  %owning = or i32 %flags, {OWNDATA}
  store i32 %owning, ptr %flags.at, align 4
  call void @Py_IncRef(ptr %handler)
  %array.handler = getelementptr i8, ptr %array, i64 {HANDLER}
  store ptr %handler, ptr %array.handler, align 8
  ret ptr %array
}}
"""

_GUARDS = f"""
define ptr @mlc_entry(ptr %self, ptr %args, i64 %nargs) nounwind {{
entry:
{_load("%context", "ptr", "%self", DATA)}{_context("%inputs", INPUTS)}\
  %count.ok = icmp eq i64 %nargs, %inputs
  br i1 %count.ok, label %begin, label %miss

begin:
{_context("%buffers", BUFFERS)}{_context("%row0", INPUT_TABLE, "ptr")}{_api("%type", ARRAY_TYPE)}\
  %bufs = alloca ptr, i64 %buffers, align 16
  %any = icmp ne i64 %inputs, 0
  br i1 %any, label %argument, label %outputs

argument:
  %i = phi i64 [ 0, %begin ], [ %i.next, %accepted ]
  %row = phi ptr [ %row0, %begin ], [ %row.next, %accepted ]
  %arg.at = getelementptr ptr, ptr %args, i64 %i
  %arg = load ptr, ptr %arg.at, align 8
{_load("%arg.type", "ptr", "%arg", TYPE)}\
  %type.ok = icmp eq ptr %arg.type, %type
  br i1 %type.ok, label %fields, label %miss

fields:
{_load("%arg.descr", "ptr", "%arg", DESCR)}{_load("%arg.nd", "i32", "%arg", ND)}{_load("%arg.flags", "i32", "%arg", FLAGS)}\
{_load("%arg.dims", "ptr", "%arg", DIMS)}{_load("%arg.data", "ptr", "%arg", DATA)}\
{_load("%row.descr", "ptr", "%row", 0)}{_load("%nd", "i64", "%row", 8)}\
  %descr.ok = icmp eq ptr %arg.descr, %row.descr
  %arg.nd64 = sext i32 %arg.nd to i64
  %nd.ok = icmp eq i64 %arg.nd64, %nd
  %layout = and i32 %arg.flags, {CONTIGUOUS_ALIGNED}
  %layout.ok = icmp eq i32 %layout, {CONTIGUOUS_ALIGNED}
  %two.ok = and i1 %descr.ok, %nd.ok
  %all.ok = and i1 %two.ok, %layout.ok
  %dims = getelementptr i8, ptr %row, i64 16
  br i1 %all.ok, label %shape, label %miss

shape:
  %d = phi i64 [ 0, %fields ], [ %d.next, %extent ]
  %shape.done = icmp eq i64 %d, %nd
  br i1 %shape.done, label %accepted, label %extent

extent:
  %have.at = getelementptr i64, ptr %arg.dims, i64 %d
  %have = load i64, ptr %have.at, align 8
  %want.at = getelementptr i64, ptr %dims, i64 %d
  %want = load i64, ptr %want.at, align 8
  %d.next = add i64 %d, 1
  %extent.ok = icmp eq i64 %have, %want
  br i1 %extent.ok, label %shape, label %miss

accepted:
  %buf.at = getelementptr ptr, ptr %bufs, i64 %i
  store ptr %arg.data, ptr %buf.at, align 8
  %row.next = getelementptr i64, ptr %dims, i64 %nd
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %inputs
  br i1 %more, label %argument, label %outputs

miss:
{_context("%fallback", FALLBACK, "ptr")}\
  %alone = icmp eq ptr %fallback, null
  br i1 %alone, label %decline, label %delegate
delegate:
  %delegated = call ptr @PyObject_Vectorcall(ptr %fallback, ptr %args, i64 %nargs, ptr null)
  ret ptr %delegated
decline:
{_api("%notimplemented", NOT_IMPLEMENTED)}\
  call void @Py_IncRef(ptr %notimplemented)
  ret ptr %notimplemented
"""


def _take(name: str, slot: int, done: str, failed: str) -> str:
    """IR that puts a block of the size in a context's slot where %NAME.slot points, null if it is 0."""
    return f"""\
{_context(f"%{name}.bytes", slot)}\
  %{name}.needless = icmp eq i64 %{name}.bytes, 0
  br i1 %{name}.needless, label %{name}.none, label %{name}.some
{name}.none:
  store ptr null, ptr %{name}.slot, align 8
  br label {done}
{name}.some:
  %{name}.new = call ptr @mlc_alloc(i64 %{name}.bytes)
  store ptr %{name}.new, ptr %{name}.slot, align 8
  %{name}.failed = icmp eq ptr %{name}.new, null
  br i1 %{name}.failed, label {failed}, label {done}

"""


_RUN = f"""
define internal void @mlc_drop_outputs(ptr %made, i64 %count) nounwind {{
entry:
  br label %undo
undo:
  %u = phi i64 [ %count, %entry ], [ %u.next, %next ]
  %undone = icmp eq i64 %u, 0
  br i1 %undone, label %done, label %one
one:
  %u.next = sub i64 %u, 1
  %at = getelementptr ptr, ptr %made, i64 %u.next
  %array = load ptr, ptr %at, align 8
  %taken = icmp eq ptr %array, null
  br i1 %taken, label %next, label %drop
drop:
  call void @Py_DecRef(ptr %array)
  br label %next
next:
  br label %undo
done:
  ret void
}}

; Allocate the outputs into %made, run on %bufs, which holds the inputs already. False: memory ran out.
define internal i1 @mlc_run(ptr %context, ptr %bufs, ptr %made) nounwind {{
entry:
{_context("%inputs", INPUTS)}{_context("%results", OUTPUTS)}{_context("%out0", OUTPUT_TABLE, "ptr")}\
  %first.buf = getelementptr ptr, ptr %bufs, i64 %inputs
  br label %output

output:
  %o = phi i64 [ 0, %entry ], [ %o.next, %output.made ]
  %out = phi ptr [ %out0, %entry ], [ %out.next, %output.made ]
  %outputs.done = icmp eq i64 %o, %results
  br i1 %outputs.done, label %constants, label %output.make

output.make:
  %array = call ptr @mlc_new_array(ptr %out)
  %array.failed = icmp eq ptr %array, null
  br i1 %array.failed, label %fail, label %output.made

output.made:
  %slot = getelementptr ptr, ptr %made, i64 %o
  store ptr %array, ptr %slot, align 8
{_load("%array.data", "ptr", "%array", DATA)}\
  %out.buf = getelementptr ptr, ptr %first.buf, i64 %o
  store ptr %array.data, ptr %out.buf, align 8
{_load("%out.nd", "i64", "%out", 8)}\
  %out.dims = getelementptr i8, ptr %out, i64 24
  %out.next = getelementptr i64, ptr %out.dims, i64 %out.nd
  %o.next = add i64 %o, 1
  br label %output

constants:
{_context("%count", CONSTANTS)}{_context("%table", CONSTANT_TABLE, "ptr")}\
  %const.buf = getelementptr ptr, ptr %first.buf, i64 %results
  br label %constant
constant:
  %k = phi i64 [ 0, %constants ], [ %k.next, %constant.copy ]
  %constants.done = icmp eq i64 %k, %count
  br i1 %constants.done, label %scratch, label %constant.copy
constant.copy:
  %const.at = getelementptr ptr, ptr %table, i64 %k
  %const = load ptr, ptr %const.at, align 8
  %const.slot = getelementptr ptr, ptr %const.buf, i64 %k
  store ptr %const, ptr %const.slot, align 8
  %k.next = add i64 %k, 1
  br label %constant

scratch:
  %arena.slot = getelementptr ptr, ptr %const.buf, i64 %count
  %space.slot = getelementptr ptr, ptr %arena.slot, i64 1
{_take("arena", ARENA, "%space", "%nomemory")}\
space:
{_take("space", WORKSPACE, "%run", "%noworkspace")}\
run:
{_context("%program", PROGRAM, "ptr")}{_context("%heavy", HEAVY)}\
  %light = icmp eq i64 %heavy, 0
  br i1 %light, label %run.light, label %run.heavy
run.light:
  call void @mlc_call(ptr %program, ptr %bufs)
  br label %ran
run.heavy:
  %thread = call ptr @PyEval_SaveThread()
  call void @mlc_call(ptr %program, ptr %bufs)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %ran

ran:
  %used = load ptr, ptr %arena.slot, align 8
  call void @mlc_release(ptr %used)
  br i1 %space.needless, label %counted, label %leave
leave:
  %left = load ptr, ptr %space.slot, align 8
  call void @mlc_release(ptr %left)
  br label %counted
counted:
{_context("%hits", HITS)}\
  %hits.next = add i64 %hits, 1
  store i64 %hits.next, ptr %hits.at, align 8
  ret i1 true

noworkspace:
  %unused.arena = load ptr, ptr %arena.slot, align 8
  call void @mlc_release(ptr %unused.arena)
  br label %nomemory
nomemory:
  %unused = call ptr @PyErr_NoMemory()
  br label %fail
fail:
  %made.count = phi i64 [ %o, %output.make ], [ %results, %nomemory ]
  call void @mlc_drop_outputs(ptr %made, i64 %made.count)
  ret i1 false
}}
"""

_RETURN = f"""
outputs:
{_context("%results", OUTPUTS)}\
  %made = alloca ptr, i64 %results, align 16
  %ran = call i1 @mlc_run(ptr %context, ptr %bufs, ptr %made)
  br i1 %ran, label %arrays, label %failed
arrays:
  %single = icmp eq i64 %results, 1
  br i1 %single, label %return, label %pack
return:
  %only = load ptr, ptr %made, align 8
  ret ptr %only

pack:
  %tuple = call ptr @PyTuple_New(i64 %results)
  %tuple.failed = icmp eq ptr %tuple, null
  br i1 %tuple.failed, label %undo, label %item
item:
  %t = phi i64 [ 0, %pack ], [ %t.next, %item.set ]
  %packed = icmp eq i64 %t, %results
  br i1 %packed, label %return.tuple, label %item.set
item.set:
  %item.at = getelementptr ptr, ptr %made, i64 %t
  %value = load ptr, ptr %item.at, align 8
  %ignored = call i32 @PyTuple_SetItem(ptr %tuple, i64 %t, ptr %value)
  %t.next = add i64 %t, 1
  br label %item
return.tuple:
  ret ptr %tuple

undo:
  call void @mlc_drop_outputs(ptr %made, i64 %results)
  br label %failed
failed:
  ret ptr null
}}
"""


def text() -> str:
    """The functions of EXPORTS; they need `mlc_call`, CPython's C API and the functions of `mlc.runtime.pool_ir`."""
    return _GLOBALS + _NEW_ARRAY + _RUN + _GUARDS + _RETURN
