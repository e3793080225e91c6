"""Standalone scripts that show a failure: they need mlc, jax and numpy, and nothing of this plugin."""

from __future__ import annotations

from pytest_mlc import corpus
from pytest_mlc.corpus import Case
from pytest_mlc.executor import options_of

_SCRIPT = '''"""{title}

{explanation}
Exit status: 1 while the failure is there, 0 when it is gone.
"""
import base64
import sys
import zlib

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import mlc
from mlc.compile import compile_graph
from mlc.core.dims import parse_type
from mlc.core.literal import Literal
from mlc.graph import evaluate, parse_graph

GRAPH = """\\
{graph}"""
ARGUMENTS = {arguments}
CONSTANTS = {constants}
OPTIONS = {options}
BOUND = {bound}  # derived: see docs/numerics.md
WORST = {worst}  # (output, index) of the worst element


def unpack(text):
    head, data = text.split(": ")
    type = parse_type(head)
    return np.frombuffer(zlib.decompress(base64.b64decode(data)), type.dtype.numpy).reshape(type.shape)


def run_jax(graph, args):
    """The graph op by op, as JAX calls each op."""
    values = dict(zip(graph.params, map(jnp.asarray, args)))
    for i, node in enumerate(graph.nodes):
        operands = [values[k] for k in node.inputs]
        if i in values:
            continue
        if node.regions:
            values[i] = tuple(run_jax(node.regions[0], operands))
        elif operands and isinstance(operands[0], tuple):
            values[i] = operands[0][node.attrs["index"]]
        else:
            attrs = dict(node.attrs)
            if node.op.typed:
                attrs.update(shape=node.type.shape, dtype=node.type.dtype.numpy)
            values[i] = node.op.jax(jnp, lax, *operands, **attrs)
    return [values[o] for o in graph.outputs]


def distance(found, true):
    """Element by element: 0 where equal, and where BOUND is 0 of equal sign too (NaN is like NaN), else how far apart."""
    if true.dtype.kind != "f":
        return np.where(found == true, 0.0, np.inf)
    with np.errstate(all="ignore"):
        found = found.astype(true.dtype)
        same = (found == true) | (np.isnan(found) & np.isnan(true))
        if BOUND == 0:
            same &= (found != 0) | (np.signbit(found) == np.signbit(true))
        apart = np.abs(found - true)
        return np.where(same, 0.0, np.where(np.isnan(apart) | (apart == 0), np.inf, apart))


jax.config.update("jax_enable_x64", True)
graph = parse_graph(GRAPH, {{digest: Literal(unpack(data)) for digest, data in CONSTANTS.items()}})
args = [unpack(a) for a in ARGUMENTS]
print(graph)
with np.errstate(all="ignore"):
    referee = evaluate(graph, args, wide=True)
try:
    reference = [np.asarray(o) for o in run_jax(graph, args)]
except Exception as error:
    print("JAX raised", error)
    reference = None
print("compiling and running with mlc; if nothing follows, it crashed", flush=True)
with mlc.options(cache=False, **OPTIONS):
    outputs = compile_graph(graph).run(args)
failed = len(outputs) != len(referee)
for k, (found, true, type) in enumerate(zip(outputs, referee, graph.output_types())):
    found, true = np.asarray(found), np.asarray(true)
    if found.dtype != type.dtype.numpy or found.shape != true.shape:
        print(f"out{{k}}: {{found.dtype}}{{list(found.shape)}}, the graph says {{type}}")
        failed = True
        continue
    apart = distance(found, true)
    at = WORST[1] if k == WORST[0] and apart.ndim == len(WORST[1]) else (np.unravel_index(np.argmax(apart), apart.shape) if apart.size else None)
    if at is None:
        continue
    print(f"out{{k}}{{list(map(int, at))}}: mlc {{found[at]}}, jax {{'-' if reference is None else reference[k][at]}}, float64 {{true[at]}}, "
          f"error {{float(apart[at]):.3g}}, bound {{BOUND:.3g}}")
    failed |= k == WORST[0] and not apart[at] <= BOUND
print("FAILS" if failed else "right")
sys.exit(1 if failed else 0)
'''


def script(case: Case, title: str, explanation: str, bound: float, worst: tuple[int, tuple[int, ...]]) -> str:
    """The text of a repro script. `bound` is that of the worst element, `worst` its (output, index); infinite where
    mlc did not get as far as an answer: then anything but an exception or a crash is right."""
    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    from mlc.graph.text import print_graph
    arguments = "[\n" + "".join(f'    "{corpus._pack(a)}",\n' for a in case.args) + "]"
    constants = "{\n" + "".join(f'    "{d}": "{corpus._pack(c.array)}",\n' for d, c in sorted(case.graph.constants().items())) + "}"
    return _SCRIPT.format(title=quoted(title), explanation=quoted(explanation), graph=quoted(print_graph(case.graph)), arguments=arguments,
                          constants=constants, options=repr(options_of(case.facts)), worst=repr(worst),
                          bound=repr(float(bound)) if bound < float("inf") else 'float("inf")')
