"""Tiles of attention's kernels: each region that a kernel accepts has one, each is some region's, and what a block has of it fits the device."""

from __future__ import annotations

from typing import Any

from draws import seeds
from kernel_cases import VARIANTS, attention, attention_grad

from aicf.cuda_kernels.attention import decode, mma, wgmma
from aicf.cuda_kernels.attention.problem import problem
from aicf.device.spec import preset
from aicf.rows import RegionSpec
from aicf.types import bf16, f16

DEVICES = [preset(name) for name in ("h200", "a100", "l40s")]
DRAWN = 40


def region(d: int, loads: int, queries: int = 70, keys: int = 90, gradient: bool = False, **asked: Any) -> RegionSpec:  # fmt: skip
    """With no mask or bias of each score, with one, or with both."""
    scores = (4, queries, keys)
    asked |= [{}, {"mask": scores}, {"mask": scores, "bias": scores}][loads]
    make = attention_grad if gradient else attention
    return make((4, queries, d), (2, keys, d), **{"dtype": bf16, **asked})


def test_every_tile_is_some_region_s():
    of_mma = [
        (problem(region(d, loads)), device)
        for d in (64, 128, 256)
        for loads in (0, 1, 2)
        for device in DEVICES
    ]
    for tiles in (mma.TILES, mma.QUERY_TILES, mma.KEY_TILES):
        assert {mma.tile_of(tiles, *x) for x in of_mma} == set(tiles)
    for tiles in (wgmma.TILES, wgmma.GRADIENT_TILES):
        assert {wgmma.tile_of(tiles, problem(region(d, 0))) for d in (40, 128)} == set(tiles)
    few = [problem(attention((2, n, 64), (2, 90, 64), dtype=bf16)) for n in range(1, 9)]
    assert {decode.tile_of(p) for p in few} == set(decode.TILES)


def test_every_region_has_a_tile_that_fits(request):
    rng = seeds.rng(request.node.nodeid)
    built = 0
    for n in range(DRAWN):
        d, loads, gradient = 2 * int(rng.integers(1, 129)), int(rng.integers(3)), bool(rng.integers(2))
        queries, keys = (int(rng.choice([1, 7, 16, 64, 100, 300])) for _ in range(2))
        asked = {"dv": 2 * int(rng.integers(1, 129)), "dtype": f16} if rng.random() < 0.3 else {}
        r = region(d, loads, queries, keys, gradient, causal=bool(rng.integers(2)), **asked)
        for device in DEVICES:
            for v in VARIANTS.values():
                if r.kind.name in v.kinds and v.supported(r, device) is None:
                    launches, built = v.build(r, device), built + 1
                    assert v.cost(r, device).us > 0 and v.query_workspace(r, device) >= 0
                    for launch in launches:
                        assert launch.shared <= device.shared_per_block, (n, v.id, str(r), device.name)
    assert built > DRAWN
