"""Variants for attention and attention_grad on Hopper's tensor cores: halves, head sizes up to 128, any strides of rows, masks of positions and of
keys. See wgmma_body.py."""

from __future__ import annotations

from typing import Any

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, memory_us, one_launch, roofline
from ...registry.variant import (
    Arg,
    Checks,
    Launch,
    Num,
    NumericClass,
    Reject,
    TensorMap,
    Work,
    at_most,
    cdiv,
    variant,
)
from ...rows import RegionSpec
from ...types import bf16, bool_, f16, f32, i32
from ..hopper.units import ATOM, TMA_ALIGNMENT
from .problem import (
    EXTENT,
    LOG2E,
    OF_ROWS,
    AttentionProblem,
    extent_checks,
    halves_checks,
    ints,
    mask_strides,
    matrices,
    matrix_checks,
    problem,
    score_strides,
    tensor_map,
)
from .wgmma_tiles import GRADIENT_TILES, KEYS, QUERIES, TILES, WgmmaForm, WgmmaTile

WIDEST = 128  # head size
QUERY_STRIDE = 6  # of those of a mask or a bias
# bytes of keys and values of heads that are taken together; with 36 MB 32 heads of 8192 keys took 899 us, now 823
TOGETHER = 160 << 20
# query heads of a gradient: few enough for the L2 cache, enough that few blocks wait for another's sums
GRADIENT_TOGETHER = 96
FINISH_US = 0.8  # of a tile of queries, beside its products: on an H200
DTYPES = f16, bf16, f32, bool_, i32


def checks(region: RegionSpec) -> Checks:
    yield from halves_checks(region)
    p = problem(region)
    if "lengths" in p:
        yield Reject("lengths", "takes whole lengths alone")
    for name in ("mask", "bias"):
        strides = mask_strides(p, name)
        if isinstance(strides, Reject):
            yield strides
        elif strides and strides[QUERY_STRIDE].value:
            yield Reject(name, f"{name} is {p[name]}, takes one that is the same for all queries of a head")
    yield from extent_checks(p, WIDEST)
    yield at_most("heads", p.query_heads, EXTENT)
    if not p.scales_after_maxima:
        yield Reject("scale", f"scale is {p.scale}, needs more than 0: maxima are found before it")
    yield from matrix_checks(p, TMA_ALIGNMENT)
    yield None if p["lse"].contiguous else Reject("contiguous", f"lse is {p['lse']}, needs to be dense")


def class_from_the_last_tile(p: AttentionProblem) -> NumericClass:
    """Of kernels whose tiles of keys begin at multiples of KEYS and come from the last one on. A tile whose keys are all hidden from a query changes none of its bits:
    its weights are 0, and its maximum stays. So the number of keys, and of queries, is no part of it.

    wgmma and mma.sync of halves give equal bits on Hopper.
    """
    by = "at a time, from the last tile of keys that a query sees"
    return NumericClass(f"attention, tensor cores {p.dtype} in f32", KEYS, by)


def tile_of(tiles: tuple[WgmmaTile, ...], p: AttentionProblem) -> WgmmaTile:
    """The first tile that has a head's columns."""
    return next(t for t in tiles if p.widest <= t.d)


def form_of(p: AttentionProblem, tile: WgmmaTile) -> WgmmaForm:
    return WgmmaForm(*p.form, tile, _hidden(p))


def added(p: AttentionProblem) -> tuple[Arg, ...]:
    """Mask and bias, and strides of each, as a kernel takes them; nothing if there is neither."""
    pointers = p.optional("mask", "bias")
    return (*pointers, *p.mask_numbers()) if any(pointers) else ()


def _hidden(p: AttentionProblem) -> str:
    """Tiles of queries and of keys begin at multiples of 128: if queries stand at such places too, a causal mask cuts the last tile only."""
    if p.behind < p.keys - 1 or (p.ahead == 0 and (p.keys - p.queries) % KEYS):
        return "all"
    return "last" if p.ahead == 0 or p.keys % KEYS else ""


