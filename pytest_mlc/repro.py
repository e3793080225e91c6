"""Standalone scripts that show a failure: they need mlc, jax and numpy, and nothing of this plugin."""

from __future__ import annotations

from pytest_mlc import corpus
from pytest_mlc.corpus import Case

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

from mlc.compile import compile_graph
from mlc.core.dims import parse_type
from mlc.core.literal import Literal
from mlc.graph import evaluate, parse_graph

GRAPH = """\\
{graph}"""
ARGUMENTS = {arguments}
CONSTANTS = {constants}
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
outputs = compile_graph(graph).run(args)
failed = False
for k, (found, true) in enumerate(zip(outputs, referee)):
    with np.errstate(all="ignore"):
        found, true = np.asarray(found).astype(true.dtype), np.asarray(true)
        apart = np.where((found == true) | (np.isnan(found) & np.isnan(true)) if true.dtype.kind == "f" else found == true, 0, 1)
        if true.dtype.kind == "f":
            apart = np.where(apart == 0, 0, np.nan_to_num(np.abs(found - true), nan=np.inf, posinf=np.inf))
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
    """The text of a repro script. `bound` is that of the worst element, `worst` its (output, index)."""
    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    from mlc.graph.text import print_graph
    arguments = "[\n" + "".join(f'    "{corpus._pack(a)}",\n' for a in case.args) + "]"
    constants = "{\n" + "".join(f'    "{d}": "{corpus._pack(c.array)}",\n' for d, c in sorted(case.graph.constants().items())) + "}"
    return _SCRIPT.format(title=quoted(title), explanation=quoted(explanation), graph=quoted(print_graph(case.graph)), arguments=arguments,
                          constants=constants, bound=repr(bound) if bound == bound and bound != float("inf") else "0.0", worst=repr(worst))
