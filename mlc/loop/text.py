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

Instructions are numbered afresh for each statement, in whose lines above it they stand (shared ones once). A loop
variable stands for itself, `%name` is a variable, `%name[...]` a load; literals have the dtype of their place, or carry it
(`1<i8>`) where the place has none. A tile reads `tile %acc: f32 r:8 c:48 k:784 vector(16) { %acc += a * b } then { body }`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlc.core import dtype as dt
from mlc.core import scalar_eval
from mlc.core.affine import Affine
from mlc.core.dtype import DType
from mlc.core.errors import DtypeError
from mlc.core.expr import COMPARES, LEAVES, Expr, const, const_bits, make, topological
from mlc.core.text import Reader, format_scalar, read_scalar
from mlc.loop.ir import Assign, Buffer, Decl, Fold, For, LoopKernel, Stmt, Store, Tile, statement_roots

_KINDS = {"serial": "for", "parallel": "parallel", "vector": "vector", "unroll": "unroll"}
_WORDS = {word: kind for kind, word in _KINDS.items()}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_NOT_NAMES = frozenset({"inf", "nan", "true", "false"})


def _checked(name: str) -> str:
    """A name that the text form can hold; ValueError for another."""
    if not _NAME.fullmatch(name) or name in _NOT_NAMES:
        raise ValueError(f"{name!r} is not a name: letters, digits, _ and ., not starting with a digit, and not a literal")
    return name


def format_affine(index: Affine) -> str:
    """As `512*i - j + 3`, largest coefficient first."""
    text = ""
    for name, c in sorted(index.terms, key=lambda term: (-abs(term[1]), term[0])):
        sign = (" - " if c < 0 else " + ") if text else ("-" if c < 0 else "")
        text += sign + (f"{abs(c)}*" if abs(c) != 1 else "") + _checked(name)
    if index.offset or not text:
        text += f"{' - ' if index.offset < 0 else ' + '}{abs(index.offset)}" if text else str(index.offset)
    return text


def read_affine(reader: Reader) -> Affine:
    """Read what `format_affine` wrote."""
    total, sign = Affine(), 1
    while True:
        if reader.accept("-"):
            sign = -sign
        if reader.peek_kind() == "number":
            number = sign * reader.integer()
            total = total + (Affine(0, ((reader.take("name"), number),)) if reader.accept("*") else number)
        else:
            total = total + Affine(0, ((reader.take("name"), sign),))
        if reader.accept("+"):
            sign = 1
        elif reader.peek() == "-":
            sign = 1
        else:
            return total


# --------------------------------------------------------------------------- printing
def print_kernel(kernel: LoopKernel) -> str:
    """The text of a loop kernel. ValueError if a name cannot be written."""
    return _Printer(kernel).print()


class _Printer:
    def __init__(self, kernel: LoopKernel):
        self.kernel = kernel
        self.buffers = {b.name: b.dtype for b in kernel.buffers}
        self.lines: list[str] = []

    def print(self) -> str:
        kernel = self.kernel
        buffers = ", ".join(f"%{b.name}: {b.dtype}[{b.size}] {b.role}" for b in kernel.buffers)
        aliases = "".join(f" alias(%{a} %{b})" for a, b in sorted(kernel.may_alias))
        self.lines = [f"loops @{kernel.name}({buffers}){aliases} {{"]
        self.body(kernel.body, "  ", {})
        return "\n".join([*self.lines, "}", ""])

    def operand(self, node: Expr, place: DType | None, names: dict[Expr, str], scope: dict[str, DType]) -> str:
        """A leaf or numbered instruction; the dtype follows where it is not what the reader will assume."""
        if node in names:
            return names[node]
        if node.op == "const":
            value = scalar_eval.constant(node)
            return format_scalar(value, node.dtype) + ("" if node.dtype is place else f"<{node.dtype}>")
        if node.op == "index":
            text, known = _checked(node.attr), dt.i64
        elif node.op == "var":
            text, known = "%" + _checked(node.attr), scope.get(node.attr)
        elif node.op == "load":
            text, known = f"%{node.attr[0]}[{format_affine(node.attr[1])}]", self.buffers.get(node.attr[0])
        else:
            raise ValueError(f"a loop kernel cannot hold {node}")
        return text + ("" if node.dtype is known else f"<{node.dtype}>")

    def instructions(self, roots: Sequence[Expr], places: Sequence[DType | None], indent: str, scope: dict[str, DType]) -> list[str]:
        """Print the numbered lines of some expressions; returns how to write the roots."""
        names: dict[Expr, str] = {}
        for node in topological(roots):
            if node.op in LEAVES:
                continue
            place = _place(node.op, node.dtype, [None if a.op == "const" else a.dtype for a in node.args])
            args = ", ".join(self.operand(a, place, names, scope) for a in node.args)
            names[node] = f"%{len(names)}"
            self.lines.append(f"{indent}{names[node]} = {node.op} {args} : {node.dtype}")
        return [self.operand(root, place, names, scope) for root, place in zip(roots, places)]

    def body(self, body: Sequence[Stmt], indent: str, outer: dict[str, DType]) -> None:
        scope = dict(outer)
        for stmt in body:
            if isinstance(stmt, For):
                width = f"({stmt.width})" if stmt.width != 1 or stmt.kind == "vector" else ""
                self.lines.append(f"{indent}{_KINDS[stmt.kind]}{width} {_checked(stmt.var)} in {stmt.extent} {{")
                self.body(stmt.body, indent + "  ", scope)
                self.lines.append(indent + "}")
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
            return f"var %{_checked(stmt.name)}: {stmt.dtype}{f'<{stmt.lanes}>' if stmt.lanes != 1 else ''}"
        if isinstance(stmt, Store):
            return f"%{stmt.buffer}[{format_affine(stmt.index)}]"
        return ", ".join(f"%{_checked(name)}" for name in stmt.names)

    def fold(self, stmt: Fold, indent: str, scope: dict[str, DType]) -> None:
        targets, sources = (", ".join(f"%{_checked(name)}" for name in names) for names in (stmt.targets, stmt.sources))
        self.lines.append(f"{indent}fold {targets} = {sources} {{")
        types = [scope.get(name) for name in stmt.sources]
        values = self.instructions(stmt.combine, types, indent + "  ", _fold_scope(types))
        self.lines += [f"{indent}  yield {', '.join(values)}", indent + "}"]
        scope.update({name: t for name, t in zip(stmt.targets, types) if t})

    def tile(self, stmt: Tile, indent: str, scope: dict[str, DType]) -> None:
        sizes = " ".join(f"{_checked(var)}:{size}" for var, size in ((stmt.r, stmt.m), (stmt.c, stmt.n), (stmt.k, stmt.depth)))
        self.lines.append(f"{indent}tile %{_checked(stmt.name)}: {stmt.dtype} {sizes} vector({stmt.width}) {{")
        a, b = self.instructions((stmt.a, stmt.b), (stmt.dtype, stmt.dtype), indent + "  ", scope)
        self.lines += [f"{indent}  %{stmt.name} += {a} * {b}", indent + "} then {"]
        self.body(stmt.body, indent + "  ", scope | {stmt.name: stmt.dtype})
        self.lines.append(indent + "}")


