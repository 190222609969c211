"""The cross entropy of a linear layer on the host: tiles of logits by BLAS, each gone when the next one is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..registry.cost import one_launch, roofline
from ..registry.variant import HostCall, one_op, variant
from .blas import matmul, threads_for
from .reference import CONVERT_US, op_operands

TILE = 2**22  # logits that are there at once: 16 MB
ROWS = 2048  # of a tile, where there are so many: it is as wide then
BLOCK = 2**16  # logits that NumPy passes over at once: half of a core's L2 cache
EFFICIENCY = 0.4  # of the arithmetic peak that BLAS reaches on a tile
CALL_US, TILE_US, BLOCK_US = 30.0, 25.0, 15.0  # NumPy's calls, apart from their work
LOGIT_US = 1.2e-3  # a logit through maximum, exp and sum, or to its gradient


@dataclass(frozen=True)
class _Tiling:
    """So many rows of k elements by so many classes."""

    rows: int
    classes: int
    k: int

    @property
    def tall(self) -> int:
        return max(1, min(self.rows, ROWS))

    @property
    def wide(self) -> int:
        return max(1, min(self.classes, TILE // self.tall))

    def cost(self, region, device, products: int):
        """Of a kernel that multiplies so many times."""
        logits = self.rows * self.classes
        cost = roofline(
            device, bytes=region.nbytes, flops=2 * products * logits * self.k, efficiency=EFFICIENCY
        )
        tiles = -(-self.rows // self.tall) * -(-self.classes // self.wide)
        converted = sum(CONVERT_US.get(t.dtype, 0.0) * t.numel for t in (*region.operands, *region.results))
        return cost.plus(
            call=CALL_US, blocks=TILE_US * products * tiles + BLOCK_US * (tiles + logits / BLOCK),
            logits=LOGIT_US * logits, **({"converting": converted} if converted else {}),
        )  # fmt: skip


def _slices(count: int, step: int) -> Iterator[slice]:
    return (slice(first, min(first + step, count)) for first in range(0, count, step))


class _Logits:
    """Tiles of logits of the rows that are not ignored, in f32; no ignored row is read.

    x, labels  of those rows, and which they are in `at`
    """

    def __init__(self, x: np.ndarray, weight: np.ndarray, labels: np.ndarray, ignored: int) -> None:
        counted = labels.reshape(-1) != ignored
        self.at = slice(None) if counted.all() else np.flatnonzero(counted)
        self.labels = labels.reshape(-1)[self.at]
        self.x = np.asarray(x.reshape(labels.size, x.shape[-1])[self.at], np.float32)
        self.weight = weight
        self.tiling = _Tiling(len(self.labels), *weight.shape)
        self.memory = np.empty(self.tiling.tall * self.tiling.wide, np.float32)

    def by_classes(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Classes, and their rows of the weight."""
        for classes in _slices(self.tiling.classes, self.tiling.wide):
            yield classes, np.asarray(self.weight[classes], np.float32)

    def tiles(self, weight: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Rows, and their logits of these classes."""
        for rows in _slices(self.tiling.rows, self.tiling.tall):
            x = self.x[rows]
            tile = self.memory[: len(x) * len(weight)].reshape(len(x), len(weight))
            yield rows, product(x, weight.T, tile)

    def own(self, classes: slice, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Where in a tile the logits of rows' own labels are: rows, and columns."""
        labels = self.labels[rows]
        found = np.flatnonzero((labels >= classes.start) & (labels < classes.stop))
        return found, labels[found] - classes.start


def blocks(tile: np.ndarray, rows: slice) -> Iterator[tuple[np.ndarray, slice]]:
    """Rows of a tile that stay in a cache together, and which of all rows they are."""
    for part in _slices(len(tile), max(1, BLOCK // max(tile.shape[1], 1))):
        yield tile[part], slice(rows.start + part.start, rows.start + part.stop)


def product(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    return matmul(a, b, out, threads_for(2 * a.shape[0] * a.shape[1] * b.shape[1]))


def _call(region, run: Callable[..., None]) -> HostCall:
    """`run(attrs, operands, results)`: operands as the op declares them."""
    positions, attrs = op_operands(region), dict(region.attrs)

    def call(operands, results):
        with np.errstate(all="ignore"):  # NaN and Inf are values here, not warnings
            run(attrs, [operands[p] for p in positions], results)

    return HostCall(call)


def _tiling(region, x: int) -> _Tiling:
    """Of a region whose op has x and the weight as operands from this number on."""
    positions = op_operands(region)
    rows, weight = (region.operands[p] for p in positions[x : x + 2])
    return _Tiling(rows.numel // max(rows.shape[-1], 1) if rows.numel else 0, *weight.shape)


@variant("linear_cross_entropy", id="cpu.linear_cross_entropy_blas.v2")
class LinearCrossEntropyBlas:
    """Tiles of 16 MB of logits, and of each row a running maximum and sum, as in an online softmax.

    Rows whose label is ignored are left out. Parallel inside BLAS, by size. Memory beside operands and results: a tile; of halves,
    x and the rows of the weight that a tile is made of in f32.
    """

    def accepts(region):
        yield one_op(region)

    least = one_launch

    def cost(region, device):
        return _tiling(region, 0).cost(region, device, 1)

    def build(region, device):
        return _call(region, _loss)


def _loss(attrs: dict[str, Any], operands: list[np.ndarray], results: list[np.ndarray]) -> None:
    x, weight, labels = operands
    smoothing, logits = attrs["label_smoothing"], _Logits(x, weight, labels, attrs["ignore_index"])
    rows = len(logits.labels)
    peak, sums = np.full(rows, -np.inf, np.float32), np.zeros(rows)
    own, even = (
        np.full(rows, np.nan),
        np.zeros(rows),
    )  # the label's logit, NaN if it is no class; the sum of all
    for classes, w in logits.by_classes():
        for where, tile in logits.tiles(w):
            found, columns = logits.own(classes, where)
            own[where][found] = tile[found, columns]
            for block, part in blocks(tile, where):
                if smoothing:
                    even[part] += block.sum(1, dtype=np.float64)
                most = np.maximum(peak[part], block.max(1))
                shift = np.where(most == -np.inf, np.float32(0), most)
                block -= shift[:, None]
                np.exp(block, out=block)
                sums[part] *= np.exp(peak[part] - shift)
                sums[part] += block.sum(1)
                peak[part] = most
    peak[np.isinf(peak)] = np.nan
    log_sum = np.where(np.isnan(own), np.nan, np.log(sums))  # of a label that is no class
    expected = (1 - smoothing) * (own - peak)
    if smoothing:
        expected += smoothing * (even / max(len(weight), 1) - peak)
    lse = log_sum + peak
    for result, value in zip(results, (log_sum - expected + attrs["z_loss"] * np.square(lse), lse)):
        whole = np.zeros(labels.size, np.float32)
        whole[logits.at] = value
        result[...] = whole.reshape(result.shape)


@variant("linear_cross_entropy_grad", id="cpu.linear_cross_entropy_grad_blas.v2")
class LinearCrossEntropyGradBlas:
    """Three products for each tile of 16 MB of logits, which becomes their gradient in place.

    Tiles of some classes follow each other: their rows of dweight are added up in f32 and written once; dx grows from
    classes to classes. Rows whose label is ignored are left out. Parallel inside BLAS, by size. Memory beside operands and results:
    a tile, dx in f32, and of dweight and, for halves, of the weight the rows of a tile, and x in f32.
    """

    def accepts(region):
        yield one_op(region)

    least = one_launch

    def cost(region, device):
        return _tiling(region, 1).cost(region, device, 3)

    def build(region, device):
        return _call(region, _gradients)


def _gradients(attrs: dict[str, Any], operands: list[np.ndarray], results: list[np.ndarray]) -> None:
    dloss, x, weight, labels, lse = operands
    logits = _Logits(x, weight, labels, attrs["ignore_index"])
    dloss, lse = (row.reshape(-1)[logits.at] for row in (dloss, lse))
    other = np.float32(attrs["label_smoothing"] / max(len(weight), 1)) * dloss
    label = np.float32(1 - attrs["label_smoothing"]) * dloss  # more than others
    factor = (1 + np.float32(2 * attrs["z_loss"]) * lse) * dloss
    dx = np.zeros_like(logits.x)
    for classes, w in logits.by_classes():
        dweight = np.zeros_like(w)
        for where, tile in logits.tiles(w):
            for block, part in blocks(tile, where):
                block -= lse[part, None]
                np.exp(block, out=block)
                block *= factor[part, None]
                if attrs["label_smoothing"]:
                    block -= other[part, None]
            found, columns = logits.own(classes, where)
            tile[found, columns] -= label[where][found]
            dweight += product(tile.T, logits.x[where])
            dx[where] += product(tile, w)
        results[1][classes] = dweight
    whole = np.zeros((labels.size, x.shape[-1]), np.float32)
    whole[logits.at] = dx
    results[0][...] = whole.reshape(x.shape)
