"""Copies to whole rows, and Hopper's products of them, on a Hopper GPU: against float64, NaN around every operand and in the padding."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import test_gpu_kernels
from fused_gemm_cases import Product
from kernel_cases import HALVES, TF32X3S, Case, assert_close, desc, operands_for, reference
from test_gemm_packed import LAYOUTS, many_axes
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)
from test_gpu_wgmma import check_special_values, tensors
from test_gpu_wgmma import off as off_of
from test_pack import F8, region_of
from wgmma_cases import OTHERS, PACKED, TRANSPOSES, backward, product, residual, stashed

import aicf
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.gemm.operands import pack
from aicf.device.runtime import runtime
from aicf.dispatch.loader import KernelLoader
from aicf.dispatch.prepared import prepare
from aicf.graph.run.capture import capture
from aicf.ops.schema import schema_of
from aicf.types import Precision, TensorSpec, bf16, f16, f32

pytestmark = pytest.mark.gpu

SMALL = "cuda.gemm_wgmma.v1[64x64 packed]"
BOTH = f16, bf16
ODD = [
    (257, 131, 129),
    (1001, 999, 1003),
    (65, 2049, 71),
    (515, 3, 4097),
    (1, 511, 63),
    (515, 1, 71),
    (7, 5, 3),
]


@pytest.fixture(autouse=True)
def _known(monkeypatch):
    """`launch_case` finds them among the variants."""
    known = {**test_gpu_kernels.VARIANTS, **{v.id: v for v in PACKED.values()}}
    monkeypatch.setattr(test_gpu_kernels, "VARIANTS", known)


def check(gpu: Any, variant: str, r: Any, shift: int = 0, off: float = 0.0) -> None:  # noqa: F811
    case = Case(variant, r, tolerance=off or HALVES[r.operands[0].dtype])
    operands = operands_for(case, random.randrange(2**32))
    want = reference(case, operands.arrays)
    assert_close(case, launch_case(gpu, case, operands.memory, shift), want)


def moved(r: Any) -> Any:
    """With every tensor aligned to an element."""
    return replace(r, tensors=tuple(replace(t, alignment=t.dtype.itemsize) for t in r.tensors))


@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("n", range(len(PACKED)), ids=sorted(PACKED))
def test_every_tiling(gpu, n):  # noqa: F811
    """Tiles that hang over, more of them than multiprocessors; each in one order and one type."""
    (ta, tb), dtype, variant = TRANSPOSES[n % 4], BOTH[n % 2], PACKED[sorted(PACKED)[n]]
    for sizes in [(2057, 2063, 333), *ODD]:
        r = product(*sizes, dtype=dtype, ta=ta, tb=tb)
        if variant.supported(r, gpu.spec) is None:
            check(gpu, variant.id, r)


@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("ta, tb", TRANSPOSES)
def test_odd_rows_at_any_place(gpu, ta, tb):  # noqa: F811
    for shift, sizes in enumerate([*ODD[:3], *ODD]):
        r = product(*sizes, dtype=bf16, ta=ta, tb=tb)
        check(gpu, SMALL, moved(r), shift % 8)


def test_aligned_rows_at_odd_places(gpu):  # noqa: F811
    for shift in range(1, 8):
        check(gpu, SMALL, moved(product(200, 136, 264)), shift)


@pytest.mark.sample(2, gpu=True)
@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("types", OTHERS, ids=str)
def test_words_and_bytes(gpu, types):  # noqa: F811
    """Of which k is contiguous in the copies, whatever it is in the operands."""
    a, b, out = types
    attrs = {"precision": Precision.tf32} if a is f32 else {"out_dtype": out.id}
    for shift, (ta, tb) in enumerate(TRANSPOSES):
        r = product(*ODD[shift], ta=ta, tb=tb, dtype=a, b_dtype=b, **attrs)
        check(gpu, SMALL, moved(r), shift, off_of(types))


@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("variant", [v for v in TF32X3S if ".gemm_wgmma." in v])
def test_operands_split_for_three_products(gpu, variant):  # noqa: F811
    """Of every order, at odd places, of batches; and what follows."""
    attrs = {"dtype": f32, "precision": Precision.tf32x3}
    for shift, (ta, tb) in enumerate(TRANSPOSES):
        check(gpu, variant, moved(product(*ODD[shift], ta=ta, tb=tb, **attrs)), shift, 2e-5)
    for make in (residual, stashed):
        check(gpu, variant, make(515, 136, 77, **attrs), off=2e-5)
    heads = Product(130, 133, 70, f32, batch=(2, 3), heads=True, trans_b=True)
    check(gpu, variant, heads.then({}, precision=Precision.tf32x3), off=2e-5)


@pytest.mark.spec("D9")
@pytest.mark.parametrize("r", LAYOUTS, ids=str)
def test_other_layouts(gpu, r):  # noqa: F811
    check(gpu, SMALL, r)


@pytest.mark.spec("D9")
def test_batches_of_many_axes_on_ordinary_cores(gpu):  # noqa: F811
    for dtype in (f32, f16):
        check(gpu, "cuda.gemm_tiled.v1[64x64 packed]", many_axes(dtype), off={**HALVES, f32: 2e-3}[dtype])


@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize(
    "variant", ["cuda.gemm_mma.v1[128x128 packed]", "cuda.gemm_mma.v1[128x256 deep packed]"]
)
def test_fragments_come_from_the_copies(gpu, variant):  # noqa: F811
    for sizes, (ta, tb) in zip(ODD[:3], TRANSPOSES):
        check(gpu, variant, moved(product(*sizes, dtype=bf16, ta=ta, tb=tb)), 1)
    check(gpu, variant, many_axes(f16))


@pytest.mark.parametrize("make", [residual, stashed, backward])
def test_epilogues(gpu, make):  # noqa: F811
    check(gpu, SMALL, make(515, 136, 77))
    check(gpu, SMALL, make(515, 133, 77))


def test_special_values(gpu):  # noqa: F811
    """NaN and infinities spoil the rows and columns that they are in, and nothing else; nor does what lies between rows."""
    check_special_values(gpu, SMALL, residual(517, 137, 73), product(131, 137, 73, pitch=(75, 141)))


# --- copies alone -----------------------------------------------------------------------------------------------------

COPIES = [
    [(desc((4097, 4095), f16), 1)],
    [(desc((1025, 4097), F8), 1), (desc((777, 1023), f32, (1031, 1)), 1)],
    [(desc((1025, 777), F8, (1, 1031)), 1), (desc((777, 1023), f32, (1, 779)), 1)],
    [(desc((5, 300, 200), bf16, (1, 1100, 5)), 2), (desc((3, 4, 65, 130), f16, (33800, 130, 520, 1)), 3)],
]


@pytest.mark.parametrize("given", COPIES, ids=["halves", "rows", "turned", "batches"])
@pytest.mark.parametrize("shift", [0, 1, 3])
def test_copies_are_exact(gpu, given, shift):  # noqa: F811
    """Bit by bit, and nothing but rows is written."""
    copies = [pack.copy_of(i, t, row) for i, (t, row) in enumerate(given)]
    rng, ins, want = np.random.default_rng(), [], []
    for c in copies:
        t, size = c.source, c.source.dtype.itemsize
        memory = rng.integers(0, 256, c.extent, dtype=np.uint8).view(f"u{size}")
        ins.append(gpu.allocate(memory.nbytes + shift * size) + shift * size)
        gpu.upload(ins[-1], memory)
        want.append(np.lib.stride_tricks.as_strided(memory, t.shape, [s * size for s in t.stride]))
    places = np.cumsum([0, *(-(-c.nbytes // 256) * 256 for c in copies)]).tolist()
    workspace = gpu.allocate(places[-1])
    r = region_of(*(t for t, _ in given))
    engine.bind(engine.prepare(pack.launch(copies, places[:-1]), r), gpu.stream, ins, [], workspace)()
    gpu.stream.sync()
    for c, at, expected in zip(copies, places, want):
        size = c.target.dtype.itemsize
        there = gpu.download(workspace + at, c.nbytes).view(f"u{size}")
        strides = [s * size for s in c.target.stride]
        np.testing.assert_array_equal(
            np.lib.stride_tricks.as_strided(there, c.target.shape, strides), expected
        )
    end = gpu.download(workspace + places[-1], test_gpu_kernels.GUARD)
    assert (end == test_gpu_kernels.POISON).all(), "written behind the workspace"


@pytest.mark.slow
def test_more_than_two_to_the_31_elements(gpu):  # noqa: F811
    """Rows at odd places, compared where they lie."""
    torch = pytest.importorskip("torch")
    rows, columns = 2**16 + 1, 2**15 + 1
    copy = pack.copy_of(0, desc((rows, columns), f16), 1)
    source = torch.randint(0, 2**15, (rows, columns), device="cuda", dtype=torch.int16)
    work = torch.full((rows, copy.pitch // 2), -1, device="cuda", dtype=torch.int16)
    torch.cuda.synchronize()
    start = engine.prepare(pack.launch([copy], [0]), region_of(copy.source))
    engine.bind(start, gpu.stream, [source.data_ptr()], [], work.data_ptr())()
    gpu.stream.sync()
    assert bool((work[:, :columns] == source).all())


# --- through what starts kernels --------------------------------------------------------------------------------------


@pytest.fixture
def cuda():
    made = runtime("cuda")
    if "sm_90a" not in made.spec.features:
        pytest.skip(f"needs sm_90a; this is {made.spec.target}")
    return made


@pytest.mark.spec("B13", "C9")
def test_captured_and_replayed(cuda):
    """Copies are made anew in each replay: of what is there then."""
    r = product(257, 131, 129, dtype=bf16, tb=True)
    ins, _ = tensors(cuda, r, 0)
    out = cuda.empty(TensorSpec((257, 131), bf16, "cuda"))
    kernels = aicf.default_registry()
    nbytes = kernels.by_id(SMALL).query_workspace(r, cuda.spec)
    work = cuda.empty(TensorSpec((-(-nbytes // 4),), f32, "cuda"))
    graph = capture(cuda, [KernelLoader(kernels, cuda).bind(SMALL, r, ins, [out], work)])
    for seed in (1, 2):
        arrays = operands_for(Case("", r), seed).arrays
        for t, array in zip(ins, arrays):
            cuda.write(t, np.ascontiguousarray(array))
        cuda.write(out, np.full((257, 131), np.nan).astype(bf16.numpy))
        graph.launch()
        cuda.sync()
        assert_close(Case("", r, tolerance=HALVES[bf16]), [out.numpy()], reference(Case("", r), arrays))


@pytest.mark.spec("B1", "B5")
def test_op_calls(cuda):
    """Scratch memory comes from the stream's pool, and so do descriptors of what is in it."""
    r = product(257, 131, 129, dtype=bf16, tb=True)
    given, kernels = [*r.operands, None, None], aicf.KernelRegistry(list(PACKED.values()))
    call = prepare(schema_of("gemm"), {"trans_b": True}, given, list(r.results), cuda, kernels)
    for seed in range(3):
        ins, arrays = tensors(cuda, r, seed)
        out = cuda.empty(TensorSpec((257, 131), bf16, "cuda"))
        cuda.write(out, np.full((257, 131), np.nan).astype(bf16.numpy))
        cuda.sync()
        call.run([*(t.ptr for t in ins), 0, 0, out.ptr], cuda.stream_id)
        cuda.sync()
        assert_close(Case("", r, tolerance=HALVES[bf16]), [out.numpy()], reference(Case("", r), arrays))
