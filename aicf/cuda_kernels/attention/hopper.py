"""Variants for attention and attention_grad on Hopper's tensor cores: halves, head sizes up to 128, any strides of rows, masks of positions and of
keys. See hopper_body.py."""

from __future__ import annotations

from functools import lru_cache

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, memory_us, one_launch, roofline
from ...registry.variant import Arg, Checks, In, Launch, Num, Reject, TensorMap, Work, at_most, cdiv, variant
from ...rows import RegionSpec
from ...types import bf16, bool_, f16, f32, i32
from . import plain
from .hopper_tiles import ATOM, KEYS, HopperForm
from .matrices import EXTENT, LOG2E, extent_checks, halves_checks, lse_of, matrices, tensors_of
from .plain import Problem

WIDEST = 128  # head size
QUERIES = 128  # of a forward tile
QUERY_STEP = 6  # of those of a mask or a bias
TOGETHER = (
    160 << 20
)  # bytes of keys and values of heads that are taken together; with 36 MB 32 heads of 8192 keys took 899 us, now 823
# Of the tensor cores' rate, what tiles of 128 x 128 scores reach, and microseconds that a tile of queries takes beside them: on an H200.
EFFICIENCY = {64: 0.45, 128: 0.67}
OF_KEYS = {
    64: 0.94,
    128: 0.97,
}  # of that, with something added to the scores of each key: a multiply-add each. Guessed
FINISH_US = 0.8
GRADIENT_EFFICIENCY = {64: 0.5, 128: 0.62}
GRADIENT_OF_KEYS = 0.97  # of that, likewise: an addition each. Guessed
GRADIENT_TOGETHER = (
    96  # query heads: few enough for the L2 cache, enough that few blocks wait for another's sums
)
GRADIENT_QUERIES = {64: 128, 128: 64}  # of a tile


@lru_cache(maxsize=256)
def family(region: RegionSpec) -> Reject | None:
    return next((reject for reject in _checks(region) if reject is not None), None)


def _checks(region: RegionSpec) -> Checks:
    given = tensors_of(region)
    yield from halves_checks(region)
    if plain.optional(region, "lengths") is not None:
        yield Reject("lengths", "takes whole lengths alone")
    for name in ("mask", "bias"):
        yield _of_keys(region, name)
    yield from extent_checks(region, WIDEST)
    p = plain.problem(region)
    yield at_most("heads", p.heads * p.group, EXTENT)
    if not plain.scales_after_maxima(region):
        yield Reject(
            "scale", f"scale is {plain.scale_factor(region)}, needs more than 0: maxima are found before it"
        )
    for name, t, _ in given:
        made = matrices(name, t)
        yield made if isinstance(made, Reject) else None
    lse, _ = lse_of(region)
    yield None if lse.contiguous else Reject("contiguous", f"lse is {lse}, needs to be dense")


def _of_keys(region: RegionSpec, name: str) -> Reject | None:
    """Why a mask or a bias is not one of keys alone."""
    found, steps = plain.optional(region, name), plain.steps_of(region, name)
    if isinstance(steps, Reject) or found is None:
        return steps if isinstance(steps, Reject) else None
    if steps[QUERY_STEP].value:
        return Reject(name, f"{name} is {found[1]}, takes one that is the same for all queries of a head")
    return None


def form(region: RegionSpec) -> HopperForm:
    p, bias = plain.problem(region), plain.optional(region, "bias")
    mask = plain.optional(region, "mask") is not None
    capped = bool(region.attrs["softcap"])
    return HopperForm(region.results[0].dtype, padded(p), _masked(p), capped, mask, bias and bias[1].dtype)


def added(region: RegionSpec) -> tuple[Arg, ...]:
    """Mask and bias, and steps of each, as a kernel takes them; nothing if there is neither."""
    found = [plain.optional(region, name) for name in ("mask", "bias")]
    steps = [plain.steps_of(region, name) for name in ("mask", "bias")]
    assert not any(isinstance(s, Reject) for s in steps)
    return (*(() if x is None else (In(x[0]),) for x in found), *steps) if any(found) else ()


def padded(p: Problem) -> int:
    return ATOM if max(p.d, p.dv) <= ATOM else WIDEST


def _masked(p: Problem) -> str:
    """Tiles of queries and of keys begin at multiples of 128: if queries stand at such places too, a causal mask cuts the last tile only."""
    if p.behind < p.keys - 1 or (p.ahead == 0 and (p.keys - p.queries) % KEYS):
        return "all"
    return "last" if p.ahead == 0 or p.keys % KEYS else ""


def pairs(p: Problem, rows: int) -> int:
    """Tiles of scores, of one head: one at least for each tile of queries. As `key_tiles` has it."""
    found = 0
    for first in range(0, p.queries, rows):
        at, last = first + p.keys - p.queries, min(first + rows, p.queries) - 1 + p.keys - p.queries
        high = max(min(last + p.ahead, p.keys - 1), 0)
        found += high // KEYS - min(max(at - p.behind, 0), high) // KEYS + 1
    return found


