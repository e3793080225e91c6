"""Which installed distributions own a top-level package: more than one means that they overwrite each other's files.

`importlib.metadata.packages_distributions` reads every file list there is; this looks at what is needed only, because it
runs in every pytest session.
"""

from __future__ import annotations

import os
import re
import sys


def owners_of(package: str, path: list[str] | None = None) -> list[str]:
    """Normalised names of the distributions on `sys.path` that own the package, sorted."""
    found: set[str] = set()
    for folder in dict.fromkeys(sys.path if path is None else path):
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        infos = [n for n in names if n.endswith((".dist-info", ".egg-info"))]
        here = package in names or f"{package}.py" in names
        found.update(_name(info) for info in infos if _owns(os.path.join(folder or ".", info), package, here))
    return sorted(found)


def _name(info: str) -> str:
    return re.sub(r"[-_.]+", "-", info.rpartition(".")[0].partition("-")[0]).lower()


def _owns(info: str, package: str, here: bool) -> bool:
    top = _read(os.path.join(info, "top_level.txt"))
    if top is not None:
        return package.encode() in top.split()
    # Without top_level.txt the file list tells, and only matters where the package lies beside it.
    return here and re.search(rb"(?m)^" + package.encode() + rb"(/|\.py,)", _read(os.path.join(info, "RECORD")) or b"") is not None


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
