"""The cross entropy of a linear layer as chains of kernels: what is in them, where it lies, and what is computed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from draws.seeds import rng
from kernel_cases import (
    LINEAR_LOSS,
    LINEAR_LOSS_GRAD,
    VARIANTS,
    Case,
    assert_close,
    linear_loss,
    linear_loss_grad,
    operands_for,
    reference,
    region,
)
from machines.on_host import OnHost
from test_fused_maps import fresh_seed

import aicf
from aicf.cuda_kernels import chain
from aicf.cuda_kernels.compiler.compile import signature_of
from aicf.cuda_kernels.gemm import linear_loss as chunks
from aicf.device.spec import DeviceSpec, preset
from aicf.registry.variant import In, Out, TensorMap, Work
from aicf.rows import RegionSpec
from aicf.types import Precision, bf16, f16, f32, i32
from examples import EVERYTHING

H200 = preset("h200")
TINY = DeviceSpec("tiny", "cuda", (7, 5), frozenset(), 2, 1000.0, {"f32": 20.0})
BOTH = [(LINEAR_LOSS, linear_loss), (LINEAR_LOSS_GRAD, linear_loss_grad)]
ASKED = {"ignore_index": 1, "label_smoothing": 0.2, "z_loss": 0.05}


@pytest.fixture
def small_chunks(monkeypatch):
    """Up to six of a dozen rows or classes; without the one product that can't be run on the host."""
    registry = chain._registry.__wrapped__()
    registry.remove("cuda.gemm_naive.v1")
    monkeypatch.setattr(chain, "_registry", lambda: registry)
    for name, value in (("LOGITS", 40), ("ROWS", 2), ("CLASSES", 4)):
        monkeypatch.setattr(chunks, name, value)
    caches = chunks._losses, chunks._gradients, chain._chosen
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


COMPILED: dict[Any, OnHost] = {}


def on_host(case: Case, operands) -> list[np.ndarray]:
    """The chain's code run on the host, in memory that is NaN where nothing was written."""
    variant, r = VARIANTS[case.variant], case.region
    assert variant.supported(r, TINY) is None
    results = [np.full(t.nbytes, 255, np.uint8).view(t.dtype.numpy).reshape(t.shape) for t in r.results]
    workspace = np.full(variant.query_workspace(r, TINY), 255, np.uint8)
    for launch in variant.build(r, TINY):
        key = launch.body, signature_of(launch, r)
        if key not in COMPILED:
            COMPILED[key] = OnHost(launch, r)
        COMPILED[key].launch = launch  # of another chunk, maybe
        COMPILED[key](operands.memory, results, workspace)
    return results


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("B10", "F2")
@pytest.mark.parametrize("dtype, near", [(f32, 2e-5), (f16, 4e-3), (bf16, 3e-2)], ids=str)
def test_code_run_on_the_host_agrees_with_numpy(small_chunks, dtype, near, request):
    """In one chunk and in several, of rows and of classes; whichever are more. Three drawn forms, unless all are wanted."""
    forms = list(itertools.product(BOTH, [(9, 13, 5), (13, 9, 5), (2, 3, 4)], ({}, ASKED)))
    drawn = rng(request.node.nodeid).permutation(len(forms))
    for (name, make), sizes, asked in forms if EVERYTHING else [forms[i] for i in drawn[:3]]:
        case = Case(name, make(*sizes, dtype, i32, **asked), 2e-5 if name == LINEAR_LOSS else near)
        operands = operands_for(case, fresh_seed())
        assert_close(case, on_host(case, operands), reference(case, operands.arrays))


@pytest.mark.sample(1, pool="on the host")
def test_a_label_that_is_no_class_gives_nan_and_an_ignored_row_nothing(small_chunks):
    case = Case(LINEAR_LOSS, linear_loss(6, 9, 4))
    operands = operands_for(case)
    labels = operands.memory[2]
    labels[:] = [0, 9, -1, -100, 8, 2**40]
    loss, lse = on_host(case, operands)
    wrong = np.array([False, True, True, False, False, True])
    assert np.array_equal(np.isnan(loss), wrong) and np.array_equal(np.isnan(lse), wrong)
    assert loss[3] == lse[3] == 0
    grad = Case(LINEAR_LOSS_GRAD, linear_loss_grad(6, 9, 4))
    given = operands_for(grad)
    given.memory[3][:], given.memory[4][:] = labels, lse
    dx, dweight = on_host(grad, given)
    assert np.array_equal(np.isnan(dx).all(1), wrong) and not dx[3].any() and np.isnan(dweight).all()


