"""Gradients of convolutions on every GPU, of floats, groups, one to three axes: by f32 arithmetic. See gradients_body.py; those of halves on
tensor cores are in weight_gradient.py and data_gradient.py."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

from ...device.spec import DeviceSpec
from ...ops.windows import Windows, windows_of
from ...registry.cost import BARRIER_US, TRIP_US, Cost, early_us, roofline
from ...registry.variant import (
    Checks,
    In,
    Launch,
    Num,
    Out,
    Reject,
    Work,
    at_most,
    cdiv,
    contiguous,
    one_op,
    variant,
)
from ...rows import RegionSpec
from ...types import DType, TensorDesc, f32, i32
from ..maps.elementwise import THREADS

AXES, TILE, STEP = 3, 64, 16
BLOCKS_PER_SM, EFFICIENCY = 3, 0.12  # of the f32 rate: data gradients of strides on an H200, zeros counted
STEP_US = 0.4  # of a K-tile: some of its places are found by division
MOST_SPLITS, LEAST_STEPS = 64, 16
# Of the sum: slices of the splits, where there are few results; loads of a thread under way together
MOST_SLICES, ENOUGH_THREADS, TOGETHER = 16, 2**17, 8
STEPS = "strides", "dilation", "low", "high", "input_dilation"


class GradientProblem(NamedTuple):
    """x (N, sizes, C), dy (N, made, O), w (O, kernel, C / groups)."""

    images: int
    sizes: tuple[int, ...]
    made: tuple[int, ...]
    windows: Windows
    c: int  # of a group, as o
    o: int
    groups: int
    dtype: DType

    @property
    def places(self) -> int:
        return prod(self.windows.window)

    @property
    def pixels(self) -> int:
        """Of dy."""
        return self.images * prod(self.made)


class GradientGeometry(NamedTuple):
    """What a kernel is told: extents and steps along three axes, and channels of a group."""

    c: int
    o: int
    groups: int
    made: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    low: tuple[int, ...]
    dilation: tuple[int, ...]
    spread: tuple[int, ...]
    sizes: tuple[int, ...]
    elements: int  # of x, without channels


def given(region: RegionSpec) -> list[TensorDesc]:
    """The op's operands, in its own order."""
    return [region.tensors[i] for i in region.anchor.inputs]


def positions(region: RegionSpec) -> list[int]:
    """Where these are among the region's."""
    return [region.inputs.index(i) for i in region.anchor.inputs]


@lru_cache(maxsize=256)
def problem_of(region: RegionSpec) -> GradientProblem:
    attrs, (first, second), y = region.anchor.attrs, given(region), region.tensors[region.anchor.outputs[0]]
    of_weight = region.anchor.kind.name == "convolution_weight_gradient_channels_last"
    x, dy, w = (first, second, y) if of_weight else (y, first, second)
    groups = attrs["groups"]
    windows = windows_of(w.shape[1:-1], *(tuple(attrs[name]) for name in STEPS))
    return GradientProblem(
        x.shape[0], x.shape[1:-1], dy.shape[1:-1], windows, w.shape[-1], w.shape[0] // groups, groups, x.dtype
    )


def geometry(p: GradientProblem) -> tuple[Num | tuple[Num, ...], ...]:
    def three(numbers: tuple[int, ...], other: int) -> tuple[int, ...]:
        return (*(other,) * (AXES - len(numbers)), *numbers)

    of = p.windows
    spread = tuple([n + 1 for n in of.interior])
    made = GradientGeometry(
        p.c, p.o, p.groups, three(p.made, 1), three(of.window, 1), three(of.strides, 1), three(of.low, 0),
        three(of.dilation, 1), three(spread, 1), three(p.sizes, 1), p.images * prod(p.sizes),
    )  # fmt: skip
    return tuple([
        tuple([Num(n, i32) for n in part]) if isinstance(part, tuple) else Num(part, i32) for part in made
    ])  # fmt: skip


def _checks(region: RegionSpec) -> Checks:
    yield one_op(region)
    yield contiguous(region)
    if region.operands[0].dtype.compute is not f32:
        yield Reject("dtype", f"operands are {region.operands[0].dtype}, needs f32 or a half type")
    p = problem_of(region)
    of = p.windows
    reach = [
        max(abs(low), abs(high)) + (max(size, 1) - 1) * (between + 1) + (n - 1) * apart + m * step
        for low, high, size, between, n, apart, m, step in zip(
            of.low, of.high, p.sizes, of.interior, of.window, of.dilation, p.made, of.strides
        )
    ]
    yield at_most("position of an element", max(reach), 2**30)
    extents = p.pixels, p.images * prod(p.sizes), p.places * max(p.c, p.o) * p.groups
    yield at_most("greatest extent", max(extents), 2**30)
    yield at_most("elements of w", p.places * p.c * p.o * p.groups, 2**31 - 1)


class GroupGemm(NamedTuple):
    """Rows, columns and k of a group."""

    m: int
    n: int
    k: int

    @property
    def tiles(self) -> int:
        return cdiv(self.m, TILE) * cdiv(self.n, TILE)


def _cost(region: RegionSpec, device: DeviceSpec, product: GroupGemm, splits: int, nbytes: float) -> Cost:
    p = problem_of(region)
    flops = 2.0 * p.groups * product.m * product.n * product.k
    blocks = max(1, p.groups * product.tiles * splits)
    padded = 2.0 * p.groups * product.tiles * TILE * TILE * max(1, product.k)
    return roofline(
        device, bytes=nbytes, flops=padded, useful=flops, efficiency=EFFICIENCY, blocks=blocks, blocks_per_sm=BLOCKS_PER_SM,
        cached=p.groups * product.tiles * 2.0 * TILE * product.k * p.dtype.itemsize,
        chain=cdiv(cdiv(product.k, splits), STEP) * STEP_US,
    )  # fmt: skip


