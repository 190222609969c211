"""A variant of attention for few queries on tensor cores by mma.sync, sm_80 and newer, whose rows have the bits of cuda.attention_wgmma: a token's attention
is the same in a prompt, on Hopper's tensor cores, and alone with a cache of keys. See few_body.py."""

from __future__ import annotations

from math import gcd

from ...device.spec import DeviceSpec, by_architecture
from ...registry.cost import Cost, one_launch, roofline
from ...registry.variant import Checks, Launch, NumericClass, Reject, at_most, cdiv, variant
from ...rows import RegionSpec
from .few_tiles import KEYS, ROWS, SMALLEST, STAGES, TOGETHER, WIDEST_COPY, FewForm, FewPlan
from .mma import ALIGNMENT, STEP, padded, steps_of
from .problem import (
    OF_ROWS,
    AttentionProblem,
    extent_checks,
    halves_checks,
    ints,
    matrices,
    matrix_checks,
    problem,
)
from .wgmma import WIDEST, class_from_the_last_tile, scales

# On 9.x as an H200 was measured to do, elsewhere guesses: the share of the tensor cores' rate that several blocks of a multiprocessor reach together; of the
# bandwidth; microseconds of a tile of keys beside its products, where a block is alone: barriers, shuffles, exponentials; of a block's start and end.
CEILING = {"8": 0.25, "9": 0.155, "10": 0.08, "12": 0.25, "later": 0.08}
MEMORY_EFFICIENCY = 0.75
TILE_US = 0.1
FINISH_US = 1.2


def _form(p: AttentionProblem, device: DeviceSpec) -> FewForm:
    pitches = [pitch for m in matrices(p, ALIGNMENT) for pitch in m.pitches]
    aligned = [t.alignment for name, (t, _) in p.tensors.items() if name in OF_ROWS]
    d, dv = padded(p.d), padded(p.dv, 64)
    copiers = blocks_of(p) <= device.sms
    room = device.shared_per_block // (1 if copiers else TOGETHER)
    stages = next((n for n in STAGES if FewPlan(d, dv, n).nbytes <= room), STAGES[-1])
    return FewForm(*p.form, d, dv, gcd(WIDEST_COPY, *pitches, *aligned), stages, copiers)


def blocks_of(p: AttentionProblem) -> int:
    return p.heads * cdiv(p.rows, ROWS)


@variant("attention", id="cuda.attention_few.v1", strided=True, needs=("sm_80",), shared=SMALLEST)
class AttentionFew:
    """A block of four warps per 16 rows, queries of all heads that share keys, over tiles of 128 keys in up to three stages that cp.async fills.

    The order of operations is that of cuda.attention_wgmma: tiles from the last one on, scores from zero over d in steps of 16, P V over a tile's keys in steps of
    16, then rescaled. Each warp has 32 columns of scores and a quarter of the result's; weights go by way of shared memory.
    Bytes: keys and values that exist once for each 16 rows, 64 KB a tile of d = 128. Flops: 4 d for each score of 16 x 128 tiles that masks leave: for one
    query 16 times too many, which is nothing beside the bytes. Latency: tiles of keys one after another, 0.5 to 0.8 us each with d = 64, 0.9 to 1.5 with 128.
    Registers: 128 to 170, no spills. Shared memory: 104 KB of d = 64 with three stages, 198 KB of 128; 70 KB of three blocks together, of which four warps
    each copy as well. Limit: memory, of many heads or sequences; latency, of few.
    """

    least = one_launch

    def accepts(region: RegionSpec) -> Checks:
        yield from halves_checks(region)
        p = problem(region)
        for name in ("mask", "bias"):
            if name in p:
                yield Reject(name, f"takes masks of positions and lengths, no {name} from memory")
        yield from extent_checks(p, WIDEST)
        yield at_most("rows", p.rows, 2**30)
        yield at_most("blocks", blocks_of(p), 2**31 - 1)
        if not p.scales_after_maxima:
            yield Reject("scale", f"scale is {p.scale}, needs more than 0: maxima are found before it")
        for name in filter(OF_ROWS.__contains__, p.tensors):
            if (d := p[name].shape[-1]) % 2:
                yield Reject("head size", f"{name} has rows of {d}, needs a multiple of 2")
        yield from matrix_checks(p, ALIGNMENT)
        for name in ("lse", "lengths"):
            if name in p and not p[name].contiguous:
                yield Reject("contiguous", f"{name} is {p[name]}, needs to be dense")

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        return class_from_the_last_tile(problem(region))

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem(region)
        tiles, d = p.heads * p.tiles(ROWS, KEYS), (padded(p.d, STEP) + padded(p.dv, 64)) / 2
        blocks, scores = blocks_of(p), tiles * ROWS * KEYS
        return roofline(
            device, bytes=region.nbytes, flops=4.0 * scores * d, rate=p.dtype.name, useful=4.0 * p.heads * p.rows * p.keys * (p.d + p.dv) / 2,
            efficiency=by_architecture(CEILING, device), memory_efficiency=MEMORY_EFFICIENCY, blocks=blocks, blocks_per_sm=TOGETHER,
            finish=FINISH_US, chain=TILE_US * tiles / max(1, blocks), cached=2.0 * tiles * KEYS * 2 * d,
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .few_body import forward

        p = problem(region)
        form, tiles = _form(p, device), cdiv(p.rows, ROWS)
        sizes, _, limits = p.numbers(tiles, 1)[:3]
        args = (
            *p.inputs(), *p.optional("lengths"), *p.at("out", "lse"), sizes, *ints(tiles), limits, scales(p),
            *steps_of(p, "q", "k", "v", "out"),
        )  # fmt: skip
        shared = FewPlan(form.d, form.dv, form.stages).nbytes
        return [Launch(forward(form), (p.heads * tiles,), (form.threads,), args, shared)]
