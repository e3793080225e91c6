"""Where native code lies that belongs to the package as its bytecode does: beside the bytecode."""

from __future__ import annotations

import os
import stat
import sys

from mlc.cache.store import Cache, default_cache
from mlc.core.errors import OptionError

_MAX_BYTES = 32 << 20
SETTING = "remove the folder, or set PYTHONDONTWRITEBYTECODE=1 to do without, as without bytecode"
_caches: dict[str, Cache] = {}


def package_cache() -> Cache:
    """The cache of code that does not depend on the user's programs: a folder beside the bytecode where this user may write that (and
    Python does), else the cache that the options name."""
    folder = _folder()
    if folder is not None:
        if folder not in _caches:
            _caches[folder] = Cache(folder, max_bytes=_MAX_BYTES, setting=SETTING)
        if _caches[folder].enabled:
            return _caches[folder]
    try:
        return default_cache()
    except OptionError:  # an unusable MLC_CACHE_DIR is for the compiler to report; saved programs run without a cache
        return Cache(None)


def _folder() -> str | None:
    if sys.dont_write_bytecode or not hasattr(os, "getuid"):
        return None
    bytecode = getattr(sys.modules[__name__.partition(".")[0]].__spec__, "cached", None)
    place = bytecode and os.path.dirname(bytecode)
    try:
        # Of a folder that others may write to, nothing is believed.
        status = os.stat(place) if place else None
    except OSError:
        return None
    if status is None or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022 or not os.access(place, os.W_OK):
        return None
    return os.path.join(place, "native")
