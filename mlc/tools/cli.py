"""The command `mlc` (also `python -m mlc`): one module per subcommand, each with HELP, `add_arguments` and `run`.

Exit codes: 0 fine, 1 the command found something wrong, 2 bad input, said in one line on stderr.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from mlc.core.errors import CodegenError, MlcError, VerifyError
from mlc.core.fingerprint import VERSION

COMMANDS = {"opt": "mlc.tools.opt", "explain": "mlc.tools.explain", "bench": "mlc.tools.bench.run", "cache": "mlc.tools.cache"}


class UsageError(Exception):
    """Bad input to a command: one line for the user, exit code 2."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help shows how to use it)\n")


def build_parser() -> Parser:
    """The parser of the whole command line."""
    parser = Parser(prog="mlc", description="Look into mlc, the compiler of tensor programs.")
    parser.add_argument("--version", action="version", version=f"mlc {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, module_name in COMMANDS.items():
        module = importlib.import_module(module_name)
        one = commands.add_parser(name, help=module.HELP, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        module.add_arguments(one)
        one.set_defaults(run=module.run)
    return parser


def one_line(error: BaseException) -> str:
    """An exception's message in one line; its type, where the message alone may not tell."""
    text = " ".join(str(error).split())
    return text if isinstance(error, (UsageError, MlcError)) and text else f"{type(error).__name__}: {text}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. A failing verifier or LLVM is mlc's own fault: exit code 1."""
    args = build_parser().parse_args(arguments)
    try:
        code = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `mlc explain ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (VerifyError, CodegenError) as error:
        print(f"mlc {args.command}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except (UsageError, MlcError, OSError) as error:
        print(f"mlc {args.command}: error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
