"""Weight gradients of convolutions on Hopper: the persistent GEMM of gemm/wgmma_body.py over all windows, dy^T times what they have of x, on splits of
the windows, and then the sum of these. Channels last; no im2col in memory."""

from __future__ import annotations

from functools import lru_cache

from ...device.spec import DeviceSpec
from ...ops.schema import schema_of
from ...registry.cost import Cost
from ...registry.variant import (
    Checks,
    KernelVariant,
    Launch,
    Reject,
    TensorMap,
    WindowMap,
    at_least,
    at_most,
    cdiv,
    contiguous,
    multiple,
    one_op,
    variant,
)
from ...rows import RegionSpec
from ...types import TensorDesc, TensorSpec, bf16, f16, f32
from ..gemm import wgmma as gemm_wgmma
from ..gemm import wgmma_cost
from ..gemm.operands.tma import Operands
from ..gemm.schedule import split_k as gemm_split
from ..gemm.schedule.persistent import clusters, resident
from ..gemm.schedule.split_k import KSplit
from ..gemm.wgmma_results import Results
from ..gemm.wgmma_tiling import TILINGS, WgmmaTiling, k_tile
from ..hopper.units import ATOM, TMA_ALIGNMENT
from .gradients import sum_cost, sum_launch
from .problem import ConvolutionProblem, given, pointers, read
from .wgmma import AXES, FURTHEST, STEP, corners, geometry_of, spans, window_map

SPLITS, WAVES = (1, 2, 4, 8, 16), (1, 2, 3)  # and as many as fill the device so many times
# Rates fall with all that shared memory takes longer than tensor cores, where a is M-major: 715 TFLOP/s of 128x256, 570 of 128x128, 510 of 64x192
CROWDED = 1.0
MOST_BYTES = 2**28  # of all splits' sums


@lru_cache(maxsize=256)
def family(region: RegionSpec) -> Reject | None:
    return next((reject for reject in _checks(region) if reject is not None), None)


