"""Attention by mma.sync on a model of a Turing or Ampere multiprocessor: what it computes, whatever the order in which copies arrive, and that nothing
is read before a barrier says so. See machines/mma_machine.py."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from kernel_cases import (
    DECODE,
    FEW_ATTENTION,
    MMA_ATTENTION,
    MMA_ATTENTION_GRAD,
    TURING_ATTENTION,
    TURING_ATTENTION_GRAD,
    VARIANTS,
    Case,
    assert_close,
    attention,
    attention_grad,
    mma_attentions,
    operands_for,
    reference,
)
from machines.mma_machine import Machine, Wrong
from test_fused_maps import fresh_seed

from aicf.device.spec import DeviceSpec, preset
from aicf.rows import RegionSpec
from aicf.types import DType, bf16, f16, f32

A100 = preset("a100")


def memory_of(array: np.ndarray) -> np.ndarray:
    """The array's bytes at a multiple of 256, as a GPU's allocations are."""
    room = np.zeros(array.nbytes + 256, np.uint8)
    start = -room.ctypes.data % 256
    room[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return room[start : start + array.nbytes]


def on_machine(case: Case, operands: list[np.ndarray], seed: int, device=A100, **faults) -> list[np.ndarray]:
    variant = VARIANTS[case.variant]
    assert (reject := variant.supported(case.region, device)) is None, reject
    outs = [memory_of(np.full(t.nbytes, 255, np.uint8)) for t in case.region.results]
    workspace = np.full(variant.query_workspace(case.region, device) + 256, 255, np.uint8)
    workspace = workspace[-workspace.ctypes.data % 256 :]
    ins = [memory_of(x) for x in operands]
    for launch in variant.build(case.region, device):
        Machine(launch, case.region, **faults)(ins, outs, seed, workspace)
    return [x.view(t.dtype.numpy).reshape(t.shape) for x, t in zip(outs, case.region.results)]


SHAPES = (
    ((2, 70, 64), (1, 100, 64), {"causal": True}, f16),
    ((1, 2, 33, 80), (1, 1, 90, 80), {"dv": 24, "window": 40}, bf16),
    ((2, 2, 40, 16), (2, 2, 70, 16), {"ragged": True, "causal": True, "mask": (70,)}, f16),
    ((2, 65, 36), (2, 66, 36), {"bias": (65, 66), "softcap": 2.0, "scale": -0.3}, bf16),
    ((1, 20, 256), (1, 70, 256), {"causal": True, "alignment": 4}, f16),
    ((2, 20, 16), (2, 70, 16), {"causal": True, "mask": (70,), "scale": 0.0}, f16),
    ((1, 2, 40, 72), (1, 1, 70, 72), {"window": 40, "dv": 20, "bias": (40, 70), "softcap": 2.0}, f16),
)
CASES = [
    case
    for q, k, asked, t in SHAPES
    for case in mma_attentions(q, k, dtype=t, tolerance=2e-3 if t is f16 else 2e-2, **asked)
]


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_reference(case):
    seed = fresh_seed()
    operands = operands_for(case, seed)
    want = reference(case, operands.arrays)
    assert_close(case, on_machine(case, operands.arrays, seed), want)


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("case", [c for c in CASES if c.region.operands[-1].dtype is DType.bool][:4], ids=str)
def test_a_missing_barrier_is_noticed(case):
    with pytest.raises(Wrong, match="no barrier says"):
        on_machine(case, operands_for(case).arrays, 0, barriers=False)


@pytest.mark.spec("F2", "A7")
@pytest.mark.parametrize("variant, make", [(MMA_ATTENTION, attention), (MMA_ATTENTION_GRAD, attention_grad)])
@pytest.mark.parametrize(
    "shapes, asked, reason",
    [
        (((2, 70, 64), (2, 90, 64)), {"dtype": f32}, "is f32, tensor cores multiply weights of f16 or bf16"),
        (((2, 70, 264), (2, 90, 264)), {}, "head size"),
        (((2, 70, 33), (2, 90, 33)), {}, "needs rows, heads and batch entries at multiples of 4 bytes"),
        (((2, 70, 64), (2, 90, 64)), {"alignment": 2}, "aligned to 2 bytes, needs 4"),
        (((2, 0, 64), (2, 90, 64)), {}, "least extent"),
        (((2, 70, 64), (2, 0, 64)), {}, "least extent"),
    ],
)
def test_what_it_takes_is_told(variant, make, shapes, asked, reason):
    reject = VARIANTS[variant].supported(make(*shapes, **{"dtype": f16, **asked}), A100)
    assert reject is not None and reason in str(reject)


def chosen(r: RegionSpec, device: DeviceSpec) -> str:
    """Of the variants that take a region the one that is predicted to be the fastest."""
    fit = [v for v in VARIANTS.values() if r.kind.name in v.kinds and v.supported(r, device) is None]
    return min(fit, key=lambda v: v.cost(r, device).us).id


@pytest.mark.spec("F2")
@pytest.mark.parametrize("gpu", ["a100", "a10", "l4", "rtx4090", "h100", "h200"])
def test_it_is_chosen_for_halves_but_where_hopper_s_own_kernels_take_them(gpu):
    device, hopper = preset(gpu), gpu.startswith("h")
    q, wide = (4, 8, 1000, 64), (2, 8, 500, 256)
    for r in (attention(q, q, dtype=bf16, causal=True), attention_grad(q, q, dtype=f16)):
        assert (".attention_mma" in chosen(r, device) or ".attention_grad_mma" in chosen(r, device)) != hopper
        assert ("_wgmma" in chosen(r, device)) == hopper
    for make, of in ((attention, MMA_ATTENTION), (attention_grad, MMA_ATTENTION_GRAD)):
        assert chosen(make(wide, wide, dtype=f16, causal=True), device) == of
        assert chosen(make(q, q, dtype=bf16, bias=(8, 1000, 1000)), device) == of
        assert chosen(make(q, q, dtype=bf16, ragged=True), device) == of
        assert chosen(make((2, 2, 16, 64), (2, 2, 16, 64), dtype=bf16, mask=(16, 16)), device) == of
        assert "plain" in chosen(make(q, q), device)
    one = attention((4, 8, 1, 64), (4, 8, 3000, 64), dtype=bf16, ragged=True)
    assert chosen(one, device) in (DECODE, FEW_ATTENTION)


@pytest.mark.spec("F2")
def test_turing_attends_in_f16_on_tensor_cores():
    t4, q = preset("t4"), (4, 8, 1000, 64)
    for make, of in ((attention, TURING_ATTENTION), (attention_grad, TURING_ATTENTION_GRAD)):
        assert chosen(make(q, q, dtype=f16, causal=True), t4) == of
        assert chosen(make(q, q, dtype=f16, mask=(1000,)), t4) == of
        assert "plain" in chosen(make(q, q, dtype=bf16), t4) and "plain" in chosen(make(q, q), t4)
        reject = VARIANTS[of].supported(make(q, q, dtype=bf16), t4)
        assert str(reject) == "q is bf16, needs f16 on tensor cores before sm_80"
        for gpu in ("a100", "rtx4090", "h200"):
            assert chosen(make(q, q, dtype=f16, causal=True), preset(gpu)) != of
        for d, dv, more in itertools.product((16, 64, 100, 128, 192), (16, 128), ({}, {"mask": (90,)})):
            r = make((2, 70, d), (2, 90, d), dv=dv, dtype=f16, **more)
            if VARIANTS[of].supported(r, t4) is None:
                assert all(launch.shared <= t4.shared_per_block for launch in VARIANTS[of].build(r, t4))
            else:
                assert d == 192 and (more or make is attention_grad)


@pytest.mark.spec("F2")
@pytest.mark.parametrize("gpu", ["a100", "a10", "rtx4090", "h200", "b200"])
def test_launches_fit_the_shared_memory_of_each_device(gpu):
    device = preset(gpu)
    for d, dv, more in itertools.product((16, 64, 128, 200, 256), (16, 128, 256), ({}, {"mask": (90,)})):
        q, k = (2, 70, d), (2, 90, d)
        for variant, make in ((MMA_ATTENTION, attention), (MMA_ATTENTION_GRAD, attention_grad)):
            for launch in VARIANTS[variant].build(make(q, k, dv=dv, dtype=f16, **more), device):
                assert launch.shared <= device.shared_per_block