@pytest.mark.sample(1, pool="on the host")
def test_the_gradient_of_no_rows_is_zeros(small_chunks):
    case = Case(LINEAR_LOSS_GRAD, linear_loss_grad(0, 9, 4))
    _, dweight = on_host(case, operands_for(case))
    assert not dweight.any()
    assert VARIANTS[LINEAR_LOSS].build(linear_loss(0, 9, 4), TINY) == []


# --- what is in a chain -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, make", BOTH, ids=["loss", "gradient"])
@pytest.mark.parametrize("device", ["t4", "a100", "l40s", "h100", "h200"])
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
def test_every_gpu_has_kernels_for_it(device, name, make, dtype):
    """Of the sizes of GPT-2: no more than chunks are kept, and every pointer is to where something lies."""
    variant, spec, r = VARIANTS[name], preset(device), make(8192, 50257, 768, dtype)
    assert variant.supported(r, spec) is None
    logits, scratch = 4 * 8192 * 50257, variant.query_workspace(r, spec)
    assert scratch < logits / 3
    for launch in variant.build(r, spec):
        for place in places(launch.args):
            if isinstance(place, Work):
                assert 0 <= place.offset < scratch
            else:
                tensor = (r.operands if isinstance(place, In) else r.results)[place.index]
                assert 0 <= place.offset < tensor.nbytes
    terms = variant.cost(r, spec).terms
    assert any(term.startswith("gemm_") for term in terms)
    assert ("finish_rows" if make is linear_loss else "begin_rows") in terms


def places(args):
    for arg in args:
        if isinstance(arg, tuple):
            yield from places(arg)
        elif isinstance(arg, (In, Out, Work)):
            yield arg
        elif isinstance(arg, TensorMap):
            yield arg.source


def test_a_hopper_takes_its_own_kernels_for_halves_and_the_products_are_most_of_it():
    r = linear_loss_grad(8192, 50304, 768, bf16)
    terms = VARIANTS[LINEAR_LOSS_GRAD].cost(r, H200).terms
    products = sum(us for name, us in terms.items() if "gemm_wgmma[" in name)
    flops = 3 * 2 * 8192 * 50304 * 768
    assert products > 0.7 * sum(terms.values())
    assert sum(terms.values()) < 3 * flops / H200.tflops["bf16"] * 1e-6


@pytest.mark.parametrize("name, make", BOTH, ids=["loss", "gradient"])
def test_f32_goes_to_tensor_cores_where_precision_allows_it(name, make):
    exact, rounded = (
        VARIANTS[name].cost(make(4096, 32000, 512, precision=p), H200) for p in (Precision.exact, Precision.tf32)
    )  # fmt: skip
    assert any("fma" in kernel for kernel in exact.terms) and not any("fma" in k for k in rounded.terms)
    assert rounded.us < exact.us / 3


def test_the_prediction_grows_with_what_there_is():
    for name, make in BOTH:
        one, two = (VARIANTS[name].cost(make(n, 50304, 768, bf16), H200).us for n in (4096, 8192))
        assert 1.6 < two / one < 2.4


def test_rejects_with_the_value_seen():
    none = VARIANTS[LINEAR_LOSS].supported(linear_loss(4, 0, 5), H200)
    assert (none.condition, none.reason) == ("classes", "classes 0 is under 1")
    strided = region("linear_cross_entropy", _strided(8, 5), (7, 5), linear_loss(8, 7, 5).operands[2])
    reject = VARIANTS[LINEAR_LOSS].supported(strided, H200)
    assert reject.condition == "contiguous" and "operand 0 has strides (10, 1)" in reject.reason


