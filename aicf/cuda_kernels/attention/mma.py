"""Variants for attention and attention_grad on tensor cores by mma.sync, sm_80 and newer: halves, head sizes up to 256, every mask, any strides of
rows; and of f16, with narrower heads, sm_75. See mma_body.py."""

from __future__ import annotations

from math import gcd

from ...device.spec import DeviceSpec, by_architecture
from ...registry.cost import Cost, one_launch, roofline
from ...registry.variant import Arg, Checks, Launch, Num, NumericClass, Reject, Work, at_most, cdiv, variant
from ...rows import RegionSpec
from ...types import f16, f32, i32
from .mma_tiles import (
    KEY_TILES,
    QUERY_TILES,
    ROWS,
    THREADS,
    TILES,
    TURING_GRAD_TILES,
    TURING_TILES,
    MmaForm,
    MmaTile,
)  # fmt: skip
from .problem import (
    LOG2E,
    OF_ROWS,
    OPTIONAL,
    AttentionProblem,
    class_in_order,
    extent_checks,
    halves_checks,
    ints,
    mask_checks,
    matrices,
    matrix_checks,
    problem,
)

ALIGNMENT, WIDEST_COPY = 4, 16  # bytes that cp.async copies, at least and at most
WIDEST = 256  # head size: accumulators of a warp's 16 rows
TURING_SHARED = 50 * 1024  # bytes that a block of sm_75 takes at most, of the 64 KB that there are
STEP = 16  # columns of a product
SHARED = 98 * 1024  # bytes, at most, but where there is more
COUNTED = 64  # rows and columns of the tiles that costs are counted by
# Of the tensor cores' rate, by architecture: on an H200; on 8.x and 10.0 as kernels of mma.sync were published to reach (docs/platforms.md); others are
# guesses. Of that, with a mask or a bias; and guesses are the share of the bandwidth, and the
# microseconds that a tile, and a block's end, take beside products.
CEILING = {"7": 0.3, "8.0": 0.72, "8": 0.93, "9": 0.3, "10": 0.18, "12": 0.93, "later": 0.18}
TURING_LATER = 0.5  # of that, what kernels of sm_75 reach on later architectures: a guess
LOOKED_AT = 0.5
MEMORY_EFFICIENCY = 0.6
TILE_US = 0.5
FINISH_US = 1.0


def checks(region: RegionSpec, widest: int = WIDEST) -> Checks:
    yield from halves_checks(region)
    p = problem(region)
    yield from extent_checks(p, widest)
    yield at_most("blocks", p.query_heads * cdiv(max(p.queries, p.keys), STEP), 2**31 - 1)
    yield from matrix_checks(p, ALIGNMENT)
    yield from mask_checks(p)
    for name in ("lse", "lengths"):
        if name in p and not p[name].contiguous:
            yield Reject("contiguous", f"{name} is {p[name]}, needs to be dense")


def turing_checks(region: RegionSpec, tiles: tuple[MmaTile, ...]) -> Checks:
    """What kernels of sm_75 accept: tensor cores multiply f16 alone there, and the last tile has the widest heads."""
    p = problem(region)
    if p.dtype is not f16:
        yield Reject("dtype", f"q is {p.dtype}, needs f16 on tensor cores before sm_80")
    yield from checks(region, tiles[-1].widest[loads_of(p)])


def padded(extent: int, of: int = STEP) -> int:
    return cdiv(extent, of) * of


def loads_of(p: AttentionProblem) -> int:
    """Numbers from memory for each score: of a mask, of a bias."""
    return sum(name in p for name in ("mask", "bias"))


def tile_of(tiles: tuple[MmaTile, ...], p: AttentionProblem, device: DeviceSpec) -> MmaTile:
    """The first tile that registers and shared memory have room for."""
    loads, shared = loads_of(p), device.shared_per_block
    return next(t for t in tiles if p.widest <= t.widest[loads] and t.shared <= shared)


