"""Dispatch as LLVM IR text: one function that serves every jitted function, from a call's Python arguments to its result tree.

`mlc_dispatch(self, args, nargs, kwnames)` compares the options in force with those that its table was made for, the
arguments with the guards of each entry, runs the entry's program, and builds the result; on any miss it calls the
fallback with the same arguments. Guards and results are trees in pre-order, as 64-bit words (`mlc.runtime.dispatch`
writes them); the functions that walk them recurse over the tree's depth, which the writer bounds.
"""

from __future__ import annotations

from mlc.runtime import entry_ir as ir
from mlc.runtime.entry_ir import DATA, DESCR, DIMS, FLAGS, ND, TYPE

# Slots of a dispatcher's context, of its table (entry addresses follow), and of an entry (names of keywords follow).
FALLBACK, TABLE = range(2)
OVERRIDES, VERSION, COUNT, MOST_BUFFERS, MOST_INPUTS, MOST_OUTPUTS, ENTRIES = range(7)
OWNER, POSITIONAL, KEYWORDS, INPUTS, PROGRAM, GUARD, RESULT, NAMES = range(8)
# Words of a guard, by kind: array (slot, descriptor, rank, extents), float, int and bool (slot), scalar of NumPy (slot, type),
# same (object), equal (type, object), sequences (type, length, children), dict (length, then key and child in turn).
ARRAY, FLOAT, INT, BOOL, SCALAR, SAME, EQUAL, TUPLE, LIST, DICT = range(10)
# Words of a result: leaf (output), none, sequences and dict as above; a tuple's class is 0 for tuple itself.
OUT_LEAF, OUT_NONE, OUT_TUPLE, OUT_LIST, OUT_DICT = range(5)

EXPORTS = ("mlc_dispatch",)

# Offsets into CPython's objects, checked at start.
SIZE, ITEMS, VALUE = 16, 24, 16


def _word(result: str, base: str, index: int, ty: str = "i64") -> str:
    return ir._load(result, ty, base, 8 * index)


_DECLARES = """
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare ptr @PyDict_New()
declare i32 @PyDict_SetItem(ptr, ptr, ptr)
declare ptr @PyList_New(i64)
declare ptr @PyType_GenericAlloc(ptr, i64)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32)
declare i32 @PyContextVar_Get(ptr, ptr, ptr)
declare void @PyErr_Clear()
"""

