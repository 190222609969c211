"""Convolutions of channels last, and their gradients, by kernels that are there already, as chains (chain.py): tensor cores of any GPU and their
epilogues serve every convolution: odd channels, three spatial axes, zeros between elements.

forward, weight gradient   im2col to the workspace, and the best kernel for the product; where windows are x itself, the product alone
data gradient              a copy of the kernel with its places in reverse and its channels exchanged, and the best convolution of dy with that
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ...device.spec import DeviceSpec
from ...ops.schema import ELEMENTWISE, schema_of
from ...ops.windows import transposed_windows
from ...registry.cost import Cost, memory_us, one_launch, roofline
from ...registry.variant import (
    Checks,
    In,
    Launch,
    Out,
    Reject,
    at_least,
    at_most,
    cdiv,
    first_refusal,
    variant,
)
from ...rows import RegionOp, RegionSpec
from ...rows.read import read as read_program
from ...types import DType, TensorDesc, numel
from .. import chain as chains
from .problem import (
    LIMIT,
    STEPS,
    TAKES,
    ConvolutionProblem,
    checks,
    not_empty,
    numbers,
    one_of_floats,
    pointers,
    read,
)
from .tiling import FLIGHT, THREADS, TILE

UNIT = 16  # bytes
BYTES = 2**28  # of the matrix of windows, that the workspace has at a time, unless it is that of one image
GRADIENT_BYTES = 2**30  # of a weight gradient's
EFFICIENCY = 0.85  # of the bandwidth, of what is written
# Instructions for a unit: bounds and addresses for each row, and half of that spread over its rows. Estimated; not yet measured.
INSTRUCTIONS, SPREAD_INSTRUCTIONS = 24, 60
ISSUE = 0.5  # of the rate at which a multiply-add could be issued
BY_ELEMENT = {"bias_add"}  # maps besides elementwise ones, that are the same for some images as for all


# --- the matrix of windows --------------------------------------------------------------------------------------------


def pitch(p: ConvolutionProblem) -> int:
    """Elements from row to row of the matrix."""
    each = UNIT // p.dtype.itemsize
    return cdiv(p.k, each) * each


def matrix_bytes(p: ConvolutionProblem) -> int:
    return p.rows * pitch(p) * p.dtype.itemsize


def width(p: ConvolutionProblem) -> int:
    """Neighbours that are copied at once: of one place, and aligned."""
    size, fits = p.dtype.itemsize, (w for w in (8, 4, 2, 1) if not p.x.shape[-1] % w)
    return next(w for w in fits if w * size <= UNIT and p.x.alignment >= w * size)


def tile(p: ConvolutionProblem) -> tuple[int, int]:
    """(rows of a block, units of a row that neighbouring threads copy)"""
    units = pitch(p) // width(p)
    lanes = cdiv(units, cdiv(units, THREADS))
    return min(TILE, THREADS // lanes * FLIGHT * 2), lanes


def columns_cost(p: ConvolutionProblem, device: DeviceSpec) -> Cost:
    """The matrix written once; x from memory once, and from the L2 cache as often as windows have it."""
    nbytes, instructions = matrix_bytes(p), SPREAD_INSTRUCTIONS if p.spread else INSTRUCTIONS
    units = p.rows * pitch(p) // width(p)
    return roofline(
        device, bytes=nbytes + min(p.x.nbytes, nbytes), flops=2.0 * instructions * units, efficiency=ISSUE,
        memory_efficiency=EFFICIENCY, cached=float(nbytes), blocks=cdiv(p.rows, tile(p)[0]), blocks_per_sm=8,
    )  # fmt: skip


def columns_launch(p: ConvolutionProblem, source: chains.Place, target: chains.Place) -> Launch:
    from .columns_body import columns

    rows, lanes = tile(p)
    sizes = numbers((p.rows, rows, pitch(p) // width(p), lanes, p.x.shape[-1], pitch(p)))
    args = source, target, sizes, *numbers(p.geometry)
    return Launch(columns(p.dtype, width(p), p.spread), (cdiv(p.rows, rows),), (THREADS,), args)


def write_columns(
    chain: chains.Chain, p: ConvolutionProblem, source: chains.Place, room: chains.Place | None = None
) -> chains.Place:
    """Where the matrix is: in this room, or in room that the chain reserves."""
    target = room or chain.reserve(chains.dense((p.rows, pitch(p)), p.dtype))
    chain.launch(columns_launch(p, source, target), columns_cost(p, chain.device))
    return target


def rows_of(shape: Sequence[int], pitch: int, dtype: DType) -> TensorDesc:
    strides, step = [1], pitch
    for extent in reversed(shape[1:-1]):
        strides.append(step)
        step *= extent
    return TensorDesc(dtype, tuple(shape), (step, *reversed(strides)), "cuda", chains.ALIGNMENT)


def _least(p: ConvolutionProblem, region: RegionSpec, device: DeviceSpec, passes: int) -> float:
    """Of launches, and of passes over the matrix of windows."""
    if p.whole:
        return one_launch(region, device)
    return 2 * one_launch(region, device) + passes * memory_us(device, matrix_bytes(p), 1.0)


# --- convolutions -----------------------------------------------------------------------------------------------------


@first_refusal
def family(region: RegionSpec) -> Checks:
    yield from checks(region)
    p = read(region)
    yield at_most("groups", p.groups, 1)
    yield from not_empty(p)
    yield at_most("columns of a window", p.k, LIMIT)
    if images_at_once(p) < p.images:
        apart = next((op.kind for op in region.ops[1:] if not _of_elements(op)), None)
        if apart is not None:
            yield Reject(
                "images", f"windows of all images take {matrix_bytes(p)} bytes, and {apart} is of all"
            )


def _of_elements(op: RegionOp) -> bool:
    return ELEMENTWISE in schema_of(op.kind).traits or op.kind.name in BY_ELEMENT


def images_at_once(p: ConvolutionProblem) -> int:
    if p.whole:
        return p.images
    of_one = max(1, matrix_bytes(p) // max(1, p.images))
    return max(1, min(p.images, BYTES // of_one))


@lru_cache(maxsize=256)
def chain_of(region: RegionSpec, device: DeviceSpec) -> chains.Chain:
    p, chain, (x, w) = read(region), chains.Chain(device), pointers(region)
    step, room = images_at_once(p), None
    for first in range(0, p.images, step):
        count = min(step, p.images - first)
        some, at = replace(p.x, shape=(count, *p.x.shape[1:])), chains.moved(x, p.x, first)
        shape = (count, *p.made, p.k)
        if p.whole:
            matrix = _aligned(replace(some, shape=shape), p.x, first)
        else:
            matrix = rows_of(shape, pitch(p), p.dtype)
            room = at = write_columns(chain, p._replace(x=some), at, room)
        product, ins, outs = _product(region, p, matrix, at, first, count)
        chain.run(product, [*ins, w], outs)
    return chain


def _aligned(t: TensorDesc, of: TensorDesc, first: int) -> TensorDesc:
    step = first * numel(of.shape[1:]) * of.dtype.itemsize
    return replace(t, alignment=min(of.alignment, step & -step or of.alignment))


def _product(
    region: RegionSpec, p: ConvolutionProblem, matrix: TensorDesc, at: chains.Place, first: int, count: int
) -> tuple[RegionSpec, list[chains.Place], list[chains.Place]]:
    """The region of some images, with their matrix of windows in place of x; and where its operands but for w, and its results are."""
    anchor, *others = region.ops
    rank, read_again = p.x.rank, {t for op in others for t in op.inputs}

    def of_some(t: TensorDesc) -> TensorDesc:
        if len(t.shape) != rank or t.shape[0] != p.images:
            return t
        return _aligned(replace(t, shape=(count, *t.shape[1:])), t, first)

    def place(t: TensorDesc, at: Any) -> Any:
        return chains.moved(at, t, first) if len(t.shape) == rank and t.shape[0] == p.images else at

    tensors = region.tensors if count == p.images else tuple(map(of_some, region.tensors))
    w = chains.shaped(p.w, p.n, p.k)
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

    made = replace(
        region, ops=tuple(op._replace(inputs=numbered(op.inputs), outputs=numbered(op.outputs)) for op in ops),
        tensors=tuple((*tensors, matrix, w)[t] for t in used),
        inputs=numbered((*(t for t, _ in kept), *product.inputs)), outputs=numbered(region.outputs),
    )  # fmt: skip
    ins = [place(region.tensors[t], In(n)) for t, n in kept]
    outs = [place(t, Out(n)) for n, t in enumerate(region.results)]
    return made, [*ins, at], outs


@variant("convolution_channels_last", id="cuda.convolution_columns.v1", takes=TAKES, family=family)
@chains.of_chain(chain_of)
class ConvolutionColumns:
    """A chain of two kernels: im2col, and the product of windows with the kernel by whatever kernel is best for it; for each 256 MB of
    windows, so many images at a time. Of windows of one element, the product alone.

    im2col is parallel over units of 16 bytes of windows. Bytes: x once, windows once written and once or twice read, besides those of the
    product. Limit: memory, then that of the product.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield None

    def least(region: RegionSpec, device: DeviceSpec) -> float:
        if isinstance(read_program(region), Reject):
            return one_launch(region, device)
        return _least(read(region), region, device, 1)


