"""Variants for drawing tokens, and for the record of those that were there."""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, machine, one_launch, roofline
from ...registry.variant import Checks, In, Launch, Num, Out, cdiv, contiguous, exact, one_op, variant
from ...rows import RegionSpec

PASSES = 14  # over a row, where top_k and top_p are both asked for
STEP_US = 0.02  # an element of a thread in a pass: a load from L2, and exp


def _threads(words: int) -> int:
    """1024 where a row is long; few rows are few blocks."""
    return 256 if words <= 8192 else 1024


@variant("sample_tokens", id="cuda.sample_tokens.v1")
class SampleTokens:
    """A block for each row, which it reads from L2 again for each step: the greatest logit; then, where they are asked for, the k-th
    greatest and the last of top_p by histograms in shared memory, of integers, so in any order; then the draw, by sums of pieces.

    Parallel over rows. Bytes: the logits, up to 14 times. Limit: one multiprocessor for a row.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    least, numerics = one_launch, exact

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        logits = region.tensors[region.anchor.inputs[0]]
        rows, words = logits.shape
        each = cdiv(words, _threads(words))
        return roofline(
            device, bytes=2 * logits.nbytes, cached=PASSES * logits.nbytes, flops=16 * PASSES * logits.numel, blocks=max(1, rows),
            chain=PASSES * (each * STEP_US + 4 * machine(device).cache_trip_us),
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .sampling_body import sample_tokens

        logits = region.tensors[region.anchor.inputs[0]]
        rows, words = logits.shape
        pointers = tuple(In(region.inputs.index(t)) for t in region.anchor.inputs)
        threads = _threads(words)
        args = (*pointers, Out(0), Num(rows), Num(words))
        return [Launch(sample_tokens(logits.dtype, threads), (max(1, rows),), (threads,), args)]


@variant("mark_tokens", id="cuda.mark_tokens.v1")
class MarkTokens:
    """A block for each row: it is cleared or copied where it must be, then tokens are marked. Limit: the launch."""

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    least, numerics = one_launch, exact

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        seen, tokens, *_ = (region.tensors[t] for t in region.anchor.inputs)
        return roofline(
            device,
            bytes=2 * tokens.nbytes,
            blocks=max(1, seen.shape[0]),
            chain=3 * machine(device).cache_trip_us,
        )

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .sampling_body import mark_tokens

        seen, tokens, *_ = (region.tensors[t] for t in region.anchor.inputs)
        pointers = tuple(In(region.inputs.index(t)) for t in region.anchor.inputs)
        args = (*pointers, Out(0), Num(seen.shape[0]), Num(seen.shape[1]), Num(tokens.shape[1]))
        return [Launch(mark_tokens, (max(1, seen.shape[0]),), (256,), args)]
