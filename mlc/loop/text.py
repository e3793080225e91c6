"""The loop kernel's text form: deterministic, readable, and it parses back: `parse_kernel(print_kernel(k)) == k`.

    loops @scale_rows(%x: f32[64] in, %out: f32[64] out) alias(%x %out) {
      parallel i in 4 {
        var %acc: f32<16> = 0.0
        vector(16) j in 16 {
          %0 = mul %x[16*i + j], 2.0 : f32
          %1 = add %acc, %0 : f32
          %acc = %1
        }
        fold %s = %acc {
          %0 = add %a.0, %b.0 : f32
          yield %0
        }
        %out[16*i] = %s
      }
    }

Expressions are written as in `mlc.core.expr_text`; instructions are numbered afresh for each statement, in whose lines above it they
stand. A tile reads `tile %acc: f32 r:8 c:48 k:784 vector(16) { %acc += a * b } then { body }`, a choice `if %a { .. } else { .. }`; before
the word `then` may stand a loop, as `beside o in 49 { .. }`. `ask %x[16*i]` asks ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc.core import dtype as dt
from mlc.core.errors import ParseError, VerifyError
from mlc.core.expr import Expr
from mlc.core.expr_text import (
    ExprPrinter,
    ExprReader,
    Scope,
    checked_buffer,
    checked_name,
    checked_title,
    format_access,
    format_aliases,
    format_streams,
)
from mlc.core.text import Reader
from mlc.loop.ir import Ask, Assign, Buffer, Decl, Fold, For, If, LoopKernel, Stmt, Store, Tile, statement_roots

_KINDS = {"serial": "for", "parallel": "parallel", "vector": "vector", "unroll": "unroll"}
_WORDS = {word: kind for kind, word in _KINDS.items()}


# --------------------------------------------------------------------------- printing
def print_kernel(kernel: LoopKernel) -> str:
    """The text of a loop kernel. ValueError if a name cannot be written."""
    return _Printer(kernel).print()


class _Printer(ExprPrinter):
    def __init__(self, kernel: LoopKernel):
        super().__init__({b.name: b.dtype for b in kernel.buffers})
        self.kernel = kernel

    def print(self) -> str:
        kernel = self.kernel
        buffers = ", ".join(f"%{checked_buffer(b.name)}: {b.dtype}[{b.size}] {b.role}" for b in kernel.buffers)
        marks = f"{format_aliases(kernel.may_alias)}{format_streams(kernel.streams)}{' library' * kernel.library}"
        self.lines = [f"loops @{checked_title(kernel.name)}({buffers}){marks} {{"]
        self.body(kernel.body, "  ", {})
        return "\n".join([*self.lines, "}", ""])

    def body(self, body: Sequence[Stmt], indent: str, outer: Scope) -> None:
        scope = dict(outer)
        for stmt in body:
            if isinstance(stmt, For):
                width = f"({stmt.width})" if stmt.width != 1 or stmt.kind == "vector" else ""
                self.lines.append(f"{indent}{_KINDS[stmt.kind]}{width} {checked_name(stmt.var)} in {stmt.extent} {{")
                self.body(stmt.body, indent + "  ", scope)
                self.lines.append(indent + "}")
            elif isinstance(stmt, If):
                condition, = self.instructions((stmt.condition,), [dt.bool_], indent, scope)
                self.lines.append(f"{indent}if {condition} {{")
                self.body(stmt.body, indent + "  ", scope)
                self.lines.append(indent + "} else {")
                self.body(stmt.other, indent + "  ", scope)
                self.lines.append(indent + "}")
            elif isinstance(stmt, Ask):
                self.lines.append(f"{indent}ask {format_access(stmt.buffer, stmt.index)}")
            elif isinstance(stmt, Tile):
                self.tile(stmt, indent, scope)
            elif isinstance(stmt, Fold):
                self.fold(stmt, indent, scope)
            else:
                places = {Decl: lambda s: [s.dtype], Store: lambda s: [self.buffers.get(s.buffer)],
                          Assign: lambda s: [scope.get(name) for name in s.names]}[type(stmt)](stmt)
                values = ", ".join(self.instructions(statement_roots(stmt), places, indent, scope))
                self.lines.append(f"{indent}{self.target(stmt)} = {values}")
                if isinstance(stmt, Decl):
                    scope[stmt.name] = stmt.dtype

    def target(self, stmt: Stmt) -> str:
        if isinstance(stmt, Decl):
            return f"var %{checked_name(stmt.name)}: {stmt.dtype}{f'<{stmt.lanes}>' if stmt.lanes != 1 else ''}"
        if isinstance(stmt, Store):
            return format_access(stmt.buffer, stmt.index)
        return ", ".join(f"%{checked_name(name)}" for name in stmt.names)

    def fold(self, stmt: Fold, indent: str, scope: Scope) -> None:
        targets, sources = (", ".join(f"%{checked_name(name)}" for name in names) for names in (stmt.targets, stmt.sources))
        self.lines.append(f"{indent}fold {targets} = {sources} {{")
        types = [scope.get(name) for name in stmt.sources]
        self.combine(stmt.combine, types, indent)
        scope.update({name: t for name, t in zip(stmt.targets, types) if t})

    def tile(self, stmt: Tile, indent: str, scope: Scope) -> None:
        parts = (f" parts {' '.join(p.name for p in stmt.parts)}" if stmt.parts else "") + " normal" * stmt.normal
        parts += f" block {stmt.block}" if stmt.block else ""
        sizes = " ".join(f"{checked_name(var)}:{size}" for var, size in ((stmt.r, stmt.m), (stmt.c, stmt.n), (stmt.k, stmt.depth)))
        self.lines.append(f"{indent}tile %{checked_name(stmt.name)}: {stmt.dtype} {sizes} vector({stmt.width}){parts} {{")
        self.product(stmt.name, stmt.dtype, (stmt.a, stmt.b), indent, scope)
        if stmt.beside:
            self.lines.append(f"{indent}}} beside {checked_name(stmt.beside.var)} in {stmt.beside.extent} {{")
            self.body(stmt.beside.body, indent + "  ", scope)
        self.lines.append(indent + "} then {")
        self.body(stmt.body, indent + "  ", scope | {stmt.name: stmt.dtype})
        self.lines.append(indent + "}")


# --------------------------------------------------------------------------- parsing
def parse_kernel(text: str) -> LoopKernel:
    """The kernel that `print_kernel` wrote. Raises ParseError with line and column."""
    reader = Reader(text, "loop kernel")
    kernel = _Parser(reader).kernel()
    reader.end()
    return kernel


def text_round_trips(kernel: LoopKernel, stage: str = "") -> None:
    """parse(print(k)) == k; VerifyError otherwise."""
    text = print_kernel(kernel)
    try:
        again = parse_kernel(text)
    except ParseError as error:
        raise VerifyError("text_round_trips", f"kernel @{kernel.name}", str(error), "text that parses", stage) from None
    if again != kernel:
        raise VerifyError("text_round_trips", f"kernel @{kernel.name}", print_kernel(again), text, stage)


class _Parser(ExprReader):
    def number_in_parens(self) -> int:
        self.reader.expect("(")
        number = self.reader.integer()
        self.reader.expect(")")
        return number

    def kernel(self) -> LoopKernel:
        r = self.reader
        r.expect("loops")
        name = r.take("name").removeprefix("@")
        buffers = self.in_parens(self.buffer)
        self.buffers = {b.name: b.dtype for b in buffers}
        aliases, streams = self.aliases(), self.streams()
        library = r.accept("library")
        return LoopKernel(name, buffers, self.body({}), aliases, streams, library)

    def buffer(self) -> Buffer:
        name = self.value()
        self.reader.expect(":")
        dtype = self.dtype()
        self.reader.expect("[")
        size = self.reader.integer()
        self.reader.expect("]")
        return Buffer(name, dtype, size, self.reader.take("name"))

    def body(self, outer: Scope) -> tuple[Stmt, ...]:
        r, scope, found = self.reader, dict(outer), []
        r.expect("{")
        while not r.accept("}"):
            found.append(self.statement(scope))
        return tuple(found)

    def statement(self, scope: Scope) -> Stmt:
        r = self.reader
        if r.peek() in _WORDS:
            kind = _WORDS[r.next()]
            return self.loop(kind, self.number_in_parens() if r.peek() == "(" else 1, scope)
        if r.accept("tile"):
            return self.tile(scope)
        if r.accept("fold"):
            return self.fold(scope)
        if r.accept("ask"):
            return Ask(self.value(), self.index())
        named = self.instructions(scope)
        if r.accept("if"):
            condition, = self.roots([dt.bool_], named, scope)
            body = self.body(scope)
            r.expect("else")
            return If(condition, body, self.body(scope))
        if r.accept("var"):
            return self.declare(scope, named)
        name = self.value()
        if r.peek() == "[":
            index = self.index()
            r.expect("=")
            return Store(name, index, *self.roots([self.buffers.get(name)], named, scope))
        names = [name]
        while r.accept(","):
            names.append(self.value())
        r.expect("=")
        return Assign(tuple(names), self.roots([scope.get(n) for n in names], named, scope))

    def loop(self, kind: str, width: int, scope: Scope) -> For:
        r, var = self.reader, self.reader.take("name")
        r.expect("in")
        return For(var, r.integer(), self.body(scope), kind, width)

    def declare(self, scope: Scope, named: Mapping[str, Expr]) -> Decl:
        r, name = self.reader, self.value()
        r.expect(":")
        dtype, lanes = self.dtype(), 1
        if r.accept("<"):
            lanes = r.integer()
            r.expect(">")
        r.expect("=")
        init, = self.roots([dtype], named, scope)
        scope[name] = dtype
        return Decl(name, dtype, lanes, init)

    def fold(self, scope: Scope) -> Fold:
        targets = self.values()
        self.reader.expect("=")
        sources = self.values()
        types = [scope.get(name) for name in sources]
        combine = self.combine(types)
        scope.update({name: t for name, t in zip(targets, types) if t})
        return Fold(targets, sources, combine)

    def tile(self, scope: Scope) -> Tile:
        r, name = self.reader, self.value()
        r.expect(":")
        dtype, sizes = self.dtype(), []
        for _ in range(3):
            sizes.append(r.take("name"))
            r.expect(":")
            sizes.append(r.integer())
        r.expect("vector")
        width = self.number_in_parens()
        parts = (self.dtype(), self.dtype()) if r.accept("parts") else ()
        normal = r.accept("normal")
        block = r.integer() if r.accept("block") else 0
        a, b = self.product(name, dtype, scope)
        beside = self.loop("serial", 1, scope) if r.accept("beside") else None
        r.expect("then")
        return Tile(name, dtype, *sizes, width, a, b, self.body(scope | {name: dtype}), parts, normal, beside, block)
