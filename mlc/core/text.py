"""The text kit that every level's printer and parser share: tokens, scalars, types, attribute values.

Scalars print as a short decimal where that is exact, as a hex float otherwise, and as `nan:<bits>` for a NaN that is
not the default one, so that text keeps every bit.
"""

from __future__ import annotations

import re
from typing import NoReturn

import numpy as np

from mlc.core import dtype as dt
from mlc.core.dims import TensorType, parse_type
from mlc.core.dtype import DType
from mlc.core.errors import DtypeError, MlcError, ParseError

_TOKEN = re.compile(r"""
    (?P<space>\s+|;[^\n]*)
  | (?P<string>"[^"\n]*")
  | (?P<number>[-+]?(?:0x[0-9a-fA-F]+\.?[0-9a-fA-F]*p[-+]?\d+|0x[0-9a-fA-F]+|\d+\.?\d*(?:e[-+]?\d+)?|inf\b|nan(?::0x[0-9a-f]+)?\b))
  | (?P<value>%[A-Za-z0-9_.]+)
  | (?P<name>@?[A-Za-z_][A-Za-z0-9_.\-]*(?:\#\d+)?)
  | (?P<mark>->|\.\.|[-+*/(){}\[\],:=<>.])
""", re.X)


MAX_DIGITS = 100  # of a number: Python refuses to convert thousands


class Reader:
    """A token stream with one-token lookahead; errors carry line and column."""

    def __init__(self, text: str, what: str = "text"):
        self.text, self.what = text, what
        self.tokens: list[tuple[str, str, int]] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if not match:
                self._fail_at(position, f"unexpected character {text[position]!r}")
            if match.lastgroup == "number" and match.end() - position > MAX_DIGITS:
                self._fail_at(position, f"a number of more than {MAX_DIGITS} characters")
            if match.lastgroup != "space":
                self.tokens.append((match.lastgroup, match.group(), position))
            position = match.end()
        self.tokens.append(("end", "", len(text)))
        self.at = 0

    def _fail_at(self, position: int, message: str) -> NoReturn:
        line = self.text.count("\n", 0, position) + 1
        column = position - (self.text.rfind("\n", 0, position) + 1) + 1
        raise ParseError(f"{self.what}, line {line}, column {column}: {message}")

    def fail(self, message: str) -> NoReturn:
        """Raise ParseError at the current token."""
        self._fail_at(self.tokens[self.at][2], message)

    def peek(self) -> str:
        return self.tokens[self.at][1]

    def peek_kind(self) -> str:
        return self.tokens[self.at][0]

    def next(self) -> str:
        token = self.tokens[self.at]
        if token[0] != "end":
            self.at += 1
        return token[1]

    def accept(self, text: str) -> bool:
        """Take the token if it is `text`."""
        if self.tokens[self.at][1] == text and self.tokens[self.at][0] != "string":
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"expected {text!r}, found {self.peek() or 'the end'!r}")

    def take(self, kind: str) -> str:
        """The next token, which must be of this kind."""
        if self.peek_kind() != kind:
            self.fail(f"expected a {kind}, found {self.peek() or 'the end'!r}")
        return self.next()

    def string(self) -> str:
        return self.take("string")[1:-1]

    def integer(self) -> int:
        token = self.take("number")
        try:
            return int(token)
        except ValueError:
            self.at -= 1
            self.fail(f"expected an integer, found {token!r}")

    def end(self) -> None:
        if self.peek_kind() != "end":
            self.fail(f"expected the end, found {self.peek()!r}")


_UNPRINTABLE = re.compile(r"[^A-Za-z0-9_.]+")


def printable_name(name: str) -> str:
    """A name that every text form can print and read back: letters, digits, `_` and `.`, not beginning with a digit or dot."""
    clean = _UNPRINTABLE.sub("_", name)
    return clean if clean[:1].isalpha() or clean[:1] == "_" else "_" + clean


def format_float(value: float) -> str:
    """A short exact decimal, else a hex float."""
    if value != value:
        return "nan"
    if value in (np.inf, -np.inf):
        return "inf" if value > 0 else "-inf"
    short = repr(value)
    return short if len(short) <= 9 else value.hex()