def taken_together(p: AttentionProblem, tile: WgmmaTile) -> int:
    """Query heads that a forward kernel takes together: all, or whole groups, where blocks would read keys of too many heads from memory."""
    groups = max(1, TOGETHER // max(1, p.keys * 4 * tile.d))
    return min(groups * p.group, p.query_heads)


def sizes(p: AttentionProblem, together: int) -> tuple[Num, ...]:
    """As wgmma_tiles.py has them; `together`: query heads, in whole groups."""
    together = max(p.group, min(together // p.group * p.group, p.query_heads))
    heads_of_batch = p.batch_heads * p.group
    return ints(p.queries, p.keys, heads_of_batch, p.group, p.query_heads, together, p.ahead, p.behind)


def grid_of(p: AttentionProblem, tile: WgmmaTile, device: DeviceSpec) -> int:
    """Blocks of the forward kernel. Of heads that are taken together, each should have as many tiles, half of them in reverse: then those that
    masks make long and short add up to the same."""
    rows = cdiv(p.queries, tile.queries)
    tiles = rows * taken_together(p, tile)
    if tiles < rows * p.query_heads:
        even = [n for n in range(device.sms, device.sms * 7 // 8, -1) if tiles % (2 * n) == 0]
        return even[0] if even else device.sms
    return min(tiles, device.sms)


def scales(p: AttentionProblem) -> tuple[Num, Num]:
    """What scores, or their tanh, are multiplied by for powers of two; what products are before tanh."""
    if p.softcap:
        return Num(p.softcap * LOG2E, f32), Num(p.scale / p.softcap, f32)
    return Num(p.scale * LOG2E, f32), Num(0.0, f32)


def maps(p: AttentionProblem, **rows: int) -> tuple[TensorMap, ...]:
    """Of those tensors, in this order, with boxes of so many rows."""
    return tuple(tensor_map(p, name, n, TMA_ALIGNMENT) for name, n in rows.items())


def _cost(region: RegionSpec, device: DeviceSpec, tile: WgmmaTile, flops: float, **more: Any) -> Cost:
    """flops: of a score, for each column of d."""
    p = problem(region)
    flops = flops * _score_tiles(p) * QUERIES * KEYS
    efficiency = tile.rate * (tile.rate_of_keys if form_of(p, tile).of_keys else 1.0)
    return roofline(
        device, flops=flops * tile.d, useful=flops * (p.d + p.dv) / 2, rate="f16", efficiency=efficiency, finish=FINISH_US, **more
    )  # fmt: skip


def _score_tiles(p: AttentionProblem) -> int:
    """One at least for each tile of queries: as `key_tiles` has it."""
    return p.query_heads * p.per_query_head().tiles(QUERIES, KEYS, minimum=1)


@variant("attention", id="cuda.attention_wgmma.v1", strided=True, needs=("sm_90a",), dtypes=DTYPES)
class AttentionWgmma:
    """Persistent blocks of two consumer warpgroups, of 64 queries each, and a producer: tiles of 128 queries over tiles of 128 keys.

    Scores and weights stay in registers; TMA brings q, k and v from where they lie, in any strides of rows. Flops: 4 d for each score of tiles
    that masks leave. Bytes: q once, k and v once for each tile of queries, from the cache. Limit: tensor cores, and exponentials with d of 64.
    Scores up to 1e9 in size. Of masks and biases from memory it takes those of keys, the same for all queries of a head: see wgmma_masks.py.
    """

    accepts, least = checks, one_launch

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        return class_from_the_last_tile(problem(region))

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem(region)
        tile = tile_of(TILES, p)
        blocks, cached = p.query_heads * cdiv(p.queries, QUERIES), 2.0 * _score_tiles(p) * KEYS * 2 * tile.d
        return _cost(region, device, tile, 4.0, bytes=region.nbytes, blocks=blocks, cached=cached)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .wgmma_body import THREADS, ForwardPlan, forward

        p = problem(region)
        form = form_of(p, tile := tile_of(TILES, p))
        boxes = maps(p, q=tile.queries, k=KEYS, v=ATOM, out=ATOM)
        args = (boxes, *p.at("lse"), sizes(p, taken_together(p, tile)), scales(p), *added(p))
        return [
            Launch(forward(form), (grid_of(p, tile, device),), (THREADS,), args, ForwardPlan(form).nbytes)
        ]


@variant("attention_grad", id="cuda.attention_grad_wgmma.v1", strided=True, needs=("sm_90a",), dtypes=DTYPES)
class AttentionGradWgmma:
    """Three launches: statistics of queries; persistent blocks over tiles of 128 keys, of two consumer warpgroups with 64 each; sums of dq as halves.

    Scores are computed once, from q, k and lse. dk and dv stay in registers; dq is added to f32 sums in the workspace by tile of keys, in their order:
    no two runs differ. A query whose lse is below -2**17, as large finite biases of all its keys make it, has no gradient. Flops: 10 d for each score of tiles that masks leave. Bytes: all operands once, but q and dout once for each tile of
    keys, from the cache; dq's sums, 4 d for each query and tile of keys. Limit: tensor cores and shared memory.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from checks(region)
        p = problem(region)
        for name in ("mask", "bias"):
            if p.group > 1 and name in p and score_strides(p, name)[1][-3]:
                yield Reject(name, f"{name} goes along query heads, of which {p.group} share keys")
        if p.softcap:
            yield Reject("softcap", "takes none: no register is left for the slopes of scores")
        if (first := p.keys - p.queries - p.behind) >= KEYS:
            yield Reject(
                "window", f"no query attends to the first {first} keys, which leaves a tile of {KEYS} nothing"
            )
        yield at_most("tiles of queries", p.query_heads * cdiv(p.queries, ATOM), 2**31 - 1)
        for name in filter(OF_ROWS.__contains__, p.tensors):
            if (d := p[name].shape[-1]) % 8:
                yield Reject("head size", f"{name} has rows of {d}, needs a multiple of 8")

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem(region)
        tile = tile_of(GRADIENT_TILES, p)
        sums, blocks = 4.0 * p.query_heads * p.queries * tile.d, p.heads * cdiv(p.keys, KEYS)
        cached = _score_tiles(p) * QUERIES * (4.0 * tile.d + 8.0 * tile.d)
        return _cost(
            region, device, tile, 10.0, bytes=region.nbytes + 3 * sums, blocks=blocks, launches=3, cached=cached
        ).plus(ends=memory_us(device, 2 * sums + region.nbytes / 3))  # fmt: skip

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        p = problem(region)
        return _work(p, tile_of(GRADIENT_TILES, p))[-1].offset + i32.itemsize

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .wgmma_grad_body import gradient
        from .wgmma_grad_ends_body import THREADS as END_THREADS
        from .wgmma_grad_ends_body import after, before
        from .wgmma_grad_tiles import THREADS, GradientPlan

        p = problem(region)
        form = form_of(p, tile := tile_of(GRADIENT_TILES, p))
        dtype, queries, heads_of_batch = form.dtype, tile.queries, p.batch_heads * p.group
        work, tiles, row_tiles = _work(p, tile), _query_tiles(p, tile), cdiv(p.queries, queries)
        stats, sums, flags, counter = work
        of_out, of_dout, of_dq = (m.steps for m in matrices(p, TMA_ALIGNMENT, "out", "dout", "dq"))
        numbers = ints(p.queries, heads_of_batch, p.query_heads, p.dv)
        first = (*p.at("out", "dout", "lse"), stats, flags, counter, numbers, of_out, of_dout)
        boxes = maps(p, q=queries, k=KEYS, v=KEYS, dout=queries, dk=ATOM, dv=ATOM)
        scale = Num(p.scale, f32)
        main = (boxes, *work, _gradient_sizes(p, tile), (scales(p)[0], scale), *added(p))
        numbers = ints(p.queries, p.keys, heads_of_batch, row_tiles, p.d, p.ahead)
        last = (sums, *p.at("dq"), numbers, of_dq, scale)
        first_blocks = cdiv(tiles * queries, END_THREADS * 8 // tile.d)
        blocks, shared = min(p.heads * cdiv(p.keys, KEYS), device.sms), GradientPlan(tile).nbytes
        return [
            Launch(before(dtype, tile, form.of_keys), (first_blocks,), (END_THREADS,), first),
            Launch(gradient(form), (blocks,), (THREADS,), main, shared),
            Launch(after(dtype, tile), (tiles,), (END_THREADS,), last),
        ]


def _gradient_sizes(p: AttentionProblem, tile: WgmmaTile) -> tuple[Num, ...]:
    """As wgmma_grad_tiles.py has them."""
    # where there is no mask, no block waits at the start
    first = sizes(p, GRADIENT_TOGETHER if p.ahead == 0 else GRADIENT_TOGETHER // 3)
    rows, together = cdiv(p.keys, KEYS), int(first[5].value) // p.group
    more = ints(rows, p.heads, together, rows * p.heads, cdiv(p.queries, tile.queries), p.batch_heads)
    return (*first, *more)


def _query_tiles(p: AttentionProblem, tile: WgmmaTile) -> int:
    """Of all heads."""
    return p.query_heads * cdiv(p.queries, tile.queries)


def _work(p: AttentionProblem, tile: WgmmaTile) -> tuple[Work, Work, Work, Work]:
    """Statistics and sums of dq, at multiples of 256 bytes, for copies of the accelerator; flags; and a counter."""
    tiles = _query_tiles(p, tile)
    queries = tile.queries * tiles
    sums = cdiv(f32.itemsize * 2 * queries, 256) * 256
    flags = sums + f32.itemsize * queries * tile.d
    return Work(0, f32), Work(sums, f32), Work(flags, i32), Work(flags + i32.itemsize * tiles, i32)