# Whether an object fits the guard at the cursor; its leaves' data go to %bufs, the leaves to %held, values of scalars to %values.
_MATCH = f"""
define internal i1 @mlc_match(ptr %cursor, ptr %object, ptr %bufs, ptr %held, ptr %values) nounwind {{
entry:
  %overflow = alloca i32, align 4
  %at = load ptr, ptr %cursor, align 8
{_word("%kind", "%at", 0)}{_word("%first", "%at", 1)}{_word("%second", "%at", 2)}\
{ir._load("%type", "ptr", "%object", TYPE)}\
  %slot.buf = getelementptr ptr, ptr %bufs, i64 %first
  %slot.held = getelementptr ptr, ptr %held, i64 %first
  %slot.value = getelementptr i64, ptr %values, i64 %first
  %first.ptr = inttoptr i64 %first to ptr
  switch i64 %kind, label %no [ i64 {ARRAY}, label %array  i64 {FLOAT}, label %float  i64 {INT}, label %int  i64 {BOOL}, label %bool
    i64 {SCALAR}, label %scalar  i64 {SAME}, label %same  i64 {EQUAL}, label %equal  i64 {TUPLE}, label %tuple  i64 {LIST}, label %list
    i64 {DICT}, label %dict ]
no:
  ret i1 false
yes:
  ret i1 true

array:
{ir._api("%ndarray", ir.ARRAY_TYPE)}\
  %array.ok = icmp eq ptr %type, %ndarray
  br i1 %array.ok, label %fields, label %no
fields:
{ir._load("%descr", "i64", "%object", DESCR)}{ir._load("%nd", "i32", "%object", ND)}{ir._load("%flags", "i32", "%object", FLAGS)}\
{ir._load("%dims", "ptr", "%object", DIMS)}{ir._load("%data", "ptr", "%object", DATA)}{_word("%rank", "%at", 3)}\
  %descr.ok = icmp eq i64 %descr, %second
  %nd64 = sext i32 %nd to i64
  %nd.ok = icmp eq i64 %nd64, %rank
  %layout = and i32 %flags, {ir.CONTIGUOUS_ALIGNED}
  %layout.ok = icmp eq i32 %layout, {ir.CONTIGUOUS_ALIGNED}
  %two.ok = and i1 %descr.ok, %nd.ok
  %all.ok = and i1 %two.ok, %layout.ok
  %wanted = getelementptr i64, ptr %at, i64 4
  br i1 %all.ok, label %shape, label %no
shape:
  %d = phi i64 [ 0, %fields ], [ %d.next, %extent ]
  %shape.done = icmp eq i64 %d, %rank
  br i1 %shape.done, label %accepted, label %extent
extent:
  %have.at = getelementptr i64, ptr %dims, i64 %d
  %have = load i64, ptr %have.at, align 8
  %want.at = getelementptr i64, ptr %wanted, i64 %d
  %want = load i64, ptr %want.at, align 8
  %d.next = add i64 %d, 1
  %extent.ok = icmp eq i64 %have, %want
  br i1 %extent.ok, label %shape, label %no
accepted:
  store ptr %data, ptr %slot.buf, align 8
  store ptr %object, ptr %slot.held, align 8
  %after.array = getelementptr i64, ptr %wanted, i64 %rank
  store ptr %after.array, ptr %cursor, align 8
  ret i1 true

float:
{ir._api("%float.type", ir.FLOAT_TYPE)}\
  %float.ok = icmp eq ptr %type, %float.type
  %float.end = getelementptr i64, ptr %at, i64 2
  br i1 %float.ok, label %copy, label %no
scalar:
{_word("%scalar.type", "%at", 2, "ptr")}\
  %scalar.ok = icmp eq ptr %type, %scalar.type
  %scalar.end = getelementptr i64, ptr %at, i64 3
  br i1 %scalar.ok, label %copy, label %no
int:
{ir._api("%int.type", ir.INT_TYPE)}\
  %int.ok = icmp eq ptr %type, %int.type
  br i1 %int.ok, label %convert, label %no
convert:
  %integer = call i64 @PyLong_AsLongLongAndOverflow(ptr %object, ptr %overflow)
  %too.large = load i32, ptr %overflow, align 4
  %fits = icmp eq i32 %too.large, 0
  %int.end = getelementptr i64, ptr %at, i64 2
  br i1 %fits, label %value, label %no
bool:
{ir._api("%bool.type", ir.BOOL_TYPE)}{ir._api("%true", ir.TRUE)}\
  %bool.ok = icmp eq ptr %type, %bool.type
  %truth = icmp eq ptr %object, %true
  %truth64 = zext i1 %truth to i64
  %bool.end = getelementptr i64, ptr %at, i64 2
  br i1 %bool.ok, label %value, label %no
copy:
  %copy.end = phi ptr [ %float.end, %float ], [ %scalar.end, %scalar ]
{ir._load("%bits", "i64", "%object", VALUE)}\
  br label %value
value:
  %end = phi ptr [ %copy.end, %copy ], [ %int.end, %convert ], [ %bool.end, %bool ]
  %bytes = phi i64 [ %bits, %copy ], [ %integer, %convert ], [ %truth64, %bool ]
  store i64 %bytes, ptr %slot.value, align 8
  store ptr %slot.value, ptr %slot.buf, align 8
  store ptr %object, ptr %slot.held, align 8
  store ptr %end, ptr %cursor, align 8
  ret i1 true

same:
  %same.end = getelementptr i64, ptr %at, i64 2
  store ptr %same.end, ptr %cursor, align 8
  %same.ok = icmp eq ptr %object, %first.ptr
  ret i1 %same.ok
equal:
  %equal.end = getelementptr i64, ptr %at, i64 3
  store ptr %equal.end, ptr %cursor, align 8
  %equal.type = icmp eq ptr %type, %first.ptr
  br i1 %equal.type, label %compare, label %no
compare:
{_word("%other", "%at", 2, "ptr")}\
  %compared = call i32 @PyObject_RichCompareBool(ptr %object, ptr %other, i32 2)
  %equal.ok = icmp eq i32 %compared, 1
  ret i1 %equal.ok

tuple:
  br label %sequence
list:
  br label %sequence
sequence:
  %inline = phi i1 [ true, %tuple ], [ false, %list ]
  %sequence.ok = icmp eq ptr %type, %first.ptr
  %children = getelementptr i64, ptr %at, i64 3
  br i1 %sequence.ok, label %items, label %no
items:
  store ptr %children, ptr %cursor, align 8
  br label %item
item:
  %i = phi i64 [ 0, %items ], [ %i.next, %item.match ]
{ir._load("%size", "i64", "%object", SIZE)}\
  %size.ok = icmp eq i64 %size, %second
  br i1 %size.ok, label %item.next, label %no
item.next:
  %items.done = icmp eq i64 %i, %second
  br i1 %items.done, label %yes, label %item.match
item.match:
{ir._load("%list.items", "ptr", "%object", ITEMS)}\
  %first.item = select i1 %inline, ptr %list.items.at, ptr %list.items
  %item.at = getelementptr ptr, ptr %first.item, i64 %i
  %child = load ptr, ptr %item.at, align 8
  %i.next = add i64 %i, 1
  %item.ok = call i1 @mlc_match(ptr %cursor, ptr %child, ptr %bufs, ptr %held, ptr %values)
  br i1 %item.ok, label %item, label %no

dict:
{ir._api("%dict.type", ir.DICT_TYPE)}\
  %dict.ok = icmp eq ptr %type, %dict.type
  br i1 %dict.ok, label %used, label %no
used:
{ir._load("%filled", "i64", "%object", SIZE)}\
  %pairs = getelementptr i64, ptr %at, i64 2
  store ptr %pairs, ptr %cursor, align 8
  %filled.ok = icmp eq i64 %filled, %first
  br i1 %filled.ok, label %pair, label %no
pair:
  %p = phi i64 [ 0, %used ], [ %p.next, %pair.match ]
  %pairs.done = icmp eq i64 %p, %first
  br i1 %pairs.done, label %yes, label %pair.find
pair.find:
  %key.at = load ptr, ptr %cursor, align 8
  %key = load ptr, ptr %key.at, align 8
  %pair.child = getelementptr i64, ptr %key.at, i64 1
  store ptr %pair.child, ptr %cursor, align 8
  %found = call ptr @PyDict_GetItemWithError(ptr %object, ptr %key)
  %absent = icmp eq ptr %found, null
  br i1 %absent, label %clear, label %pair.match
clear:
  call void @PyErr_Clear()
  br label %no
pair.match:
  %p.next = add i64 %p, 1
  %pair.ok = call i1 @mlc_match(ptr %cursor, ptr %found, ptr %bufs, ptr %held, ptr %values)
  br i1 %pair.ok, label %pair, label %no
}}
"""

