"""Run passes on the text of a graph and print the result.

PASSES is a comma-separated list; each pass runs once, in the order given. Without -p the whole pipeline runs to its fixed
point. MLC_LIMIT, MLC_CHECK and MLC_DISABLE_PASSES mean the same either way. Constants that the text names by digest come from
--constants, an .npz file with any names.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "run passes on IR text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help="a file of graph text; - reads standard input")
    parser.add_argument("-p", "--passes", metavar="PASSES", help="passes to run, such as simplify,cse,dce (default: the pipeline)")
    parser.add_argument("--list", action="store_true", help="list the passes instead")
    parser.add_argument("--rules", action="store_true", help="list the rewrites of simplify, with their reasons, instead")
    parser.add_argument("--constants", metavar="FILE.npz", help="arrays for constants that are printed by digest")
    parser.add_argument("--log", action="store_true", help="print the pass log to stderr")


def read_graph(file: str, constants: str | None):
    """The graph in a file. Raises UsageError or MlcError for what is not one."""
    from mlc.core.errors import VerifyError
    from mlc.graph import parse_graph, verify
    from mlc.tools.cli import UsageError
    what = "standard input" if file == "-" else file
    raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} is not UTF-8 text (byte {error.start})") from None
    graph = parse_graph(text, read_constants(constants) if constants else None, what)
    try:
        return verify(graph)
    except VerifyError as error:
        raise UsageError(f"{what}: {error}") from None


def read_constants(file: str) -> dict:
    """The literals in an .npz file, by digest. Raises UsageError if it is not one."""
    import zipfile

    import numpy as np

    from mlc.core.literal import Literal
    from mlc.tools.cli import UsageError
    try:
        with np.load(file, allow_pickle=False) as arrays:
            literals = [Literal(arrays[name]) for name in arrays.files]
    except (ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise UsageError(f"{file} is not an .npz file of arrays ({error})") from None
    return {literal.digest: literal for literal in literals}


def select_passes(names: str) -> list:
    """The passes with these names, in this order, but for those that are disabled. Raises UsageError for an unknown one."""
    from mlc.passes.pipeline import PIPELINE, active_passes
    from mlc.tools.cli import UsageError
    known = {each.name: each for each in PIPELINE}
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        raise UsageError(f"no pass is called {unknown[0] if unknown else names!r}; known: {', '.join(known)}")
    active = {each.name for each in active_passes()}
    return [known[name] for name in chosen if name in active]


def run(args: argparse.Namespace) -> int:
    from mlc.core import options as opt
    from mlc.graph import print_graph, verify
    from mlc.passes.manager import PassContext, run_pass
    from mlc.passes.pipeline import PIPELINE, run_pipeline
    from mlc.tools.cli import UsageError
    if args.list:
        print("\n".join(each.describe() for each in PIPELINE))
        return 0
    if args.rules:
        from mlc.passes.simplify import RULES
        sys.stdout.write(str(RULES))
        return 0
    if args.file is None:
        raise UsageError("give the FILE to read, or - for standard input")
    passes = select_passes(args.passes) if args.passes is not None else None
    graph = read_graph(args.file, args.constants)
    if passes is None:
        graph, log = run_pipeline(graph)
    else:
        context, log = PassContext(limit=opt.get("limit")), []
        for each in passes:
            result = run_pass(graph, each, context)
            graph = verify(result.graph, f"pass {each.name}")
            log.append(result)
    if args.log:
        print("\n".join(map(str, log)), file=sys.stderr)
    sys.stdout.write(print_graph(graph))
    return 0
