"""What a KV cache is written by: an op that changes a few rows of keys and values in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..types import TensorSpec
from .schema import I32, Float, op, require


def _check(name: str, cache: TensorSpec, new: TensorSpec, keys: TensorSpec) -> None:
    """C1 to C3, of keys or of values."""
    require(
        cache.rank >= 3, "C1", f"{name} has rank {cache.rank}, expected 3 or more: (..., heads, places, d)"
    )
    require(cache.shape[:-1] == keys.shape[:-1], "C2", f"{name} has shape {cache.shape}, keys {keys.shape}")
    want = (*cache.shape[:-2], new.shape[-2] if new.rank > 1 else "T", cache.shape[-1])
    require(new.shape == want, "C3", f"what {name} are given has shape {new.shape}, expected {want}")


@op("cache_write", results=("new_keys", "new_values"), alias={0: (0, "must"), 1: (1, "must")}, flops=8)
def cache_write(keys: Float, values: Float, k: Float, v: Float, starts: I32):
    """A KV cache with T places of each sequence written, in place: keys[b, :, starts[b] + t] = k[b, :, t], and values by v.

    Shapes: keys (..., H, S, d), values (..., H, S, dv), k (..., H, T, d), v (..., H, T, dv), starts (...). What would be written before
    place 0, or from place S on, is left out. It has no gradient: what decodes does not train.

    C1  keys and values have rank 3 or more
    C2  values have the batch, heads and places of keys
    C3  k and v have the batch, heads and row length of what they are written to
    C4  v has as many rows as k
    C5  starts has the shape of the batch
    """
    _check("keys", keys, k, keys)
    _check("values", values, v, keys)
    require(k.shape[-2] == v.shape[-2], "C4", f"v has {v.shape[-2]} rows of a head, k has {k.shape[-2]}")
    batch = keys.shape[:-3]
    require(
        starts.shape == batch, "C5", f"starts has shape {starts.shape}, expected that of the batch, {batch}"
    )
    return keys, values


def write_rows(cache: np.ndarray, new: np.ndarray, starts: np.ndarray) -> None:
    """Of keys or of values, in place."""
    at = starts[..., None].astype(np.int64) + np.arange(new.shape[-2])
    inside = np.nonzero((at >= 0) & (at < cache.shape[-2]))
    batch: Any = inside[:-1]
    cache[(*batch, slice(None), at[inside])] = new[(*batch, slice(None), inside[-1])]


@cache_write.reference
def _(keys, values, k, v, starts):
    keys, values = keys.copy(), values.copy()
    write_rows(keys, k, starts)
    write_rows(values, v, starts)
    return keys, values


cache_write.draws(starts=lambda rng, shape, shapes: rng.integers(-1, shapes[0][-2] + 1, shape))
for _batch, _heads, _places, _rows, _d, _dv in (
    ((3,), 2, 7, 1, 4, 4),
    ((2, 2), 1, 9, 4, 3, 5),
    ((), 3, 5, 2, 8, 8),
    ((2,), 2, 3, 5, 4, 4),
    ((2,), 1, 4, 0, 4, 4),
    ((0,), 1, 4, 2, 4, 4),
    ((4,), 5, 130, 3, 33, 7),
):
    cache_write.samples(
        (*_batch, _heads, _places, _d), (*_batch, _heads, _places, _dv), (*_batch, _heads, _rows, _d), (*_batch, _heads, _rows, _dv),
        _batch,
    )  # fmt: skip
