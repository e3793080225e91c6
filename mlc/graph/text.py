"""The graph's text form: deterministic, readable, and it parses back: `parse_graph(print_graph(g)) == g`.

Grammar (one node a line; values are numbered densely; splat constants stand inline as literals where the op makes their type plain):

    graph    = "graph" @name "(" %param ":" type, ... ")" "->" "(" type, ... ")" "{" node* "return" operand, ... "}"
    node     = %id "=" op operand, ... ["{" attr "=" value, ... "}"] [ "{" graph* "}" ] ":" type
    operand  = %id | %param | literal             a literal is a splat of the other operands' type
"""

from __future__ import annotations

from mlc.core.errors import MlcError, ParseError
from mlc.core.literal import Literal, read_literal
from mlc.core.text import MAX_NESTING, Reader, format_attr, read_attr, read_type
from mlc.graph.graph import Graph, Node, NodeType
from mlc.ops.base import ELEMENTWISE, REGISTRY


def _type_text(type: NodeType) -> str:
    return f"({', '.join(map(str, type))})" if isinstance(type, tuple) else str(type)


def _inline_operands(graph: Graph, node: Node, is_splat: list[bool]) -> set[int] | frozenset[int]:
    """Positions of operands to print as literals: splats of an elementwise op that has another operand of the same type."""
    splat = [is_splat[i] for i in node.inputs]
    if True not in splat or node.op.fusion != ELEMENTWISE or len(splat) < 2:
        return _NONE
    types = [graph.nodes[i].type for i in node.inputs]
    named = [t for t, s in zip(types, splat) if not s]
    # The reader gives a literal the type of the last named operand (select's condition comes first and is bool).
    return {k for k, s in enumerate(splat) if s and named and types[k] == named[-1]}


_NONE: frozenset[int] = frozenset()


def _only_ints(value: object) -> bool:
    return all(map(_only_ints, value)) if isinstance(value, tuple) else type(value) is int


def _attr_text(name: str, value: object) -> str:
    if isinstance(value, Literal):
        return value.text()
    if name in ("contract", "batch"):
        return "(" + ",".join(format_attr(v) for v in value) + ")"
    return format_attr(value)


class _Printer:
    def __init__(self, graph: Graph, locations: bool, indent: str):
        self.graph, self.locations, self.indent = graph, locations, indent
        self.types: dict[NodeType, str] = {}
        self.shown: dict[int, str] = {}  # attributes by their mapping's id
        self.names: dict[int, str] = {p: "%" + graph.nodes[p].attrs["name"] for p in graph.params}
        is_splat = [n.is_splat for n in graph.nodes]
        self.inline = [_inline_operands(graph, n, is_splat) for n in graph.nodes]
        used_by_name = set(graph.outputs)
        for node, inline in zip(graph.nodes, self.inline):
            used_by_name.update([operand for k, operand in enumerate(node.inputs) if k not in inline] if inline else node.inputs)
        number = 0
        self.lines = []
        for i in range(len(graph)):
            # A splat that is only ever printed inline has no line of its own.
            if i not in self.names and (not is_splat[i] or i in used_by_name):
                self.names[i] = f"%{number}"
                number += 1
                self.lines.append(i)

    def operand(self, user: int, position: int) -> str:
        node = self.graph.nodes[user]
        operand = node.inputs[position]
        return self.graph.nodes[operand].attrs["value"].text() if position in self.inline[user] else self.names[operand]

    def attrs(self, node: Node) -> str:
        """Nodes of layers that repeat share their attributes."""
        found = self.shown.get(id(node.attrs))
        if found is None:
            shown = ", ".join([f"{k}={_attr_text(k, v)}" for k, v in node.attrs.items() if not (k == "batch" and v == ((), ()))])
            found = self.shown[id(node.attrs)] = " {" + shown + "}"
        return found

    def type(self, type: NodeType) -> str:
        found = self.types.get(type)
        if found is None:
            found = self.types[type] = _type_text(type)
        return found

    def line(self, i: int) -> str:
        node = self.graph.nodes[i]
        text = f"{self.names[i]} = {node.op.name}"
        if self.inline[i]:
            text += " " + ", ".join([self.operand(i, k) for k in range(len(node.inputs))])
        elif node.inputs:
            text += " " + ", ".join([self.names[k] for k in node.inputs])
        if node.attrs:
            text += self.attrs(node)
        if node.regions:
            inner = "".join(_print(r, self.locations, self.indent + "    ") for r in node.regions)
            text += " {\n" + inner + self.indent + "  }"
        text += " : " + self.type(node.type)
        if self.locations and node.meta and node.meta.source:
            text += f"  ; {node.meta}"
        return f"{self.indent}  {text}\n"