# A new reference to the result at the cursor; the arrays it takes leave %made. Null if memory ran out.
_BUILD = f"""
define internal ptr @mlc_build(ptr %cursor, ptr %made) nounwind {{
entry:
  %at = load ptr, ptr %cursor, align 8
{_word("%kind", "%at", 0)}{_word("%first", "%at", 1)}\
  %first.ptr = inttoptr i64 %first to ptr
  switch i64 %kind, label %fail [ i64 {OUT_LEAF}, label %leaf  i64 {OUT_NONE}, label %none  i64 {OUT_TUPLE}, label %tuple
    i64 {OUT_LIST}, label %list  i64 {OUT_DICT}, label %dict ]
fail:
  ret ptr null

leaf:
  %leaf.at = getelementptr ptr, ptr %made, i64 %first
  %array = load ptr, ptr %leaf.at, align 8
  store ptr null, ptr %leaf.at, align 8
  %leaf.end = getelementptr i64, ptr %at, i64 2
  store ptr %leaf.end, ptr %cursor, align 8
  ret ptr %array
none:
{ir._api("%nothing", ir.NONE)}\
  call void @Py_IncRef(ptr %nothing)
  %none.end = getelementptr i64, ptr %at, i64 1
  store ptr %none.end, ptr %cursor, align 8
  ret ptr %nothing

tuple:
{_word("%arity", "%at", 2)}\
  %plain = icmp eq i64 %first, 0
  %tuple.children = getelementptr i64, ptr %at, i64 3
  br i1 %plain, label %plain.tuple, label %named.tuple
plain.tuple:
  %a.tuple = call ptr @PyTuple_New(i64 %arity)
  br label %tuple.new
named.tuple:
  %a.named = call ptr @PyType_GenericAlloc(ptr %first.ptr, i64 %arity)
  br label %tuple.new
tuple.new:
  %new.tuple = phi ptr [ %a.tuple, %plain.tuple ], [ %a.named, %named.tuple ]
  %no.tuple = icmp eq ptr %new.tuple, null
  %tuple.items = getelementptr i8, ptr %new.tuple, i64 {ITEMS}
  br i1 %no.tuple, label %fail, label %sequence
list:
  %list.children = getelementptr i64, ptr %at, i64 2
  %new.list = call ptr @PyList_New(i64 %first)
  %no.list = icmp eq ptr %new.list, null
  br i1 %no.list, label %fail, label %list.new
list.new:
{ir._load("%list.items", "ptr", "%new.list", ITEMS)}\
  br label %sequence
sequence:
  %new = phi ptr [ %new.tuple, %tuple.new ], [ %new.list, %list.new ]
  %items = phi ptr [ %tuple.items, %tuple.new ], [ %list.items, %list.new ]
  %count = phi i64 [ %arity, %tuple.new ], [ %first, %list.new ]
  %children = phi ptr [ %tuple.children, %tuple.new ], [ %list.children, %list.new ]
  store ptr %children, ptr %cursor, align 8
  br label %item
item:
  %i = phi i64 [ 0, %sequence ], [ %i.next, %item.set ]
  %items.done = icmp eq i64 %i, %count
  br i1 %items.done, label %finished, label %item.build
finished:
  ret ptr %new
item.build:
  %child = call ptr @mlc_build(ptr %cursor, ptr %made)
  %no.child = icmp eq ptr %child, null
  br i1 %no.child, label %drop, label %item.set
item.set:
  %item.at = getelementptr ptr, ptr %items, i64 %i
  store ptr %child, ptr %item.at, align 8
  %i.next = add i64 %i, 1
  br label %item
drop:
  call void @Py_DecRef(ptr %new)
  ret ptr null

dict:
  %pairs = getelementptr i64, ptr %at, i64 2
  store ptr %pairs, ptr %cursor, align 8
  %new.dict = call ptr @PyDict_New()
  %no.dict = icmp eq ptr %new.dict, null
  br i1 %no.dict, label %fail, label %pair
pair:
  %p = phi i64 [ 0, %dict ], [ %p.next, %pair.set ]
  %pairs.done = icmp eq i64 %p, %first
  br i1 %pairs.done, label %dict.done, label %pair.build
dict.done:
  ret ptr %new.dict
pair.build:
  %key.at = load ptr, ptr %cursor, align 8
  %key = load ptr, ptr %key.at, align 8
  %pair.child = getelementptr i64, ptr %key.at, i64 1
  store ptr %pair.child, ptr %cursor, align 8
  %value = call ptr @mlc_build(ptr %cursor, ptr %made)
  %no.value = icmp eq ptr %value, null
  br i1 %no.value, label %dict.drop, label %pair.set
pair.set:
  %set = call i32 @PyDict_SetItem(ptr %new.dict, ptr %key, ptr %value)
  call void @Py_DecRef(ptr %value)
  %p.next = add i64 %p, 1
  %set.ok = icmp eq i32 %set, 0
  br i1 %set.ok, label %pair, label %dict.drop
dict.drop:
  call void @Py_DecRef(ptr %new.dict)
  ret ptr null
}}
"""

