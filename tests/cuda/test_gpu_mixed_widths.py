"""Products with tiles of two widths on a Hopper GPU, against float64."""

from __future__ import annotations

import pytest
from test_gpu_kernels import gpu, opened  # noqa: F401  (fixtures)
from test_gpu_wgmma import _known, check  # noqa: F401  (a fixture)
from wgmma_cases import H200, MIXED_WIDTHS, activated, product, residual, stashed

from aicf.cuda_kernels.gemm import wgmma_tiling
from aicf.cuda_kernels.gemm.schedule import persistent
from aicf.types import bf16, f16

pytestmark = pytest.mark.gpu

(TILING,), (VARIANT,) = wgmma_tiling.MIXED_WIDTHS, MIXED_WIDTHS.values()
ROWS, COLUMNS = (
    1104,
    2056,
)  # 9 x 17 tiles: two waves of a wide tile, or one of a wide tile and one of a narrow one


@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS - 8, COLUMNS - 5])
def test_transposes(gpu, ta, columns):  # noqa: F811
    """Results in boxes, and, of odd rows, one by one."""
    r = product(ROWS, columns, 200, dtype=bf16 if ta else f16, ta=ta, tb=True)
    assert persistent.narrow_tiles(TILING, r, H200) == 16
    check(gpu, VARIANT.id, r)


@pytest.mark.spec("D5", "D7", "D8")
@pytest.mark.parametrize("make", [activated, residual, stashed])
def test_epilogues(gpu, make):  # noqa: F811
    check(gpu, VARIANT.id, make(ROWS, COLUMNS, 136, dtype=bf16, tb=True))
