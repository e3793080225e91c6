"""The text of a whole partition: its values, its steps, its kernels with their schedules, and the fusions that were refused.

    program @mlp {
      %x: f32[64,784] input node 0
      %w: f32[784,512] input node 1
      %t.2: f32[64,512] temp node 2
      %out.0: f32[64] output node 5

      %t.2 = @dot_max#0(%x, %w) : f32[64,512]
      %out.0 = @sum#1(%t.2) : f32[64]
      return %out.0
    }

    kernel @dot_max#0(...) { ... } schedule { ... }

    kernel @sum#1(...) { ... } schedule { ... }

    refused fusions
      %2 -> %5 (reduce_sum): a reduction needs whole rows of the contraction

A packed value says what it is made of: `%c.1.by48: f32[589824] packed node 1 of %c.1 k:768 n:768 panels:48`.
A step names what its kernel writes, the kernel, and what it reads; a value's node is the one of the optimized graph that it holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mlc.core.dataclass import replace
from mlc.core.errors import ParseError, VerifyError
from mlc.core.expr_text import checked_buffer, checked_title
from mlc.core.text import Reader, read_type
from mlc.kernel.ir import Kernel, KernelGraph, Packing, Step, Value
from mlc.kernel.schedule import Schedule
from mlc.kernel.text import print_kernel, read_kernel, read_word

_ROLES = ("input", "constant", "temp", "output", "packed")
_NOTES = "refused fusions"


# --------------------------------------------------------------------------- printing
def labels(program: KernelGraph) -> dict[Kernel, str]:
    """A distinct name for each distinct kernel: `name#k`."""
    return {kernel: f"{kernel.name}#{k}" for k, kernel in enumerate(program.kernels())}


def print_kernel_graph(program: KernelGraph, schedules: Mapping[Kernel, Schedule] | None = None) -> str:
    """The text of a program, with the schedules that are given.

    Raises ValueError if a name cannot be written, or if the program's parts do not fit (`mlc.kernel.verify` says how).
    """
    label = labels(program)
    _printable(program)
    lines = [f"program @{checked_title(program.name)} {{"]
    lines += [f"  %{checked_buffer(v.name)}: {v.type} {v.role} node {v.source}{_packing(v.packing)}" for v in program.values.values()]
    lines += [""] if program.values and program.steps else []
    lines += [f"  {_step(program, step, label[step.kernel])}" for step in program.steps]
    lines += ["  return" + _names(program.outputs, " "), "}", ""]
    parts = ["\n".join(lines), *(print_kernel(k, (schedules or {}).get(k), label[k]) for k in label)]
    if program.notes:
        parts.append("\n".join([_NOTES, *(f"  {note}" for note in program.notes), ""]))
    return "\n".join(parts)


def _packing(packing: Packing | None) -> str:
    if packing is None:
        return ""
    return f" of %{checked_buffer(packing.of)} k:{packing.depth} n:{packing.columns} panels:{packing.panels}" + " transposed" * packing.transposed


def _names(names: tuple[str, ...], before: str = "") -> str:
    return before + ", ".join(f"%{checked_buffer(name)}" for name in names) if names else ""


def _step(program: KernelGraph, step: Step, label: str) -> str:
    writes = step.writes()
    types = f" : {', '.join(str(program.values[w].type) for w in writes)}" if writes else ""
    return f"{_names(writes)}{' = ' if writes else ''}@{label}({_names(step.reads())}){types}"


def _printable(program: KernelGraph) -> None:
    """ValueError for a program whose text would not tell all of it."""
    for name, value in program.values.items():
        if name != value.name or value.role not in _ROLES:
            raise ValueError(f"%{name} is the value %{value.name} with the role {value.role!r}, not one of {_ROLES}")
    for k, step in enumerate(program.steps):
        bound = [p for p in step.kernel.params if p.role != "scratch"]
        missing = [a for a in step.args if a not in program.values]
        if len(bound) != len(step.args) or missing:
            raise ValueError(f"step {k} binds {len(step.args)} values to {len(bound)} parameters; not in the program: {missing}")
    for found, role in ((program.inputs, "input"), (program.constants, "constant")):
        if found != _with_role(program.values, role):
            raise ValueError(f"the {role}s {found} are not the values with this role, in their order")
    for note in program.notes:
        if re.search(r"[\r\n]", note):
            raise ValueError(f"a note must be one line, got {note!r}")


def _with_role(values: Mapping[str, Value], role: str) -> tuple[str, ...]:
    return tuple(v.name for v in values.values() if v.role == role)


# --------------------------------------------------------------------------- parsing
def parse_kernel_graph(text: str) -> tuple[KernelGraph, dict[Kernel, Schedule]]:
    """The program and the schedules that `print_kernel_graph` wrote. Raises ParseError with line and column."""
    found = re.search(rf"^{_NOTES}$", text, re.M)
    reader = Reader(text[:found.start()] if found else text, "program text")
    program, schedules = _Parser(reader).program()
    if found:
        program.notes = _read_notes(text, found.end() + 1)
    return program, schedules


def _read_notes(text: str, start: int) -> list[str]:
    notes = text[start:].split("\n")
    while notes and not notes[-1]:
        notes.pop()
    for k, note in enumerate(notes):
        if not note.startswith("  "):
            line = text.count("\n", 0, start) + k + 1
            raise ParseError(f"program text, line {line}, column 1: expected a refused fusion, indented by two spaces, found {note!r}")
    return [note[2:] for note in notes]


def text_round_trips(program: KernelGraph, schedules: Mapping[Kernel, Schedule], stage: str = "") -> None:
    """parse(print(p)) == p; VerifyError otherwise."""
    text = print_kernel_graph(program, schedules)
    try:
        again = parse_kernel_graph(text)
    except ParseError as error:
        raise VerifyError("text_round_trips", f"program @{program.name}", str(error), "text that parses", stage) from None
    if again != (program, schedules):
        raise VerifyError("text_round_trips", f"program @{program.name}", print_kernel_graph(*again), text, stage)


class _Parser:
    def __init__(self, reader: Reader):
        self.reader = reader
        self.values: dict[str, Value] = {}
        # Kernels stand after the steps that call them: (token, label, written, read) until they are known.
        self.calls: list[tuple[int, str, list[str], list[str]]] = []

    def program(self) -> tuple[KernelGraph, dict[Kernel, Schedule]]:
        r = self.reader
        r.expect("program")
        name = r.take("name").removeprefix("@")
        r.expect("{")
        while not r.accept("return"):
            if r.peek_kind() == "value" and r.tokens[r.at + 1][1] == ":":
                self.declare()
            else:
                self.call()
        outputs = self.names() if r.peek_kind() == "value" else []
        r.expect("}")
        kernels, schedules = self.kernels()
        steps = [self.step(call, kernels) for call in self.calls]
        r.end()
        inputs, constants = (_with_role(self.values, role) for role in ("input", "constant"))
        return KernelGraph(name, self.values, steps, inputs, tuple(outputs), constants), schedules

    def declare(self) -> None:
        r, name = self.reader, self.reader.peek()[1:]
        if name in self.values:
            r.fail(f"%{name} is declared twice")
        r.next()
        r.expect(":")
        type = read_type(r)
        role = read_word(r, _ROLES)
        r.expect("node")
        source = r.integer()
        self.values[name] = Value(name, type, role, source, self.packing() if r.accept("of") else None)

    def packing(self) -> Packing:
        r = self.reader
        (of,), sizes = self.names(), []
        for word in ("k", "n", "panels"):
            r.expect(word)
            r.expect(":")
            sizes.append(r.integer())
        return Packing(of, *sizes, r.accept("transposed"))

    def names(self) -> list[str]:
        """`%a, %b`: values declared above."""
        r, found = self.reader, []
        while not found or r.accept(","):
            if r.peek_kind() == "value" and r.peek()[1:] not in self.values:
                r.fail(f"{r.peek()} is not declared above")
            found.append(r.take("value")[1:])
        return found

    def call(self) -> None:
        r, written = self.reader, []
        if r.peek_kind() == "value":
            written = self.names()
            r.expect("=")
        at, label = r.at, r.take("name")
        r.expect("(")
        read = self.names() if r.peek() != ")" else []
        r.expect(")")
        for k, name in enumerate(written):
            r.expect(",") if k else r.expect(":")
            start, type = r.at, read_type(r)
            if type != self.values[name].type:
                r.at = start
                r.fail(f"%{name} is declared as {self.values[name].type}, not {type}")
        self.calls.append((at, label.removeprefix("@"), written, read))

    def kernels(self) -> tuple[dict[str, Kernel], dict[Kernel, Schedule]]:
        """The rest of the text: kernels by label, and their schedules."""
        r = self.reader
        called = {label for _, label, _, _ in self.calls}
        kernels: dict[str, Kernel] = {}
        schedules = {}
        while r.peek() == "kernel":
            start = r.at
            kernel, schedule = read_kernel(r)
            name, mark, _ = kernel.name.rpartition("#")
            if not mark or kernel.name in kernels or kernel.name not in called:
                r.at = start + 1
                r.fail(f"@{kernel.name} must be a name and #number, there once, and called by a step")
            kernels[kernel.name] = kernel = replace(kernel, name=name)
            if schedule:
                schedules[kernel] = schedule
        return kernels, schedules

    def step(self, call: tuple[int, str, list[str], list[str]], kernels: Mapping[str, Kernel]) -> Step:
        at, label, written, read = call
        resume, self.reader.at = self.reader.at, at
        if label not in kernels:
            self.reader.fail(f"there is no kernel @{label}")
        params = [p.role for p in kernels[label].params if p.role != "scratch"]
        if (params.count("out"), params.count("in")) != (len(written), len(read)):
            self.reader.fail(f"@{label} writes {params.count('out')} and reads {params.count('in')}, the step {len(written)} and {len(read)}")
        self.reader.at = resume
        writes, reads = iter(written), iter(read)
        return Step(kernels[label], tuple(next(writes if role == "out" else reads) for role in params))