def taken_together(p: Problem) -> int:
    """Query heads that a forward kernel takes together: all, or whole groups, where blocks would read keys of too many heads from memory."""
    groups = max(1, TOGETHER // max(1, p.keys * 4 * padded(p)))
    return min(groups * p.group, p.heads * p.group)


def sizes(p: Problem, together: int) -> tuple[Num, ...]:
    """As hopper_tiles.py has them; `together`: query heads, in whole groups."""
    heads = p.heads * p.group
    together = max(p.group, min(together // p.group * p.group, heads))
    return _numbers(p.queries, p.keys, p.batch_heads * p.group, p.group, heads, together, p.ahead, p.behind)


def grid_of(p: Problem, device: DeviceSpec) -> int:
    """Blocks of the forward kernel. Of heads that are taken together, each should have as many tiles, half of them in reverse: then those that
    masks make long and short add up to the same."""
    heads, rows = p.heads * p.group, cdiv(p.queries, QUERIES)
    tiles = rows * taken_together(p)
    if tiles < rows * heads:
        even = [n for n in range(device.sms, device.sms * 7 // 8, -1) if tiles % (2 * n) == 0]
        return even[0] if even else device.sms
    return min(tiles, device.sms)


def scales(region: RegionSpec) -> tuple[Num, Num]:
    """What scores, or their tanh, are multiplied by for powers of two; what products are before tanh."""
    scale, softcap = plain.scale_factor(region), region.attrs["softcap"]
    if softcap:
        return Num(softcap * LOG2E, f32), Num(scale / softcap, f32)
    return Num(scale * LOG2E, f32), Num(0.0, f32)


@variant(
    "attention",
    id="cuda.attention_wgmma.v1",
    strided=True,
    needs=("sm_90a",),
    dtypes=(f16, bf16, f32, bool_, i32),
    family=family,
)
class AttentionWgmma:
    """Persistent blocks of two consumer warpgroups, of 64 queries each, and a producer: tiles of 128 queries over tiles of 128 keys.

    Scores and weights stay in registers; TMA brings q, k and v from where they lie, in any strides of rows. Flops: 4 d for each score of tiles
    that masks leave. Bytes: q once, k and v once for each tile of queries, from the cache. Limit: tensor cores, and exponentials with d of 64.
    Scores up to 1e9 in size. Of masks and biases from memory it takes those of keys, the same for all queries of a head: see hopper_masks.py.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield None

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = plain.problem(region)
        d, heads = padded(p), p.heads * p.group
        tiles, count = heads * cdiv(p.queries, QUERIES), heads * pairs(p, QUERIES)
        efficiency = EFFICIENCY[d] * (OF_KEYS[d] if form(region).of_keys else 1.0)
        return roofline(
            device, bytes=region.nbytes, flops=4.0 * count * QUERIES * KEYS * d, rate="f16", efficiency=efficiency,
            useful=4.0 * count * QUERIES * KEYS * (p.d + p.dv) / 2, blocks=tiles, finish=FINISH_US,
            cached=2.0 * count * KEYS * 2 * d,
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .hopper_body import THREADS, ForwardPlan, forward

        p, made = plain.problem(region), form(region)
        boxes = {"q": QUERIES, "k": KEYS, "v": ATOM, "out": ATOM}
        _, lse = lse_of(region)
        arguments = maps(region, boxes), lse, sizes(p, taken_together(p)), scales(region), *added(region)
        shared = ForwardPlan(made.d, made.of_keys).nbytes
        return [Launch(forward(made), (grid_of(p, device),), (THREADS,), arguments, shared)]


@variant(
    "attention_grad",
    id="cuda.attention_grad_wgmma.v1",
    strided=True,
    needs=("sm_90a",),
    dtypes=(f16, bf16, f32, bool_, i32),
    family=family,
)
class AttentionGradWgmma:
    """Three launches: statistics of queries; persistent blocks over tiles of 128 keys, of two consumer warpgroups with 64 each; sums of dq as halves.

    Scores are computed once, from q, k and lse. dk and dv stay in registers; dq is added to f32 sums in the workspace by tile of keys, in their order:
    no two runs differ. A query whose lse is below -2**17, as large finite biases of all its keys make it, has no gradient. Flops: 10 d for each score of tiles that masks leave. Bytes: all operands once, but q and dout once for each tile of
    keys, from the cache; dq's sums, 4 d for each query and tile of keys. Limit: tensor cores and shared memory.
    """

    def accepts(region: RegionSpec) -> Checks:
        p = plain.problem(region)
        for name in ("mask", "bias"):
            if p.group > 1 and (walk := plain.walk_of(region, name)) is not None and walk[1][-3]:
                yield Reject(name, f"{name} goes along query heads, of which {p.group} share keys")
        if region.attrs["softcap"]:
            yield Reject("softcap", "takes none: no register is left for the slopes of scores")
        if p.keys - p.queries - p.behind >= KEYS:
            yield Reject(
                "window",
                f"no query attends to the first {p.keys - p.queries - p.behind} keys, which leaves a tile of {KEYS} nothing",
            )
        yield at_most("tiles of queries", p.heads * p.group * cdiv(p.queries, ATOM), 2**31 - 1)
        for name, t, _ in tensors_of(region):
            if t.shape[-1] % 8:
                yield Reject("head size", f"{name} has rows of {t.shape[-1]}, needs a multiple of 8")

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = plain.problem(region)
        d, heads = padded(p), p.heads * p.group
        count, tiles = heads * pairs(p, QUERIES), p.heads * cdiv(p.keys, KEYS)
        sums = 4.0 * heads * p.queries * d
        efficiency = GRADIENT_EFFICIENCY[d] * (GRADIENT_OF_KEYS if form(region).of_keys else 1.0)
        return roofline(
            device, bytes=region.nbytes + 3 * sums, flops=10.0 * count * QUERIES * KEYS * d, rate="f16", efficiency=efficiency,
            useful=10.0 * count * QUERIES * KEYS * (p.d + p.dv) / 2, blocks=tiles, finish=FINISH_US, launches=3,
            cached=count * QUERIES * (4.0 * d + 8.0 * d),
        ).plus(ends=memory_us(device, 2 * sums + region.nbytes / 3))  # fmt: skip

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return _work(region)[-1].offset + i32.itemsize

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .hopper_grad_body import gradient
        from .hopper_grad_ends_body import THREADS as END_THREADS
        from .hopper_grad_ends_body import after, before
        from .hopper_grad_tiles import THREADS, GradientPlan, queries_of

        p, made, work, (_, lse_at) = plain.problem(region), form(region), _work(region), lse_of(region)
        stats, sums, flags, counter = work
        d, queries = made.d, queries_of(made.d)
        tensors = {name: (matrices(name, t), at) for name, t, at in tensors_of(region)}
        heads, tiles = p.heads * p.group, _query_tiles(region)
        steps = {name: m.steps() for name, (m, _) in tensors.items() if not isinstance(m, Reject)}
        numbers = p.queries, p.batch_heads * p.group, heads, p.dv
        first = (
            tensors["out"][1],
            tensors["dout"][1],
            lse_at,
            stats,
            flags,
            counter,
            _numbers(*numbers),
            steps["out"],
            steps["dout"],
        )
        boxes = {"q": queries, "k": KEYS, "v": KEYS, "dout": queries, "dk": ATOM, "dv": ATOM}
        base2, scale = Num(scales(region)[0].value, f32), Num(plain.scale_factor(region), f32)
        of_tiles = _gradient_sizes(p, queries)
        main = (maps(region, boxes), stats, sums, flags, counter, of_tiles, (base2, scale), *added(region))
        last_numbers = p.queries, p.keys, p.batch_heads * p.group, cdiv(p.queries, queries), p.d, p.ahead
        last = sums, tensors["dq"][1], _numbers(*last_numbers), steps["dq"], scale
        key_tiles = p.heads * cdiv(p.keys, KEYS)
        return [
            Launch(
                before(made.dtype, d, made.of_keys),
                (cdiv(tiles * queries, END_THREADS * 8 // d),),
                (END_THREADS,),
                first,
            ),
            Launch(gradient(made), (min(key_tiles, device.sms),), (THREADS,), main, GradientPlan(d).nbytes),
            Launch(after(made.dtype, d), (tiles,), (END_THREADS,), last),
        ]


def _numbers(*numbers: int) -> tuple[Num, ...]:
    return tuple(Num(n, i32) for n in numbers)


def _gradient_sizes(p: Problem, queries: int) -> tuple[Num, ...]:
    """As hopper_grad_tiles.py has them."""
    first = sizes(
        p, GRADIENT_TOGETHER if p.ahead == 0 else GRADIENT_TOGETHER // 3
    )  # of no mask, none waits at the start
    rows = cdiv(p.keys, KEYS)
    together = int(first[5].value) // p.group
    return (
        *first,
        *_numbers(rows, p.heads, together, rows * p.heads, cdiv(p.queries, queries), p.batch_heads),
    )


def _query_tiles(region: RegionSpec) -> int:
    """Of all heads."""
    p = plain.problem(region)
    return p.heads * p.group * cdiv(p.queries, GRADIENT_QUERIES[padded(p)])


def _work(region: RegionSpec) -> tuple[Work, Work, Work, Work]:
    """Statistics and sums of dq, at multiples of 256 bytes, for copies of the accelerator; flags; and a counter."""
    d = padded(plain.problem(region))
    queries = GRADIENT_QUERIES[d] * _query_tiles(region)
    stats = f32.itemsize * 2 * queries
    stats = -(-stats // 256) * 256
    flags = stats + f32.itemsize * queries * d
    return (
        Work(0, f32),
        Work(stats, f32),
        Work(flags, i32),
        Work(flags + i32.itemsize * _query_tiles(region), i32),
    )


def maps(region: RegionSpec, boxes: dict[str, int]) -> tuple[TensorMap, ...]:
    """Of those tensors, in this order, with boxes of so many rows."""
    given = {name: (t, at) for name, t, at in tensors_of(region)}
    found = []
    for name, rows in boxes.items():
        t, at = given[name]
        own = matrices(name, t)
        assert not isinstance(own, Reject)
        found.append(own.map(at, t, rows))
    return tuple(found)
