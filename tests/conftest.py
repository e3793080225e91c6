"""What holds for every test: a compilation cache of the session's own, and JAX on the CPU."""

import os
import shutil
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"

# Set before anything is collected, because some modules compile while they are imported. Workers of xdist inherit the folder and share it.
_own_cache = None
if "PYTEST_XDIST_WORKER" not in os.environ:
    _own_cache = os.environ["MLC_CACHE_DIR"] = tempfile.mkdtemp(prefix="mlc-tests-")


def pytest_unconfigure():
    if _own_cache is not None:
        shutil.rmtree(_own_cache, ignore_errors=True)