def _strided(rows, k):
    from kernel_cases import desc

    return desc((rows, k), f32, (2 * k, 1))


def test_pointers_at_any_element_are_taken():
    """A result that begins anywhere is written by kernels that need no more; what is in the workspace is aligned."""
    for name, make in BOTH:
        r = make(300, 1000, 64, f16)
        odd = tuple(type(t)(t.dtype, t.shape, t.stride, t.device, t.dtype.itemsize) for t in r.tensors)
        loose = RegionSpec(r.ops, odd, r.inputs, r.outputs)
        for spec in (H200, preset("a100")):
            assert VARIANTS[name].supported(loose, spec) is None and VARIANTS[name].build(loose, spec)
            assert VARIANTS[name].cost(loose, spec).us > VARIANTS[name].cost(r, spec).us


def test_a_model_is_explained_with_the_kernels_of_the_chain():
    from aicf import nn

    model = nn.Model({"x": aicf.TensorSpec(("batch", 256), bf16)}, batch=4096)
    model.add(nn.Linear(256, 512)).add(nn.GELU()).add(nn.Linear(512, 32000, bias=False))
    told = aicf.explain_for(model, "h200", "train", loss=nn.LinearCrossEntropy(), optimizer=nn.AdamW(1e-3))
    text = str(told.verbose())
    for name in (LINEAR_LOSS, LINEAR_LOSS_GRAD):
        assert name in text
    assert "gemm_wgmma" in text
    logits = 2 * 4096 * 32000
    assert told.plan.arena_bytes - told.plan.workspace_bytes < logits


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, near", [(f32, 2e-5), (f16, 4e-3), (bf16, 3e-2)], ids=str)
def test_called_as_an_op(dtype, near):
    """With pointers into tensors, in several chunks; twice, to the same bits."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng()
    rows, classes, k = 1500, 32001, 48
    x = rng.uniform(-0.3, 0.3, (rows, k)).astype(dtype.numpy)
    weight = rng.normal(size=(classes, k)).astype(dtype.numpy)
    labels = rng.integers(0, classes, rows)
    labels[::7] = -100
    dloss = rng.normal(size=rows).astype(np.float32)
    wide = [a.astype(np.float64) for a in (x, weight)]
    logits = wide[0] @ wide[1].T
    lse = np.log(np.exp(logits).sum(1))
    counted = labels >= 0
    want = np.where(counted, lse - logits[np.arange(rows), np.maximum(labels, 0)] + 0.01 * lse**2, 0)
    g = np.exp(logits - lse[:, None]) * (1 + 0.02 * lse)[:, None]
    g[np.arange(rows), np.maximum(labels, 0)] -= 1
    g *= np.where(counted, dloss, 0)[:, None]
    kind = {f32: torch.float32, f16: torch.float16, bf16: torch.bfloat16}[dtype]

    def on_gpu(a, like=None):
        return torch.from_numpy(np.asarray(a, np.float32)).to("cuda", like or torch.float32)

    gx, gw, gd = on_gpu(x, kind), on_gpu(weight, kind), on_gpu(dloss)
    gl = torch.from_numpy(labels).cuda()
    seen = []
    for _ in range(2):
        loss, found = torch.empty(rows, device="cuda"), torch.empty(rows, device="cuda")
        aicf.op_call("linear_cross_entropy", [gx, gw, gl], [loss, found], {"z_loss": 0.01})
        dx, dw = torch.empty_like(gx), torch.empty_like(gw)
        aicf.op_call("linear_cross_entropy_grad", [gd, gx, gw, gl, found], [dx, dw], {"z_loss": 0.01})
        seen.append([t.float().cpu().numpy() for t in (loss, found, dx, dw)])
    assert all(np.array_equal(a, b) for a, b in zip(*seen))
    np.testing.assert_allclose(seen[0][0], want, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(seen[0][1], np.where(counted, lse, 0), rtol=2e-5)
    for got, exact in ((seen[0][2], g @ wide[1]), (seen[0][3], g.T @ wide[0])):
        np.testing.assert_allclose(got, exact, rtol=near, atol=near * np.abs(exact).max())