def _place(op: str, result: DType, known: Sequence[DType | None]) -> DType | None:
    """The dtype that literals among an instruction's operands have if they don't carry one: the others' for a compare, else the result's."""
    if op in COMPARES:
        return next((t for t in known if t), None)
    return None if op in ("convert", "bitcast") else result


def _fold_scope(types: Sequence[DType | None]) -> dict[str, DType]:
    return {f"{side}.{i}": t for i, t in enumerate(types) if t for side in "ab"}


# --------------------------------------------------------------------------- parsing
def parse_kernel(text: str) -> LoopKernel:
    """The kernel that `print_kernel` wrote. Raises ParseError with line and column."""
    reader = Reader(text, "loop kernel")
    kernel = _Parser(reader).kernel()
    reader.end()
    return kernel


class _Literal:
    """A literal whose dtype is not known until its place is: where its token stands."""

    def __init__(self, at: int):
        self.at = at


class _Parser:
    def __init__(self, reader: Reader):
        self.reader = reader
        self.buffers: dict[str, DType] = {}

    def dtype(self) -> DType:
        try:
            found = dt.parse_dtype(self.reader.peek())
        except DtypeError as error:
            self.reader.fail(str(error))
        self.reader.next()
        return found

    def value(self) -> str:
        return self.reader.take("value")[1:]

    def number_in_parens(self) -> int:
        self.reader.expect("(")
        number = self.reader.integer()
        self.reader.expect(")")
        return number

    def kernel(self) -> LoopKernel:
        r = self.reader
        r.expect("loops")
        name = r.take("name").removeprefix("@")
        r.expect("(")
        buffers = []
        while not r.accept(")"):
            buffers.append(self.buffer())
            if not r.accept(","):
                r.expect(")")
                break
        self.buffers = {b.name: b.dtype for b in buffers}
        aliases = set()
        while r.accept("alias"):
            r.expect("(")
            aliases.add((self.value(), self.value()))
            r.expect(")")
        return LoopKernel(name, tuple(buffers), self.body({}), frozenset(aliases))

    def buffer(self) -> Buffer:
        name = self.value()
        self.reader.expect(":")
        dtype = self.dtype()
        self.reader.expect("[")
        size = self.reader.integer()
        self.reader.expect("]")
        return Buffer(name, dtype, size, self.reader.take("name"))

    def body(self, outer: dict[str, DType]) -> tuple[Stmt, ...]:
        r, scope, found = self.reader, dict(outer), []
        r.expect("{")
        while not r.accept("}"):
            found.append(self.statement(scope))
        return tuple(found)

    def statement(self, scope: dict[str, DType]) -> Stmt:
        r = self.reader
        if r.peek() in _WORDS:
            kind = _WORDS[r.next()]
            width = self.number_in_parens() if r.peek() == "(" else 1
            var = r.take("name")
            r.expect("in")
            return For(var, r.integer(), self.body(scope), kind, width)
        if r.accept("tile"):
            return self.tile(scope)
        if r.accept("fold"):
            return self.fold(scope)
        named = self.instructions(scope)
        if r.accept("var"):
            return self.declare(scope, named)
        name = self.value()
        if r.accept("["):
            index = read_affine(r)
            r.expect("]")
            r.expect("=")
            return Store(name, index, *self.roots([self.buffers.get(name)], named, scope))
        names = [name]
        while r.accept(","):
            names.append(self.value())
        r.expect("=")
        return Assign(tuple(names), self.roots([scope.get(n) for n in names], named, scope))

    def declare(self, scope: dict[str, DType], named: dict[str, Expr]) -> Decl:
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

    def fold(self, scope: dict[str, DType]) -> Fold:
        r, lists = self.reader, []
        for end in "={":
            names = [self.value()]
            while r.accept(","):
                names.append(self.value())
            r.expect(end)
            lists.append(tuple(names))
        types = [scope.get(name) for name in lists[1]]
        inner = _fold_scope(types)
        named = self.instructions(inner)
        r.expect("yield")
        combine = self.roots(types, named, inner)
        r.expect("}")
        scope.update({name: t for name, t in zip(lists[0], types) if t})
        return Fold(*lists, combine)

    def tile(self, scope: dict[str, DType]) -> Tile:
        r, name = self.reader, self.value()
        r.expect(":")
        dtype, sizes = self.dtype(), []
        for _ in range(3):
            sizes.append(r.take("name"))
            r.expect(":")
            sizes.append(r.integer())
        r.expect("vector")
        width = self.number_in_parens()
        r.expect("{")
        named = self.instructions(scope)
        if self.value() != name:
            r.fail(f"expected %{name} +=")
        r.expect("+")
        r.expect("=")
        a, = self.roots([dtype], named, scope)
        r.expect("*")
        b, = self.roots([dtype], named, scope)
        r.expect("}")
        r.expect("then")
        return Tile(name, dtype, *sizes, width, a, b, self.body(scope | {name: dtype}))

    def instructions(self, scope: dict[str, DType]) -> dict[str, Expr]:
        """The numbered lines before a statement, by number."""
        r, named = self.reader, {}
        while r.peek_kind() == "value" and r.peek()[1:].isdecimal() and r.tokens[r.at + 1][1] == "=":
            number = self.value()
            if int(number) != len(named):
                r.fail(f"expected instruction %{len(named)}, found %{number}")
            r.expect("=")
            op, args = r.take("name"), [self.operand(named, scope)]
            while r.accept(","):
                args.append(self.operand(named, scope))
            r.expect(":")
            dtype = self.dtype()
            place = _place(op, dtype, [None if isinstance(a, _Literal) or a.op == "const" else a.dtype for a in args])
            named[number] = make(op, dtype, tuple(self.settle(a, place) for a in args))
        return named

    def operand(self, named: dict[str, Expr], scope: dict[str, DType]) -> Expr | _Literal:
        r = self.reader
        if r.peek_kind() == "number" or r.peek() in ("true", "false"):
            literal = _Literal(r.at)
            r.next()
            dtype = self.suffix(None)
            return self.settle(literal, dtype) if dtype else literal
        if r.peek_kind() == "name":
            name = r.next()
            return make("index", self.suffix(dt.i64), (), name)
        name = self.value()
        if r.accept("["):
            index = read_affine(r)
            r.expect("]")
            return make("load", self.known(self.buffers.get(name), f"buffer %{name}"), (), (name, index))
        return named[name] if name in named else make("var", self.known(scope.get(name), f"variable %{name}"), (), name)

    def suffix(self, known: DType | None) -> DType | None:
        """The dtype that `<dtype>` gives, else the known one."""
        if not self.reader.accept("<"):
            return known
        dtype = self.dtype()
        self.reader.expect(">")
        return dtype

    def known(self, dtype: DType | None, what: str) -> DType:
        found = self.suffix(dtype)
        if found is None:
            self.reader.fail(f"{what} is not declared, so its dtype must follow it, as <f32>")
        return found

    def settle(self, operand: Expr | _Literal, place: DType | None) -> Expr:
        """An operand, now that the dtype a bare literal has here is known."""
        if not isinstance(operand, _Literal):
            return operand
        r = self.reader
        after, r.at = r.at, operand.at
        if place is None:
            r.fail("nothing here gives the literal a dtype; write it as 1.0<f32>")
        value = read_scalar(r, place)
        r.at = after
        return const_bits(int(value.view(dt.uint_of(place).numpy)), place) if place.is_float else const(value, place)

    def roots(self, places: Sequence[DType | None], named: dict[str, Expr], scope: dict[str, DType]) -> tuple[Expr, ...]:
        """One value for each place, with commas between."""
        found = []
        for place in places:
            if found:
                self.reader.expect(",")
            found.append(self.settle(self.operand(named, scope), place))
        return tuple(found)
