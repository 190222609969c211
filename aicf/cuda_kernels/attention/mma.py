"""Variants for attention and attention_grad on tensor cores by mma.sync, sm_80 and newer: halves, head sizes up to 256, every mask, any strides of
rows. See mma_body.py."""

from __future__ import annotations

from functools import lru_cache
from math import gcd

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, one_launch, roofline
from ...registry.variant import Arg, Checks, Launch, Num, Out, Reject, Work, at_most, cdiv, one_op, variant
from ...rows import RegionSpec
from ...types import f32, i32
from . import plain
from .matrices import LOG2E, extent_checks, halves_checks, lse_of, matrices, tensors_of
from .mma_tiles import THREADS, MmaForm
from .plain import Problem

NARROWEST, WIDEST_COPY = 4, 16  # bytes that cp.async copies
WIDEST = 256  # head size: accumulators of a warp's 16 rows
STEP = 16  # columns of a product
TILE = 64  # queries, or keys, of a block
SHARED = 98 * 1024  # bytes, at most, but where there is more
# Of the tensor cores' rate, by architecture; of that, with a mask or a bias: on an H200. Others are guesses, as is the share of the bandwidth, and the
# microseconds that a tile, and a block's end, take beside products.
CEILING = {8: 0.5, 9: 0.3}
CEILING_LATER = 0.15
LOOKED_AT = 0.5
MEMORY_EFFICIENCY = 0.6
TILE_US = 0.5
FINISH_US = 1.0


@lru_cache(maxsize=256)
def family(region: RegionSpec) -> Reject | None:
    return next((reject for reject in _checks(region) if reject is not None), None)


def _checks(region: RegionSpec) -> Checks:
    yield one_op(region)
    given = tensors_of(region)
    yield from halves_checks(region)
    yield from extent_checks(region, WIDEST)
    p = plain.problem(region)
    yield at_most("blocks", p.heads * p.group * cdiv(max(p.queries, p.keys), STEP), 2**31 - 1)
    for name, t, _ in given:
        made = matrices(name, t, NARROWEST)
        yield made if isinstance(made, Reject) else None
    for name in ("mask", "bias"):
        steps = plain.steps_of(region, name)
        yield steps if isinstance(steps, Reject) else None
    lse, _ = lse_of(region)
    lengths = plain.optional(region, "lengths")
    for name, t in (("lse", lse), *([] if lengths is None else [("lengths", lengths[1])])):
        yield None if t.contiguous else Reject("contiguous", f"{name} is {t}, needs to be dense")


def width_of(region: RegionSpec) -> int:
    """Bytes that pointers and rows are aligned to, at most 16."""
    width = WIDEST_COPY
    for name, t, _ in tensors_of(region):
        made = matrices(name, t, NARROWEST)
        assert not isinstance(made, Reject)
        width = gcd(width, t.alignment, *made.pitches)
    return width


def padded(extent: int, of: int = STEP) -> int:
    return cdiv(extent, of) * of


def apart(p: Problem) -> Problem:
    """With query heads as heads of their own."""
    return p._replace(batch_heads=p.batch_heads * p.group, group=1, heads=p.heads * p.group)


def form_of(region: RegionSpec, rows: int, others: int) -> MmaForm:
    p, bias = plain.problem(region), plain.optional(region, "bias")
    capped, masked, ragged = (
        bool(region.attrs["softcap"]), *(plain.optional(region, name) is not None for name in ("mask", "lengths"))
    )  # fmt: skip
    scaled = capped or bias is not None or not plain.scales_after_maxima(region)
    return MmaForm(
        tensors_of(region)[0][1].dtype, padded(p.d), padded(p.dv), rows, others, width_of(region), scaled, capped,
        masked, ragged, bias and bias[1].dtype,
    )  # fmt: skip


