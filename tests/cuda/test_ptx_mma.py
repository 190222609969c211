"""cp.async, ldmatrix and mma.sync, each in kernels of a warp: on a model of the machine, which runs their LLVM, and on a GPU."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from kernel_cases import desc
from machines.mma_machine import Machine
from mma_kernels import LINES, multiplied, staged
from ptx_support import PLACES, OnGpu, code, regions_of
from test_gpu_kernels import gpu, opened  # noqa: F401  (fixtures)

from aicf.registry.variant import Launch
from aicf.rows import RegionSpec
from aicf.types import bf16, f16, f32, i32


def on_machine(launch: Launch, r: RegionSpec, arrays: list[np.ndarray]) -> np.ndarray:
    out = np.full(r.results[0].nbytes, 0xFF, np.uint8)
    given = []
    for x in arrays:
        room = np.zeros(x.nbytes + 256, np.uint8)
        start = -room.ctypes.data % 256
        given.append(room[start : start + x.nbytes])
        given[-1][...] = x.reshape(-1).view(np.uint8)
    Machine(launch, r)(given, [out])
    return out.view(r.results[0].dtype.numpy).reshape(r.results[0].shape)


@pytest.fixture(params=PLACES)
def compute(request):
    return on_machine if request.param == "model" else OnGpu(request.getfixturevalue("gpu"))


# --- copies and matrices ------------------------------------------------------------------------------------------------

WAYS = [*itertools.product((16, 8, 4), (False, True)), (2, True)]
COPIES = [
    (width, registers, turned, 312 + 200 * turned)
    for (width, registers), turned in itertools.product(WAYS, (False, True))
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("width, registers, transposed, nbytes", COPIES)
def test_matrices_are_staged_and_read(compute, width, registers, transposed, nbytes):
    """Lane 4 r + c gets two neighbours of row r, or of column r, of each; what there is none of is 0."""
    x = np.random.default_rng().integers(1, 2**15, 256).astype(np.uint16).view(np.float16)
    nbytes -= nbytes % width
    r = regions_of([desc((256,), f16)], desc((32, 4), i32))
    got = compute(staged(width, transposed, nbytes, registers), r, [x])
    there = np.where(np.arange(256) * 2 < nbytes, x.view(np.uint16), 0).reshape(4, 8, 8)
    words = np.ascontiguousarray(there.transpose(0, 2, 1) if transposed else there).view(np.uint32)
    np.testing.assert_array_equal(got.view(np.uint32), words.reshape(4, 32).T)


# --- products -----------------------------------------------------------------------------------------------------------

KINDS = {"f16": f16, "bf16": bf16, "f16k8": f16, "tf32": f32, "tf32x3": f32}
# a product of two numbers: halves are exact, of tf32 each is rounded to 11 bits, of three such products little is left
ERRORS = {"f16": 1e-6, "bf16": 1e-6, "f16k8": 1e-6, "tf32": 2.0**-10.9, "tf32x3": 2.0**-20}
PRODUCTS = [(kind, fast, 4 - 3 * fast) for kind, fast in itertools.product(KINDS, (False, True))]


@pytest.mark.spec("D10", "F2")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind, mn_major, steps", PRODUCTS)
def test_products(compute, kind, mn_major, steps):
    dtype: Any = KINDS[kind]
    k, rng = steps * 32 // dtype.itemsize, np.random.default_rng()
    a, b = (rng.normal(size=(LINES, k)).astype(dtype.numpy) for _ in range(2))
    given = [np.ascontiguousarray(x.T) if mn_major else x for x in (a, b)]
    r = regions_of([desc(x.shape, dtype) for x in given], desc((LINES, LINES), f32))
    got = compute(multiplied(kind, mn_major, steps), r, given)
    a, b = a.astype(np.float64), b.astype(np.float64)
    assert (abs(got - a @ b.T) <= 2 * ERRORS[kind] * (abs(a) @ abs(b).T)).all()
    if kind == "tf32":
        assert (abs(got - a @ b.T) > 1e-6).any(), "as exact as f32"


# --- machine code -------------------------------------------------------------------------------------------------------


def test_kernels_compile():
    """Of each kind of copy and of product one that is drawn."""
    copies = (16, "cp.async.cg.shared.global [%r"), (4, "cp.async.ca.shared.global [%r"), (2, "st.shared.b16")
    for width, text in random.sample(copies, 1):
        made = code(
            staged(width, width == 4, 512, width == 2),
            regions_of([desc((256,), f16)], desc((32, 4), i32)),
            "sm_80",
        )
        assert text in made and made.count("ldmatrix") == 1 and (".trans" in made) == (width == 4)
    for width, text in random.sample(((16, ".v4.b32"), (8, ".v2.b32"), (4, ".b32")), 1):
        made = code(
            staged(width, False, 512, True), regions_of([desc((256,), f16)], desc((32, 4), i32)), "sm_75"
        )
        assert f"@p ld.global{text}" in made and f"st.shared{text}" in made and "cp.async.c" not in made
    for kind, count in random.sample((("bf16", 4), ("tf32x3", 12)), 1):
        dtype = KINDS[kind]
        operand = desc((LINES, 32 // dtype.itemsize * 2), dtype)
        made = code(multiplied(kind, False, 2), regions_of([operand] * 2, desc((LINES, LINES), f32)), "sm_80")
        assert made.count("mma.sync") == 2 * 2 * count
    operand = desc((LINES, 32), f16)
    made = code(multiplied("f16k8", False, 2), regions_of([operand] * 2, desc((LINES, LINES), f32)), "sm_80")
    assert made.count("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32") == 2 * 2 * 8
