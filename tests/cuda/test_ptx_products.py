"""wgmma of every sort of element, from shared memory and from registers: its code, and its sums, on a model and on a GPU."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest
from kernel_cases import desc
from machines import hopper_model
from product_kernels import expected_products, operands, products
from ptx_support import ALL, PLACES, OnModel, code, computer, regions_of
from test_gpu_kernels import gpu, opened  # noqa: F401  (fixtures)

from aicf.cuda_kernels.ptx.wgmma import NBYTES, k_tile_text, kinds_of
from aicf.rows import RegionSpec
from aicf.types import bf16, f16, f32, i32

MAJORS = list(itertools.product((False, True), repeat=2))
FP8, BYTES = (list(itertools.product(pair, repeat=2)) for pair in (("e4m3", "e5m2"), ("s8", "u8")))
# elements, n, blocks, a_k_major, b_k_major
HALVES = [(dtype, n, blocks, *fast) for dtype in (f16, bf16) for n, blocks in ((64, 1), (128, 2), (192, 1), (256, 1), (24, 1))
          for fast in MAJORS] + [(dtype, n, 1, None, fast) for dtype in (f16, bf16) for n in (64, 136) for fast in (False, True)]  # fmt: skip
OTHERS = [(elements, n, blocks, a, True) for elements in ("tf32", *FP8, *BYTES)
          for n, blocks, a in ((64, 1, True), (32, 2, None), (96, 1, None), (8, 2, True))]  # fmt: skip
CASES = HALVES + OTHERS
SAMPLE = CASES if ALL else [*random.Random(1).sample(HALVES, 3), (bf16, 64, 1, None, False),
                            *(OTHERS[4 * i + i % 4] for i in range(9))]  # fmt: skip


def region_of(elements, n: int, blocks: int) -> RegionSpec:
    whole = kinds_of(elements)[0] in ("s8", "u8")
    return regions_of([desc((1,), i32)] * 2, desc((64 * blocks, n), i32 if whole else f32))


@pytest.fixture(params=PLACES)
def compute(request):
    return computer(request)


@pytest.mark.sample(2)
@pytest.mark.spec("D10", "F2")
@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_products_assemble(case):
    """One instruction for each 32 bytes of k, twice; both majors of halves are its last two bits."""
    elements, n, blocks, a_k_major, b_k_major = case
    text = code(products(*case, True), region_of(elements, n, blocks))
    left, right = kinds_of(elements)
    sort = f"k{32 // NBYTES[left]}.{'s32' if left in ('s8', 'u8') else 'f32'}.{left}.{right}"
    found = re.findall(rf"wgmma\.mma_async\.sync\.aligned\.m64n{n}{sort} .*", text)
    assert len(found) == 8 * blocks
    if NBYTES[left] == 2:
        majors = [int(not fast) for fast in (a_k_major, b_k_major) if fast is not None]
        assert all(line.endswith(f"1, 1, {', '.join(map(str, majors))};") for line in found)


@pytest.mark.sample(6)
@pytest.mark.spec("D10")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products(compute, case):
    elements, n, blocks, a_k_major, b_k_major = case
    arrays, twice = operands(*case), n in (32, 128)
    given = [arrays[0].view(np.uint32), arrays[1]] if a_k_major is None else arrays
    got = compute(products(*case, twice), region_of(elements, n, blocks), given)
    exact = NBYTES[kinds_of(elements)[0]] != 2
    want = expected_products(arrays, a_k_major, b_k_major, twice)
    np.testing.assert_allclose(got, want, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-4)


@pytest.mark.parametrize("case, old, new", [
    ((("e4m3", "e5m2"), 64, 1, True, True), ".e4m3.e5m2", ".e5m2.e4m3"),
    (("u8", 64, 1, True, True), ".u8.u8", ".u8.s8"),
    ((f16, 64, 1, None, True), "{$64, $65,", "{$65, $64,"),  # words of rows eight apart
    (("tf32", 32, 2, None, True), "{$80, $81,", "{$64, $65,"),  # of the first block of rows
    (("e4m3", 64, 1, True, True), "add.u32 lower, $64, 2;", "add.u32 lower, $64, 4;"),
    ((bf16, 64, 1, True, False), "1, 1, 0, 1;", "1, 1, 0, 0;"),
    ((f16, 64, 1, True, True), "b, p,", "b, on,"),
])  # fmt: skip
def test_the_model_notices(monkeypatch, case, old, new):
    """Each of these changes gives other sums."""

    def changed(*config):
        text = k_tile_text(*config)
        assert old in text
        return text.replace(old, new)

    monkeypatch.setattr(hopper_model, "k_tile_text", changed)
    arrays = operands(*case)
    arrays = [abs(x.astype(np.float32)).astype(x.dtype) for x in arrays] if case[0] == f16 else arrays
    given = [arrays[0].view(np.uint32), arrays[1]] if case[3] is None else arrays
    if case[0] == "u8":
        given[1][...] = 200
    try:
        got = OnModel()(products(*case, False), region_of(*case[:3]), given)
    except AssertionError:
        return  # a descriptor that no product has, a number that was never written
    assert not np.array_equal(got, expected_products(arrays, *case[3:], False))


@pytest.mark.parametrize("case", [
    (f32, 64, 1, True, True), ("e4m3", 64, 1, True, False), ("tf32", 64, 1, False, True), ("s8", 40, 1, True, True),
    (("f16", "bf16"), 64, 1, True, True), (("s8", "e4m3"), 64, 1, True, True), (f16, 12, 1, True, True),
    (f16, 264, 1, True, True), (("tf32", "f16"), 64, 1, None, True), ("u8", 64, 1, None, False),
])  # fmt: skip
def test_what_no_instruction_multiplies_is_refused(case):
    with pytest.raises(AssertionError):
        k_tile_text(*case)


def test_every_number_of_columns_assembles():
    """To as many sums as a thread then has."""
    for elements, sizes in ((f16, range(8, 257, 8)), ("s8", [8, 16, 24, *range(32, 257, 16)])):
        for n in sizes:
            (found,) = set(
                re.findall(r"m64n\d+k\d+\.\w+\.\w+\.\w+ {[^}]*}", k_tile_text(elements, n, 1, True, True))
            )
            assert f"m64n{n}k" in found and found.count("$") == n // 2
    for n in random.sample(range(8, 257, 8), 8 if ALL else 1):
        code(products(f16, n, 1, None, True, False), region_of(f16, n, 1))