def numbers_of(region: RegionSpec, form: MmaForm, tiles: int) -> tuple[tuple[Arg, ...], ...]:
    """(mask, lengths and bias; sizes, grid, limits, scales, and steps of mask and bias)."""
    p = plain.problem(region)
    *pointers, sizes, _, limits, scales, steps, bias_steps = plain.arguments(region, tiles, 1, apart(p))
    assert isinstance(scales, tuple)
    scale = scales[0]
    assert isinstance(scale, Num)
    base2 = Num(LOG2E if form.scaled else float(scale.value) * LOG2E, f32)
    grid = Num(max(1, tiles), i32), Num(p.group, i32)
    return tuple(pointers), (sizes, grid, limits, (*scales, base2), steps, bias_steps)


def steps_of(region: RegionSpec, *names: str) -> tuple[tuple[Num, Num, Num], ...]:
    """Elements from one row, head and batch entry to the next, of tensors by name."""
    made = {name: matrices(name, t, NARROWEST) for name, t, _ in tensors_of(region)}
    found = [made[name] for name in names]
    return tuple(m.steps() for m in found if not isinstance(m, Reject))


def _loads(region: RegionSpec) -> int:
    """Of each score: its mask, its bias."""
    return sum(plain.optional(region, name) is not None for name in ("mask", "bias"))


def _tile(region: RegionSpec) -> tuple[int, int]:
    """Queries and keys of a tile: as many scores as registers are left for beside the accumulators, and masks and biases on their way."""
    p = plain.problem(region)
    loads = _loads(region)
    wide = max(p.d, p.dv)
    room = 64 if wide <= (128, 64, 0)[loads] else 32
    return TILE, 16 if loads and wide > 128 else room


def cost_of(
    region: RegionSpec, device: DeviceSpec, rows: int, others: int, products: float, launches: int = 1
) -> Cost:
    """products: of d and dv, for each score, on average."""
    p = apart(plain.problem(region))
    d = (padded(p.d) + padded(p.dv)) / 2
    pairs = p.heads * p.pairs() * (plain.TILE / rows) * (plain.TILE / others)
    blocks = p.heads * cdiv(p.queries, rows)
    efficiency = CEILING.get(device.arch[0], CEILING_LATER) * (LOOKED_AT if _loads(region) else 1.0)
    return roofline(
        device, bytes=region.nbytes, flops=2.0 * products * pairs * rows * others * d, rate=tensors_of(region)[0][1].dtype.name,
        memory_efficiency=MEMORY_EFFICIENCY, efficiency=efficiency, useful=2.0 * products * pairs * rows * others * (p.d + p.dv) / 2, blocks=blocks, blocks_per_sm=2,
        finish=FINISH_US, launches=launches, chain=TILE_US * pairs / max(1, blocks),
        cached=2.0 * pairs * others * 2 * d,
    )  # fmt: skip


