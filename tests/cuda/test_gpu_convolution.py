"""Convolutions on a GPU: every tiling against float64, on windows of all kinds; NaN and what is around operands and results."""

from __future__ import annotations

import numpy as np
import pytest
from convolution_cases import COLUMNS, DIRECT, FORMS, SHAPES, VARIANTS, biased, convolution
from kernel_cases import HALVES, Case, assert_close, operands_for, reference, with_specials
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)

from aicf.types import bf16, f16, f32

pytestmark = pytest.mark.gpu

IDS = sorted(v.id for v in VARIANTS.values())
# more tiles than multiprocessors; rows of windows that are longer than a tile, and images that are shorter; ResNet-50's own
LARGE = {
    "3x3": ((16, 56, 56, 64), (64, 3, 3, 64), {"low": (1, 1), "high": (1, 1)}),
    "steps": ((16, 57, 55, 128), (136, 3, 3, 128), {"low": (1, 1), "high": (1, 1), "strides": (2, 2)}),
    "wide": ((2, 3, 300, 40), (96, 3, 3, 40), {"low": (1, 1), "high": (1, 1)}),
    "small images": ((300, 3, 3, 256), (264, 3, 3, 256), {"low": (1, 1), "high": (1, 1)}),
    "1x1": ((9, 28, 28, 512), (128, 1, 1, 512), {}),
    "stem": ((4, 112, 112, 8), (64, 7, 7, 8), {"low": (3, 3), "high": (3, 3), "strides": (2, 2)}),
}


def check(gpu, variant, r, dtype):  # noqa: F811
    case = Case(variant, r, tolerance=HALVES[dtype])
    operands = operands_for(case)
    got = launch_case(gpu, case, operands.memory)
    assert_close(case, got, reference(case, operands.arrays))


@pytest.mark.sample(1, each="variant", gpu=True)
@pytest.mark.spec("D13")
@pytest.mark.parametrize("variant", IDS)
@pytest.mark.parametrize("make", [convolution, biased])
def test_every_kind_of_window(gpu, variant, make):  # noqa: F811
    for i, (x, w, attrs) in enumerate([*SHAPES.values(), *LARGE.values()]):
        dtype = (f16, bf16)[(i + IDS.index(variant)) % 2]
        check(gpu, variant, make(x, w, dtype=dtype, **attrs), dtype)


@pytest.mark.spec("D13")
@pytest.mark.parametrize("variant", IDS[:2])
def test_nan_and_infinity_stay_in_the_windows_that_have_them(gpu, variant):  # noqa: F811
    x, w, attrs = SHAPES["3x3"]
    case = Case(variant, convolution(x, w, **attrs), tolerance=HALVES[f16])
    operands = with_specials(case, operands_for(case))
    got = launch_case(gpu, case, operands.memory)
    want = reference(case, operands.arrays)
    np.testing.assert_array_equal(
        np.isfinite(got[0].astype(np.float64)), np.isfinite(want[0].astype(np.float64))
    )


# more windows than a block has rows, channels of several blocks, images in turns; depthwise layers of MobileNet, groups of ResNeXt
MANY = {
    "stem": ((8, 224, 224, 3), (64, 7, 7, 3), {"low": (3, 3), "high": (3, 3), "strides": (2, 2)}),
    "depthwise": ((8, 56, 56, 144), (144, 3, 3, 1), {"low": (1, 1), "high": (1, 1), "groups": 144}),
    "groups": ((4, 28, 28, 256), (256, 3, 3, 8), {"low": (1, 1), "high": (1, 1), "groups": 32}),
    "two groups": ((2, 27, 27, 96), (256, 5, 5, 48), {"low": (2, 2), "high": (2, 2), "groups": 2}),
    "three axes": ((1, 16, 56, 56, 16), (33, 3, 3, 3, 16), {"low": (1, 1, 1), "high": (1, 1, 1)}),
    "transposed": (
        (4, 28, 28, 64),
        (32, 4, 4, 64),
        {"low": (2, 2), "high": (2, 2), "input_dilation": (2, 2)},
    ),
}


@pytest.mark.sample(1, each="dtype", gpu=True)
@pytest.mark.spec("D13")
@pytest.mark.parametrize("variant", [COLUMNS, DIRECT])
@pytest.mark.parametrize("make", [convolution, biased])
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
def test_every_form(gpu, variant, make, dtype):  # noqa: F811
    for x, w, attrs in [*FORMS.values(), *MANY.values()]:
        if variant == DIRECT or attrs.get("groups", 1) == 1:
            case = Case(variant, make(x, w, dtype=dtype, **attrs), {f32: 2e-5, **HALVES}[dtype])
            operands = operands_for(case)
            got = launch_case(gpu, case, operands.memory)
            assert_close(case, got, reference(case, operands.arrays))


@pytest.mark.spec("D13")
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_images_take_turns(gpu, dtype, monkeypatch):  # noqa: F811
    from aicf.cuda_kernels.conv import columns

    monkeypatch.setattr(columns, "BYTES", 2**20)
    x, w, attrs = LARGE["3x3"]
    for make in (convolution, biased):
        case = Case(COLUMNS, make(x, w, dtype=dtype, **attrs), {f32: 2e-5, **HALVES}[dtype])
        operands = operands_for(case)
        assert_close(case, launch_case(gpu, case, operands.memory), reference(case, operands.arrays))