def form_of(p: AttentionProblem, tile: MmaTile, turing: bool = False) -> MmaForm:
    pitches = [pitch for m in matrices(p, ALIGNMENT) for pitch in m.pitches]
    width = gcd(
        WIDEST_COPY, *pitches, *(t.alignment for name, (t, _) in p.tensors.items() if name in OF_ROWS)
    )
    scaled = bool(p.softcap) or "bias" in p or not p.scales_after_maxima
    columns = padded(p.d), padded(p.dv)
    # cp.async copies whatever exists
    partial = not turing or any(d * p.dtype.itemsize % width for d in (p.d, p.dv))
    return MmaForm(*p.form, *columns, tile.rows, tile.columns, width, scaled, turing, partial)


def numbers_of(p: AttentionProblem, form: MmaForm, tiles: int) -> tuple[tuple[Num, ...], ...]:
    base2 = LOG2E if form.scaled else p.scale * LOG2E
    return p.per_query_head().numbers(tiles, p.group, base2)


def steps_of(p: AttentionProblem, *names: str) -> tuple[tuple[Num, ...], ...]:
    """Elements from one row, head and batch entry to the next."""
    return tuple(m.steps for m in matrices(p, ALIGNMENT, *names))


def cost_of(
    region: RegionSpec,
    device: DeviceSpec,
    tile: MmaTile,
    products: float,
    launches: int = 1,
    turing: bool = False,
) -> Cost:
    """products: of d and dv, for each score, on average."""
    p = problem(region).per_query_head()
    d, rows, columns = (padded(p.d) + padded(p.dv)) / 2, tile.rows, tile.columns
    pairs = p.heads * p.tiles(COUNTED, COUNTED) * (COUNTED / rows) * (COUNTED / columns)
    blocks = p.heads * cdiv(p.queries, rows)
    efficiency = by_architecture(CEILING, device) * (LOOKED_AT if loads_of(p) else 1.0)
    efficiency *= TURING_LATER if turing and device.arch >= (8, 0) else 1.0
    return roofline(
        device, bytes=region.nbytes, flops=2.0 * products * pairs * rows * columns * d, rate=p.dtype.name,
        memory_efficiency=MEMORY_EFFICIENCY, efficiency=efficiency, useful=2.0 * products * pairs * rows * columns * (p.d + p.dv) / 2, blocks=blocks, blocks_per_sm=2,
        finish=FINISH_US, launches=launches, chain=TILE_US * pairs / max(1, blocks),
        cached=2.0 * pairs * columns * 2 * d,
    )  # fmt: skip


@variant("attention", id="cuda.attention_mma.v1", strided=True, needs=("sm_80",), shared=SHARED)
class AttentionMma:
    """A block of four warps per tile of 64 queries of a head, over tiles of keys in two stages that cp.async fills; a running softmax.

    Scores and weights stay in registers, f32 and halves; mma.sync m16n8k16 by ldmatrix. Flops: 4 d for each score of tiles that masks leave.
    Bytes: q once, k and v, mask and bias once for each tile of queries, from the cache. Limit: tensor cores, and reads of shared memory.
    """

    accepts, least = checks, one_launch

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        p = problem(region)
        return class_in_order(f"attention, mma {p.dtype} in f32", tile_of(TILES, p, device).columns)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return cost_of(region, device, tile_of(TILES, problem(region), device), 2)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        p = problem(region)
        return forward_launches(p, form_of(p, tile_of(TILES, p, device)))


@variant("attention", id="cuda.attention_turing.v1", strided=True, needs=("sm_75",), shared=TURING_SHARED)
class AttentionTuring:
    """cuda.attention_mma for sm_75: m16n8k8 of f16; tiles of 32 keys, or 16, pass through registers while the tile before them is multiplied.

    Flops and bytes as of cuda.attention_mma. Limit: reads of shared memory, 64 bytes a cycle: as long as the products take.
    """

    least = one_launch

    def accepts(region: RegionSpec) -> Checks:
        yield from turing_checks(region, TURING_TILES)

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        p = problem(region)
        return class_in_order(f"attention, mma k8 {p.dtype} in f32", tile_of(TURING_TILES, p, device).columns)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return cost_of(region, device, tile_of(TURING_TILES, problem(region), device), 2, turing=True)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        p = problem(region)
        return forward_launches(p, form_of(p, tile_of(TURING_TILES, p, device), turing=True))


