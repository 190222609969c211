"""Products of operands that are copied to whole rows first, without a GPU: what is taken, and what is computed.

The copies run as LLVM on the host, the product on the model of the machine. tests/cuda/test_pack.py has the copies by themselves.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from kernel_cases import VARIANTS as KNOWN
from kernel_cases import Case, assert_close, desc, fused, reference
from machines.hopper_model import Machine
from machines.on_host import OnHost
from test_wgmma import assert_clean
from wgmma_cases import (
    BY_NAME,
    H200,
    OTHERS,
    PACKED,
    TILINGS,
    TRANSPOSES,
    assert_refused,
    named,
    product,
    residual,
)

import aicf
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.gemm import copied as gemm_packed
from aicf.cuda_kernels.gemm import mma as gemm_mma
from aicf.cuda_kernels.gemm.operands.tma import operands_of
from aicf.device.spec import preset
from aicf.printing import render
from aicf.registry.select import select
from aicf.registry.trace import selection_lines
from aicf.registry.variant import NEEDLESS, Work
from aicf.rows import RegionSpec
from aicf.types import DType, Precision, TensorDesc, bf16, f16, f32

SMALL = PACKED["gemm_wgmma[64x64 packed]"]
WHOLE = [v for name, v in PACKED.items() if " split" not in name]  # those that take products of any k


def of(a: TensorDesc, b: TensorDesc, *then, given=(), **attrs) -> RegionSpec:
    return fused({"a": a, "b": b, **dict(given)}, ("y", "gemm", "a", "b", None, None, attrs), *then)


def heads(*strides: int) -> TensorDesc:
    """2 x 3 x 5 matrices of 40 x 24."""
    return desc((2, 3, 5, 40, 24), f16, strides)


# --- what is taken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r, reason", [
    (product(64, 64, 64), "a and b are read where they are"),
    (product(64, 64, 64, dtype=f32), "the product is to be exact, this one is tf32"),
    (product(63, 61, 65, dtype=f32), "the product is to be exact, this one is tf32"),
    (product(65, 63, 0), "k 0 is under 1"),
    (product(0, 63, 65), "least extent of results 0 is under 1"),
    (of(desc((33, 33), f16), desc((33, 33), f16), ("z", "add", "y", "a")), "operand 0 is read after the product as well"),
])  # fmt: skip
def test_refuses_with_the_value_seen(r, reason):
    assert_refused(PACKED, r, reason)


@pytest.mark.spec("D9")
@pytest.mark.parametrize("r, copied, fast", [
    (product(37, 53, 29), [0, 1], (True, False)),
    (product(37, 56, 29), [0], (True, False)),
    (product(40, 53, 24, ta=True, tb=True), [], (False, True)),
    (product(40, 56, 24, alignment=2), [0], (True, False)),
    (product(64, 64, 64, pitch=(68, None)), [0], (True, False)),
    (of(desc((40, 24), f16, (48, 2)), desc((24, 40), f16, (1, 24))), [0], (True, True)),
    (of(desc((40, 24), f16, (2, 80)), desc((24, 40), f16, (1, 24))), [0], (False, True)),
    (of(desc((2, 40, 24), f16, (1000, 24, 1)), desc((2, 24, 33), f16)), [1], (True, False)),
    (of(desc((33, 33), f16), desc((33, 33), f16)), [0, 1], (True, False)),
])  # fmt: skip
def test_copies_what_it_must_and_nothing_else(r, copied, fast):
    assert all((v.supported(r, H200) is None) == bool(copied) for v in WHOLE)
    made = gemm_packed.packed(r)
    assert [c.index for c in made.copies] == copied
    assert tuple(o.k_major for o in operands_of(made.region)) == fast


@pytest.mark.parametrize("strides", [(15 * 960, 960, 3 * 960, 24, 1), (0, 960, 3 * 960, 24, 1)])
def test_batches_of_many_axes_become_few(strides):
    """b walks them as one, a does not, until it is copied; what it shares is copied once."""
    r = of(heads(*strides), desc((2, 3, 5, 24, 16), f16))
    assert "axes of the batch" in str(BY_NAME["gemm_wgmma[64x64]"].supported(r, H200))
    assert all(v.supported(r, H200) is None for v in WHOLE)
    made = gemm_packed.packed(r)
    batch = 2 - (strides[0] == 0)
    assert [c.nbytes for c in made.copies if c.index == 0] == [batch * 15 * 40 * 48]


def test_one_copy_for_an_operand_that_is_both():
    x = desc((33, 33), f16)
    r = fused({"x": x}, ("y", "gemm", "x", "x", None, None, {"trans_b": True}))
    assert SMALL.supported(r, H200) is None
    assert len(gemm_packed.packed(r).copies) == 1


# --- what is computed -------------------------------------------------------------------------------------------------


def run(variant, r: RegionSpec, seed: int = 0) -> None:
    """With small whole numbers."""
    got, want = computed(variant, r, lambda rng, shape: rng.integers(-2, 3, shape), seed)
    assert_close(Case("", r), got, want)


def computed(variant, r: RegionSpec, numbers, seed: int = 0):
    """(results, what they should be), of such `numbers(rng, shape)`; what lies between rows is NaN, and so is the workspace. What is
    not Hopper's runs on the host."""
    assert variant.supported(r, H200) is None
    rng, ins, arrays = np.random.default_rng(seed), [], []
    for d in r.operands:
        memory = np.full(1 + sum((e - 1) * s for e, s in zip(d.shape, d.stride)), np.nan).astype(
            d.dtype.numpy
        )
        view = np.ndarray(d.shape, d.dtype.numpy, memory, strides=[s * d.dtype.itemsize for s in d.stride])
        view[...] = numbers(rng, d.shape)
        arrays.append(view.copy())
        ins.append(memory)
    outs = [np.full(d.numel, np.nan).astype(d.dtype.numpy) for d in r.results]
    raw = np.full(variant.query_workspace(r, H200) + 256, 0xFF, np.uint8)
    workspace = raw[-raw.ctypes.data % 256 :]
    copies, multiply = variant.build(r, H200)
    OnHost(copies, r)(ins, outs, workspace)
    if "wgmma" in variant.id:
        Machine(seed).launch(multiply, ins, outs, 2, workspace)
    else:
        OnHost(multiply, r)(ins, outs, workspace)
    return [x.reshape(d.shape) for x, d in zip(outs, r.results)], reference(Case("", r), arrays)


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D9", "D10", "F2")
@pytest.mark.parametrize("ta, tb", TRANSPOSES)
def test_products_of_odd_rows(ta, tb):
    run(SMALL, product(67, 71, 73, ta=ta, tb=tb, dtype=bf16), random.randrange(2**32))