def _of_weight(region: RegionSpec) -> GroupGemm:
    p = problem_of(region)
    return GroupGemm(p.o, p.places * p.c, p.pixels)


def _splits(region: RegionSpec, device: DeviceSpec) -> tuple[int, int]:
    """How many splits of k, and k of each: enough to fill the device."""
    p, product = problem_of(region), _of_weight(region)
    most = 1 if region.strict else MOST_SPLITS  # strict takes one sum
    wanted = max(1, min(most, device.sms * BLOCKS_PER_SM // max(1, p.groups * product.tiles)))
    each = max(LEAST_STEPS, cdiv(cdiv(product.k, STEP), wanted)) * STEP
    return max(1, cdiv(product.k, each)), each


def sum_slices(runs: int, splits: int) -> int:
    """As many as fill the device, of at least four splits each."""
    slices = 1
    while slices < MOST_SLICES and 8 * slices <= splits and runs * slices < ENOUGH_THREADS:
        slices *= 2
    return slices


def sum_launch(region: RegionSpec, splits: int, pitches: tuple[int, int, int]) -> Launch:
    """dw of the workspace's partial sums. pitches: see `sum_parts`."""
    from .gradients_body import sum_parts

    p, (dw,) = problem_of(region), region.results
    width = next(w for w in (4, 2, 1) if p.c % w == 0 and dw.alignment >= min(16, w * dw.dtype.itemsize))
    runs = dw.numel // width
    slices = sum_slices(runs, splits)
    shape = tuple(Num(n, i32) for n in (p.places, p.c, runs))
    args = Work(0, f32), Out(0), Num(splits, i32), shape, tuple(Num(n) for n in pitches)
    blocks = max(1, cdiv(runs, THREADS // slices))
    return Launch(sum_parts(dw.dtype, width, slices), (blocks,), (THREADS,), args)


def sum_cost(region: RegionSpec, device: DeviceSpec, splits: int, partial: int) -> Cost:
    """Of that; `partial` bytes of each split, which stay in the L2 cache if they fit."""
    every, runs = splits * partial, region.results[0].numel // 4
    kept = every if every <= device.l2_bytes // 2 else 0
    slices = sum_slices(runs, splits)
    rounds = cdiv(cdiv(splits, slices), TOGETHER)
    total = roofline(
        device, bytes=region.results[0].nbytes + every - kept, cached=kept, blocks=cdiv(runs * slices, THREADS),
        blocks_per_sm=8, chain=rounds * TRIP_US + BARRIER_US * (slices > 1),
    )  # fmt: skip
    return total.plus(latency=-early_us(device))


@variant("convolution_weight_gradient_channels_last", id="cuda.weight_gradient_tiled.v1")
class WeightGradientTiled:
    """A block of 256 threads per 64 x 64 tile of channels of y and places and channels of x, on splits of the windows; then their sum, in order.

    Parallel over tiles, groups and splits. Any float type, widened when loaded; f32 sums. Bytes: dy once for each tile of columns and x once for each tile
    of rows and each place, from the L2 cache; the splits' sums, written and read. Limit: the f32 rate, and finding windows.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        splits, _ = _splits(region, device)
        partial = f32.itemsize * region.results[0].numel
        cost = _cost(region, device, _of_weight(region), splits, region.nbytes)
        return cost.plus(**{"sum of parts": sum_cost(region, device, splits, partial).us})

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return f32.itemsize * _splits(region, device)[0] * region.results[0].numel

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .gradients_body import gradient

        p, product, (splits, each) = problem_of(region), _of_weight(region), _splits(region, device)
        x, dy = positions(region)
        sizes = tuple(Num(n, i32) for n in (*product, each))
        args = In(dy), In(x), Work(0, f32), geometry(p), sizes
        grid = max(1, p.groups * product.tiles * splits)
        body = gradient(True, p.dtype, any(p.windows.interior))
        pitches = p.c, product.n, p.groups * p.o * product.n
        return [Launch(body, (grid,), (THREADS,), args), sum_launch(region, splits, pitches)]


def _of_data(region: RegionSpec) -> GroupGemm:
    p = problem_of(region)
    return GroupGemm(p.images * prod(p.sizes), p.c, p.places * p.o)


@variant("convolution_data_gradient_channels_last", id="cuda.data_gradient_tiled.v1")
class DataGradientTiled:
    """A block of 256 threads per 64 x 64 tile of elements of x and channels.

    Parallel over tiles and groups. Any float type, widened when loaded; f32 sums, each in one thread. Of strides, windows that do not have an element are
    multiplied as zeros. Bytes: dy once for each place of the kernel and tile of channels, from the L2 cache. Limit: the f32 rate, and finding windows.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _cost(region, device, _of_data(region), 1, region.nbytes)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .gradients_body import gradient

        p, product = problem_of(region), _of_data(region)
        dy, w = positions(region)
        sizes = tuple(Num(n, i32) for n in (*product, product.k))
        body = gradient(False, p.dtype, max(p.windows.strides) > 1)
        grid = max(1, p.groups * product.tiles)
        return [Launch(body, (grid,), (THREADS,), (In(dy), In(w), Out(0), geometry(p), sizes))]
