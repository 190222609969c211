"""Gradients of convolutions on every GPU, of floats, groups, one to three axes: by f32 arithmetic. See gradients_body.py; those of halves on
tensor cores are in wgmma.py."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, early_us, machine, roofline
from ...registry.variant import Checks, Launch, Num, Out, Work, at_most, cdiv, variant
from ...rows import RegionSpec
from ...types import f32, i32
from ..maps.elementwise import THREADS
from .problem import ConvolutionProblem, numbers, one_of_floats, pointers, read

TILE, STEP = 64, 16
BLOCKS_PER_SM, EFFICIENCY = 3, 0.12  # of the f32 rate: data gradients of strides on an H200, zeros counted
STEP_US = 0.4  # of a K-tile: some of its places are found by division
MOST_SPLITS, LEAST_STEPS = 64, 16
# Of the sum: slices of the splits, where there are few results; loads of a thread under way together
MOST_SLICES, ENOUGH_THREADS, TOGETHER = 16, 2**17, 8


def _geometry(p: ConvolutionProblem) -> tuple[Any, ...]:
    """Numbers in the order that gradients_body.py has them."""
    n = p.geometry
    low = tuple(-first for first in n.first)
    return numbers(
        (p.c, p.o, p.groups, n.made, n.window, n.steps, low, n.apart, n.between, n.extents, p.elements)
    )


def _checks(region: RegionSpec) -> Checks:
    yield from one_of_floats(region)
    p = read(region)
    of = p.windows
    reach = [
        max(abs(low), abs(high)) + (max(size, 1) - 1) * (between + 1) + (n - 1) * apart + m * step
        for low, high, size, between, n, apart, m, step in zip(
            of.low, of.high, p.sizes, of.interior, of.window, of.dilation, p.made, of.strides
        )
    ]
    yield at_most("position of an element", max(reach), 2**30)
    extents = p.rows, p.elements, p.places * max(p.c, p.o) * p.groups
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


def _of_weight(p: ConvolutionProblem) -> GroupGemm:
    return GroupGemm(p.o, p.k, p.rows)


def _of_data(p: ConvolutionProblem) -> GroupGemm:
    return GroupGemm(p.elements, p.c, p.places * p.o)


def _cost(region: RegionSpec, device: DeviceSpec, product: GroupGemm, splits: int) -> Cost:
    p = read(region)
    flops = 2.0 * p.groups * product.m * product.n * product.k
    blocks = max(1, p.groups * product.tiles * splits)
    padded = 2.0 * p.groups * product.tiles * TILE * TILE * max(1, product.k)
    return roofline(
        device, bytes=region.nbytes, flops=padded, useful=flops, efficiency=EFFICIENCY, blocks=blocks, blocks_per_sm=BLOCKS_PER_SM,
        cached=p.groups * product.tiles * 2.0 * TILE * product.k * p.dtype.itemsize,
        chain=cdiv(cdiv(product.k, splits), STEP) * STEP_US,
    )  # fmt: skip


def _splits(region: RegionSpec, device: DeviceSpec) -> tuple[int, int]:
    """How many splits of k, and k of each: enough to fill the device."""
    p, product = read(region), _of_weight(read(region))
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

    p, (dw,) = read(region), region.results
    width = next(w for w in (4, 2, 1) if p.c % w == 0 and dw.alignment >= min(16, w * dw.dtype.itemsize))
    runs = dw.numel // width
    slices = sum_slices(runs, splits)
    shape = numbers((p.places, p.c, runs))
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
        blocks_per_sm=8, chain=rounds * machine(device).trip_us + machine(device).barrier_us * (slices > 1),
    )  # fmt: skip
    return total.plus(latency=-early_us(device))


def _launch(region: RegionSpec, product: GroupGemm, k: int, splits: int, out: Out | Work) -> Launch:
    """Of the two operands, on splits of so much of k."""
    from .gradients_body import gradient

    p, (dy, other), of_weight = read(region), pointers(region), isinstance(out, Work)
    if of_weight:
        dy, other = other, dy
    body = gradient(of_weight, p.dtype, p.spread if of_weight else max(p.windows.strides) > 1)
    grid = max(1, p.groups * product.tiles * splits)
    return Launch(body, (grid,), (THREADS,), (dy, other, out, _geometry(p), numbers((*product, k))))


@variant("convolution_weight_gradient_channels_last", id="cuda.weight_gradient_tiled.v1")
class WeightGradientTiled:
    """A block of 256 threads per 64 x 64 tile of channels of y and places and channels of x, on splits of the windows; then their sum, in order.

    Parallel over tiles, groups and splits. Any float type, widened when loaded; f32 sums. Bytes: dy once for each tile of columns and x once for each tile
    of rows and each place, from the L2 cache; the splits' sums, written and read. Limit: the f32 rate, and finding windows.
    """

    accepts = _checks

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        splits, _ = _splits(region, device)
        cost = _cost(region, device, _of_weight(read(region)), splits)
        partial = f32.itemsize * region.results[0].numel
        return cost.plus(**{"sum of parts": sum_cost(region, device, splits, partial).us})

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return f32.itemsize * _splits(region, device)[0] * region.results[0].numel

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        p, product, (splits, each) = read(region), _of_weight(read(region)), _splits(region, device)
        pitches = p.c, product.n, p.groups * p.o * product.n
        return [_launch(region, product, each, splits, Work(0, f32)), sum_launch(region, splits, pitches)]


@variant("convolution_data_gradient_channels_last", id="cuda.data_gradient_tiled.v1")
class DataGradientTiled:
    """A block of 256 threads per 64 x 64 tile of elements of x and channels.

    Parallel over tiles and groups. Any float type, widened when loaded; f32 sums, each in one thread. Of strides, windows that do not have an element are
    multiplied as zeros. Bytes: dy once for each place of the kernel and tile of channels, from the L2 cache. Limit: the f32 rate, and finding windows.
    """

    accepts = _checks

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _cost(region, device, _of_data(read(region)), 1)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        product = _of_data(read(region))
        return [_launch(region, product, product.k, 1, Out(0))]
