"""Writing to a KV cache on the host."""

from __future__ import annotations

import numpy as np
import pytest

from aicf.types import bf16, f16, f32

from .regions import Graph, normal


@pytest.mark.spec("F1")
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
def test_rows_are_written_where_each_sequence_stands(dtype, in_place):
    keys, values = normal(4, 2, 9, 3, dtype=dtype), normal(4, 2, 9, 5, dtype=dtype)
    k, v = normal(4, 2, 3, 3, dtype=dtype), normal(4, 2, 3, 5, dtype=dtype)
    k[0, 0, 0, 0] = np.nan
    starts = np.array([0, 5, 8, -2], np.int32)  # the last two stand over an end
    given = {"keys": keys, "values": values, "k": k, "v": v, "starts": starts}
    graph = Graph(given, ("cache_write", "keys values k v starts", "a b", {}), keep="a b")
    for got, before, new in zip(
        graph.run("cache_write", {"a": "keys", "b": "values"} if in_place else None), (keys, values), (k, v)
    ):
        want = before.copy()
        for b, start in enumerate(starts):
            for t in range(3):
                if 0 <= start + t < 9:
                    want[b, :, start + t] = new[b, :, t]
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
