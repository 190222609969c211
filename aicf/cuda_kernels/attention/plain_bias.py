"""A variant for the gradient of attention's bias in f32 on CUDA cores. See plain_bias_body.py."""

from __future__ import annotations

from dataclasses import replace

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, one_launch
from ...registry.variant import Checks, Launch, Num, Out, Reject, cdiv, variant
from ...rows import RegionSpec
from ...rows.program import collapse
from ...types import i32, numel
from .plain import arguments, checks, cost_of, form_of, given_of, padded, problem, walk_of
from .tile_products import DEPTH, THREADS, TILE


def _heads(region: RegionSpec) -> tuple[int, ...] | Reject:
    """How query heads go with matrices of the bias, as the kernel's `walk`, behind how many matrices there are."""
    walk = walk_of(region, "bias")
    assert walk is not None
    whole, steps = walk
    sizes, (along,) = collapse(whole[:-2], [steps[:-2]])
    sides: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for axis, (size, step) in enumerate(zip(sizes, along)):
        sides[step == 0].append((size, numel(sizes[axis + 1 :])))
    if max(map(len, sides)) > 2:
        return Reject("bias", f"is repeated along some of {whole[:-2]} in more than two groups of axes")
    (kept, _), (repeated, _) = counts = [(numel([n for n, _ in side]), side) for side in sides]
    numbers: list[int] = []
    for _, side in counts:
        (_, outer), (size, inner) = [(1, 0)] * (2 - len(side)) + side
        numbers += [max(size, 1), outer, inner]
    return kept, *numbers, repeated


@variant("attention_bias_grad", id="cuda.attention_bias_grad_plain.v1")
class AttentionBiasGradPlain:
    """A block of 256 threads per tile of 64 queries and 64 keys of the bias, over all heads that it is repeated along, one after the other.

    Scores are computed again. Tiles that masks leave nothing of are passed over. Limit: as of cuda.attention_plain.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from checks(region)
        heads = _heads(region)
        yield heads if isinstance(heads, Reject) else None

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem(region)
        each = padded(p.d, DEPTH) + padded(p.dv, DEPTH)
        return cost_of(region, device, 1, ((cdiv(p.queries, TILE), 1, each),), 2)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .plain_bias_body import bias_gradient

        p, heads = problem(region), _heads(region)
        assert not isinstance(heads, Reject)
        kept, *walk = heads
        own = p._replace(batch_heads=p.batch_heads * p.group, group=1, heads=kept)
        tiles, parts = cdiv(p.queries, TILE), cdiv(p.keys, TILE)
        mask, lengths, bias, *numbers = arguments(region, tiles, max(1, parts), own)
        form = replace(form_of(region), columns=TILE)
        args = (
            *given_of(region), mask, lengths, bias, Out(0), *numbers, tuple(Num(n, i32) for n in (*walk, p.group))
        )  # fmt: skip
        return [Launch(bias_gradient(form), (max(1, kept * tiles * parts),), (THREADS,), args)]
