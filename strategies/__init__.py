"""Hypothesis strategies and seeded generators of tensors and tensor programs, imported as `mlc_strategies` only.

    graphs()            valid graphs, with arguments: any op, shape and dtype that mlc has
    arrays(type)        an array of a tensor type, dense or with special values
    tensor_types()      shapes around 0, 1, vector and tile sizes
    dtypes()            the dtypes that mlc has
    build(random, ...)  the same graphs from a `random.Random`, without Hypothesis (what the fuzz campaign uses): a `Program`, made of what a
                        `Config` and its `Palette` of shapes allow
    dense, special      an array of a type from a NumPy generator

Hypothesis is imported on first use.
"""

from __future__ import annotations

if __name__ != "mlc_strategies":
    raise ImportError(f"this package is installed as mlc_strategies; imported as {__name__!r} it would exist twice")

_HOMES = {
    "graphs": "hypothesis_strategies", "arrays": "hypothesis_strategies", "tensor_types": "hypothesis_strategies", "dtypes": "hypothesis_strategies",
    "build": "recipe", "Program": "recipe", "Config": "recipe",
    "Palette": "shapes", "dense": "values", "special": "values",
}
__all__ = ["Config", "Palette", "Program", "arrays", "build", "dense", "dtypes", "graphs", "special", "tensor_types"]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'mlc_strategies' has no attribute {name!r}")
    import importlib
    return getattr(importlib.import_module(f"mlc_strategies.{_HOMES[name]}"), name)
