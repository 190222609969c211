"""The cross entropy of a linear layer on the GPU: chains of products and of kernels over rows, a chunk of logits at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...device.spec import DeviceSpec
from ...ops.schema import schema_of
from ...registry.cost import roofline
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
from ..chain import ALIGNMENT, Chain, Place, dense, moved, of_chain, part, region_of, shaped
from ..index.labels import op_operands
from ..maps.elementwise import THREADS

LOGITS = 2**25  # of a chunk: 128 MB of f32, 64 MB of halves
IGNORED = -2  # in the place of a label, as linear_loss_body has it
ROWS, CLASSES = 128, 256  # chunks are whole numbers of them, so that they begin where tensors are aligned


class LossOperands:
    """What both ops read: the linear layer, and its labels.

    x       rows x k
    weight  classes x k
    labels  rows
    at      where the op's operands are, by their names
    """

    def __init__(self, region: RegionSpec) -> None:
        op = region.anchor
        names = [declared.name for declared in schema_of(op.kind).declared(len(op.inputs))]
        given = dict(zip(names, op_operands(region)))
        self.weight, labels = given["weight"], given["labels"]
        self.rows, (self.classes, self.k) = labels.numel, self.weight.shape
        self.x, self.labels = shaped(given["x"], self.rows, self.k), shaped(labels, self.rows)
        # the op may take a tensor twice
        self.at: dict[str, Place] = {name: In(region.inputs.index(i)) for name, i in zip(names, op.inputs)}


def _checks(region: RegionSpec) -> Checks:
    yield one_op(region)
    yield contiguous(region)
    yield at_least("classes", LossOperands(region).classes, 1)


def chunk(count: int, each: int, most: int, unit: int) -> int:
    """How many of `count` rows or classes, of so much each, are in a chunk: whole units."""
    return max(1, min(count, max(most // max(each, 1) // unit, 1) * unit))


def chunks_of(count: int, step: int) -> Iterator[tuple[int, int]]:
    """(where it begins, how many)"""
    return ((first, min(step, count - first)) for first in range(0, count, step))


def _by_rows(rows: int) -> tuple[tuple[int], tuple[int]]:
    """A grid and its blocks."""
    return (cdiv(rows, THREADS),), (THREADS,)


@lru_cache(maxsize=64)
def _losses(region: RegionSpec, device: DeviceSpec) -> Chain:
    """Chunks of rows: their logits in f32, then cross_entropy; at the end loss and lse of all rows."""
    from .linear_loss_body import finish_rows

    loss, attrs, chain = LossOperands(region), region.attrs, Chain(device)
    x, labels, labels_at, rows = loss.x, loss.labels, loss.at["labels"], loss.rows
    number, step = dense((rows,), f32), chunk(rows, loss.classes, LOGITS, ROWS)
    logits_at = chain.reserve(dense((step, loss.classes), f32))
    found = [chain.reserve(number) for _ in range(3)]
    how = {"trans_b": True, "out_dtype": f32, "precision": attrs["precision"]}
    asked = {n: attrs[n] for n in ("ignore_index", "label_smoothing")}
    for first, count in chunks_of(rows, step):
        product = region_of({"x": part(x, count, ROWS), "w": loss.weight}, ("y", "gemm", "x w", how))
        chain.run(product, (moved(loss.at["x"], x, first), loss.at["weight"]), (logits_at,))
        given = {"y": product.results[0], "labels": part(labels, count, ROWS)}
        losses = region_of(given, ("loss peak rsum", "cross_entropy", "y labels", asked))
        places = [moved(place, number, first) for place in found]
        chain.run(losses, (logits_at, moved(labels_at, labels, first)), places)
    if rows:
        scalars = Num(rows), Num(attrs["ignore_index"]), Num(attrs["z_loss"], f32)
        finish = Launch(finish_rows, *_by_rows(rows), (labels_at, *found, Out(0), Out(1), *scalars))
        chain.launch(finish, roofline(device, bytes=(20 + labels.dtype.itemsize) * rows))
    return chain


@dataclass(frozen=True)
class GradientChunk:
    """Rows and classes of which the gradient of logits is made at a time: where each begin, and how many."""

    row: int
    rows: int
    first: int
    classes: int


class GradientChain:
    """Chunks of classes, or of rows where there are more of these: of each the gradient of its logits, g, in the type of x. Of that, by
    classes, their rows of dweight, and what they add to dx; by rows, their rows of dx, and what they add to dweight. What is added up is in
    f32, each element by the thread that has added to it before.

    `differentiate` makes g, in rows that are `pitch_of` many elements apart; `begin` is before all chunks.
    """

    def __init__(self, region: RegionSpec, device: DeviceSpec, by_rows: bool, step: int) -> None:
        loss = LossOperands(region)
        self.attrs, self.how = region.attrs, {"precision": region.attrs["precision"]}
        self.dx, self.dweight = region.results
        self.at, self.rows, self.classes, k = loss.at, loss.rows, loss.classes, loss.k
        self.x, self.weight, self.labels = loss.x, loss.weight, loss.labels
        self.dloss, self.lse = (shaped(t, self.rows) for t in op_operands(region)[::4])
        self.chain, self.by_rows, self.step = Chain(device), by_rows, step
        if by_rows:
            chunks = [GradientChunk(first, n, 0, self.classes) for first, n in chunks_of(self.rows, step)]
        else:
            chunks = [GradientChunk(0, self.rows, first, n) for first, n in chunks_of(self.classes, step)]
        self.chunks = chunks or [GradientChunk(0, 0, 0, self.classes)]
        widest = self.chunks[0]
        self.g_at = self.chain.reserve(dense((widest.rows, self.pitch_of(widest.classes)), self.x.dtype))
        self.total = dense((self.classes if by_rows else self.rows, k), f32)
        self.total_at = self.chain.reserve(self.total) if len(self.chunks) > 1 else None
        if self.rows:
            self.begin()
        for c in self.chunks:
            parts = part(self.x, c.rows, ROWS), part(self.weight, c.classes, CLASSES)
            places = moved(self.at["x"], self.x, c.row), moved(self.at["weight"], self.weight, c.first)
            (x, w), (x_at, w_at) = parts, places
            if self.rows:
                self.differentiate(c, parts, places)
            shape, strides = (c.rows, c.classes), (self.pitch_of(c.classes), 1)
            g = TensorDesc(x.dtype, shape, strides, "cuda", ALIGNMENT)
            transposed: dict[str, Any] = {"trans_a": True}
            to_dweight = {"g": g, "x": x}, transposed, (self.g_at, x_at)
            to_dx = {"g": g, "w": w}, dict[str, Any](), (self.g_at, w_at)
            if by_rows:
                dx = shaped(self.dx, self.rows, k)
                self._store(*to_dx, part(dx, c.rows, ROWS), moved(Out(0), dx, c.row))
                self._add(*to_dweight, c, self.dweight, Out(1))
            else:
                rows = part(self.dweight, c.classes, CLASSES)
                self._store(*to_dweight, rows, moved(Out(1), self.dweight, c.first))
                self._add(*to_dx, c, self.dx, Out(0))

    def pitch_of(self, classes: int) -> int:
        return classes

    def begin(self) -> None:
        raise NotImplementedError

    def differentiate(
        self, c: GradientChunk, parts: tuple[TensorDesc, TensorDesc], places: tuple[Place, Place]
    ) -> None:
        """g of a chunk, whose x and weight are these."""
        raise NotImplementedError

    def _store(
        self, given: dict[str, TensorDesc], how: dict[str, Any], ins: Sequence[Place], to: TensorDesc, at: Place
    ) -> None:  # fmt: skip
        """A product that is complete."""
        product = "y", "gemm", " ".join(given), {**how, **self.how}
        self.chain.run(region_of(given, product, alignment=to.alignment), ins, (at,))

    def _add(
        self, given: dict[str, TensorDesc], how: dict[str, Any], ins: tuple[Place, ...], c: GradientChunk,
        result: TensorDesc, at: Place,
    ) -> None:  # fmt: skip
        """A product, and what the chunks before have added up."""
        if c is not self.chunks[0]:
            given, ins = {**given, "c": self.total}, (*ins, self.total_at or at)
        last = c is self.chunks[-1]
        to = at if last or self.total_at is None else self.total_at
        how = {"out_dtype": result.dtype if last else f32, **how}
        self._store(given, how, ins, result if last else self.total, to)


class _Gradients(GradientChain):
    """By kernels of any GPU: the epilogue of a product that makes logits, or a kernel behind it, where that is faster."""

    def begin(self) -> None:
        from .linear_loss_body import begin_rows

        wide, own = self.classes if self.by_rows else self.step, dense((self.rows,), i32)
        blocks = cdiv(self.classes, wide)
        self.own_at = [self.chain.reserve(own) for _ in range(blocks)]
        self.factor = dense((self.rows,), f32)
        self.factor_at = self.chain.reserve(self.factor)
        self.logits_at: Work | None = None  # where they are written at all
        apart = (self.own_at[-1].offset - self.own_at[0].offset) // max(blocks - 1, 1) // i32.itemsize
        asked = self.rows, apart, blocks, wide, self.classes, self.attrs["ignore_index"]
        places = self.at["labels"], self.at["lse"], self.own_at[0], self.factor_at
        args = *places, *map(Num, asked), Num(self.attrs["z_loss"], f32)
        nbytes = (8 + self.labels.dtype.itemsize + i32.itemsize * blocks) * self.rows
        launch = Launch(begin_rows, *_by_rows(self.rows), args)
        self.chain.launch(launch, roofline(self.chain.device, bytes=nbytes))

    def differentiate(
        self, c: GradientChunk, parts: tuple[TensorDesc, TensorDesc], places: tuple[Place, Place]
    ) -> None:
        x, w = parts
        smoothing, logits = self.attrs["label_smoothing"], {"x": x, "w": w}
        share = smoothing / self.classes
        target = {"ignore_index": IGNORED, "label": 1 - smoothing + share, "other": share}
        product = "y", "gemm", "x w", {"trans_b": True, "out_dtype": f32, **self.how}
        slope = [("g", "cross_entropy_grad", "y own dloss lse factor", target)]
        if x.dtype is not f32:
            slope.append(("rounded", "convert", "g", {"dtype": x.dtype}))
        own_at = self.own_at[0 if self.by_rows else c.first // self.step]
        whole = {
            "own": (dense((self.rows,), i32), own_at), "dloss": (self.dloss, self.at["dloss"]),
            "lse": (self.lse, self.at["lse"]), "factor": (self.factor, self.factor_at),
        }  # fmt: skip
        by_row = {name: part(t, c.rows, ROWS) for name, (t, _) in whole.items()}
        rows_at = [moved(at, t, c.row) for t, at in whole.values()]
        fused = region_of({**logits, **by_row}, product, *slope)
        alone = region_of(logits, product)
        behind = region_of({"y": alone.results[0], **by_row}, *slope)
        if self.chain.us(fused) > self.chain.us(alone, behind):
            self.logits_at = self.logits_at or self.chain.reserve(alone.results[0])
            self.chain.run(alone, places, (self.logits_at,))
            self.chain.run(behind, (self.logits_at, *rows_at), (self.g_at,))
        else:
            self.chain.run(fused, (*places, *rows_at), (self.g_at,))


@lru_cache(maxsize=64)
def _gradients(region: RegionSpec, device: DeviceSpec) -> Chain:
    loss = LossOperands(region)
    rows, classes = loss.rows, loss.classes
    by_rows = rows > classes
    step = chunk(rows, classes, LOGITS, ROWS) if by_rows else chunk(classes, rows, LOGITS, CLASSES)
    return _Gradients(region, device, by_rows, step).chain


@variant("linear_cross_entropy", id="cuda.linear_cross_entropy_chunks.v1")
@of_chain(_losses)
class LinearCrossEntropyChunks:
    """A chain of kernels: chunks of rows, whose logits are written in f32 to the workspace and read by those of cross_entropy.

    Two kernels for each chunk of up to 2^25 logits, and one at the end. Bytes: x, the weight for each chunk, logits once written
    and two or three times read, from the L2 cache as far as they fit. Limit: the product, or memory where K is small.
    """

    accepts = _checks


@variant("linear_cross_entropy_grad", id="cuda.linear_cross_entropy_grad_chunks.v1")
@of_chain(_gradients)
class LinearCrossEntropyGradChunks:
    """A chain of kernels: chunks of classes, or of rows where there are more, whose logits become their gradient, in the type of x, in the
    epilogue of their product or by a kernel behind it.

    Three or four kernels for each chunk of up to 2^25 logits, and one before. Bytes: x twice and dx in f32 twice for each chunk of
    classes, the weight twice, dweight once, gradients of logits once written and twice read. Limit: the three products.
    """

    accepts = _checks
