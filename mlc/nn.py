"""`mlc.nn`: activations, normalisations and layers, decomposed as `jax.nn` does."""

from mlc.frontend.nn import *  # noqa: F403
from mlc.frontend.nn import __all__  # noqa: F401
