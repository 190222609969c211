"""A query among others, and alone with a cache of keys of which its sequence has so many: whether its attention has the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from kernel_cases import Case, attention, operands_for

from aicf.rows import RegionSpec
from aicf.types import DType

Runner = Callable[[Case, Sequence[np.ndarray]], Sequence[np.ndarray]]


@dataclass(frozen=True)
class Form:
    dtype: DType
    d: int
    dv: int
    softcap: float = 0.0


@dataclass(frozen=True)
class Prompt:
    """Queries at the last places of so many keys, of heads of which `group` share keys; `room`: keys that a cache holds."""

    queries: int
    keys: int
    heads: int
    group: int
    window: int
    room: int


def invariant(r: RegionSpec) -> RegionSpec:
    return replace(r, strict=True, invariant=True)


def differing_places(
    run: Runner, draw: np.random.Generator, form: Form, prompt: Prompt, kernels: tuple[str, str], alone: int, hidden: float = 1.0
) -> list[str]:  # fmt: skip
    """Places of a causal prompt, of `alone` drawn ones, whose bits differ between the first kernel, of all queries, and the second, of one.

    hidden  the size of keys and values behind the query: of those in the cache, and of the prompt's last ones
    """
    p, dtype = prompt, form.dtype.numpy
    asked: dict[str, Any] = {
        "causal": True,
        "window": p.window,
        "softcap": form.softcap,
        "dtype": form.dtype,
        "dv": form.dv,
    }
    q_shape, k_shape = ((1, p.heads * p.group, p.queries, form.d), (1, p.heads, p.keys, form.d))
    whole = Case(kernels[0], invariant(attention(q_shape, k_shape, **asked)))
    q, k, v = (x.copy() for x in operands_for(whole, int(draw.integers(2**32))).arrays)
    first = p.keys - p.queries
    end = p.keys if hidden == 1.0 else int(draw.integers(first + p.queries // 2, p.keys))
    k[:, :, end:] *= np.asarray(hidden**0.5, dtype)
    v[:, :, end:] *= np.asarray(hidden, dtype)
    out, lse = run(whole, [q, k, v])
    marks = [x for x in (first, 127, 128, 255, 256, end - 1) if first <= x < end]
    drawn = draw.integers(first, end, alone)
    places = sorted({*(int(x) for x in draw.permutation(marks)[: alone // 2]), *(int(x) for x in drawn)})
    batch = len(places)
    one = Case(
        kernels[1],
        invariant(
            attention(
                (batch, *q_shape[1:2], 1, form.d), (batch, p.heads, p.room, form.d), ragged=True, **asked
            )
        ),
    )
    caches = [
        (hidden * draw.standard_normal((batch, p.heads, p.room, n))).astype(dtype) for n in (form.d, form.dv)
    ]
    for n, place in enumerate(places):
        for cache, own in zip(caches, (k, v)):
            cache[n, :, : place + 1] = own[0, :, : place + 1]
    queries = np.stack([q[0, :, place - first, None] for place in places])
    got, got_lse = run(one, [queries, *caches, np.array(places, np.int32) + 1])
    return [
        f"place {place}, {prompt}, {form}, {kernels}"
        for n, place in enumerate(places)
        if got[n, :, 0].tobytes() != out[0, :, place - first].tobytes()
        or got_lse[n, :, 0].tobytes() != lse[0, :, place - first].tobytes()
    ]
