"""A variant of attention for few queries over many keys, as in decoding with a KV cache: limited by reading keys and values once."""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...registry.cost import CACHE_TRIP_US, Cost, one_launch, roofline
from ...registry.variant import (
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
from ...types import f32, i32
from .decode_body import THREADS, DecodeForm
from .plain import Problem, operands, optional, problem, scale_factor

QUERIES, WIDEST, ROWS, LANES = (
    16,
    256,
    8,
    32,
)  # most queries of a head, elements of a row, rows of a block, lanes of a key
BYTES = 16  # of a load
KEYS = {1: 4, 2: 4, 4: 2, 8: 1}  # of a group of lanes at a time, by rows: what registers leave room for
FRACTION = {1: 0.8, 2: 0.75, 4: 0.65, 8: 0.45}  # of the bandwidth, by the loads that are under way at once
WAVES = 4  # blocks of a multiprocessor
STEP_US = 0.25  # beside a trip to memory: shuffles and exp


def _power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _form(region: RegionSpec, p: Problem) -> DecodeForm:
    dtype = region.results[0].dtype
    width = BYTES // dtype.itemsize
    lanes = min(LANES, _power(cdiv(p.d, width)))
    rows = min(ROWS, _power(p.rows))
    return DecodeForm(
        dtype, rows, lanes, cdiv(p.d, lanes * width), width, KEYS[rows], bool(region.attrs["softcap"]),
        optional(region, "lengths") is not None,
    )  # fmt: skip


def _splits(p: Problem, form: DecodeForm, device: DeviceSpec) -> int:
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
        yield one_op(region)
        yield contiguous(region)
        for name in ("mask", "bias"):
            if optional(region, name) is not None:
                yield Reject(name, f"takes masks of positions and lengths, no {name} from memory")
        p, dtype = problem(region), region.results[0].dtype
        if not 0 < p.queries <= QUERIES:
            yield Reject("queries", f"takes 1 to {QUERIES} queries of a head, these are {p.queries}")
        yield at_most("d", p.d, WIDEST)
        if p.d != p.dv or not p.d or p.d * dtype.itemsize % BYTES:
            yield Reject(
                "d",
                f"takes rows of keys and values of one length, of whole {BYTES} bytes; these are {p.d} and {p.dv}",
            )
        if not all(x.alignment >= BYTES for x in operands(region)[:3] if x is not None):
            yield Reject("alignment", f"loads {BYTES} bytes at once")
        yield at_most("rows and keys", max(p.heads * p.rows, p.heads * p.keys), 2**30)

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem(region)
        form = _form(region, p)
        tiles, splits = cdiv(p.rows, form.rows), _splits(p, form, device)
        steps = cdiv(cdiv(p.keys, splits), form.groups * form.keys)
        own = p.heads * p.keys * 2 * p.d * form.dtype.itemsize
        return roofline(
            device, bytes=region.nbytes, flops=4.0 * p.heads * tiles * form.rows * p.keys * p.d, efficiency=0.4,
            useful=4.0 * p.heads * p.rows * p.keys * p.d, memory_efficiency=FRACTION[form.rows], launches=2,
            blocks=max(1, p.heads * tiles * splits), blocks_per_sm=form.blocks_per_sm, chain=steps * (CACHE_TRIP_US + STEP_US),
            cached=float(tiles * own + 2 * p.heads * p.rows * splits * p.d * f32.itemsize),
        )  # fmt: skip

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        p = problem(region)
        return f32.itemsize * p.heads * p.rows * _splits(p, _form(region, p), device) * (p.d + 2)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .decode_body import joined_attention, partial_attention

        p = problem(region)
        form, lengths = _form(region, p), optional(region, "lengths")
        tiles, splits = cdiv(p.rows, form.rows), _splits(p, form, device)
        sizes = (p.queries, p.keys, p.batch_heads, p.group, p.heads, p.d, p.dv)
        given = tuple(In(region.inputs.index(t)) for t in region.anchor.inputs[:3])
        rows = p.heads * p.rows
        sums, stats = Work(0, f32), Work(f32.itemsize * rows * splits * p.d, f32)
        args = (
            *given, () if lengths is None else (In(lengths[0]),), sums, stats, tuple(Num(n, i32) for n in sizes),
            (Num(max(1, tiles), i32), Num(splits, i32)), (Num(p.ahead, i32), Num(p.behind, i32)),
            (Num(scale_factor(region), f32), Num(region.attrs["softcap"], f32)),
        )  # fmt: skip
        blocks = max(1, p.heads * tiles * splits)
        return [
            Launch(partial_attention(form), (blocks,), (THREADS,), args),
            Launch(
                joined_attention(form.dtype), (max(1, rows),), (THREADS,),
                (sums, stats, Out(0), Out(1), Num(rows), Num(splits), Num(p.d)),
            ),
        ]  # fmt: skip
