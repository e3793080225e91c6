"""The text of kernels, schedules and whole programs: deterministic, readable, and it parses back.

    kernel @max_exp_sum_div(%a0: f32[32768] in, %o0: f32[32768] out, %s0: f32[512] scratch) alias(%a0 %o0) rows i0:64 {
      stage over j0:512 {
        reduce %t0: f32 = -inf with %a0[512*i0 + j0] {
          %0 = max %a.0, %b.0 : f32
          yield %0
        }
      } then {
        let %t1 = %t0
      }
      stage j0:512 {
        %0 = div %s0[j0], %t3 : f32
        %o0[512*i0 + j0] = %0
      }
      dot %t4: f32 m:64 n:256 k:128 {
        %t4 += %a0[128*m + k] * %a1[256*k + n]
      } then {
        %o1[256*m + n] = %t4
      }
      attend %t5: f32 m:64 n:64 k:16 c:16 {
        %t5.s += %a0[16*m + k] * %a1[16*n + k]
      } score {
        %0 = mul %t5.s, 0.25 : f32
        yield %0
      } weight {
        %0 = ... %t5.x ...
        yield %0
      } value {
        yield %a2[16*n + c]
      } then {
        %o2[16*m + c] = %t5
      }
    } schedule { vectorize j0:64, vectorize j0:32, tile m:6 n:16 k:1024 by 8, chunk 64 }

A stage runs its braces at every point of its axes and of those `over` which it reduces, what follows `then` at every point of its
axes only. Expressions are written as in `mlc.core.expr_text`; instructions are numbered through each pair of braces. A tuple
reduction has as many names, identities and values: `reduce %t0: f32, %t1: i32 = -inf, 0 with %4, j0 { ... yield %1, %2 }`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc.core.dtype import DType
from mlc.core.expr import Expr
from mlc.core.expr_text import ExprPrinter, ExprReader, Scope, checked_buffer, checked_name, checked_title, format_access, format_aliases
from mlc.core.text import Reader, read_type
from mlc.kernel.ir import Attend, Axis, Bind, Dot, Kernel, Param, Put, Reduce, Stage
from mlc.kernel.schedule import Schedule, read_schedule

_ROLES = ("in", "out", "scratch")


# --------------------------------------------------------------------------- printing
def print_kernel(kernel: Kernel, schedule: Schedule | None = None, label: str | None = None) -> str:
    """The text of one kernel, with its schedule if given, called `label` instead of its name if given.

    Raises ValueError if a name cannot be written.
    """
    return _Printer(kernel).print(schedule, label or kernel.name)


def _axes(axes: Sequence[Axis]) -> str:
    """As ` i0:64 i1:16`."""
    return "".join(f" {checked_name(name)}:{extent}" for name, extent in axes)


def _param(param: Param) -> str:
    if param.role not in _ROLES:
        raise ValueError(f"%{param.name} has the role {param.role!r}, not one of {_ROLES}")
    return f"%{checked_buffer(param.name)}: {param.type} {param.role}"


def _sizes(roles: str, axes: Sequence[Axis]) -> str:
    """As ` m:64 n=j0:16`: axes by the role they have."""
    return "".join(f" {role}:{extent}" if name == role else f" {role}={checked_name(name)}:{extent}" for role, (name, extent) in zip(roles, axes))


class _Printer(ExprPrinter):
    """`scope` has the dtypes of the variables bound so far."""

    def __init__(self, kernel: Kernel):
        super().__init__({p.name: p.type.dtype for p in kernel.params})
        self.kernel = kernel
        self.scope: Scope = {}

    def print(self, schedule: Schedule | None, label: str) -> str:
        kernel = self.kernel
        rows = f" rows{_axes(kernel.rows)}" if kernel.rows else ""
        self.lines = [f"kernel @{checked_title(label)}({', '.join(map(_param, kernel.params))}){format_aliases(kernel.may_alias)}{rows} {{"]
        for stage in kernel.stages:
            (self.dot if isinstance(stage, Dot) else self.attend if isinstance(stage, Attend) else self.stage)(stage)
        return "\n".join([*self.lines, "}" + (f" {schedule.text()}" if schedule else ""), ""])

    def stage(self, stage: Stage) -> None:
        head = f"  stage{_axes(stage.axes)}" + (f" over{_axes(stage.over)}" if stage.over else "")
        braces = bool(stage.reduces or stage.puts or not stage.finish)
        self.lines.append(f"{head} {{" if braces else f"{head} then {{")
        names: dict[Expr, str] = {}
        for reduce in stage.reduces:
            self.reduce(reduce, names)
        self.actions(stage.puts, names)
        for reduce in stage.reduces:
            self.scope.update(zip(reduce.names, reduce.dtypes))
        if stage.finish:
            self.lines += ["  } then {"] if braces else []
            self.actions(stage.finish, {})
        self.lines.append("  }")

    def reduce(self, reduce: Reduce, names: dict[Expr, str]) -> None:
        count = len(reduce.names)
        if any(len(part) != count for part in (reduce.dtypes, reduce.identity, reduce.values, reduce.combine)):
            raise ValueError(f"the reduction to {', '.join(reduce.names)} needs {count} dtypes, identities, values and combined values")
        given = self.instructions((*reduce.identity, *reduce.values), reduce.dtypes * 2, "    ", self.scope, names)
        totals = ", ".join(f"%{checked_name(name)}: {t}" for name, t in zip(reduce.names, reduce.dtypes))
        self.lines.append(f"    reduce {totals} = {', '.join(given[:count])} with {', '.join(given[count:])} {{")
        self.combine(reduce.combine, reduce.dtypes, "    ")

    def actions(self, actions: Sequence[Put | Bind], names: dict[Expr, str]) -> None:
        for action in actions:
            place = self.buffers.get(action.target) if isinstance(action, Put) else None
            value, = self.instructions([action.value], [place], "    ", self.scope, names)
            if isinstance(action, Put):
                self.lines.append(f"    {format_access(action.target, action.index)} = {value}")
            else:
                self.lines.append(f"    let %{checked_name(action.name)} = {value}")
                self.scope[action.name] = action.value.dtype

    def dot(self, dot: Dot) -> None:
        panels = f" panels:{dot.panels}" if dot.panels else ""
        self.lines.append(f"  dot %{checked_name(dot.name)}: {dot.dtype}{_sizes('mnk', (dot.m, dot.n, dot.k))}{panels} {{")
        self.product(dot.name, dot.dtype, (dot.a, dot.b), "  ", self.scope)
        self.results(dot)

    def results(self, stage: Dot | Attend) -> None:
        """What is stored of a contraction's or attention's result, and the last brace."""
        self.scope[stage.name] = stage.dtype
        if stage.puts:
            self.lines.append("  } then {")
            self.actions(stage.puts, {})
        self.lines.append("  }")

    def attend(self, stage: Attend) -> None:
        self.lines.append(f"  attend %{checked_name(stage.name)}: {stage.dtype}{_sizes('mnkc', stage.axes)} {{")
        self.product(f"{stage.name}.s", stage.dtype, (stage.query, stage.key), "  ", self.scope)
        inner = self.scope | {e.attr: e.dtype for e in (stage.dot, stage.distance)}
        for what, value in (("score", stage.score), ("weight", stage.weight), ("value", stage.value)):
            self.lines.append(f"  }} {what} {{")
            given, = self.instructions((value,), (stage.dtype,), "    ", inner)
            self.lines.append(f"    yield {given}")
        self.results(stage)


# --------------------------------------------------------------------------- parsing
def parse_kernel(text: str) -> tuple[Kernel, Schedule | None]:
    """The kernel and the schedule that `print_kernel` wrote. Raises ParseError with line and column."""
    reader = Reader(text, "kernel text")
    found = read_kernel(reader)
    reader.end()
    return found


def read_kernel(reader: Reader) -> tuple[Kernel, Schedule | None]:
    """Read one kernel, and its schedule if it has one. Raises ParseError."""
    kernel = _Parser(reader).kernel()
    return kernel, read_schedule(reader) if reader.peek() == "schedule" else None


class _Parser(ExprReader):
    def __init__(self, reader: Reader):
        super().__init__(reader)
        self.scope: Scope = {}

    def kernel(self) -> Kernel:
        r = self.reader
        r.expect("kernel")
        name = r.take("name").removeprefix("@")
        params = self.in_parens(self.param)
        self.buffers = {p.name: p.type.dtype for p in params}
        aliases = self.aliases()
        rows = self.axes() if r.accept("rows") else ()
        stages: list[Stage | Dot | Attend] = []
        r.expect("{")
        while not r.accept("}"):
            stages.append(self.dot() if r.accept("dot") else self.attend() if r.accept("attend") else self.stage())
        return Kernel(name, params, rows, tuple(stages), aliases)

    def param(self) -> Param:
        name = self.value()
        self.reader.expect(":")
        type = read_type(self.reader)
        return Param(name, type, read_word(self.reader, _ROLES))

    def axes(self) -> tuple[Axis, ...]:
        """`i0:64 i1:16`, of any length: a name is an axis if a colon follows, so that axes may be called as words are."""
        r, found = self.reader, []
        while r.peek_kind() == "name" and r.tokens[r.at + 1][1] == ":":
            name = r.next()
            r.expect(":")
            found.append((name, r.integer()))
        return tuple(found)

    def stage(self) -> Stage:
        r = self.reader
        r.expect("stage")
        axes = self.axes()
        over = self.axes() if r.accept("over") else ()
        reduces, puts = self.body() if r.peek() != "then" else ((), ())
        for reduce in reduces:
            self.scope.update(zip(reduce.names, reduce.dtypes))
        return Stage(axes, over, reduces, puts, self.actions() if r.accept("then") else ())

    def body(self) -> tuple[tuple[Reduce, ...], tuple[Put, ...]]:
        """What a stage does at every point: reductions, then stores."""
        r, reduces, puts = self.reader, [], []
        named: dict[str, Expr] = {}
        r.expect("{")
        while not r.accept("}"):
            self.instructions(self.scope, named)
            if not puts and r.accept("reduce"):
                reduces.append(self.reduce(named))
            else:
                puts.append(self.put(named))
        return tuple(reduces), tuple(puts)

    def reduce(self, named: Mapping[str, Expr]) -> Reduce:
        r, names, types = self.reader, [], []
        while not names or r.accept(","):
            names.append(self.value())
            r.expect(":")
            types.append(self.dtype())
        r.expect("=")
        identity = self.roots(types, named, self.scope)
        r.expect("with")
        values = self.roots(types, named, self.scope)
        return Reduce(tuple(names), tuple(types), identity, values, self.combine(types))

    def put(self, named: Mapping[str, Expr]) -> Put:
        target = self.value()
        index = self.index()
        self.reader.expect("=")
        return Put(target, index, *self.roots([self.buffers.get(target)], named, self.scope))

    def actions(self, binds: bool = True) -> tuple[Put | Bind, ...]:
        """`{ %o0[j0] = %1  let %t1 = %2 }`, without the latter unless `binds`."""
        r, found = self.reader, []
        named: dict[str, Expr] = {}
        r.expect("{")
        while not r.accept("}"):
            self.instructions(self.scope, named)
            if binds and r.accept("let"):
                name = self.value()
                r.expect("=")
                found.append(Bind(name, *self.roots([None], named, self.scope)))
                self.scope[name] = found[-1].value.dtype
            else:
                found.append(self.put(named))
        return tuple(found)

    def head(self, roles: str) -> tuple[str, DType, list[Axis]]:
        """`%t0: f32 m:64 n=j0:16 k:8`"""
        r, name, axes = self.reader, self.value(), []
        r.expect(":")
        dtype = self.dtype()
        for role in roles:
            r.expect(role)
            axis = r.take("name") if r.accept("=") else role
            r.expect(":")
            axes.append((axis, r.integer()))
        return name, dtype, axes

    def results(self, name: str, dtype: DType) -> tuple[Put, ...]:
        self.scope[name] = dtype
        return self.actions(binds=False) if self.reader.accept("then") else ()

    def dot(self) -> Dot:
        name, dtype, axes = self.head("mnk")
        panels = 0
        if self.reader.accept("panels"):
            self.reader.expect(":")
            panels = self.reader.integer()
        a, b = self.product(name, dtype, self.scope)
        return Dot(name, dtype, *axes, a, b, self.results(name, dtype), panels)

    def attend(self) -> Attend:
        r, (name, dtype, axes) = self.reader, self.head("mnkc")
        query, key = self.product(f"{name}.s", dtype, self.scope)
        inner, parts = self.scope | {f"{name}.s": dtype, f"{name}.x": dtype}, []
        for what in ("score", "weight", "value"):
            r.expect(what)
            r.expect("{")
            named = self.instructions(inner)
            r.expect("yield")
            parts += self.roots([dtype], named, inner)
            r.expect("}")
        return Attend(name, dtype, *axes, query, key, *parts, self.results(name, dtype))


def read_word(reader: Reader, words: Sequence[str]) -> str:
    """One of some words; ParseError lists them."""
    if reader.peek() not in words:
        reader.fail(f"expected one of {', '.join(words)}, found {reader.peek() or 'the end'!r}")
    return reader.next()
