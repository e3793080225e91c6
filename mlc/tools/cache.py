"""Show or empty the persistent compilation cache.

It lies in the folder of the option `cache_dir` (MLC_CACHE_DIR), or in the user's cache folder.
"""

from __future__ import annotations

import argparse

HELP = "show or empty the compilation cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("info", "clear"), help="info: where it is and how full; clear: remove every entry")
    parser.add_argument("--dir", metavar="DIR", help="another cache folder than the default")


def run(args: argparse.Namespace) -> int:
    from mlc.cache.store import default_cache
    from mlc.core.options import options
    from mlc.tools.cli import UsageError
    with options(cache=True, **({"cache_dir": args.dir} if args.dir else {})):
        cache = default_cache()
    if not cache.enabled:
        raise UsageError("there is no cache folder: neither MLC_CACHE_DIR nor a home directory names a usable one")
    if args.action == "clear":
        removed = cache.clear()
        print(f"removed {removed} entr{'y' if removed == 1 else 'ies'} from {cache.directory}")
        return 0
    info = cache.info()
    print(f"directory  {info['directory']}\nentries    {info['entries']}\nsize       {_size(info['bytes'])} of {_size(info['max_bytes'])}")
    return 0


def _size(count: object) -> str:
    return f"{int(count):,} B" if int(count) < 1 << 20 else f"{int(count) / (1 << 20):.1f} MiB"
