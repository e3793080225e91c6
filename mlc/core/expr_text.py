"""Expressions as text: what the kernel and the loop level print and parse alike.

An expression is written as numbered instructions, operands first, shared parts once, and then named by its number:

    %0 = mul %x[16*i + j], 2.0 : f32
    %1 = add %acc, %0 : f32
    %acc = %1

A loop variable stands for itself, `%name` is a variable, `%name[...]` a load. Literals have the dtype of their place, or carry
it (`1<i8>`) where the place has none; a leaf whose dtype is not the declared one carries it, too, so that broken IR can be
shown and read back. Which instructions exist and what they accept is the verifiers' business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from mlc.core import dtype as dt
from mlc.core import scalar_eval
from mlc.core.affine import Affine
from mlc.core.dtype import DType
from mlc.core.errors import DtypeError
from mlc.core.expr import COMPARES, LEAVES, Expr, const, const_bits, make, topological
from mlc.core.text import Reader, format_scalar, read_scalar

Scope = dict[str, DType]
Item = TypeVar("Item")

# What the reader takes for a literal ("inf", "nan.x" and the like) is no name.
_NAME = re.compile(r"(?!(?:inf|nan)(?![A-Za-z0-9_])|(?:true|false)$)[A-Za-z_][A-Za-z0-9_.]*")
_VALUE = re.compile(r"[A-Za-z0-9_.]+")
_TITLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*(?:#[0-9]+)?")


def checked_name(name: str) -> str:
    """The name of an axis or a variable, if the text form can hold it; ValueError for another."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name: letters, digits, _ and ., not starting with a digit, and not a literal")
    return name


def checked_buffer(name: str) -> str:
    """The name of a buffer, which always stands behind `%`; ValueError if it cannot."""
    if not _VALUE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a buffer: letters, digits, _ and .")
    return name


def checked_title(name: str) -> str:
    """The name of a kernel or program, which stands behind `@`; ValueError if it cannot."""
    if not _TITLE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a kernel: letters, digits, _, . and -, not starting with a digit, then perhaps #number")
    return name


# --------------------------------------------------------------------------- indices
def format_affine(index: Affine) -> str:
    """As `512*i - j + 3`, largest coefficient first."""
    text = ""
    for name, c in sorted(index.terms, key=lambda term: (-abs(term[1]), term[0])):
        sign = (" - " if c < 0 else " + ") if text else ("-" if c < 0 else "")
        text += sign + (f"{abs(c)}*" if abs(c) != 1 else "") + checked_name(name)
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


def format_access(buffer: str, index: Affine) -> str:
    """As `%x[512*i + j]`: a load, or the place that a store writes."""
    return f"%{checked_buffer(buffer)}[{format_affine(index)}]"


def format_aliases(pairs: Iterable[tuple[str, str]]) -> str:
    """As ` alias(%x %out)` for each pair of buffers that may share memory."""
    return "".join(f" alias(%{checked_buffer(a)} %{checked_buffer(b)})" for a, b in sorted(pairs))


def format_streams(names: Iterable[str]) -> str:
    """As ` stream(%out)` for each buffer that is stored past the caches."""
    return "".join(f" stream(%{checked_buffer(name)})" for name in sorted(names))


# --------------------------------------------------------------------------- which dtype is plain
def _place(op: str, result: DType, known: Sequence[DType | None]) -> DType | None:
    """The dtype that literals among an instruction's operands have if they don't carry one: the others' for a compare, else the result's."""
    if op in COMPARES:
        return next((t for t in known if t), None)
    return None if op in ("convert", "bitcast") else result


def combine_scope(types: Sequence[DType | None]) -> Scope:
    """The variables of a combine: `%a.0`, `%b.0`, `%a.1` and so on."""
    return {f"{side}.{i}": t for i, t in enumerate(types) if t for side in "ab"}


# --------------------------------------------------------------------------- printing
class ExprPrinter:
    """Collects `lines`. `buffers` has the declared dtypes of loads, a `scope` those of variables."""

    def __init__(self, buffers: Mapping[str, DType]):
        self.buffers = buffers
        self.lines: list[str] = []

    def operand(self, node: Expr, place: DType | None, names: Mapping[Expr, str], scope: Scope) -> str:
        """A leaf or numbered instruction; the dtype follows where it is not what the reader will assume."""
        if node in names:
            return names[node]
        if node.op == "const":
            value = scalar_eval.constant(node)
            return format_scalar(value, node.dtype) + ("" if node.dtype is place else f"<{node.dtype}>")
        if node.op == "index":
            text, known = checked_name(node.attr), dt.i64
        elif node.op == "var":
            text, known = "%" + checked_name(node.attr), scope.get(node.attr)
        elif node.op == "load":
            text, known = format_access(*node.attr), self.buffers.get(node.attr[0])
        else:
            raise ValueError(f"a kernel's text cannot hold {node}")
        return text + ("" if node.dtype is known else f"<{node.dtype}>")

    def instructions(self, roots: Sequence[Expr], places: Sequence[DType | None], indent: str, scope: Scope,
                     names: dict[Expr, str] | None = None) -> list[str]:
        """Print the numbered lines of some expressions; returns how to write the roots.

        `names` holds the numbers of instructions that were printed before, and is added to.
        """
        names = {} if names is None else names
        for node in topological(roots):
            if node.op in LEAVES or node in names:
                continue
            place = _place(node.op, node.dtype, [None if a.op == "const" else a.dtype for a in node.args])
            args = ", ".join(self.operand(a, place, names, scope) for a in node.args)
            names[node] = f"%{len(names)}"
            self.lines.append(f"{indent}{names[node]} = {node.op} {args} : {node.dtype}")
        return [self.operand(root, place, names, scope) for root, place in zip(roots, places)]

    def combine(self, values: Sequence[Expr], types: Sequence[DType | None], indent: str) -> None:
        """How two sets of accumulators become one: the lines inside `{ }`, and the brace."""
        found = self.instructions(values, types, indent + "  ", combine_scope(types))
        self.lines += [f"{indent}  yield {', '.join(found)}", indent + "}"]

    def product(self, name: str, dtype: DType, factors: tuple[Expr, Expr], indent: str, scope: Scope) -> None:
        """What a contraction adds up, as `%acc += a * b`: the lines inside `{ }`."""
        a, b = self.instructions(factors, (dtype, dtype), indent + "  ", scope)
        self.lines.append(f"{indent}  %{checked_name(name)} += {a} * {b}")


