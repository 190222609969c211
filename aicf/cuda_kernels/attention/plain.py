"""Variants for attention and its gradients in f32 on CUDA cores: every float type, every head size, every mask. See plain_body.py."""

from __future__ import annotations

from dataclasses import replace

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, machine, one_launch, roofline
from ...registry.variant import (
    Arg,
    Checks,
    Launch,
    NumericClass,
    Reject,
    Work,
    at_most,
    cdiv,
    contiguous,
    variant,
)
from ...rows import RegionSpec
from ...rows.program import collapse
from ...types import f32, numel
from .plain_tiles import BLOCKS_PER_SM, COLUMNS, DEPTH, THREADS, TILE, PlainForm
from .problem import (
    OPTIONAL,
    UNLIMITED,
    AttentionProblem,
    class_in_order,
    ints,
    mask_checks,
    problem,
    score_strides,
)

EFFICIENCY = 0.3  # of the f32 rate: two reads of shared memory for 16 multiply-adds
SOFTMAX_US = 0.5  # of a tile of scores: two barriers, and exp


def checks(region: RegionSpec) -> Checks:
    yield contiguous(region)
    p = problem(region)
    yield from mask_checks(p)
    yield at_most("greatest extent", max(p.rows, p.keys, p.widest), UNLIMITED - 1)
    yield at_most("blocks", p.heads * cdiv(max(p.rows, p.keys), TILE) * _parts(p.widest, p), 2**31 - 1)


def _columns(p: AttentionProblem) -> int:
    """Columns of a block's accumulators: the first of COLUMNS that a head fits in; wider heads are several blocks'."""
    return next((columns for columns in COLUMNS if p.widest <= columns), COLUMNS[-1])


def _parts(width: int, p: AttentionProblem) -> int:
    return max(1, cdiv(width, _columns(p)))


def _padded(p: AttentionProblem) -> tuple[int, int]:
    """d and dv as whole slices."""
    return cdiv(p.d, DEPTH) * DEPTH, cdiv(p.dv, DEPTH) * DEPTH


def _form(p: AttentionProblem) -> PlainForm:
    own = [t for name, (t, _) in p.tensors.items() if name not in OPTIONAL]
    vectors = not (p.d % 4 or p.dv % 4) and all(t.alignment >= min(16, 4 * t.dtype.itemsize) for t in own)
    return PlainForm(*p.form, columns=_columns(p), width=4 if vectors else 1)


def _launch(
    body, p: AttentionProblem, tiles: int, parts: int, before: tuple[Arg, ...], after: tuple[Arg, ...], *more: Arg
) -> Launch:  # fmt: skip
    args = (*before, *p.optional(*OPTIONAL), *after, *p.numbers(tiles, max(1, parts)), *more)
    return Launch(body, (max(1, p.heads * tiles * parts),), (THREADS,), args)


def cost_of(region: RegionSpec, device: DeviceSpec, useful: int, *works: tuple[int, int, int]) -> Cost:
    """works: for each launch (tiles, parts, flops of a tile of scores). useful: multiply-adds by d and dv of a score."""
    p = problem(region)
    pairs = p.tiles(TILE, TILE)
    flops = sum(2.0 * p.heads * pairs * parts * TILE * TILE * each for _, parts, each in works)
    tiles, parts, _ = works[0]
    slices = cdiv(p.d, DEPTH) + cdiv(p.dv, DEPTH) + 2
    steps = (
        len(works)
        * cdiv(pairs, max(1, cdiv(p.rows, TILE)))
        * (slices * machine(device).cache_trip_us + SOFTMAX_US)
    )
    return roofline(
        device, bytes=region.nbytes, flops=flops, efficiency=EFFICIENCY,
        useful=2.0 * p.heads * pairs * TILE * TILE * useful * (p.d + p.dv) / 2, launches=len(works),
        blocks=max(1, p.heads * tiles * parts), blocks_per_sm=BLOCKS_PER_SM, chain=steps,
        cached=p.heads * pairs * parts * TILE * 2.0 * (p.d + p.dv) * region.results[0].dtype.itemsize,
    )  # fmt: skip


