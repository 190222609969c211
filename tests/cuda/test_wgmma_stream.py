"""Stream-K products on Hopper: how work is shared, that it is right on the model whatever the order of blocks, and that the model
would notice what it needs."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from clean_kernels import are_new
from hopper_run import run_launch
from kernel_cases import HALVES
from machines.hopper_bodies import bodies
from machines.hopper_model import Machine, Stuck
from test_wgmma import EPILOGUES, compiled
from test_wgmma_results import FULL, are_distributed
from wgmma_cases import (
    ALL,
    BY_NAME,
    H200,
    OTHERS,
    STREAMS,
    TRANSPOSES,
    activated,
    assert_refused,
    backward,
    batches,
    divided_batches,
    gemm_launch,
    named,
    other,
    product,
    residual,
    stashed,
)

from aicf.cuda_kernels.gemm import problem
from aicf.cuda_kernels.gemm.schedule import stream_k as wgmma_stream
from aicf.cuda_kernels.gemm.wgmma_body import coords_of
from aicf.cuda_kernels.gemm.wgmma_tiling import STREAM, WgmmaTiling
from aicf.cuda_kernels.hopper.stream_k import TOKEN, work_units
from aicf.types import bf16, f16

# --- who has what -----------------------------------------------------------------------------------------------------


def work_tiles_of(block, blocks, tiles, steps):
    """(of each item of a block, in order, its tile and its slices; whether the first is a head; which is a tail)"""
    machine = Machine(0)
    machine.grid = blocks
    made = (bodies(machine).of(f) for f in work_units(coords_of(problem.epilogue(product(8, 8, 8), 2))))
    plan_of, tile_of, k_tiles_of, place_of = made
    walk = block, blocks, tiles, 1, steps, steps, 0, 0
    plan = plan_of(walk, (8, 8, 8))
    first, one, end, at = *plan[:3], plan[7]
    work_tiles = []
    for i in range(first, end):
        begin, count = k_tiles_of(i, 0, walk, plan)
        work_tiles.append((tile_of(i, plan), [place_of(step, walk) for step in range(begin, begin + count)]))
    assert first in (0, 1) and one == 1 and at < end
    return work_tiles, first == 0, at - first if at else None


@pytest.mark.parametrize(
    "blocks, steps", [(1, 3), (2, 1), (3, 5), (4, 2), (7, 16), (12, 64), (132, 64), (132, 3)]
)
def test_every_slice_is_summed_once_and_all_blocks_have_as_many(blocks, steps):
    """A tile is of one block, or its first slices are the first item of the block before the one that finishes it."""
    for tiles in {blocks * w + r for w in (1, 2, 5) for r in (0, 1, blocks // 2, blocks - 1)}:
        found, counts = defaultdict(list), []
        for block in range(blocks):
            work_tiles, has_head, tail = work_tiles_of(block, blocks, tiles, steps)
            counts.append(sum(len(slices) for _, slices in work_tiles))
            for i, (tile, slices) in enumerate(work_tiles):
                found[tile].append((block, i == 0 and has_head, i == tail, slices))
        assert max(counts) - min(counts) <= 1 and sorted(found) == list(range(tiles))
        for parts in found.values():
            assert sorted(step for *_, slices in parts for step in slices) == list(range(steps))
            assert all(slices for *_, slices in parts)
            if len(parts) > 1:
                (given, is_head, _, _), (taken, _, is_tail, _) = parts
                assert is_head and is_tail and given == taken - 1
            else:
                assert parts[0][1:3] == (False, False)


@pytest.mark.parametrize("tiles", [1024, 1055, 4096, 1200])
def test_blocks_are_at_the_same_slices_at_a_time(tiles):
    """But for tails, which are some later."""
    blocks, steps = 132, 64
    for block in range(blocks):
        (work_tiles, _, tail), time = work_tiles_of(block, blocks, tiles, steps), 0
        for i, (_, slices) in enumerate(work_tiles):
            late = tiles % blocks * steps / blocks if i == tail else 0
            for step in slices:
                assert abs((time - step - late + 1) % steps - 1) <= (i == tail)
                time += 1


# --- on the model -----------------------------------------------------------------------------------------------------

ALONE = WgmmaTiling(64, 64, 1, registers=None, stream=True)
PAIR = WgmmaTiling(128, 64, 2, stream=True)
PINGPONG = WgmmaTiling(64, 64, 2, ping_pong=True, stream=True)


def junk(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def run(t, r, blocks, machine=Machine, at_once=0, workspace=None, tolerance=0.0):
    """On a device with so many multiprocessors. What the workspace holds before is not known, and afterwards no flag is up."""
    seed, device = random.randrange(2**32), replace(H200, sms=blocks)
    launch = gemm_launch(t, r, device)
    assert launch.grid == (blocks,)
    if workspace is None:
        workspace = junk(wgmma_stream.workspace(t, r, device))
    run_launch(launch, r, seed, 0, machine, tolerance, workspace, at_once)
    _, flags = wgmma_stream.pointers(t, r, device)
    assert not (workspace[flags.offset :].view(np.int64) == TOKEN).any()


# tiles and blocks: one round, two, three; one tile is left over, or all but one
ROUNDS = [(3, 2), (5, 4), (7, 4), (5, 2), (7, 3), (8, 3), (9, 4), (7, 2)]
SHARED = [(t, *each, k) for t in (ALONE, PINGPONG) for each in ROUNDS for k in (1, 200, 300)]
SHARED = [*(SHARED if ALL else random.Random(0).sample(SHARED, 2)), (PAIR, 5, 3, 136)]


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.parametrize("t, tiles, blocks, k", SHARED, ids=str)
def test_shares(t, tiles, blocks, k):
    """Blocks one after the other, and together."""
    r = product(t.m * tiles - 3, 64, k, tb=True, pitch=(-(-k // 8) * 8,) * 2)
    run(t, r, blocks)
    run(t, r, blocks, at_once=blocks)


MAKES = [(t, make) for t in (ALONE, PINGPONG) for make in (residual, stashed, activated)]


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.parametrize(
    "t, make",
    MAKES if ALL else random.Random(1).sample(MAKES, 1),
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_epilogues(t, make):
    """In boxes, whose operands nobody asks for who does not finish the tile."""
    run(t, make(2 * t.m + 8, 136, 264, tb=True), 4, at_once=4, tolerance=HALVES[f16])


@pytest.mark.sample(1, pool="on the model")
def test_words_of_a_row_that_are_distributed():
    t = replace(FULL, blocks=1, stream=True)
    r = activated(2 * t.m + 8, t.n + 72, 264, tb=True)
    assert are_distributed(t, r)
    run(t, r, 4, at_once=4, tolerance=HALVES[f16])


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.parametrize("name", ["alone", "heads"])
def test_batches(name):
    run(PINGPONG, batches(72, 64, 136)[name], 5, at_once=5, tolerance=HALVES[f16])


@pytest.mark.sample(1, pool="on the model")
def test_launch_after_launch_on_the_same_workspace():
    r, device = product(64 * 5, 64, 200), replace(H200, sms=3)
    workspace = junk(wgmma_stream.workspace(PINGPONG, r, device))
    for _ in range(3):
        run(PINGPONG, r, 3, at_once=3, workspace=workspace)


# --- that the model would notice --------------------------------------------------------------------------------------


class NoWaitForTheFlag(Machine):
    """With blocks one after the other, the last one first: nobody has given what it takes."""

    def in_order(self, blocks):
        return reversed(blocks)

    def load_acquire(self, dtype):
        return lambda address: TOKEN


class NoFlag(Machine):
    def store_release(self, dtype):
        return lambda address, x: None


@pytest.mark.sample(1, pool="mistakes")
@pytest.mark.parametrize("machine, at_once", [(NoWaitForTheFlag, 1), (NoFlag, 3)])
def test_the_model_notices(machine, at_once):
    with pytest.raises((AssertionError, Stuck)):
        for _ in range(10):
            run(PINGPONG, product(64 * 5, 64, 200), 3, machine=machine, at_once=at_once)


@pytest.mark.sample(1, pool="mistakes")
def test_the_model_notices_flags_that_stay():
    """As of a launch that was not the last one there."""
    r, device = product(64 * 5, 64, 200), replace(H200, sms=3)
    workspace = junk(wgmma_stream.workspace(PINGPONG, r, device))
    _, flags = wgmma_stream.pointers(PINGPONG, r, device)
    workspace[flags.offset :].view(np.int64)[:] = TOKEN
    with pytest.raises(AssertionError):
        for _ in range(10):
            run(PINGPONG, r, 3, at_once=3, workspace=workspace.copy())


# --- what is taken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r, reason", [
    (product(1024, 1024, 64), "is under 133"),
    (backward(8192, 8192, 64), "takes gemm+map"),
    (replace(product(8192, 8192, 64), strict=True), "strict takes one sum"),
    (product(2**15, 2**15, 2**23), "k 8388608 is over"),
])  # fmt: skip
def test_refuses_with_the_value_seen(r, reason):
    assert_refused(STREAMS, r, reason)


def test_heads_with_two_operands_of_the_map_are_not_for_tiles_that_are_divided_and_leave_in_boxes():
    found = {
        (name, variant): reject.condition
        for name, r in divided_batches(1160, 1544, 200).items()
        for variant, v in STREAMS.items()
        if (reject := v.supported(r, H200))
    }
    assert found == {
        (name, "gemm_wgmma[128x256 stream]"): "registers"
        for name in ("heads", "heads, rows", "heads of one b")
    }


@pytest.mark.parametrize("sizes, stream", [
    ((2560, 2560, 4096), True), ((5000, 5000, 4096), True), ((8192, 8192, 8192), False),
    ((4096, 4096, 4096), False), ((2048, 2048, 2048), False), ((8192, 1024, 8192), False), ((1024, 1024, 1024), False),
])  # fmt: skip
def test_chosen_where_a_last_round_is_mostly_empty(sizes, stream):
    """And not where a few tiles are all that it lacks: divided ones take longer, and tiles of two widths fill it."""
    r = activated(*sizes, keep=("d",), dtype=bf16, tb=True)
    taken = [v for v in BY_NAME.values() if v.supported(r, H200) is None]
    best = min(taken, key=lambda v: v.predicted(r, H200)[1])
    assert (best.name in STREAMS) == stream


# --- machine code -----------------------------------------------------------------------------------------------------

MAPS = [then for then in EPILOGUES if then != "backward"]
FORMS = {
    **{f"{then} {dtype} {'NT'[ta]}{'NT'[tb]}": EPILOGUES[then](4096, 4096, 4096, dtype=dtype, ta=ta, tb=tb)
       for then, dtype, (ta, tb) in itertools.product(MAPS, HALVES, TRANSPOSES)},
    **{f"{then} {' '.join(map(str, types))}": other(4096, 4096, 4096, types, EPILOGUES[then])
       for then, types in itertools.product(MAPS, OTHERS)},
    **{f"batches: {name} {dtype}": r
       for dtype in HALVES for name, r in divided_batches(1160, 1544, 1000, dtype).items()},
}  # fmt: skip
CODE = [
    (t, form) for t in STREAM for form, r in FORMS.items() if STREAMS[named(t)].supported(r, H200) is None
]
EACH = [random.Random(f"{t}").choice([c for c in CODE if c[0] == t]) for t in STREAM]


def is_new(t, form) -> bool:
    return are_new([gemm_launch(t, FORMS[form], H200)], FORMS[form], H200.target)


@pytest.mark.sample(1, always=is_new, pool="machine code")
@pytest.mark.spec("F2", "D10")
@pytest.mark.parametrize("t, form", CODE if ALL else EACH, ids=str)
def test_compiles_without_spills_or_serialized_products(t, form):
    compiled(t, FORMS[form])
