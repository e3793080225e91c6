"""`mlc.nn`: activations, normalisations, attention and layers, decomposed as `jax.nn` does."""

from mlc.frontend.attention import dot_product_attention  # noqa: F401
from mlc.frontend.nn import *  # noqa: F403
from mlc.frontend.nn import __all__ as _all

__all__ = sorted([*_all, "dot_product_attention"])
