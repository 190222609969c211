"""Convolutions of channels last by way of the matrix of their windows: im2col to the workspace, and the best kernel for the product.

A chain (gemm/chain.py), so that tensor cores of any GPU and their epilogues serve every convolution: odd channels, three spatial axes,
zeros between elements. Where windows are x as it lies, the product reads that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ...device.spec import DeviceSpec
from ...ops.schema import ELEMENTWISE, schema_of
from ...registry.cost import Cost, memory_us, one_launch, roofline
from ...registry.variant import Checks, In, KernelVariant, Launch, Num, Out, Reject, at_most, cdiv, variant
from ...rows import RegionOp, RegionSpec
from ...rows.read import read
from ...types import DType, TensorDesc, i32, numel
from ..gemm import chain as chains
from . import positions
from .positions import WindowProblem, checks, not_empty, problem
from .tiling import FLIGHT, THREADS, TILE

TAKES = "convolution", "convolution+map"
UNIT = 16  # bytes
BYTES = 2**28  # of the matrix of windows, that the workspace has at a time, unless it is that of one image
EFFICIENCY = 0.85  # of the bandwidth, of what is written
# Instructions for a unit: bounds and addresses for each row, and half of that spread over its rows. Estimated; not yet measured.
INSTRUCTIONS, SPREAD_INSTRUCTIONS = 24, 60
ISSUE = 0.5  # of the rate at which a multiply-add could be issued
BY_ELEMENT = {"bias_add"}  # maps beside elementwise ones, that are the same for some images as for all


@lru_cache(maxsize=256)
def family(region: RegionSpec) -> Reject | None:
    return next((reject for reject in _checks(region) if reject is not None), None)


def _checks(region: RegionSpec) -> Checks:
    yield from checks(region)
    c = problem(region)
    yield at_most("groups", c.groups, 1)
    yield from not_empty(c)
    yield at_most("columns of a window", c.product.k, positions.LIMIT)
    if images_at_once(c) < c.images:
        apart = next((op.kind for op in region.ops[1:] if not _of_elements(op)), None)
        if apart is not None:
            yield Reject(
                "images", f"windows of all images take {_matrix_bytes(c)} bytes, and {apart} is of all"
            )


def _of_elements(op: RegionOp) -> bool:
    return ELEMENTWISE in schema_of(op.kind).traits or op.kind.name in BY_ELEMENT


def pitch(c: WindowProblem) -> int:
    """Elements from row to row of the matrix."""
    each = UNIT // c.x.dtype.itemsize
    return cdiv(c.product.k, each) * each


def _matrix_bytes(c: WindowProblem) -> int:
    return c.rows * pitch(c) * c.x.dtype.itemsize


def images_at_once(c: WindowProblem) -> int:
    if c.whole:
        return c.images
    of_one = max(1, _matrix_bytes(c) // max(1, c.images))
    return max(1, min(c.images, BYTES // of_one))


def width(c: WindowProblem) -> int:
    """Neighbours that are copied at once: of one place, and aligned."""
    size = c.x.dtype.itemsize
    return next(
        w for w in (8, 4, 2, 1) if w * size <= UNIT and not c.x.shape[-1] % w and c.x.alignment >= w * size
    )


def tile(c: WindowProblem) -> tuple[int, int]:
    """(rows of a block, units of a row that threads do side by side)"""
    units = pitch(c) // width(c)
    lanes = cdiv(units, cdiv(units, THREADS))
    return min(TILE, THREADS // lanes * FLIGHT * 2), lanes


def columns_cost(c: WindowProblem, device: DeviceSpec) -> Cost:
    """The matrix written once; x from memory once, and from the L2 cache as often as windows have it."""
    nbytes, instructions = _matrix_bytes(c), SPREAD_INSTRUCTIONS if c.spread else INSTRUCTIONS
    units = c.rows * pitch(c) // width(c)
    return roofline(
        device, bytes=nbytes + min(c.x.nbytes, nbytes), flops=2.0 * instructions * units, efficiency=ISSUE,
        memory_efficiency=EFFICIENCY, cached=float(nbytes), blocks=cdiv(c.rows, tile(c)[0]), blocks_per_sm=8,
    )  # fmt: skip


def columns_launch(c: WindowProblem, source: chains.Place, target: chains.Place) -> Launch:
    from .columns_body import columns

    rows, lanes = tile(c)
    sizes = c.rows, rows, pitch(c) // width(c), lanes, c.x.shape[-1], pitch(c)
    body = columns(c.x.dtype, width(c), c.spread)
    args = source, target, tuple(Num(n, i32) for n in sizes), *c.positions.arguments
    return Launch(body, (cdiv(c.rows, rows),), (THREADS,), args)


@lru_cache(maxsize=256)
def chain_of(region: RegionSpec, device: DeviceSpec) -> chains.Chain:
    c, chain = problem(region), chains.Chain(device)
    step, p = images_at_once(c), c.product
    room = None
    for first in range(0, c.images, step):
        count = min(step, c.images - first)
        some = c._replace(x=replace(c.x, shape=(count, *c.x.shape[1:])))
        x_at = chains.moved(In(p.a), c.x, first)
        shape = (count, *c.made, p.k)
        if c.whole:
            at, matrix = x_at, _aligned(replace(some.x, shape=shape), c.x, first)
        else:
            matrix = rows_of(shape, pitch(c), c.x.dtype)
            room = at = room or chain.reserve(chains.dense((some.rows, pitch(c)), c.x.dtype))
            chain.launch(columns_launch(some, x_at, at), columns_cost(some, device))
        product, ins, outs = _product(region, c, matrix, at, first, count)
        chain.run(product, ins, outs)
    return chain


def rows_of(shape: Sequence[int], pitch: int, dtype: DType) -> TensorDesc:
    strides, step = [1], pitch
    for extent in reversed(shape[1:-1]):
        strides.append(step)
        step *= extent
    return TensorDesc(dtype, tuple(shape), (step, *reversed(strides)), "cuda", chains.ALIGNMENT)


def _aligned(t: TensorDesc, of: TensorDesc, first: int) -> TensorDesc:
    step = first * numel(of.shape[1:]) * of.dtype.itemsize
    return replace(t, alignment=min(of.alignment, step & -step or of.alignment))


def _product(
    region: RegionSpec, c: WindowProblem, matrix: TensorDesc, at: chains.Place, first: int, count: int
) -> tuple[RegionSpec, list[chains.Place], list[chains.Place]]:
    """The region of some images, with their matrix of windows in the place of x; and where its operands and results are."""
    anchor, *others = region.ops
    rank, read_again = c.x.rank, {t for op in others for t in op.inputs}

    def of_some(t: TensorDesc) -> TensorDesc:
        if len(t.shape) != rank or t.shape[0] != c.images:
            return t
        return _aligned(replace(t, shape=(count, *t.shape[1:])), t, first)

    def place(t: TensorDesc, at: Any) -> Any:
        return chains.moved(at, t, first) if len(t.shape) == rank and t.shape[0] == c.images else at

    tensors = region.tensors if count == c.images else tuple(map(of_some, region.tensors))
    w = chains.shaped(c.w, c.w.shape[0], c.product.k)
    schema = schema_of("gemm")
    product = RegionOp(
        schema.kind, schema.pack({"trans_b": True}), (len(tensors), len(tensors) + 1), anchor.outputs
    )
    kept = [(t, n) for n, t in enumerate(region.inputs) if t in read_again]
    ops = product, *others
    used = sorted({t for op in ops for t in (*op.inputs, *op.outputs) if t >= 0})
    number = {t: n for n, t in enumerate(used)} | {-1: -1}  # without x and w, unless they are read again

    def numbered(ts: Sequence[int]) -> tuple[int, ...]:
        return tuple(number[t] for t in ts)

    made = RegionSpec(
        tuple(op._replace(inputs=numbered(op.inputs), outputs=numbered(op.outputs)) for op in ops),
        tuple((*tensors, matrix, w)[t] for t in used),
        numbered((*(t for t, _ in kept), *product.inputs)), numbered(region.outputs), region.strict,
    )  # fmt: skip
    ins = [place(region.tensors[t], In(n)) for t, n in kept]
    outs = [place(t, Out(n)) for n, t in enumerate(region.results)]
    return made, [*ins, at, In(c.product.b)], outs


@variant("convolution_channels_last", id="cuda.convolution_columns.v1", takes=TAKES, family=family)
class ConvolutionColumns:
    """A chain of two kernels: im2col, and the product of windows with the kernel by whatever kernel is best for it; for each 256 MB of
    windows, so many images at a time. Of windows of one element, the product alone.

    im2col is parallel over units of 16 bytes of windows. Bytes: x once, windows once written and once or twice read, beside those of the
    product. Limit: memory, then that of the product.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield None

    def least(region: RegionSpec, device: DeviceSpec) -> float:
        if isinstance(read(region), Reject):
            return one_launch(region, device)
        c = problem(region)
        if c.whole:
            return one_launch(region, device)
        return 2 * one_launch(region, device) + memory_us(device, _matrix_bytes(c), 1.0)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return chain_of(region, device).cost

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return chain_of(region, device).workspace

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return chain_of(region, device).launches()


convolution_columns: KernelVariant = ConvolutionColumns  # type: ignore[assignment]  # `variant` has made a record of the class
