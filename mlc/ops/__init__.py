"""The op set: one literal per op, a file per family. Importing this package registers all of them."""

from mlc.ops import arithmetic, contraction, movement, reduction, region, transcendental
from mlc.ops.base import REGISTRY, OpDef, op

__all__ = ["REGISTRY", "OpDef", "arithmetic", "contraction", "movement", "op", "reduction", "region", "transcendental"]
