"""`python -m pytest_mlc`: the commands that belong to the plugin."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mlc.tools.cli import Parser, UsageError
from pytest_mlc import review
from pytest_mlc.golden import GoldenError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 2 for a wrong command line or an unusable file."""
    parser = Parser(prog="python -m pytest_mlc", description="Commands of mlc's pytest plugin.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    help_text = "look at changed IR snapshots and accept or reject them"
    review.add_arguments(commands.add_parser("review", help=help_text, description=f"{help_text.capitalize()}."))
    args = parser.parse_args(arguments)
    try:
        return review.review(args)
    except (UsageError, GoldenError, OSError) as error:
        print(f"{parser.prog} {args.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
        return 130


if __name__ == "__main__":
    sys.exit(main())