def _print(graph: Graph, locations: bool, indent: str) -> str:
    printer = _Printer(graph, locations, indent)
    params = ", ".join(f"{printer.names[p]}: {graph.nodes[p].type}" for p in graph.params)
    results = [str(t) for t in graph.output_types()]
    result = results[0] if len(results) == 1 else f"({', '.join(results)})"
    body = "".join(printer.line(i) for i in printer.lines)
    returned = ", ".join(printer.names[o] for o in graph.outputs)
    return f"{indent}graph @{graph.name}({params}) -> {result} {{\n{body}{indent}  return{' ' + returned if returned else ''}\n{indent}}}\n"


def value_names(graph: Graph) -> dict[int, str]:
    """How the graph's text names each node (`%x`, `%0`); a splat that only stands inline, which has no name there, is `%splat.<id>`."""
    names = _Printer(graph, False, "").names
    return {i: names.get(i, f"%splat.{i}") for i in range(len(graph))}


def print_graph(graph: Graph, locations: bool = False) -> str:
    """The text of a graph; with `locations`, each line ends in a comment naming the user's source line."""
    return _print(graph, locations, "")


# --------------------------------------------------------------------------- parsing
def _read_types(reader: Reader) -> NodeType:
    if not reader.accept("("):
        return read_type(reader)
    types = []
    while not reader.accept(")"):
        types.append(read_type(reader))
        if not reader.accept(","):
            reader.expect(")")
            break
    return tuple(types)


