"""A variant of attention for few queries over many keys, as in decoding with a KV cache: limited by reading keys and values once."""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, machine, one_launch, roofline
from ...registry.variant import (
    Checks,
    Launch,
    Num,
    NumericClass,
    Reject,
    Work,
    at_most,
    cdiv,
    contiguous,
    no_class,
    variant,
)
from ...rows import RegionSpec
from ...types import f32
from .decode_body import THREADS, TILES, DecodeForm, DecodeTile
from .problem import AttentionProblem, problem

QUERIES, WIDEST, LANES = 16, 256, 32  # most queries of a head, elements of a row, lanes of a key
BYTES = 16  # of a load
WAVES = 4  # blocks of a multiprocessor
STEP_US = 0.25  # beside a trip to memory: shuffles and exp
# On an H200: of the f32 rate, with shuffles and conversions; of a block's end, where its groups are added up, and for each of its rows; and of each share of
# the keys, which the second launch adds to those before it
RATE, END_US, ROW_US, SHARE_US = 0.13, 1.0, 0.8, 0.3


def tile_of(p: AttentionProblem) -> DecodeTile:
    """The first tile that has all rows of a head, or the last."""
    return next((t for t in TILES if p.rows <= t.rows), TILES[-1])


def _form(p: AttentionProblem) -> DecodeForm:
    width = BYTES // p.dtype.itemsize
    lanes = min(LANES, 1 << (cdiv(p.d, width) - 1).bit_length())
    return DecodeForm(*p.form, tile_of(p), lanes, cdiv(p.d, lanes * width), width)


def _splits(p: AttentionProblem, form: DecodeForm, device: DeviceSpec) -> int:
    """How many blocks share the keys of a head: as many as keep the chip busy, each with a few steps at least."""
    wanted = cdiv(WAVES * device.sms, max(1, p.heads * cdiv(p.rows, form.rows)))
    return max(1, min(wanted, cdiv(p.keys, 2 * form.groups * form.keys)))


@variant("attention", id="cuda.attention_decode.v1")
class AttentionDecode:
    """Two launches: blocks of 128 threads share the keys of a head, of which a group of lanes takes one at a time for up to 8 rows, and leave
    sums in the workspace; then a block for each row puts them together, in order, so equal calls have equal bits.

    Parallel over keys. Bytes: keys and values that exist once for each 8 rows, queries of all heads that share them. Limit: memory, for few
    rows; for more of them shuffles and f32 arithmetic.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield contiguous(region)
        p = problem(region)
        for name in ("mask", "bias"):
            if name in p:
                yield Reject(name, f"takes masks of positions and lengths, no {name} from memory")
        if not 0 < p.queries <= QUERIES:
            yield Reject("queries", f"takes 1 to {QUERIES} queries of a head, these are {p.queries}")
        yield at_most("d", p.d, WIDEST)
        if p.d != p.dv or not p.d or p.d * p.dtype.itemsize % BYTES:
            yield Reject(
                "d",
                f"takes rows of keys and values of one length, of whole {BYTES} bytes; these are {p.d} and {p.dv}",
            )
        if not all(p[name].alignment >= BYTES for name in "qkv"):
            yield Reject("alignment", f"loads {BYTES} bytes at once")
        yield at_most("rows and keys", max(p.heads * p.rows, p.heads * p.keys), 2**30)

    least = one_launch

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        return no_class("keys are divided among blocks by the number of heads and rows")

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem(region)
        form = _form(p)
        tiles, splits = cdiv(p.rows, form.rows), _splits(p, form, device)
        steps = cdiv(cdiv(p.keys, splits), form.groups * form.keys)
        own = p.heads * p.keys * 2 * p.d * form.dtype.itemsize
        return roofline(
            device, bytes=region.nbytes, flops=4.0 * p.heads * tiles * form.rows * p.keys * p.d, efficiency=RATE,
            useful=4.0 * p.heads * p.rows * p.keys * p.d, memory_efficiency=form.tile.bandwidth, launches=2,
            blocks=max(1, p.heads * tiles * splits), blocks_per_sm=form.tile.blocks_per_sm, chain=steps * (machine(device).cache_trip_us + STEP_US),
            cached=float(tiles * own + 2 * p.heads * p.rows * splits * p.d * f32.itemsize),
        ).plus(ends=END_US + ROW_US * form.rows + SHARE_US * splits)  # fmt: skip

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        p = problem(region)
        return f32.itemsize * p.heads * p.rows * _splits(p, _form(p), device) * (p.d + 2)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .decode_body import joined_attention, partial_attention

        p = problem(region)
        form = _form(p)
        tiles, splits = cdiv(p.rows, form.rows), _splits(p, form, device)
        rows = p.heads * p.rows
        sums, stats = Work(0, f32), Work(f32.itemsize * rows * splits * p.d, f32)
        args = (*p.inputs(), *p.optional("lengths"), sums, stats, *p.numbers(tiles, splits)[:4])
        ends = (sums, stats, *p.at("out", "lse"), Num(rows), Num(splits), Num(p.d))
        return [
            Launch(partial_attention(form), (max(1, p.heads * tiles * splits),), (THREADS,), args),
            Launch(joined_attention(form.dtype), (max(1, rows),), (THREADS,), ends),
        ]
