"""Variants for attention and attention_grad in f32 on CUDA cores: every float type, every head size, every mask. See plain_body.py."""

from __future__ import annotations

from typing import NamedTuple

from ...device.spec import DeviceSpec
from ...ops.attention import scale_of
from ...ops.schema import schema_of
from ...registry.cost import CACHE_TRIP_US, Cost, one_launch, roofline
from ...registry.variant import (
    Arg,
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
from ...rows.program import collapse
from ...types import TensorDesc, f32, i32, numel
from .tile_products import BLOCKS_PER_SM, DEPTH, THREADS, TILE, UNLIMITED, AttentionForm

WIDEST = 128  # columns of a block's accumulators
EFFICIENCY = 0.3  # of the f32 rate: two reads of shared memory for 16 multiply-adds
SOFTMAX_US = 0.5  # of a tile of scores: two barriers, and exp
SMALLEST_SCALE = 1e-30  # times log2(e) a normal f32: products of zeros or subnormals with -inf are NaN


class Problem(NamedTuple):
    """heads: of keys, in all batches; group: query heads of each, whose queries lie one behind the other as rows."""

    queries: int
    keys: int
    batch_heads: int
    group: int
    heads: int
    d: int
    dv: int
    ahead: int
    behind: int

    @property
    def rows(self) -> int:
        return self.group * self.queries

    def pairs(self) -> int:
        """Tiles of scores that masks leave, of one head of keys."""
        found, offset = 0, self.keys - self.queries
        for first in range(0, self.rows, TILE):
            last = min(first + TILE, self.rows) - 1
            low, high = first % self.queries, last % self.queries
            if first // self.queries != last // self.queries:
                low, high = 0, self.queries - 1
            begin, end = (max(low + offset - self.behind, 0), min(high + offset + self.ahead, self.keys - 1))
            found += max(0, end // TILE - begin // TILE + 1)
        return found


def operands(region: RegionSpec) -> list[TensorDesc | None]:
    """The op's, in its own order: None for one left out."""
    return [None if t < 0 else region.tensors[t] for t in region.anchor.inputs]


def problem(region: RegionSpec) -> Problem:
    first = region.kind.name != "attention"  # dout is before q
    q, k, v = operands(region)[first : first + 3]
    assert q and k and v
    heads = k.shape[-3]
    ahead = 0 if region.attrs["causal"] else UNLIMITED
    behind = region.attrs["window"] - 1 if region.attrs["window"] else UNLIMITED
    return Problem(
        q.shape[-2], k.shape[-2], heads, q.shape[-3] // max(heads, 1), numel(k.shape[:-2]), q.shape[-1], v.shape[-1],
        ahead, min(behind, UNLIMITED),
    )  # fmt: skip


def optional(region: RegionSpec, name: str) -> tuple[int, TensorDesc] | None:
    """An operand's place among the region's, and itself; None if it is left out."""
    at = [d.name for d in schema_of(region.kind).operands].index(name)
    inputs = region.anchor.inputs
    if len(inputs) <= at or inputs[at] < 0:
        return None
    return region.inputs.index(inputs[at]), region.tensors[inputs[at]]


BATCH = 3  # axes of a batch that a mask or a bias may go along, each in its own way


def walk_of(region: RegionSpec, name: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The scores' shape, and the operand's steps along it: 0 where it is repeated."""
    found, q = optional(region, name), operands(region)[region.kind.name != "attention"]
    if found is None:
        return None
    assert q is not None
    _, x = found
    whole = (*q.shape[:-1], problem(region).keys)
    return whole, (0,) * (len(whole) - x.rank) + tuple(0 if n == 1 else s for n, s in zip(x.shape, x.stride))


def steps_of(region: RegionSpec, name: str) -> tuple[Num, ...] | Reject:
    """Of mask or bias, as `mask_rows` has them."""
    walk = walk_of(region, name)
    if walk is None:
        return ()
    whole, steps = walk
    batch, (along,) = collapse(whole[:-3], [steps[:-3]])
    more = BATCH - len(batch)
    if more < 0:
        return Reject(
            name, f"{name} goes along a batch of {whole[:-3]} by steps of {steps[:-3]}: as {len(batch)} axes, at most {BATCH} are taken"
        )  # fmt: skip
    extents = ((1,) * more + batch)[1:]
    return (
        *(Num(max(n, 1), i32) for n in extents),
        *(Num(s) for s in ((0,) * more + tuple(along))),
        *(Num(s) for s in steps[-3:]),
    )


def checks(region: RegionSpec) -> Checks:
    yield one_op(region)
    yield contiguous(region)
    for name in ("mask", "bias"):
        steps = steps_of(region, name)
        yield steps if isinstance(steps, Reject) else None
    p = problem(region)
    yield at_most("greatest extent", max(p.rows, p.keys, p.d, p.dv), UNLIMITED - 1)
    yield at_most("blocks", p.heads * cdiv(max(p.rows, p.keys), TILE) * _parts(max(p.d, p.dv), p), 2**31 - 1)


def _columns(p: Problem) -> int:
    return TILE if max(p.d, p.dv) <= TILE else WIDEST


def _parts(width: int, p: Problem) -> int:
    return max(1, cdiv(width, _columns(p)))


def form_of(region: RegionSpec) -> AttentionForm:
    p = problem(region)
    own = operands(region)[: 3 if region.kind.name == "attention" else 6]
    given = [t for t in (*own, *region.results) if t is not None and t.rank > 0]
    vectors = not (p.d % 4 or p.dv % 4) and all(t.alignment >= min(16, 4 * t.dtype.itemsize) for t in given)
    dtype = given[0].dtype  # of dout or q: a result may be a bias's gradient
    masked, ragged = (optional(region, name) is not None for name in ("mask", "lengths"))
    bias = optional(region, "bias")
    return AttentionForm(
        dtype, _columns(p), 4 if vectors else 1, bool(region.attrs["softcap"]), masked, ragged, bias and bias[1].dtype
    )  # fmt: skip


def scale_factor(region: RegionSpec) -> float:
    """What scores are multiplied by."""
    return scale_of(region.attrs["scale"], problem(region).d)


def scales_after_maxima(region: RegionSpec) -> bool:
    """Whether a kernel may scale scores after their maxima: the order is the same, and a masked score stays -inf."""
    return scale_factor(region) >= SMALLEST_SCALE


def arguments(region: RegionSpec, tiles: int, parts: int, p: Problem | None = None) -> tuple[Arg, ...]:
    """mask, lengths, bias, sizes, grid, limits, scales, and steps of mask and bias."""
    p = p or problem(region)
    found = [optional(region, name) for name in ("mask", "lengths", "bias")]
    mask_steps, bias_steps = (steps_of(region, name) for name in ("mask", "bias"))
    assert not isinstance(mask_steps, Reject) and not isinstance(bias_steps, Reject)
    sizes = (p.queries, p.keys, p.batch_heads, p.group, p.heads, p.d, p.dv)
    scales = (scale_factor(region), region.attrs["softcap"])
    return (
        *(() if x is None else (In(x[0]),) for x in found),
        tuple(Num(n, i32) for n in sizes),
        (Num(max(1, tiles), i32), Num(parts, i32)),
        (Num(p.ahead, i32), Num(p.behind, i32)),
        tuple(Num(x, f32) for x in scales),
        mask_steps,
        bias_steps,
    )


def _launch(
    body, region: RegionSpec, tiles: int, parts: int, before: tuple[Arg, ...], after: tuple[Arg, ...]
) -> Launch:
    mask, lengths, bias, *numbers = arguments(region, tiles, parts)
    blocks = max(1, problem(region).heads * tiles * parts)
    return Launch(body, (blocks,), (THREADS,), (*before, mask, lengths, bias, *after, *numbers))


def given_of(region: RegionSpec) -> list[In]:
    """Pointers to the op's operands, in its own order, without those that may be left out."""
    inputs = region.anchor.inputs[: 3 if region.kind.name == "attention" else 6]
    return [In(region.inputs.index(t)) for t in inputs]


def cost_of(
    region: RegionSpec,
    device: DeviceSpec,
    launches: int,
    works: tuple[tuple[int, int, int], ...],
    useful: int,
) -> Cost:
    """works: for each launch (tiles, parts, flops of a tile of scores). useful: multiply-adds by d and dv of a score."""
    p = problem(region)
    pairs = p.pairs()
    flops = sum(2.0 * p.heads * pairs * parts * TILE * TILE * each for _, parts, each in works)
    tiles, parts, _ = works[0]
    slices = cdiv(p.d, DEPTH) + cdiv(p.dv, DEPTH) + 2
    steps = len(works) * cdiv(pairs, max(1, cdiv(p.rows, TILE))) * (slices * CACHE_TRIP_US + SOFTMAX_US)
    return roofline(
        device, bytes=region.nbytes, flops=flops, efficiency=EFFICIENCY,
        useful=2.0 * p.heads * pairs * TILE * TILE * useful * (p.d + p.dv) / 2, launches=launches,
        blocks=max(1, p.heads * tiles * parts), blocks_per_sm=BLOCKS_PER_SM, chain=steps,
        cached=p.heads * pairs * parts * TILE * 2.0 * (p.d + p.dv) * region.results[0].dtype.itemsize,
    )  # fmt: skip


def padded(width: int, of: int) -> int:
    return cdiv(width, of) * of


@variant("attention", id="cuda.attention_plain.v1")
class AttentionPlain:
    """A block of 256 threads per tile of 64 queries and up to 128 columns of the result, over tiles of 64 keys: a running softmax.

    Queries of heads that share keys are rows of one problem. Tiles that masks leave nothing of are passed over. Bytes: q once and k and v
    once for each tile of queries, from the cache. Limit: the f32 rate, and reads of shared memory beside it.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from checks(region)

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem(region)
        each = padded(p.d, DEPTH) + _columns(p)
        return cost_of(region, device, 1, ((cdiv(p.rows, TILE), _parts(p.dv, p), each),), 2)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .plain_body import forward

        p = problem(region)
        tiles, parts = cdiv(p.rows, TILE), _parts(p.dv, p)
        return [
            _launch(forward(form_of(region)), region, tiles, parts, tuple(given_of(region)), (Out(0), Out(1)))
        ]


@variant("attention_grad", id="cuda.attention_grad_plain.v1")
class AttentionGradPlain:
    """Two launches: dq by tiles of 64 queries, which leave sum(dout * out) of each in the workspace, then dk and dv by tiles of 64 keys.

    Each computes the scores again: seven products of tiles where five would do, and no atomics. Limit: as of cuda.attention_plain.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from checks(region)

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem(region)
        scores = padded(p.d, DEPTH) + padded(p.dv, DEPTH)
        queries = cdiv(p.rows, TILE), _parts(p.d, p), scores + _columns(p)
        keys = cdiv(p.keys, TILE), _parts(max(p.d, p.dv), p), scores + 2 * _columns(p)
        return cost_of(region, device, 2, (queries, keys), 5)

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        p = problem(region)
        return f32.itemsize * p.heads * p.rows

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .plain_grad_body import key_gradients, query_gradient

        p, form, delta = problem(region), form_of(region), Work(0, f32)
        dout, q, k, v, out, lse = given_of(region)
        query_tiles, key_tiles = cdiv(p.rows, TILE), cdiv(p.keys, TILE)
        width = _parts(max(p.d, p.dv), p)
        return [
            _launch(
                query_gradient(form),
                region,
                query_tiles,
                _parts(p.d, p),
                (dout, q, k, v, out, lse),
                (delta, Out(0)),
            ),
            _launch(
                key_gradients(form), region, key_tiles, width, (dout, q, k, v, lse), (delta, Out(1), Out(2))
            ),
        ]