@pytest.mark.sample(2, pool="on the model")
@pytest.mark.spec("D9", "D10", "F2")
@pytest.mark.parametrize("ta, tb", TRANSPOSES)
@pytest.mark.parametrize("types", OTHERS[:3], ids=str)
def test_words_and_bytes_in_every_order(types, ta, tb):
    """Of which k is contiguous in the copies."""
    a, b, out = types
    attrs = {"precision": Precision.tf32} if a is f32 else {"out_dtype": out.id}
    r = product(67, 71, 161, ta=ta, tb=tb, dtype=a, b_dtype=b, **attrs)
    assert all(o.k_major for o in operands_of(gemm_packed.packed(r).region))
    run(SMALL, r, random.randrange(2**32))


def many_axes(dtype: DType) -> RegionSpec:
    """Of 2 x 3 x 2 products, b as one and a in another order."""
    a, b = desc((2, 3, 2, 9, 7), dtype, (378, 63, 189, 7, 1)), desc((2, 3, 2, 7, 11), dtype)
    return of(a, b, ("z", "add", "y", "x"), given={"x": desc((2, 3, 2, 9, 11), dtype)})


LAYOUTS = [
    residual(41, 39, 25, pitch=(27, None)),
    of(desc((40, 24), f16, (2, 80)), desc((24, 40), f16, (3, 80))),  # each second row, and each third column
    of(desc((3, 17, 9), f16, (1, 27, 3)), desc((9, 13), f16)),  # of a batch, along which neighbours lie
    many_axes(f16),
]


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D9", "F2")
@pytest.mark.parametrize("r", LAYOUTS, ids=str)
def test_other_layouts(r):
    run(SMALL, r, random.randrange(2**32))


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D9")
def test_batches_of_many_axes_on_ordinary_cores():
    tiled, small = KNOWN["cuda.gemm_tiled.v1[64x64 packed]"], KNOWN["cuda.gemm_tiled.v1[64x64]"]
    assert "axes of the batch 3 is over 2" in str(small.supported(many_axes(f32), H200))
    assert "where they are" in str(tiled.supported(product(33, 33, 33, dtype=f32), H200))
    run(tiled, many_axes(f32), random.randrange(2**32))


