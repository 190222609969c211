"""A tile that adds up parts of k one after another, with the bits of splits that several blocks have and a second launch adds up.

Sums of the parts so far are in the workspace: a thread reads and writes its own there, so nothing is waited for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...types import f32
from ..dsl import cuda, device
from ..tiles.tile import add_tiles, each, get_run, put_run, runs, zeros

RUN = 4  # accumulators that are loaded and stored together


def part_sums(count: int, threads: int, width: int, in_parts: bool) -> tuple[Any, Any]:
    """(`next_part(acc, k, operands)`: the accumulators for what follows `k` of k: zeros where another part begins;
    `total(i, run, operands)`: sums of all parts, of a run of `width` accumulators from i on), for `count` accumulators of each of a
    block's threads.

    operands  of the epilogue, with (workspace, extent of a part) after the pointers of results
    """
    if not in_parts:
        return device(lambda acc, k, operands: acc), device(lambda i, run, operands: run)
    start, apart, block = zeros(count), threads * RUN, threads * count
    load, add, store = runs(f32, 1, RUN, _position), add_tiles(RUN), put_run(f32, RUN)
    get_last, add_last = get_run(f32, width), add_tiles(width)
    first = device(lambda: np.int64(cuda.blockIdx.x) * block + np.int64(cuda.threadIdx.x) * RUN)

    def put(i, run, env):
        sums, at, is_first = env
        at = at + i // RUN * apart
        store(sums, at, add(load(sums, np.int64(-1) if is_first else at), run))

    keep = each(count, RUN, put)

    def next_part(acc, k, operands):
        sums, part_k = operands[4]
        if k % part_k == 0:
            keep(acc, (sums, first(), k == part_k))
            return start
        return acc

    def total(i, run, operands):
        return add_last(get_last(operands[4][0], first() + i // RUN * apart + i % RUN), run)

    return device(next_part), device(total)


def _position(i: Any, at: Any) -> Any:
    return at