# --------------------------------------------------------------------------- parsing
class _Literal:
    """A literal whose dtype is not known until its place is: where its token stands."""

    def __init__(self, at: int):
        self.at = at


class ExprReader:
    """Reads what `ExprPrinter` wrote, given the same `buffers` and scopes. Everything raises ParseError at the token that does not fit."""

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
        """`%name`, without the `%`."""
        return self.reader.take("value")[1:]

    def values(self) -> tuple[str, ...]:
        """`%a, %b` and so on; at least one."""
        names = [self.value()]
        while self.reader.accept(","):
            names.append(self.value())
        return tuple(names)

    def in_parens(self, item: Callable[[], Item]) -> tuple[Item, ...]:
        """`(item, item)`, of any length."""
        self.reader.expect("(")
        found = []
        while not self.reader.accept(")"):
            found.append(item())
            if not self.reader.accept(","):
                self.reader.expect(")")
                break
        return tuple(found)

    def index(self) -> Affine:
        """`[512*i + j]`"""
        self.reader.expect("[")
        found = read_affine(self.reader)
        self.reader.expect("]")
        return found

    def aliases(self) -> frozenset[tuple[str, str]]:
        """` alias(%a %b)`, any number of times."""
        found = set()
        while self.reader.accept("alias"):
            self.reader.expect("(")
            found.add((self.value(), self.value()))
            self.reader.expect(")")
        return frozenset(found)

    def streams(self) -> frozenset[str]:
        """` stream(%a)`, any number of times."""
        found = set()
        while self.reader.accept("stream"):
            self.reader.expect("(")
            found.add(self.value())
            self.reader.expect(")")
        return frozenset(found)

    def instructions(self, scope: Scope, named: dict[str, Expr] | None = None) -> dict[str, Expr]:
        """The numbered lines that stand here, by number; `named` are those before them, which is added to."""
        r, named = self.reader, {} if named is None else named
        while r.peek_kind() == "value" and r.peek()[1:].isdecimal() and r.tokens[r.at + 1][1] == "=":
            if r.peek() != f"%{len(named)}":
                r.fail(f"expected instruction %{len(named)}, found {r.peek()}")
            number = self.value()
            r.expect("=")
            op, args = r.take("name"), [self.operand(named, scope)]
            while r.accept(","):
                args.append(self.operand(named, scope))
            r.expect(":")
            dtype = self.dtype()
            place = _place(op, dtype, [None if isinstance(a, _Literal) or a.op == "const" else a.dtype for a in args])
            named[number] = make(op, dtype, tuple(self.settle(a, place) for a in args))
        return named

    def operand(self, named: Mapping[str, Expr], scope: Scope) -> Expr | _Literal:
        r = self.reader
        if r.peek_kind() == "number" or r.peek() in ("true", "false"):
            literal = _Literal(r.at)
            r.next()
            dtype = self.suffix(None)
            return self.settle(literal, dtype) if dtype else literal
        if r.peek_kind() == "name":
            name = r.next()
            return make("index", self.suffix(dt.i64), (), name)
        start, name = r.at, self.value()
        if r.peek() == "[":
            index = self.index()
            return make("load", self.declared(self.buffers.get(name), start, "buffer"), (), (name, index))
        return named[name] if name in named else make("var", self.declared(scope.get(name), start, "variable"), (), name)

    def suffix(self, known: DType | None) -> DType | None:
        """The dtype that `<dtype>` gives, else the known one."""
        if not self.reader.accept("<"):
            return known
        dtype = self.dtype()
        self.reader.expect(">")
        return dtype

    def declared(self, dtype: DType | None, start: int, what: str) -> DType:
        """The dtype of the buffer or variable whose name is token `start`."""
        found = self.suffix(dtype)
        if found is None:
            self.reader.at = start
            self.reader.fail(f"{what} {self.reader.peek()} is not declared, so its dtype must follow it, as <f32>")
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

    def roots(self, places: Sequence[DType | None], named: Mapping[str, Expr], scope: Scope) -> tuple[Expr, ...]:
        """One value for each place, with commas between."""
        found = []
        for place in places:
            if found:
                self.reader.expect(",")
            found.append(self.settle(self.operand(named, scope), place))
        return tuple(found)

    def combine(self, types: Sequence[DType | None]) -> tuple[Expr, ...]:
        """What `ExprPrinter.combine` wrote, from the brace on."""
        scope = combine_scope(types)
        self.reader.expect("{")
        named = self.instructions(scope)
        self.reader.expect("yield")
        found = self.roots(types, named, scope)
        self.reader.expect("}")
        return found

    def product(self, name: str, dtype: DType, scope: Scope) -> tuple[Expr, Expr]:
        """What `ExprPrinter.product` wrote, with its braces."""
        r = self.reader
        r.expect("{")
        named = self.instructions(scope)
        r.expect(f"%{name}")
        r.expect("+")
        r.expect("=")
        a, = self.roots([dtype], named, scope)
        r.expect("*")
        b, = self.roots([dtype], named, scope)
        r.expect("}")
        return a, b
