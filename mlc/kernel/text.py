"""Kernels as text: stages in the notation of the design page, one line an action, expressions as formulas over named temporaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc.core import expr as ex
from mlc.core.expr import Expr
from mlc.core.text import format_scalar
from mlc.kernel.ir import Bind, Dot, Kernel, KernelGraph, Put, Stage
from mlc.kernel.schedule import Schedule

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
          "and": "&", "or": "|", "xor": "^"}


def _leaf(e: Expr) -> str:
    if e.op == "const":
        return format_scalar(ex.const_value(e), e.dtype)
    if e.op == "load":
        return f"{e.attr[0]}[{e.attr[1]}]"
    return str(e.attr)


def _formula(roots: Sequence[Expr], names: dict[Expr, str], lines: list[str], indent: str) -> list[str]:
    """Text of each root; parts used more than once get a `let` line first."""
    order = ex.topological(roots)
    uses: dict[Expr, int] = {}
    for e in order:
        for a in e.args:
            uses[a] = uses.get(a, 0) + 1
    text: dict[Expr, str] = {}
    for e in order:
        if not e.args:
            text[e] = _leaf(e)
            continue
        args = [text[a] for a in e.args]
        if e.op in _INFIX:
            shown = f"({args[0]} {_INFIX[e.op]} {args[1]})"
        elif e.op in ("convert", "bitcast"):
            shown = f"{e.op}<{e.dtype}>({args[0]})"
        else:
            shown = f"{e.op}({', '.join(args)})"
        if uses.get(e, 0) > 1 or len(shown) > 120:
            names[e] = f"e{len(names)}"
            lines.append(f"{indent}let {names[e]} = {shown}")
            shown = names[e]
        text[e] = shown
    return [text[r] for r in roots]


def _loops(axes) -> str:
    return " ".join(f"{name}:{extent}" for name, extent in axes)


def _actions(actions, names, lines, indent) -> None:
    texts = _formula([a.value for a in actions], names, lines, indent)
    for action, text in zip(actions, texts):
        if isinstance(action, Put):
            lines.append(f"{indent}{action.target}[{action.index}] = {text}")
        elif isinstance(action, Bind):
            lines.append(f"{indent}{action.name} = {text}")


def _stage(stage: Stage | Dot, lines: list[str], names: dict[Expr, str]) -> None:
    if isinstance(stage, Dot):
        a, b = _formula([stage.a, stage.b], names, lines, "  ")
        lines.append(f"  for {_loops((stage.m, stage.n))}   {stage.name} = sum {_loops((stage.k,))} of {a} * {b}")
        _actions(stage.puts, names, lines, "    ")
        return
    lines.append(f"  for {_loops(stage.axes)}".rstrip() + (f" over {_loops(stage.over)}" if stage.reduces else ""))
    values = [v for r in stage.reduces for v in r.values]
    texts = iter(_formula([*values, *(p.value for p in stage.puts)], names, lines, "    "))
    for r in stage.reduces:
        fed = ", ".join(next(texts) for _ in r.values)
        combined = ", ".join(_formula(r.combine, dict(names), [], ""))
        lines.append(f"    {', '.join(r.names)} = reduce({fed}) by {combined}")
    for put in stage.puts:
        lines.append(f"    {put.target}[{put.index}] = {next(texts)}")
    _actions(stage.finish, names, lines, "    ")


def print_kernel(kernel: Kernel, label: str | None = None, schedule: Schedule | None = None) -> str:
    """One kernel as text, with its schedule if given."""
    params = ", ".join(f"%{p.name}: {p.type} {p.role}" for p in kernel.params)
    lines = [f"kernel @{label or kernel.name}({params})" + (f" rows {_loops(kernel.rows)}" if kernel.rows else "") + " {"]
    for stage in kernel.stages:
        _stage(stage, lines, {})
    return "\n".join([*lines, "}" + (f" {schedule.text()}" if schedule else "")]) + "\n"


def labels(program: KernelGraph) -> dict[Kernel, str]:
    """A distinct name for each distinct kernel: `name#k`."""
    return {kernel: f"{kernel.name}#{k}" for k, kernel in enumerate(program.kernels())}


def print_kernel_graph(program: KernelGraph, schedules: Mapping[Kernel, Schedule] | None = None) -> str:
    """The whole partition: values, steps, kernels with their schedules, refused fusions."""
    label = labels(program)
    lines = [f"program @{program.name}({', '.join(f'%{i}: {program.values[i].type}' for i in program.inputs)}) {{"]
    for step in program.steps:
        written = ", ".join(f"%{w}: {program.values[w].type}" for w in step.writes())
        lines.append(f"  {written} = {label[step.kernel]}({', '.join('%' + r for r in step.reads())})")
    lines.append(f"  return {', '.join('%' + o for o in program.outputs)}")
    lines.append("}")
    text = "\n".join(lines) + "\n\n" + "\n".join(print_kernel(k, label[k], (schedules or {}).get(k)) for k in program.kernels())
    if program.notes:
        text += "\nrefused fusions\n" + "".join(f"  {n}\n" for n in program.notes)
    return text
