"""Tiles of two widths in one Hopper product: what they compute, on a model of the machine; where they are; when they are taken."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hopper_run import run_launch
from kernel_cases import HALVES
from machines.hopper_bodies import bodies
from machines.hopper_model import Machine
from test_wgmma import EPILOGUES, assert_clean
from wgmma_cases import (
    ALL,
    H200,
    MIXED_WIDTHS,
    OTHERS,
    TRANSPOSES,
    activated,
    backward,
    batches,
    gemm_launch,
    other,
    product,
    residual,
)

from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.gemm import wgmma as gemm_wgmma
from aicf.cuda_kernels.gemm import wgmma_tiling
from aicf.cuda_kernels.gemm.schedule import persistent
from aicf.cuda_kernels.gemm.wgmma_body import counter_of, placer_of
from aicf.cuda_kernels.gemm.wgmma_tiling import WgmmaTiling
from aicf.rows import RegionSpec
from aicf.types import DType, f16, f32

PINGPONG, SHARED = WgmmaTiling(64, 64, 2, ping_pong=True, narrow_n=56), WgmmaTiling(128, 64, 2, narrow_n=56)


def launch(t: WgmmaTiling, r: RegionSpec, narrow_tiles: int, monkeypatch: pytest.MonkeyPatch):
    """With so many narrow tiles in a row, whatever they are good for."""
    monkeypatch.setattr(gemm_wgmma, "narrow_tiles", lambda *asked: narrow_tiles)
    return gemm_launch(t, r, H200)


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D9", "F2")
@pytest.mark.parametrize("narrow_tiles", [0, 8])
@pytest.mark.parametrize("ta, tb", TRANSPOSES)
def test_every_number_goes_where_it_belongs(ta, tb, narrow_tiles, monkeypatch):
    """Narrow tiles on the left, others on the right, edges beyond both."""
    r = product(72, 520, 136, ta=ta, tb=tb)
    run_launch(launch(PINGPONG, r, narrow_tiles, monkeypatch), r, 0, 1)


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D9", "F2")
@pytest.mark.parametrize("t", [PINGPONG, SHARED], ids=str)
@pytest.mark.parametrize("r", [
    activated(136, 456, 8, act="relu", tb=True),
    residual(136, 456, 8),
    product(136, 456, 8, ("w", "convert", "y", {"dtype": f32.id}), tb=True),  # one by one
], ids=["activated", "residual", "f32"])  # fmt: skip
def test_epilogues_read_and_write_what_they_should(t, r, monkeypatch):
    """Of a narrow tile: nothing is stored that is the next one's."""
    run_launch(launch(t, r, 8, monkeypatch), r, 0, 2)


@pytest.mark.parametrize("rows, columns, narrow_tiles", [(3, 9, 0), (3, 9, 8), (2, 20, 16), (5, 8, 8)])
def test_tiles_cover_the_results_once(rows, columns, narrow_tiles):
    t = replace(PINGPONG, m=128)
    python, sizes = bodies(Machine(0)), (rows * 128, columns * 64, 64, narrow_tiles)
    where, count = python.of(placer_of(t, False)), python.of(counter_of(t))(sizes)
    seen = [where(tile, rows, count, sizes) for tile in range(rows * count)]
    covered = sorted((row, first, first + (64 if strip < 0 else 56)) for row, first, _, strip in seen)
    for row, tiles in itertools.groupby(covered, key=lambda one: one[0]):
        ends = [(first, last) for _, first, last in tiles]
        assert ends[0][0] == 0 and ends[-1][1] == columns * 64
        assert all(a[1] == b[0] for a, b in itertools.pairwise(ends)), row
    assert [s >= 0 for *_, s in seen] == sorted(s >= 0 for *_, s in seen), "the narrow ones are the last"


MAPS = [then for then in EPILOGUES if then != "backward"]
CODE = list(itertools.product(wgmma_tiling.MIXED_WIDTHS, TRANSPOSES, HALVES, MAPS))


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2", "D10")
@pytest.mark.parametrize("t, order, dtype, then", CODE if ALL else CODE[:: len(CODE) // 4], ids=str)
def test_compiles_without_spills_or_serialized_products(t, order, dtype: DType, then):
    r = EPILOGUES[then](4096, 4096, 4096, dtype=dtype, ta=order[0], tb=order[1])
    made = gemm_launch(t, r, H200)
    assert_clean(t, engine.compile_launch(made, r, H200.target))


@pytest.mark.spec("D5")
def test_they_fill_the_last_wave():
    """4096 x 4096 is 1,024 tiles of 128 x 128: eight waves, of which one is three quarters full; with 16 narrow tiles in the place of 15
    it is 1,056, and each of 132 multiprocessors has eight, of which at most five are wide."""
    (t,) = wgmma_tiling.MIXED_WIDTHS
    for size, narrow_tiles, wide, narrow in ((4096, 16, 5, 3), (8192, 32, 17, 15), (2048, 0, 2, 0)):
        r = product(size, size, size, tb=True)
        assert persistent.narrow_tiles(t, r, H200) == narrow_tiles
        assert persistent.busiest_columns(t, r, H200, narrow_tiles) == 128 * wide + 120 * narrow


def test_refuses_with_the_value_seen():
    (v,) = MIXED_WIDTHS.values()
    assert "n 1912 is under 1920" in str(v.supported(product(64, 1912, 64, tb=True), H200))
    assert "axes of the batch 1 is over 0" in str(v.supported(batches(64, 2048, 64)["alone"], H200))
    assert "fp8 accumulators are promoted" in str(v.supported(other(64, 2048, 64, OTHERS[1]), H200))
    assert v.supported(product(64, 1920, 64, dtype=f16, tb=True), H200) is None
    assert "b is N-major" in str(v.supported(product(64, 1920, 64), H200))
    assert v.supported(backward(64, 1920, 64), H200) is not None, (
        "sums of columns took as long as with one width"
    )