def forward_launches(p: AttentionProblem, form: MmaForm) -> list[Launch]:
    from .mma_body import forward, forward_plan

    tiles = cdiv(p.queries, form.rows)
    args = (
        *p.inputs(), *p.optional(*OPTIONAL), *p.at("out", "lse"), *numbers_of(p, form, tiles),
        *steps_of(p, "q", "k", "v", "out"),
    )  # fmt: skip
    return [Launch(forward(form), (p.query_heads * tiles,), (THREADS,), args, forward_plan(form).nbytes)]


@variant("attention_grad", id="cuda.attention_grad_mma.v1", strided=True, needs=("sm_80",), shared=SHARED)
class AttentionGradMma:
    """Three launches: statistics of queries; dk and dv by tiles of 64 keys, over the queries of all heads that share them; dq by tiles of 64 queries.

    Scores are computed for each of both, from q, k and lse: no atomics, equal bits each time. Heads wider than 128: two blocks share the columns of
    dk and dv. Flops: 14 d for each score of tiles that masks leave, 18 d of wide heads. Bytes and limit: as of cuda.attention_mma.
    """

    accepts, least = checks, one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem(region)
        products = 7 if p.widest <= 128 else 9
        return cost_of(region, device, tile_of(QUERY_TILES, p, device), products, launches=3)

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return statistics_bytes(problem(region))

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        p = problem(region)
        return gradient_launches(
            p, *(form_of(p, tile_of(tiles, p, device)) for tiles in (QUERY_TILES, KEY_TILES))
        )


@variant(
    "attention_grad", id="cuda.attention_grad_turing.v1", strided=True, needs=("sm_75",), shared=TURING_SHARED
)
class AttentionGradTuring:
    """cuda.attention_grad_mma for sm_75: m16n8k8 of f16; tiles of 32 rows, or 16, pass through registers while the tile before them is multiplied.

    Launches, flops and bytes as of cuda.attention_grad_mma. Limit: reads of shared memory, 64 bytes a cycle.
    """

    least = one_launch

    def accepts(region: RegionSpec) -> Checks:
        yield from turing_checks(region, TURING_GRAD_TILES)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        tile = tile_of(TURING_GRAD_TILES, problem(region), device)
        return cost_of(region, device, tile, 7, launches=3, turing=True)

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return statistics_bytes(problem(region))

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        p = problem(region)
        form = form_of(p, tile_of(TURING_GRAD_TILES, p, device), turing=True)
        return gradient_launches(p, form, form)


def statistics_bytes(p: AttentionProblem) -> int:
    """Two f32 for each query, of whole tiles."""
    return 2 * f32.itemsize * p.query_heads * padded(p.queries, ROWS)


def gradient_launches(p: AttentionProblem, of_dq: MmaForm, of_dkv: MmaForm) -> list[Launch]:
    """Statistics of queries; dk and dv; dq."""
    from .mma_grad_body import EACH, before, query_gradient, query_plan
    from .mma_grad_keys_body import key_gradients, key_plan, parts_of

    stats = Work(0, f32)
    dout, q, k, v, out, lse = p.inputs()
    heads, rows = p.query_heads, padded(p.queries, ROWS)
    sizes = ints(p.queries, rows, p.batch_heads * p.group, heads, p.dv)
    factor = Num(1.0 if of_dq.scaled else LOG2E, f32)
    ends = (dout, out, lse, stats, sizes, *steps_of(p, "dout", "out"), factor)
    query_tiles, key_tiles = cdiv(p.queries, ROWS), cdiv(p.keys, ROWS)

    def arguments(form: MmaForm, tiles: int, *results: str) -> tuple[Arg, ...]:
        return (
            dout, q, k, v, stats, *p.optional(*OPTIONAL), *p.at(*results), *numbers_of(p, form, tiles),
            Num(rows, i32), *steps_of(p, "dout", "q", "k", "v", *results),
        )  # fmt: skip

    return [
        Launch(before(of_dq.dtype), (cdiv(heads * rows, THREADS // 32 * EACH),), (THREADS,), ends),
        Launch(
            key_gradients(of_dkv), (p.heads * key_tiles * parts_of(of_dkv),), (THREADS,),
            arguments(of_dkv, key_tiles, "dk", "dv"), key_plan(of_dkv).nbytes,
        ),
        Launch(
            query_gradient(of_dq), (heads * query_tiles,), (THREADS,),
            arguments(of_dq, query_tiles, "dq"), query_plan(of_dq).nbytes,
        ),
    ]  # fmt: skip