class _GraphReader:
    def __init__(self, reader: Reader, side: dict[str, Literal], nesting: int = 0):
        self.reader, self.side, self.nesting = reader, side, nesting
        if nesting > MAX_NESTING:
            reader.fail(f"graphs nested more than {MAX_NESTING} deep")
        self.ids: dict[str, int] = {}

    def read(self) -> Graph:
        r = self.reader
        r.expect("graph")
        self.graph = Graph(r.take("name").removeprefix("@"))
        r.expect("(")
        while not r.accept(")"):
            name = r.take("value")
            r.expect(":")
            if name in self.ids:
                r.fail(f"two parameters are called {name}")
            self.ids[name] = self.graph.parameter(name[1:], read_type(r))
            if not r.accept(","):
                r.expect(")")
                break
        r.expect("->")
        declared = _read_types(r)
        r.expect("{")
        while not r.accept("return"):
            self.node()
        outputs = []
        while not r.accept("}"):
            outputs.append(self.value())
            r.accept(",")
        self.graph.set_outputs(outputs)
        found = self.graph.output_types()
        if found != (list(declared) if isinstance(declared, tuple) else [declared]):
            r.fail(f"the graph returns {found}, its head says {declared}")
        return self.graph

    def value(self) -> int:
        name = self.reader.peek()
        if name not in self.ids:
            self.reader.fail(f"{name or 'the end'!r} is not a value defined above")
        self.reader.next()
        return self.ids[name]

    def operands(self) -> list[int | int]:
        """Operand ids; literals are kept as token positions (negative) until their type is known."""
        r, found = self.reader, []
        while r.peek_kind() in ("value", "number") or r.peek() in ("true", "false"):
            if r.peek_kind() == "value":
                found.append(self.value())
            else:
                found.append(-1 - r.at)
                r.next()
            if not r.accept(","):
                break
        return found

    def literals(self, operands: list[int]) -> list[int]:
        named = [i for i in operands if i >= 0]
        if not named and operands:
            self.reader.fail("at least one operand must be a value, to give the literals their type")
        resume = self.reader.at
        ids = []
        for operand in operands:
            if operand < 0:
                type = self.graph.nodes[named[-1]].type
                self.reader.at = -1 - operand
                operand = self.graph.constant(read_literal(self.reader, type.dtype, (), {}), type)
            ids.append(operand)
        self.reader.at = resume
        return ids

    def node(self) -> None:
        r = self.reader
        name = r.take("value")
        if name in self.ids:
            r.fail(f"{name} is defined twice")
        r.expect("=")
        op_name = r.take("name")
        if op_name not in REGISTRY:
            r.fail(f"unknown op {op_name!r}")
        definition = REGISTRY[op_name]
        inputs = self.literals(self.operands())
        attrs, regions, literal_at = {}, [], None
        if definition.attrs and r.accept("{"):
            while not r.accept("}"):
                key = r.take("name")
                r.expect("=")
                if definition.attrs.get(key) == "literal":
                    literal_at = (key, r.at)
                    self._skip_literal()
                else:
                    attrs[key] = self._pair() if r.peek() == "(" else read_attr(r)
                    if definition.attrs.get(key) in ("int", "ints", "axes", "pairs") and not _only_ints(attrs[key]):
                        r.fail(f"{op_name}: {key} takes integers, got {format_attr(attrs[key])}")
                if not r.accept(","):
                    r.expect("}")
                    break
        if r.accept("{"):
            while not r.accept("}"):
                regions.append(_GraphReader(r, self.side, self.nesting + 1).read())
        r.expect(":")
        type = _read_types(r)
        if literal_at:
            attrs[literal_at[0]] = self._literal_at(literal_at[1], type)
        if "batch" in definition.attrs:
            attrs.setdefault("batch", ((), ()))
        self.ids[name] = self._add(definition, inputs, attrs, type, tuple(regions))

    def _add(self, definition, inputs, attrs, type, regions) -> int:
        try:
            if definition.name == "constant":
                return self.graph.constant(attrs.get("value"), type)
            found = self.graph.add(definition, inputs, attrs, type, regions)
        except ParseError:
            raise
        except (MlcError, KeyError, TypeError, ValueError, AttributeError) as error:
            self.reader.fail(f"{definition.name}: {error}")
        if self.graph.nodes[found].type != type:
            self.reader.fail(f"{definition.name} gives {self.graph.nodes[found].type}, the text says {type}")
        return found

    def _pair(self) -> tuple:
        r = self.reader
        r.expect("(")
        left = read_attr(r)
        r.expect(",")
        right = read_attr(r)
        r.expect(")")
        return left, right

    def _skip_literal(self) -> None:
        r = self.reader
        if r.accept("["):
            while not r.accept("]"):
                r.next()
                if r.peek_kind() == "end":
                    r.fail("a constant's value list is not closed")
        else:
            r.next()

    def _literal_at(self, at: int, type: NodeType) -> Literal:
        r, resume = self.reader, self.reader.at
        r.at = at
        if isinstance(type, tuple):
            r.fail("a constant cannot have a tuple type")
        found = read_literal(r, type.dtype, type.shape, self.side)
        r.at = resume
        return found


def parse_graph(text: str, constants: dict[str, Literal] | None = None, what: str = "graph text") -> Graph:
    """Read what `print_graph` wrote; `constants` maps digests to data (see `Graph.constants`).

    Raises ParseError with line and column for malformed text, unknown ops, undefined values or types that the ops' rules refuse.
    """
    reader = Reader(text, what)
    graph = _GraphReader(reader, constants or {}).read()
    reader.end()
    return graph


