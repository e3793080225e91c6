"""Hypothesis strategies over the same recipe: they shrink to small graphs, simple shapes and simple dtypes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from mlc_strategies import values
from mlc_strategies.draws import HypothesisDraws
from mlc_strategies.recipe import Config, Program, build
from mlc_strategies.shapes import TRIPLES, Palette

from mlc.core import dtype as dt
from mlc.core.dims import TensorType, parse_type
from mlc.core.dtype import DType, as_dtype


def dtypes(among: Sequence[DType | str] | None = None) -> st.SearchStrategy[DType]:
    """One of mlc's dtypes, or of those given."""
    return st.sampled_from([as_dtype(d) for d in among] if among else (dt.f32, *(d for d in dt.ALL if d is not dt.f32)))


@st.composite
def tensor_types(draw, among: Sequence[DType | str] | None = None, min_rank: int = 0, max_rank: int = 5, max_elements: int = 4096) -> TensorType:
    """Types whose sizes lie around 0, 1, vector and tile widths."""
    sizes = sorted({n for triple in TRIPLES for n in triple}, key=lambda n: (n == 0, n))
    shape: list[int] = []
    for _ in range(draw(st.integers(min_rank, max_rank))):
        room = max_elements // max(1, int(np.prod([n for n in shape if n], dtype=np.int64)))
        shape.append(draw(st.sampled_from([n for n in sizes if n <= room])))
    return TensorType(shape, draw(dtypes(among)))


@st.composite
def arrays(draw, type: TensorType | str, special: bool = False) -> np.ndarray:
    """An array of a type (a TensorType, or text like "f32[4,17]"); `special` strews in NaN, infinities, signed zeros and subnormals."""
    found = parse_type(type) if isinstance(type, str) else type
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return (values.special if special else values.dense)(rng, found)


@st.composite
def graphs(draw, ops: Sequence[str] | None = None, among: Sequence[DType | str] | None = None, max_steps: int = 8, special: bool = False) -> Program:
    """Valid graphs with arguments: a `Program` with `graph` and `args`. `ops` and `among` (dtypes) restrict what is drawn."""
    palette = Palette.number(draw(st.integers(0, len(TRIPLES) - 1)))
    config = Config(palette, tuple(ops) if ops else None, tuple(as_dtype(d) for d in among) if among else dt.ALL, (0, max_steps), special)
    return build(HypothesisDraws(draw), config)