def format_scalar(value: object, dtype: DType) -> str:
    """One element of `dtype`, bit for bit."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))
    number = np.asarray(value, dtype.numpy)
    with np.errstate(invalid="ignore"):  # bfloat16 compares through a cast that warns of signaling NaNs
        is_nan = bool(number != number)
    if is_nan:
        bits = int(number.view(dt.uint_of(dtype).numpy))
        default = int(np.array(np.nan, dtype.numpy).view(dt.uint_of(dtype).numpy))
        return "nan" if bits == default else f"nan:{bits:#x}"
    return format_float(float(number))


def parse_float(token: str) -> float:
    """A number token as a float; infinite if it is too large for one."""
    try:
        return float.fromhex(token) if "0x" in token else float(token)
    except OverflowError:
        return -np.inf if token.startswith("-") else np.inf


def _read_float(reader: Reader, dtype: DType) -> np.ndarray:
    """A float token in `dtype`, rounded; a NaN's bits must be those of a NaN, and only `inf` is infinite."""
    token = reader.peek()
    if reader.peek_kind() != "number":
        reader.take("number")
    integer = dt.uint_of(dtype)
    with np.errstate(all="ignore"):
        if token.startswith("nan:"):
            bits = int(token[4:], 16)
            value = np.array(min(bits, integer.max), integer.numpy).view(dtype.numpy)
            fits = bits <= integer.max and bool(np.isnan(value))
        else:
            value = np.array(parse_float(token), dtype.numpy)
            fits = "inf" in token or not np.isinf(value)
    if not fits:
        reader.fail(f"{token} does not fit {dtype}")
    reader.next()
    return value


def read_scalar(reader: Reader, dtype: DType) -> np.ndarray:
    """Read what `format_scalar` wrote, as a rank-0 array. Raises ParseError."""
    if dtype.kind == "b":
        if reader.peek() not in ("true", "false"):
            reader.fail(f"expected true or false, found {reader.peek()!r}")
        return np.array(reader.next() == "true")
    if dtype.is_float:
        return _read_float(reader, dtype)
    number = reader.integer()
    if not dtype.min <= number <= dtype.max:
        reader.at -= 1
        reader.fail(f"{number} does not fit {dtype}")
    return np.array(number, dtype.numpy)


def read_type(reader: Reader) -> TensorType:
    """A tensor type, as `f32[64,784]`. Raises ParseError."""
    start, name = reader.at, reader.take("name")
    reader.expect("[")
    dims = []
    while not reader.accept("]"):
        dims.append(reader.next())
        if not reader.accept(","):
            reader.expect("]")
            break
    try:
        return parse_type(f"{name}[{','.join(dims)}]")
    except MlcError as error:
        reader.at = start
        reader.fail(str(error))


def format_attr(value: object) -> str:
    """An attribute value: int, bool, float, str, DType, None, or (nested) tuples of these."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return format_float(value)
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, DType):
        return value.name
    if isinstance(value, tuple):
        return "[" + ",".join(map(format_attr, value)) + "]"
    raise TypeError(f"not an attribute value: {value!r}")


_WORDS = {"true": True, "false": False, "none": None}


MAX_NESTING = 50  # of lists in attributes, and of graphs in regions: readers recurse


def read_attr(reader: Reader, nesting: int = 0) -> object:
    """Read what `format_attr` wrote. Raises ParseError."""
    if nesting > MAX_NESTING:
        reader.fail(f"lists nested more than {MAX_NESTING} deep")
    kind = reader.peek_kind()
    if kind == "string":
        return reader.string()
    if kind == "number":
        token = reader.next()
        return int(token) if re.fullmatch(r"[-+]?\d+", token) else parse_float(token)
    if kind == "name":
        token = reader.peek()
        if token in _WORDS:
            return _WORDS[reader.next()]
        try:
            found = dt.parse_dtype(token)
        except DtypeError as error:
            reader.fail(str(error))
        reader.next()
        return found
    reader.expect("[")
    items = []
    while not reader.accept("]"):
        items.append(read_attr(reader, nesting + 1))
        if not reader.accept(","):
            reader.expect("]")
            break
    return tuple(items)
