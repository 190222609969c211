"""Gradients of convolutions by kernels that are there already, as chains (gemm/chain.py): tensor cores of any GPU, f32, any number of channels.

weight   im2col to the workspace, and the best product of dy^T with it; where windows are x as it lies, the product alone
data     the kernel turned around, its channels exchanged, and the best convolution of dy with that
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod

from ...device.spec import DeviceSpec
from ...ops.windows import transposed_windows
from ...registry.cost import Cost, memory_us, one_launch
from ...registry.variant import (
    Checks,
    In,
    Launch,
    Out,
    Reject,
    at_least,
    at_most,
    contiguous,
    one_op,
    variant,
)
from ...rows import RegionSpec
from ...rows.read import read
from ...types import f32
from ..gemm import chain as chains
from .columns import columns_cost, columns_launch, pitch, rows_of
from .gradients import STEPS, given, positions, problem_of
from .positions import WindowProblem, checks, not_empty, problem

BYTES = 2**30  # of the matrix of windows, that the workspace has


def _shared_checks(region: RegionSpec) -> Checks:
    yield one_op(region)
    yield contiguous(region)
    if region.operands[0].dtype.compute is not f32:
        yield Reject("dtype", f"operands are {region.operands[0].dtype}, needs f32 or a half type")
    p = problem_of(region)
    yield at_least("least extent", min(p.c, p.o, p.pixels, p.images * prod(p.sizes)), 1)


# --- weights ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def forward(region: RegionSpec) -> RegionSpec:
    """The convolution whose weight gradient it is."""
    x, dw = given(region)[0], region.results[0]
    attrs = {name: tuple(region.anchor.attrs[name]) for name in STEPS}
    return chains.region_of({"x": x, "w": dw}, ("y", "convolution_channels_last", "x w", attrs))


@lru_cache(maxsize=256)
def weight_family(region: RegionSpec) -> Reject | None:
    return next((reject for reject in _weight_checks(region) if reject is not None), None)


def _weight_checks(region: RegionSpec) -> Checks:
    yield from _shared_checks(region)
    yield at_most("groups", problem_of(region).groups, 1)
    made = read(forward(region))
    if isinstance(made, Reject):
        yield made
        return
    yield from checks(forward(region))
    c = problem(forward(region))
    yield from not_empty(c)
    if not c.whole:
        yield at_most("bytes of windows", matrix_bytes(c), BYTES)


def matrix_bytes(c: WindowProblem) -> int:
    return c.rows * pitch(c) * c.x.dtype.itemsize


@lru_cache(maxsize=256)
def weight_chain(region: RegionSpec, device: DeviceSpec) -> chains.Chain:
    c, chain, (x_at, dy_at) = problem(forward(region)), chains.Chain(device), positions(region)
    dy, (dw,) = given(region)[1], region.results
    at: chains.Place = In(x_at)
    if c.whole:
        matrix = chains.shaped(c.x, c.rows, c.product.k)
    else:
        matrix = rows_of((c.rows, c.product.k), pitch(c), c.x.dtype)
        at = chain.reserve(chains.dense((c.rows, pitch(c)), c.x.dtype))
        chain.launch(columns_launch(c, In(x_at), at), columns_cost(c, device))
    operands = {"a": chains.shaped(dy, c.rows, dy.shape[-1]), "b": matrix}
    product = chains.region_of(operands, ("y", "gemm", "a b", {"trans_a": True}), alignment=dw.alignment)
    chain.run(replace(product, strict=region.strict), [In(dy_at), at], [Out(0)])
    return chain


@variant(
    "convolution_weight_gradient_channels_last", id="cuda.weight_gradient_columns.v1", family=weight_family
)
class WeightGradientColumns:
    """A chain of two kernels: im2col, and the product of dy's transpose with the windows by whatever kernel is best for it. Of windows of one element,
    the product alone.

    im2col is parallel over units of 16 bytes of windows. Bytes: x once, windows once written and once or twice read, beside those of the
    product. Limit: memory, then that of the product.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield None

    def least(region: RegionSpec, device: DeviceSpec) -> float:
        if weight_family(region) is not None:
            return one_launch(region, device)
        c = problem(forward(region))
        if c.whole:
            return one_launch(region, device)
        return 2 * one_launch(region, device) + 2 * memory_us(device, matrix_bytes(c), 1.0)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return weight_chain(region, device).cost

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return weight_chain(region, device).workspace

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return weight_chain(region, device).launches()


# --- data -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def data_family(region: RegionSpec) -> Reject | None:
    return next((reject for reject in _shared_checks(region) if reject is not None), None)


@lru_cache(maxsize=256)
def data_chain(region: RegionSpec, device: DeviceSpec) -> chains.Chain:
    p, chain, (dy_at, w_at) = problem_of(region), chains.Chain(device), positions(region)
    (dy, w), (dx,) = given(region), region.results
    kernel, axes = w.shape[1:-1], len(p.sizes)
    apart = chains.shaped(w, p.groups, p.o, *kernel, p.c)
    perm = 0, axes + 2, *range(2, axes + 2), 1
    turn = chains.region_of(
        {"w": apart},
        ("r", "reverse", "w", {"dims": tuple(range(2, axes + 2))}),
        ("t", "transpose", "r", {"perm": perm}),
    )
    turned = chains.dense((p.groups * p.c, *kernel, p.o), w.dtype)
    room = chain.reserve(turned)
    chain.run(turn, [In(w_at)], [room])
    of = transposed_windows(kernel, p.sizes, p.made, region.anchor.attrs)
    attrs = {
        "strides": of.strides, "dilation": of.dilation, "low": of.low, "high": of.high, "groups": p.groups,
        "input_dilation": tuple(n + 1 for n in of.interior),
    }  # fmt: skip
    convolution = chains.region_of(
        {"dy": dy, "w": turned}, ("y", "convolution_channels_last", "dy w", attrs), alignment=dx.alignment
    )
    chain.run(replace(convolution, strict=region.strict), [In(dy_at), room], [Out(0)])
    return chain


@variant("convolution_data_gradient_channels_last", id="cuda.data_gradient_turned.v1", family=data_family)
class DataGradientTurned:
    """A chain of two kernels: a copy of w with its places in reverse and its channels exchanged, and the convolution of dy with that by whatever kernel
    is best for it. Of strides, dy is spread, and zeros are multiplied.

    Bytes: w twice, beside those of the convolution. Limit: that of the convolution.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield None

    def least(region: RegionSpec, device: DeviceSpec) -> float:
        return 2 * one_launch(region, device)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return data_chain(region, device).cost

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return data_chain(region, device).workspace

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return data_chain(region, device).launches()