# --- weight gradients -------------------------------------------------------------------------------------------------


@first_refusal
def weight_family(region: RegionSpec) -> Checks:
    yield from gradient_checks(region)
    p, attrs = read(region), {name: tuple(region.anchor.attrs[name]) for name in STEPS}
    yield at_most("groups", p.groups, 1)
    yield from checks(
        chains.region_of({"x": p.x, "w": p.w}, ("y", "convolution_channels_last", "x w", attrs))
    )
    yield from not_empty(p)
    if not p.whole:
        yield at_most("bytes of windows", matrix_bytes(p), GRADIENT_BYTES)


def gradient_checks(region: RegionSpec) -> Checks:
    yield from one_of_floats(region)
    p = read(region)
    yield at_least("least extent", min(p.c, p.o, p.rows, p.elements), 1)


@lru_cache(maxsize=256)
def weight_chain(region: RegionSpec, device: DeviceSpec) -> chains.Chain:
    p, chain, (x, dy) = read(region), chains.Chain(device), pointers(region)
    at: chains.Place = x
    if p.whole:
        matrix = chains.shaped(p.x, p.rows, p.k)
    else:
        matrix, at = rows_of((p.rows, p.k), pitch(p), p.dtype), write_columns(chain, p, x)
    operands = {"a": chains.shaped(p.y, p.rows, p.n), "b": matrix}
    product = chains.region_of(
        operands, ("y", "gemm", "a b", {"trans_a": True}), alignment=region.results[0].alignment
    )
    chain.run(replace(product, strict=region.strict, invariant=region.invariant), [dy, at], [Out(0)])
    return chain