@variant("attention", id="cuda.attention_plain.v1")
class AttentionPlain:
    """A block of 256 threads per tile of 64 queries and up to 128 columns of the result, over tiles of 64 keys: a running softmax.

    Queries of heads that share keys are rows of one problem. Tiles that masks leave nothing of are passed over. Bytes: q once and k and v
    once for each tile of queries, from the cache. Limit: the f32 rate, and reads of shared memory beside it.
    """

    accepts, least = checks, one_launch

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        return class_in_order("attention, fma in f32", TILE)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem(region)
        d, _ = _padded(p)
        return cost_of(region, device, 2, (cdiv(p.rows, TILE), _parts(p.dv, p), d + _columns(p)))

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .plain_body import forward

        p = problem(region)
        tiles, parts = cdiv(p.rows, TILE), _parts(p.dv, p)
        return [_launch(forward(_form(p)), p, tiles, parts, p.inputs(), p.at("out", "lse"))]


@variant("attention_grad", id="cuda.attention_grad_plain.v1")
class AttentionGradPlain:
    """Two launches: dq by tiles of 64 queries, which leave sum(dout * out) of each in the workspace, then dk and dv by tiles of 64 keys.

    Each computes the scores again: seven products of tiles where five would do, and no atomics. Limit: as of cuda.attention_plain.
    """

    accepts, least = checks, one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem(region)
        scores = sum(_padded(p))
        queries = cdiv(p.rows, TILE), _parts(p.d, p), scores + _columns(p)
        keys = cdiv(p.keys, TILE), _parts(p.widest, p), scores + 2 * _columns(p)
        return cost_of(region, device, 5, queries, keys)

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        p = problem(region)
        return f32.itemsize * p.heads * p.rows

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .plain_grad_body import key_gradients, query_gradient

        p, delta = problem(region), Work(0, f32)
        form, (dout, q, k, v, out, lse) = _form(p), p.inputs()
        of_queries, of_keys = (cdiv(p.rows, TILE), _parts(p.d, p)), (cdiv(p.keys, TILE), _parts(p.widest, p))
        return [
            _launch(query_gradient(form), p, *of_queries, (dout, q, k, v, out, lse), (delta, *p.at("dq"))),
            _launch(key_gradients(form), p, *of_keys, (dout, q, k, v, lse), (delta, *p.at("dk", "dv"))),
        ]


# --- the gradient of a bias -------------------------------------------------------------------------------------------


def _bias_heads(p: AttentionProblem) -> tuple[int, ...] | Reject:
    """How many matrices the bias has; how query heads go with them, as the kernel's `walk`."""
    shape, strides = score_strides(p, "bias")
    sizes, (along,) = collapse(shape[:-2], [strides[:-2]])
    sides: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for axis, (size, stride) in enumerate(zip(sizes, along)):
        sides[stride == 0].append((size, numel(sizes[axis + 1 :])))
    if max(map(len, sides)) > 2:
        return Reject("bias", f"is repeated along some of {shape[:-2]} in more than two groups of axes")
    numbers: list[int] = []
    for side in sides:
        (_, outer), (size, inner) = [(1, 0)] * (2 - len(side)) + side
        numbers += [max(size, 1), outer, inner]
    matrices, repeated = (numel([n for n, _ in side]) for side in sides)
    return matrices, *numbers, repeated


@variant("attention_bias_grad", id="cuda.attention_bias_grad_plain.v1")
class AttentionBiasGradPlain:
    """A block of 256 threads per tile of 64 queries and 64 keys of the bias, over all heads that it is repeated along, one after the other.

    Scores are computed again. Tiles that masks leave nothing of are passed over. Limit: as of cuda.attention_plain.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from checks(region)
        heads = _bias_heads(problem(region))
        yield heads if isinstance(heads, Reject) else None

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem(region)
        return cost_of(region, device, 2, (cdiv(p.queries, TILE), 1, sum(_padded(p))))

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .plain_grad_body import bias_gradient

        p = problem(region)
        heads = _bias_heads(p)
        assert not isinstance(heads, Reject)
        matrices, *walk = heads
        own, form = replace(p.per_query_head(), heads=matrices), replace(_form(p), columns=TILE)
        tiles, parts = cdiv(p.queries, TILE), cdiv(p.keys, TILE)
        return [
            _launch(bias_gradient(form), own, tiles, parts, p.inputs(), p.at("dbias"), ints(*walk, p.group))
        ]