@pytest.mark.spec("D9")
@pytest.mark.parametrize("device", ["a100", "t4", "h200"])
def test_there_is_a_kernel_for_batches_of_many_axes(device):
    kernels = aicf.default_registry()
    for dtype in (f32, f16):
        assert "packed]" in select(many_axes(dtype), preset(device), kernels).kernel_id


@pytest.mark.spec("D10")
@pytest.mark.parametrize(
    "name, r",
    [("cuda.gemm_mma.v1[128x128]", product(67, 71, 73)), ("cuda.gemm_mma.v1[128x128]", many_axes(bf16))],
)
def test_fragments_come_from_the_copies(name, r):
    """By pointers to the workspace, 16 bytes at a time; what can be read by four is not copied."""
    plain, packing = KNOWN[name], KNOWN[name.replace("]", " packed]")]
    made = gemm_packed.packed(r)
    assert plain.supported(r, H200) is not None and packing.supported(r, H200) is None
    assert [o.width for o in gemm_mma.operands(made.region)] == [16, 16]
    _, multiply = packing.build(r, H200)
    at = gemm_packed.places(made, 0)
    assert multiply.args[:2] == (Work(at[0], r.operands[0].dtype), Work(at[1], r.operands[1].dtype))
    assert packing.supported(product(66, 70, 74), H200).condition == NEEDLESS


@pytest.mark.spec("D5", "B8")
def test_before_hopper_odd_rows_are_copied_too():
    a100 = preset("a100")
    chosen = select(product(4097, 4095, 4096, dtype=bf16), a100, aicf.default_registry())
    assert chosen.kernel_id in ("cuda.gemm_mma.v1[128x256 deep packed]", "cuda.gemm_mma.v1[128x128 packed]")


# --- machine code, and what it costs ----------------------------------------------------------------------------------


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.parametrize("name", sorted(PACKED))
def test_compiles_clean(name):
    variant, r = PACKED[name], product(1001, 999, 1003)
    tiling = next(t for t in TILINGS if name in (named(t, "packed"), named(t, "split", "packed")))
    copies, multiply, *_ = variant.build(r, H200)
    made = engine.compile_launch(copies, r, H200.target)
    assert (made.spill_bytes, made.stack_bytes) == (0, 0), made.log
    assert_clean(tiling, engine.compile_launch(multiply, r, H200.target))


@pytest.mark.spec("B8", "D10")
def test_chosen_where_it_pays():
    """33 MB once more are 18 us beside 200; few rows are read once, and copied for nothing."""
    kernels = aicf.default_registry()
    for ta, tb in TRANSPOSES:
        chosen = select(product(4097, 4095, 4096, dtype=bf16, ta=ta, tb=tb), H200, kernels)
        assert chosen.kernel_id.endswith(" packed]") == ((ta, tb) != (False, True)), (
            "of which all rows are whole"
        )
        if (ta, tb) != (False, True):
            assert 15 < chosen.chosen.cost.terms["copies of operands"] < 40
    assert "packed" not in select(product(16, 4096, 4096, dtype=bf16), H200, kernels).kernel_id
    assert "packed" not in select(product(65, 63, 61), H200, kernels).kernel_id


@pytest.mark.spec("B8")
def test_traces_count_copies_that_nobody_needs():
    fits = select(product(4096, 4096, 4096), H200, aicf.default_registry())
    told = render(selection_lines(fits))
    assert "3 not needed" in told  # copies for gemm_mma, gemm_tiled and gemm_wgmma, in all their configs
    assert "where they are" not in told
    assert "a and b are read where they are" in render(selection_lines(fits, verbose=True))