@variant(
    "convolution_weight_gradient_channels_last", id="cuda.weight_gradient_columns.v1", family=weight_family
)
@chains.of_chain(weight_chain)
class WeightGradientColumns:
    """A chain of two kernels: im2col, and the product of dy's transpose with the windows by whatever kernel is best for it. Of windows of one element,
    the product alone.

    im2col is parallel over units of 16 bytes of windows. Bytes: x once, windows once written and once or twice read, besides those of the
    product. Limit: memory, then that of the product.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield None

    def least(region: RegionSpec, device: DeviceSpec) -> float:
        if weight_family(region) is not None:
            return one_launch(region, device)
        return _least(read(region), region, device, 2)


# --- data gradients ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def data_chain(region: RegionSpec, device: DeviceSpec) -> chains.Chain:
    p, chain, (dy_at, w_at) = read(region), chains.Chain(device), pointers(region)
    kernel, axes = p.windows.window, len(p.sizes)
    turn = chains.region_of(
        {"w": chains.shaped(p.w, p.groups, p.o, *kernel, p.c)},
        ("r", "reverse", "w", {"dims": tuple(range(2, axes + 2))}),
        ("t", "transpose", "r", {"perm": (0, axes + 2, *range(2, axes + 2), 1)}),
    )
    turned = chains.dense((p.groups * p.c, *kernel, p.o), p.w.dtype)
    room = chain.reserve(turned)
    chain.run(turn, [w_at], [room])
    of = transposed_windows(kernel, p.sizes, p.made, region.anchor.attrs)
    attrs = {
        "strides": of.strides, "dilation": of.dilation, "low": of.low, "high": of.high, "groups": p.groups,
        "input_dilation": tuple(n + 1 for n in of.interior),
    }  # fmt: skip
    convolution = chains.region_of(
        {"dy": p.y, "w": turned}, ("y", "convolution_channels_last", "dy w", attrs), alignment=p.x.alignment
    )
    chain.run(replace(convolution, strict=region.strict, invariant=region.invariant), [dy_at, room], [Out(0)])
    return chain


@variant("convolution_data_gradient_channels_last", id="cuda.data_gradient_turned.v1")
@chains.of_chain(data_chain)
class DataGradientTurned:
    """A chain of two kernels: a copy of w with its places in reverse and its channels exchanged, and the convolution of dy with that by whatever kernel
    is best for it. Of strides, dy is spread, and zeros are multiplied.

    Bytes: w twice, besides those of the convolution. Limit: that of the convolution.
    """

    accepts = gradient_checks

    def least(region: RegionSpec, device: DeviceSpec) -> float:
        return 2 * one_launch(region, device)