def _checks(region: RegionSpec) -> Checks:
    yield one_op(region)
    yield contiguous(region)
    x, dy = given(region)
    if x.dtype not in (f16, bf16):
        yield Reject("dtype", f"x is {x.dtype}, needs f16 or bf16")
    if region.strict:
        yield Reject("strict", gemm_split.STRICT)
    p = read(region)
    of = p.windows
    yield at_most("groups", p.groups, 1)
    yield at_most("spatial axes", len(p.sizes), AXES)
    yield at_least("least extent", min(p.c, p.o, p.rows), 1)
    for name, t in (("x", x), ("dy", dy)):
        yield multiple(f"channels of {name}", t.shape[-1], TMA_ALIGNMENT // t.dtype.itemsize)
        if t.alignment < TMA_ALIGNMENT:
            yield Reject("aligned", f"{name} is aligned to {t.alignment} bytes, needs {TMA_ALIGNMENT}")
    if any(of.interior):
        yield Reject("input_dilation", f"input_dilation is {tuple(n + 1 for n in of.interior)}, needs 1")
    yield at_most("stride", max(of.strides), STEP)
    yield at_most("elements from a window's first to its last", max(spans(of)), FURTHEST)
    corner, (first, last) = WindowMap.CORNERS[AXES], corners(of)
    yield at_most("padding", max(*first, *last, *(-n - 1 for n in (*first, *last))), corner - 1)
    yield at_most("greatest extent", max(p.rows, padded_n(p), *x.shape, *dy.shape), gemm_wgmma.EXTENT)
    yield at_most("channels of x", p.c, 2**15 * ATOM)
    yield at_most("bytes of a sum", 4 * p.o * padded_n(p), MOST_BYTES)


def padded_n(p: ConvolutionProblem) -> int:
    """Columns: whole 64 channels of each place."""
    return p.places * cdiv(p.c, ATOM) * ATOM


@lru_cache(maxsize=256)
def product(region: RegionSpec) -> RegionSpec:
    """As if the windows were a matrix in memory: what the cost of a GEMM, and its epilogue, are asked of."""
    p = read(region)
    shapes = (p.rows, p.o), (p.rows, padded_n(p))
    specs: list[TensorSpec | None] = [*(TensorSpec(s, p.dtype, "cuda") for s in shapes), None, None]
    schema = schema_of("gemm")
    packed = schema.pack(schema.normalized(specs, {"trans_a": True}))
    results = [TensorDesc.dense(spec) for spec in schema.infer(specs, packed)]
    return RegionSpec.single(schema.kind, packed, [s and TensorDesc.dense(s) for s in specs], results)


@lru_cache(maxsize=4096)
def best_split(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec) -> tuple[Cost, KSplit]:
    """The number of splits of the windows that is predicted to be fastest."""
    p, of = read(region), product(region)
    partial = 4 * p.o * padded_n(p)
    at_once, tiles = resident(tiling, device), clusters(tiling, of)
    fills = [max(1, waves * at_once // tiles) for waves in WAVES]
    wanted = {n for n in (*SPLITS, *fills) if n == 1 or (n * partial <= MOST_BYTES and n <= fills[-1])}
    costs = []
    for split in sorted({gemm_split.divide(p.rows, n, k_tile(p.dtype)) for n in wanted}):
        first = wgmma_cost.cost(
            tiling, of, device, split, operand_bytes=_operand_bytes(region), crowded=CROWDED
        )
        total = sum_cost(region, device, split.number, partial)
        costs.append((Cost({**first.terms, "sum of parts": total.us}), split))
    return min(costs, key=lambda pair: pair[0].us)


def _operand_bytes(region: RegionSpec) -> int:
    """Of steps longer than windows, x is not read as a whole."""
    p, (x, dy) = read(region), given(region)
    return min(x.nbytes, p.rows * p.places * p.c * x.dtype.itemsize) + dy.nbytes


def _weight_gradient(tiling: WgmmaTiling) -> KernelVariant:
    """A tiling as a config."""

    @variant(
        "convolution_weight_gradient_channels_last",
        id="cuda.weight_gradient_wgmma.v1",
        config=(tiling,),
        needs=("sm_90a",),
        family=family,
    )
    class WeightGradientWgmma:
        __doc__ = f"""Persistent blocks of {tiling.consumers} consumer warpgroups and a producer, {tiling.m} channels of y x {tiling.n} columns at a time: channels of x at places of
        the kernel. Then the sum of the splits, in order.

        Parallel over tiles and splits of the windows. TMA brings 64 windows at a time, of dy as rows of a matrix and of x in its im2col mode; both are
        MN-major for wgmma: f16 or bf16, sums in f32. Channels of x are padded to multiples of 64 on the way. Bytes: both operands once per tile
        that uses them, of which the L2 cache has most; splits' sums, written and read. Limit: tensor cores.
        """

        def accepts(region: RegionSpec) -> Checks:
            yield at_most("blocks", 64 * clusters(tiling, product(region)), 2**31 - 1)

        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            return best_split(tiling, region, device)[0]

        def workspace(region: RegionSpec, device: DeviceSpec) -> int:
            p = read(region)
            return f32.itemsize * best_split(tiling, region, device)[1].number * p.o * padded_n(p)

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
            p, split = read(region), best_split(tiling, region, device)[1]
            n = padded_n(p)
            pitches = cdiv(p.c, ATOM) * ATOM, n, p.o * n
            return [_launch(tiling, region, device, split), sum_launch(region, split.number, pitches)]

    return WeightGradientWgmma  # type: ignore[return-value]  # `variant` has made a record of the class


def _maps(region: RegionSpec) -> tuple[TensorMap, ...]:
    p, (x_at, dy_at), (x, _) = read(region), pointers(region), given(region)
    tile = k_tile(p.dtype)
    rows = TensorMap(dy_at, p.dtype, (p.o, p.rows), p.o * p.dtype.itemsize, (ATOM, tile))
    return rows, window_map(x_at, x, p.windows, (ATOM, tile))


def _launch(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec, split: KSplit) -> Launch:
    from .producer import windows_by_rows

    p, of = read(region), product(region)
    sizes = p.o, padded_n(p), p.rows, split.k, *geometry_of(p.windows, p.sizes, cdiv(p.c, ATOM))
    operands = Operands(_maps(region), (False, ()), (False, ()), producing=windows_by_rows)
    results = Results(gemm_split.raw(of, 2), gemm_split.PARTIAL, gemm_split.UNSCALED)
    return gemm_wgmma.launch(
        tiling, device, operands, results, sizes, clusters(tiling, of) * split.number, name="weight_gradient_wgmma"
    )  # fmt: skip


# Those that some layer of ResNet-50 or a UNet is predicted to be fastest with, or near it.
NAMES = (
    "128x256",
    "256x128",
    "128x192",
    "128x128",
    "128x128_pingpong",
    "64x192_pingpong",
    "64x128_pingpong",
    "64x128",
    "128x64",
)
OF_WEIGHTS = tuple(t for t in TILINGS if str(t) in NAMES)
VARIANTS = tuple(map(_weight_gradient, OF_WEIGHTS))