_DISPATCH = f"""
define ptr @mlc_dispatch(ptr %self, ptr %args, i64 %nargs, ptr %kwnames) nounwind {{
begin:
  %setting = alloca ptr, align 8
  %cursor = alloca ptr, align 8
{ir._load("%context", "ptr", "%self", DATA)}{_word("%table", "%context", TABLE, "ptr")}\
  %empty = icmp eq ptr %table, null
  br i1 %empty, label %miss, label %keywords
keywords:
  %positional = icmp eq ptr %kwnames, null
  br i1 %positional, label %options, label %keywords.count
keywords.count:
{ir._load("%kw.size", "i64", "%kwnames", SIZE)}\
  br label %options

options:
  %kwcount = phi i64 [ 0, %keywords ], [ %kw.size, %keywords.count ]
{_word("%overrides", "%table", OVERRIDES)}\
  %unconditional = icmp eq i64 %overrides, 0
  br i1 %unconditional, label %ready, label %environment
environment:
{ir._api("%version.at", ir.ENVIRONMENT)}{ir._api("%live.at", ir.LIVE)}\
  %version = load i64, ptr %version.at, align 8
  %live = load i64, ptr %live.at, align 8
{_word("%version.then", "%table", VERSION)}\
  %environment.ok = icmp eq i64 %version, %version.then
  %calm = icmp eq i64 %live, 0
  %outside.ok = and i1 %environment.ok, %calm
  br i1 %outside.ok, label %overridden, label %miss
overridden:
{ir._api("%variable", ir.OVERRIDES)}\
  %got = call i32 @PyContextVar_Get(ptr %variable, ptr null, ptr %setting)
  %failed = icmp ne i32 %got, 0
  br i1 %failed, label %clear, label %compare
clear:
  call void @PyErr_Clear()
  br label %miss
compare:
  %now = load ptr, ptr %setting, align 8
  call void @Py_DecRef(ptr %now)
  %now.word = ptrtoint ptr %now to i64
  %overrides.ok = icmp eq i64 %now.word, %overrides
  br i1 %overrides.ok, label %ready, label %miss

ready:
{_word("%most.buffers", "%table", MOST_BUFFERS)}{_word("%most.inputs", "%table", MOST_INPUTS)}{_word("%most.outputs", "%table", MOST_OUTPUTS)}\
{_word("%entries", "%table", COUNT)}\
  %bufs = alloca ptr, i64 %most.buffers, align 16
  %held = alloca ptr, i64 %most.inputs, align 16
  %values = alloca i64, i64 %most.inputs, align 16
  %made = alloca ptr, i64 %most.outputs, align 16
  br label %candidate
candidate:
  %e = phi i64 [ 0, %ready ], [ %e.next, %refused ]
  %exhausted = icmp eq i64 %e, %entries
  br i1 %exhausted, label %miss, label %counts
refused:
  %e.next = add i64 %e, 1
  br label %candidate
counts:
  %entry.index = add i64 %e, {ENTRIES}
  %entry.at = getelementptr ptr, ptr %table, i64 %entry.index
  %entry = load ptr, ptr %entry.at, align 8
{_word("%want.positional", "%entry", POSITIONAL)}{_word("%want.keywords", "%entry", KEYWORDS)}{_word("%guard", "%entry", GUARD, "ptr")}\
  %positional.ok = icmp eq i64 %nargs, %want.positional
  %keywords.ok = icmp eq i64 %kwcount, %want.keywords
  %counts.ok = and i1 %positional.ok, %keywords.ok
  store ptr %guard, ptr %cursor, align 8
  br i1 %counts.ok, label %name, label %refused
name:
  %n = phi i64 [ 0, %counts ], [ %n.next, %name.compare ]
  %names.done = icmp eq i64 %n, %kwcount
  br i1 %names.done, label %arguments, label %name.compare
name.compare:
  %kw.items = getelementptr i8, ptr %kwnames, i64 {ITEMS}
  %kw.at = getelementptr ptr, ptr %kw.items, i64 %n
  %kw = load ptr, ptr %kw.at, align 8
  %names = getelementptr ptr, ptr %entry, i64 {NAMES}
  %want.at = getelementptr ptr, ptr %names, i64 %n
  %want.name = load ptr, ptr %want.at, align 8
  %n.next = add i64 %n, 1
  %name.ok = icmp eq ptr %kw, %want.name
  br i1 %name.ok, label %name, label %refused

arguments:
  %total = add i64 %nargs, %kwcount
  br label %argument
argument:
  %i = phi i64 [ 0, %arguments ], [ %i.next, %argument.match ]
  %arguments.done = icmp eq i64 %i, %total
  br i1 %arguments.done, label %hit, label %argument.match
argument.match:
  %arg.at = getelementptr ptr, ptr %args, i64 %i
  %arg = load ptr, ptr %arg.at, align 8
  %i.next = add i64 %i, 1
  %arg.ok = call i1 @mlc_match(ptr %cursor, ptr %arg, ptr %bufs, ptr %held, ptr %values)
  br i1 %arg.ok, label %argument, label %refused

hit:
{_word("%owner", "%entry", OWNER, "ptr")}{_word("%program", "%entry", PROGRAM, "ptr")}{_word("%result", "%entry", RESULT, "ptr")}\
{_word("%inputs", "%entry", INPUTS)}{ir._load("%heavy", "i64", "%program", 8 * ir.HEAVY)}\
{ir._load("%outputs", "i64", "%program", 8 * ir.OUTPUTS)}\
  ; While other threads run, trees may lose their leaves and the function its variants.
  call void @Py_IncRef(ptr %owner)
  %light = icmp eq i64 %heavy, 0
  br i1 %light, label %run, label %hold
hold:
  %h = phi i64 [ 0, %hit ], [ %h.next, %hold.one ]
  %hold.done = icmp eq i64 %h, %inputs
  br i1 %hold.done, label %run, label %hold.one
hold.one:
  %hold.at = getelementptr ptr, ptr %held, i64 %h
  %holding = load ptr, ptr %hold.at, align 8
  call void @Py_IncRef(ptr %holding)
  %h.next = add i64 %h, 1
  br label %hold
run:
  %ran = call i1 @mlc_run(ptr %program, ptr %bufs, ptr %made)
  br i1 %light, label %finish, label %let
let:
  %l = phi i64 [ 0, %run ], [ %l.next, %let.one ]
  %let.done = icmp eq i64 %l, %inputs
  br i1 %let.done, label %finish, label %let.one
let.one:
  %let.at = getelementptr ptr, ptr %held, i64 %l
  %letting = load ptr, ptr %let.at, align 8
  call void @Py_DecRef(ptr %letting)
  %l.next = add i64 %l, 1
  br label %let
finish:
  br i1 %ran, label %build, label %release
build:
  store ptr %result, ptr %cursor, align 8
  %tree = call ptr @mlc_build(ptr %cursor, ptr %made)
  %no.tree = icmp eq ptr %tree, null
  br i1 %no.tree, label %undo, label %release
undo:
  call void @mlc_drop_outputs(ptr %made, i64 %outputs)
  br label %release
release:
  %answer = phi ptr [ null, %finish ], [ %tree, %build ], [ null, %undo ]
  call void @Py_DecRef(ptr %owner)
  ret ptr %answer

miss:
{_word("%fallback", "%context", FALLBACK, "ptr")}\
  %alone = icmp eq ptr %fallback, null
  br i1 %alone, label %decline, label %delegate
decline:
{ir._api("%notimplemented", ir.NOT_IMPLEMENTED)}\
  call void @Py_IncRef(ptr %notimplemented)
  ret ptr %notimplemented
delegate:
  %delegated = call ptr @PyObject_Vectorcall(ptr %fallback, ptr %args, i64 %nargs, ptr %kwnames)
  ret ptr %delegated
}}
"""


def text() -> str:
    """The functions of EXPORTS; they need those of `mlc.runtime.entry_ir`."""
    return _DECLARES + _MATCH + _BUILD + _DISPATCH
