"""The cross entropy of a linear layer on the GPU: chains of products and of kernels over rows, a chunk of logits at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, roofline
from ...registry.variant import (
    Checks,
    In,
    Launch,
    Num,
    Out,
    Work,
    at_least,
    cdiv,
    contiguous,
    one_op,
    variant,
)
from ...rows import RegionSpec
from ...types import TensorDesc, f32, i32
from ..index.labels import op_operands
from ..maps.elementwise import THREADS
from .chain import Chain, Place, dense, moved, part, region_of, shaped

LOGITS = 2**25  # of a chunk: 128 MB of f32, 64 MB of halves
IGNORED = -2  # in the place of a label, as linear_loss_body has it
ROWS, CLASSES = 128, 256  # chunks are whole numbers of them, so that they begin where tensors are aligned


def _checks(region: RegionSpec, weight: int) -> Checks:
    yield one_op(region)
    yield contiguous(region)
    yield at_least("classes", op_operands(region)[weight].shape[0], 1)


def _places(region: RegionSpec) -> list[In]:
    """Of the op's operands in its own order; it may take a tensor twice."""
    return [In(region.inputs.index(i)) for i in region.anchor.inputs]


def _chunk(count: int, others: int, unit: int) -> int:
    """How many of `count` rows or classes are in a chunk, with all of the others."""
    return max(1, min(count, max(LOGITS // max(others, 1) // unit, 1) * unit))


def _chunks(count: int, step: int) -> Iterator[tuple[int, int]]:
    """(where it begins, how many)"""
    return ((first, min(step, count - first)) for first in range(0, count, step))


def _by_rows(rows: int) -> tuple[tuple[int], tuple[int]]:
    """A grid and its blocks."""
    return (cdiv(rows, THREADS),), (THREADS,)


@lru_cache(maxsize=64)
def _losses(region: RegionSpec, device: DeviceSpec) -> Chain:
    """Chunks of rows: their logits in f32, then cross_entropy; at the end loss and lse of all rows."""
    from .linear_loss_body import finish_rows

    x, weight, labels = op_operands(region)
    x_at, weight_at, labels_at = _places(region)
    attrs, rows, (classes, k) = region.attrs, labels.numel, weight.shape
    x, labels, number = shaped(x, rows, k), shaped(labels, rows), dense((rows,), f32)
    chain, step = Chain(device), _chunk(rows, classes, ROWS)
    logits_at = chain.reserve(dense((step, classes), f32))
    found = [chain.reserve(number) for _ in range(3)]
    how = {"trans_b": True, "out_dtype": f32, "precision": attrs["precision"]}
    asked = {n: attrs[n] for n in ("ignore_index", "label_smoothing")}
    for first, count in _chunks(rows, step):
        product = region_of({"x": part(x, count, ROWS), "w": weight}, ("y", "gemm", "x w", how))
        chain.run(product, (moved(x_at, x, first), weight_at), (logits_at,))
        given = {"y": product.results[0], "labels": part(labels, count, ROWS)}
        losses = region_of(given, ("loss peak rsum", "cross_entropy", "y labels", asked))
        places = [moved(place, number, first) for place in found]
        chain.run(losses, (logits_at, moved(labels_at, labels, first)), places)
    if rows:
        scalars = Num(rows), Num(attrs["ignore_index"]), Num(attrs["z_loss"], f32)
        finish = Launch(finish_rows, *_by_rows(rows), (labels_at, *found, Out(0), Out(1), *scalars))
        chain.launch(finish, roofline(device, bytes=(20 + labels.dtype.itemsize) * rows))
    return chain


class _Gradients:
    """Chunks of classes: the gradient of their logits, g, in the type of x; of it their rows of dweight, and what they add to dx, in
    f32 from chunk to chunk, by turns in two places."""

    def __init__(self, region: RegionSpec, device: DeviceSpec) -> None:
        dloss, x, weight, labels, lse = op_operands(region)
        self.attrs, self.how = region.attrs, {"precision": region.attrs["precision"]}
        self.dx, self.dweight = region.results
        self.at: dict[str, Place] = dict(zip(("dloss", "x", "w", "labels", "lse"), _places(region)))
        self.rows, self.classes, k = labels.numel, *weight.shape
        self.x, self.weight = shaped(x, self.rows, k), weight
        self.total, self.own = dense((self.rows, k), f32), dense((self.rows,), i32)
        self.by_row = {
            "own": self.own, "dloss": shaped(dloss, self.rows), "lse": shaped(lse, self.rows), "factor": dense((self.rows,), f32),
        }  # fmt: skip
        self.step = _chunk(self.classes, self.rows, CLASSES)
        self.blocks = cdiv(self.classes, self.step)
        self.chain = Chain(device)
        self.own_at = [self.chain.reserve(self.own) for _ in range(self.blocks)]
        self.at["factor"] = self.chain.reserve(self.by_row["factor"])
        self.g_at = self.chain.reserve(dense((self.rows, self.step), x.dtype))
        self.totals = [self.chain.reserve(self.total) for _ in range(min(self.blocks - 1, 2))]
        self.logits_at: Work | None = None  # where they are written at all
        if self.rows:
            self._begin(labels)
        for block, (first, count) in enumerate(_chunks(self.classes, self.step)):
            w = part(weight, count, CLASSES), moved(self.at["w"], weight, first)
            self._differentiate(block, *w)
            self._add_dweight(first, count)
            self._add_dx(block, *w)

    def _begin(self, labels: TensorDesc) -> None:
        from .linear_loss_body import begin_rows

        apart = (self.own_at[-1].offset - self.own_at[0].offset) // max(self.blocks - 1, 1) // i32.itemsize
        asked = self.rows, apart, self.blocks, self.step, self.classes, self.attrs["ignore_index"]
        places = self.at["labels"], self.at["lse"], self.own_at[0], self.at["factor"]
        args = *places, *map(Num, asked), Num(self.attrs["z_loss"], f32)
        nbytes = (8 + labels.dtype.itemsize + i32.itemsize * self.blocks) * self.rows
        launch = Launch(begin_rows, *_by_rows(self.rows), args)
        self.chain.launch(launch, roofline(self.chain.device, bytes=nbytes))

    def _differentiate(self, block: int, w: TensorDesc, w_at: Place) -> None:
        """g of a block of classes: as the epilogue of the product that makes logits, or by a kernel behind it, where that is faster."""
        smoothing, logits = self.attrs["label_smoothing"], {"x": self.x, "w": w}
        share = smoothing / self.classes
        target = {"ignore_index": IGNORED, "label": 1 - smoothing + share, "other": share}
        product = "y", "gemm", "x w", {"trans_b": True, "out_dtype": f32, **self.how}
        slope = [("g", "cross_entropy_grad", "y own dloss lse factor", target)]
        if self.x.dtype is not f32:
            slope.append(("rounded", "convert", "g", {"dtype": self.x.dtype}))
        fused = region_of({**logits, **self.by_row}, product, *slope)
        alone = region_of(logits, product)
        behind = region_of({"y": alone.results[0], **self.by_row}, *slope)
        rows_at = self.own_at[block], self.at["dloss"], self.at["lse"], self.at["factor"]
        if self.rows and self.chain.us(fused) > self.chain.us(alone, behind):
            self.logits_at = self.logits_at or self.chain.reserve(dense((self.rows, self.step), f32))
            self.chain.run(alone, (self.at["x"], w_at), (self.logits_at,))
            self.chain.run(behind, (self.logits_at, *rows_at), (self.g_at,))
        else:
            self.chain.run(fused, (self.at["x"], w_at, *rows_at), (self.g_at,))

    def _add_dweight(self, first: int, count: int) -> None:
        """Rows of dweight: g.T @ x."""
        rows = part(self.dweight, count, CLASSES)
        given = {"g": dense((self.rows, count), self.x.dtype), "x": self.x}
        product = "y", "gemm", "g x", {"trans_a": True, **self.how}
        to = moved(Out(1), self.dweight, first)
        self.chain.run(region_of(given, product, alignment=rows.alignment), (self.g_at, self.at["x"]), (to,))

    def _add_dx(self, block: int, w: TensorDesc, w_at: Place) -> None:
        """g @ w, and what the blocks before have added up."""
        last, before = block == self.blocks - 1, [self.totals[(block - 1) % 2]] if block else []
        given = {"g": dense((self.rows, w.shape[0]), self.x.dtype), "w": w}
        given |= {"c": self.total} if block else {}
        product = "y", "gemm", " ".join(given), {"out_dtype": self.x.dtype if last else f32, **self.how}
        added = region_of(given, product, alignment=(self.dx if last else self.total).alignment)
        self.chain.run(added, (self.g_at, w_at, *before), (Out(0) if last else self.totals[block % 2],))


@lru_cache(maxsize=64)
def _gradients(region: RegionSpec, device: DeviceSpec) -> Chain:
    return _Gradients(region, device).chain


@variant("linear_cross_entropy", id="cuda.linear_cross_entropy_chunks.v1")
class LinearCrossEntropyChunks:
    """A chain of kernels: chunks of rows, whose logits are written in f32 to the workspace and read by those of cross_entropy.

    Two kernels for each chunk of up to 2^25 logits, and one at the end. Bytes: x, the weight for each chunk, logits once written
    and two or three times read, from the L2 cache as far as they fit. Limit: the product, or memory where K is small.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region, 1)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _losses(region, device).cost

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return _losses(region, device).workspace

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return _losses(region, device).launches()


@variant("linear_cross_entropy_grad", id="cuda.linear_cross_entropy_grad_chunks.v1")
class LinearCrossEntropyGradChunks:
    """A chain of kernels: chunks of classes, whose logits become their gradient, in the type of x, in the epilogue of their product or by a
    kernel behind it.

    Three or four kernels for each chunk of up to 2^25 logits, and one before. Bytes: x twice and dx in f32 twice for each chunk,
    the weight twice, dweight once, gradients of logits once written and twice read. Limit: the three products.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region, 2)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _gradients(region, device).cost

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return _gradients(region, device).workspace

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return _gradients(region, device).launches()