@variant(
    "attention", id="cuda.attention_mma.v1", strided=True, needs=("sm_80",), shared=SHARED, family=family
)
class AttentionMma:
    """A block of four warps per tile of 64 queries of a head, over tiles of keys in two stages that cp.async fills; a running softmax.

    Scores and weights stay in registers, f32 and halves; mma.sync m16n8k16 by ldmatrix. Flops: 4 d for each score of tiles that masks leave.
    Bytes: q once, k and v, mask and bias once for each tile of queries, from the cache. Limit: tensor cores, and reads of shared memory.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield None

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return cost_of(region, device, *_tile(region), 2)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .mma_body import MmaForwardPlan, forward

        p = plain.problem(region)
        form = form_of(region, *_tile(region))
        tiles = cdiv(p.queries, form.rows)
        pointers, numbers = numbers_of(region, form, tiles)
        (_, out), (_, lse) = tensors_of(region)[-1][1:], lse_of(region)
        args = (
            *plain.given_of(region), *pointers, out, lse, *numbers, *steps_of(region, "q", "k", "v", "out")
        )  # fmt: skip
        return [
            Launch(forward(form), (p.heads * p.group * tiles,), (THREADS,), args, MmaForwardPlan(form).nbytes)
        ]


ROOMY = 160 * 1024  # bytes of shared memory, that wide heads' gradients take more keys at a time with


def _gradient_tiles(region: RegionSpec, device: DeviceSpec) -> tuple[int, int]:
    """(keys at a time of a tile of queries, queries at a time of a tile of keys)."""
    p = plain.problem(region)
    loads = _loads(region)
    wide = max(p.d, p.dv)
    if wide > 128:
        return (16, 16) if loads or device.shared_per_block < ROOMY else (32, 32)
    if wide > 64:
        return 32, 16 if loads else 32
    return (32, 32) if loads else (64, 64)


def _gradient_forms(region: RegionSpec, device: DeviceSpec) -> tuple[MmaForm, MmaForm]:
    """Of dq; of dk and dv."""
    keys, queries = _gradient_tiles(region, device)
    return form_of(region, TILE, keys), form_of(region, TILE, queries)


@variant(
    "attention_grad",
    id="cuda.attention_grad_mma.v1",
    strided=True,
    needs=("sm_80",),
    shared=SHARED,
    family=family,
)
class AttentionGradMma:
    """Three launches: statistics of queries; dk and dv by tiles of 64 keys, over the queries of all heads that share them; dq by tiles of 64 queries.

    Scores are computed for each of both, from q, k and lse: no atomics, equal bits each time. Heads wider than 128: two blocks share the columns of
    dk and dv. Flops: 14 d for each score of tiles that masks leave, 18 d of wide heads. Bytes and limit: as of cuda.attention_mma.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield None

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = plain.problem(region)
        keys, _ = _gradient_tiles(region, device)
        products = 7 if max(p.d, p.dv) <= 128 else 9
        return cost_of(region, device, TILE, keys, products, launches=3)

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        p = plain.problem(region)
        return 2 * f32.itemsize * p.heads * p.group * padded(p.queries, TILE)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .mma_grad_body import EACH, MmaQueryPlan, before, query_gradient
        from .mma_grad_keys_body import MmaKeyPlan, key_gradients

        p, stats = plain.problem(region), Work(0, f32)
        of_dq, of_dkv = _gradient_forms(region, device)
        dout, q, k, v, out, lse = plain.given_of(region)
        heads, rows = p.heads * p.group, padded(p.queries, TILE)
        whole_rows = Num(rows, i32)
        sizes = tuple(Num(n, i32) for n in (p.queries, rows, p.batch_heads * p.group, heads, p.dv))
        factor = Num(1.0 if of_dq.scaled else LOG2E, f32)
        ends = (dout, out, lse, stats, sizes, *steps_of(region, "dout", "out"), factor)
        query_tiles, key_tiles = cdiv(p.queries, TILE), cdiv(p.keys, TILE)
        given = steps_of(region, "dout", "q", "k", "v")

        def arguments(
            form: MmaForm, tiles: int, results: tuple[Out, ...], names: tuple[str, ...]
        ) -> tuple[Arg, ...]:
            pointers, numbers = numbers_of(region, form, tiles)
            return (
                dout,
                q,
                k,
                v,
                stats,
                *pointers,
                *results,
                *numbers,
                whole_rows,
                *given,
                *steps_of(region, *names),
            )

        keys, queries = MmaKeyPlan(of_dkv), MmaQueryPlan(of_dq)
        return [
            Launch(before(of_dq.dtype), (cdiv(heads * rows, THREADS // 32 * EACH),), (THREADS,), ends),
            Launch(
                key_gradients(of_dkv), (p.heads * key_tiles * keys.parts,), (THREADS,),
                arguments(of_dkv, key_tiles, (Out(1), Out(2)), ("dk", "dv")), keys.nbytes,
            ),
            Launch(
                query_gradient(of_dq), (heads * query_tiles,), (THREADS,),
                arguments(of_dq, query_tiles, (Out(0),), ("dq",)), queries.nbytes,
            ),
        ]  # fmt: skip
