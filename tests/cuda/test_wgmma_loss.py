"""The cross entropy of a linear layer on Hopper: its GEMMs on a model of the machine, its kernels over rows on the host."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import wgmma_cases
from clean_kernels import are_new, found_clean
from kernel_cases import (
    ALL,
    LINEAR_LOSS_GRAD,
    VARIANTS,
    Case,
    assert_close,
    linear_loss,
    linear_loss_grad,
    operands_for,
    reference,
)
from machines.hopper_model import Machine
from machines.on_host import OnHost
from test_wgmma import assert_clean
from wgmma_cases import H200

import aicf
from aicf.cuda_kernels import chain
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.compiler.compile import signature_of
from aicf.cuda_kernels.gemm import linear_loss as linear_loss_chunks
from aicf.cuda_kernels.gemm import simt, wgmma_loss
from aicf.cuda_kernels.gemm.wgmma_loss_body import (
    LogitsGradient,
    RowStatistics,
    statistics_of_rows,
    store_gradient,
)
from aicf.cuda_kernels.gemm.wgmma_results import GemmResults
from aicf.cuda_kernels.gemm.wgmma_tiling import WgmmaTiling
from aicf.device.spec import preset
from aicf.registry.registry import KernelRegistry
from aicf.registry.select import select
from aicf.registry.variant import In, Launch, TensorMap, Work
from aicf.rows import RegionSpec
from aicf.types import bf16, f16, f32, i32, i64

LOSS, GRAD = wgmma_loss.LinearCrossEntropyWgmma, wgmma_loss.LinearCrossEntropyGradWgmma
SMALL = WgmmaTiling(64, 128, 1, blocks=2, registers=(40, 216))
PINGPONG, TALL = WgmmaTiling(64, 128, 2, ping_pong=True), WgmmaTiling(128, 64, 1, registers=None)
PAIR = WgmmaTiling(64, 128, 1, cluster=2, registers=None)
ASKED = {"ignore_index": 1, "label_smoothing": 0.2, "z_loss": 0.05}
COMPILED: dict[Any, OnHost] = {}


@pytest.fixture
def only(monkeypatch):
    """`only(tiling)`: no others, and few rows in a chunk; products that the host can run."""
    caches = (
        wgmma_loss.statistics_tiling, wgmma_loss.gradients_tiling, wgmma_loss._losses, wgmma_loss._gradients,
        chain._chosen,
    )  # fmt: skip
    products = KernelRegistry()
    products.add_module(simt)
    products.remove("cuda.gemm_naive.v1")
    hopper = KernelRegistry()
    hopper.add(wgmma_cases.VARIANTS["gemm_wgmma[64x64]"])

    def clear():
        for cache in caches:
            cache.cache_clear()

    def choose(tiling: WgmmaTiling, rows: int = wgmma_loss.ROWS, on_host: bool = True):
        monkeypatch.setattr(wgmma_loss, "LOSS_TILINGS", (tiling,))
        monkeypatch.setattr(wgmma_loss, "STATISTICS", 1)
        for name in ("ROWS", "ROW_UNIT", "CLASSES"):
            monkeypatch.setattr(wgmma_loss, name, rows)
        monkeypatch.setattr(linear_loss_chunks, "ROWS", rows)
        monkeypatch.setattr(linear_loss_chunks, "CLASSES", rows)
        monkeypatch.setattr(wgmma_loss, "GRADIENTS", 1)
        monkeypatch.setattr(chain, "_registry", lambda: products if on_host else hopper)
        clear()

    yield choose
    clear()


def on_model(variant, r: RegionSpec, memory: list[np.ndarray], blocks: int = 0) -> list[np.ndarray]:
    """Its launches: those of a Hopper GEMM on the model, the others on the host; memory that nothing has written is NaN."""
    outs = [np.full(t.nbytes, 255, np.uint8).view(t.dtype.numpy) for t in r.results]
    workspace = np.full(variant.query_workspace(r, H200), 255, np.uint8)
    for launch in variant.build(r, H200):
        if launch.body.__name__.startswith("gemm_wgmma"):
            Machine(random.randrange(2**32)).launch(launch, memory, outs, blocks, workspace)
            continue
        key = launch.body, signature_of(launch, r)
        if key not in COMPILED:
            COMPILED[key] = OnHost(launch, r)
        COMPILED[key].launch = launch  # of another chunk, maybe
        COMPILED[key](memory, outs, workspace)
    return [x.reshape(t.shape) for x, t in zip(outs, r.results)]


CASES = list(itertools.product((SMALL, PINGPONG, TALL, PAIR), (f16, bf16), ({}, ASKED)))


@pytest.mark.sample(2, pool="on the model")
@pytest.mark.spec("B10", "F2")
@pytest.mark.parametrize("t, dtype, asked", CASES, ids=str)
def test_losses_agree_with_numpy(only, t, dtype, asked):
    """Tiles hang over both ways; a second chunk of rows."""
    rows = 64 * t.together
    only(t, rows)
    case = Case(LOSS.id, linear_loss(rows + 9, t.n + 11, 72, dtype, i32, **asked), 2e-5)
    operands = operands_for(case)
    assert_close(
        case, on_model(LOSS, case.region, operands.memory, t.together), reference(case, operands.arrays)
    )


@pytest.mark.sample(2, pool="on the model")
@pytest.mark.spec("B10", "F2")
@pytest.mark.parametrize("t, dtype, asked", CASES, ids=str)
def test_gradients_agree_with_numpy(only, t, dtype, asked):
    """Tiles hang over both ways; in chunks of classes and of rows, of which there are more."""
    step = max(64 * t.together, t.n)
    only(t, step)
    for rows, classes in ((t.m + 9, step + 11), (step + 11, 45)):
        r = linear_loss_grad(rows, classes, 72, dtype, i32, **asked)
        case = Case(GRAD.id, r, 8e-3 if dtype is f16 else 6e-2)
        operands = operands_for(case)
        got = on_model(GRAD, r, operands.memory, t.together)
        assert_close(case, got, reference(case, operands.arrays))


@pytest.mark.sample(2, pool="on the model")
@pytest.mark.spec("B10", "F2")
@pytest.mark.parametrize("dtype", (f16, bf16), ids=str)
@pytest.mark.parametrize("rows, classes", ((1, 40), (12, 2), (6, 1), (73, SMALL.n + 11)))
def test_one_feature_agrees_with_numpy(only, rows, classes, dtype):
    """With k = 1, x and the weight are MN-major, but a single row is K-major."""
    only(SMALL)
    for variant, make, near in ((LOSS, linear_loss, 2e-5), (GRAD, linear_loss_grad, 6e-2)):
        case = Case(variant.id, make(rows, classes, 1, dtype, i32, z_loss=0.1), near)
        operands = operands_for(case)
        got = on_model(variant, case.region, operands.memory)
        assert_close(case, got, reference(case, operands.arrays))


@pytest.mark.sample(1, pool="on the model")
def test_products_of_a_hopper_read_the_gradient_of_logits_by_its_pitch(only):
    """Of a last chunk with an odd number of classes, behind which rows of it are anything; dx is added up in place."""
    only(SMALL, SMALL.n, on_host=False)
    case = Case(GRAD.id, linear_loss_grad(73, SMALL.n + 11, 72, bf16, i32), 6e-2)
    operands = operands_for(case)
    launches = GRAD.build(case.region, H200)
    assert sum("gemm_wgmma_64x64_" in launch.body.__name__ for launch in launches) == 4
    assert_close(case, on_model(GRAD, case.region, operands.memory), reference(case, operands.arrays))


@pytest.mark.sample(1, pool="on the model")
def test_ignored_rows_have_no_gradient_and_labels_that_are_no_classes_give_nan(only):
    """Even where logits are too large for exp, since lse of an ignored row is 0."""
    only(SMALL)
    r = linear_loss_grad(6, 139, 8, bf16, i64)
    operands = operands_for(Case(GRAD.id, r))
    _, x, _, labels, lse = operands.memory
    labels[:], lse[:] = [0, 139, -1, -100, 138, 2**40], [1, np.nan, np.nan, 0, 2, np.nan]
    x.reshape(6, 8)[3] *= 300
    dx, dweight = on_model(GRAD, r, operands.memory)
    assert np.isnan(dx[[1, 2, 5]]).all() and np.isfinite(dx[[0, 4]]).all() and not dx[3].any()
    assert np.isnan(dweight).all()


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.parametrize(
    "t, impossible", list(itertools.product((SMALL, TALL), (0, 3, "a tile", "all"))), ids=str
)
def test_what_has_no_loss(only, t, impossible):
    """Labels that are no classes, ignored rows, a NaN, an Inf behind the first tile, and classes whose logits are -Inf."""
    only(t)
    rows, classes, k = 12, t.n + 9, 8
    r = linear_loss(rows, classes, k, bf16, i64, ignore_index=-7)
    operands = operands_for(Case(LOSS.id, r))
    x, weight, labels = (m.reshape(d.shape) for m, d in zip(operands.memory, r.operands))
    labels[:] = [t.n, classes, -1, -7, classes - 1, 2**40, t.n + 1, t.n + 2, 1, t.n, t.n, t.n]
    none = {"a tile": t.n, "all": classes}.get(impossible, impossible)
    x[:, 0], weight[:, 0], weight[:none, 0] = 1, 0, -np.inf
    x[7, 2] = np.nan
    wide = [a.astype(np.float64) for a in (x, weight)]
    with np.errstate(all="ignore"):
        logits = wide[0] @ wide[1].T
        lse = np.log(np.exp(logits - logits.max(1)[:, None]).sum(1)) + logits.max(1)
        want = lse - logits[np.arange(rows), np.clip(labels, 0, classes - 1)]
    lse[[1, 2, 5]] = want[[1, 2, 5]] = np.nan
    lse[3] = want[3] = 0
    assert np.isnan(lse).sum() == (11 if impossible == "all" else 4) and (want[8] == np.inf) == (
        1 < none < classes
    )
    with np.errstate(all="ignore"):
        loss, found = on_model(LOSS, r, operands.memory)
    np.testing.assert_allclose(loss, want, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(found, lse, rtol=2e-5)
    weight[:, 0] = 0
    weight[classes - 1, 0] = np.inf
    with np.errstate(all="ignore"):
        loss, found = on_model(LOSS, r, operands.memory)
    assert np.isnan(np.delete(loss, 3)).all() and np.isnan(np.delete(found, 3)).all()


# --- machine code -------------------------------------------------------------------------------------------------------


def statistics(t: WgmmaTiling, dtype, summed: bool, k: int = 1000) -> tuple[Launch, RegionSpec]:
    r, w = linear_loss(1000, 1001, k, dtype, i32 if summed else i64), Work(0, f32)
    logits = wgmma_loss.logits_of(*r.operands[:2])
    results = GemmResults(
        RowStatistics.of(dtype, summed), (In(2), w, w, w, w), (), storing=statistics_of_rows
    )
    return wgmma_loss.logits_launch(t, logits, H200, (In(0), In(1)), results), r


def gradient(t: WgmmaTiling, dtype, summed: bool = False, k: int = 1000) -> tuple[Launch, RegionSpec]:
    r, w = linear_loss_grad(1000, 1001, k, dtype), Work(0, f32)
    logits = wgmma_loss.logits_of(*r.operands[1:3])
    box = TensorMap(w, dtype, (1001, 1000), 2048, (64, 64))
    results = GemmResults(
        LogitsGradient.of(dtype), (w, Work(0, i32)), (), 1, maps=(box,), storing=store_gradient
    )
    return wgmma_loss.logits_launch(t, logits, H200, (In(1), In(2)), results, (0,)), r


def one_feature(t: WgmmaTiling, dtype, summed: bool) -> tuple[Launch, RegionSpec]:
    """Of MN-major operands, the gradient, which needs more registers than the statistics."""
    return gradient(t, dtype, k=1)


def is_new(make, t, dtype, summed) -> bool:
    launch, r = make(t, dtype, summed)
    return are_new([launch], r, H200.target)


MADE = (statistics, False), (statistics, True), (gradient, False), (one_feature, False)
CODE = [
    (make, t, dtype, summed)
    for (make, summed) in MADE
    for t in wgmma_loss.LOSS_TILINGS
    for dtype in (f16, bf16)
]
EACH = [random.Random(f"{t}").choice([c for c in CODE if c[1] == t]) for t in wgmma_loss.LOSS_TILINGS]


@pytest.mark.sample(1, always=is_new, pool="machine code")
@pytest.mark.spec("F2", "D10")
@pytest.mark.parametrize(
    "make, t, dtype, summed", CODE if ALL else EACH, ids=lambda v: getattr(v, "__name__", str(v))
)
def test_compiles_without_spills_or_serialized_products(make, t, dtype, summed):
    launch, r = make(t, dtype, summed)
    assert_clean(t, engine.compile_launch(launch, r, H200.target))
    found_clean(launch, r, H200.target)


# --- what is chosen -----------------------------------------------------------------------------------------------------


def test_refuses_with_the_value_seen():
    strict = replace(linear_loss(64, 64, 64, f16), strict=True)
    for r, reason in (
        (linear_loss(64, 64, 64), "x is f32, needs f16 or bf16"),
        (linear_loss(64, 64, 60, f16), "needs rows that begin at multiples of 16 bytes"),
        (linear_loss(0, 64, 64, f16), "rows 0 is under 1"),
        (linear_loss(64, 0, 64, f16), "classes 0 is under 1"),
        (linear_loss(64, 64, 0, f16), "k 0 is under 1"),
        (strict, "strict takes those of exp"),
    ):
        assert reason in str(LOSS.supported(r, H200)), r
    assert LOSS.supported(linear_loss(64, 64, 64, f16), preset("a100")).condition == "needs"


def test_no_logits_are_stored_and_turn_groups_hide_what_is_made_of_them():
    """Of GPT-2's step: the loss takes little more than its product; statistics of many rows are made in chunks."""
    r = linear_loss(16384, 50257, 768, bf16)
    cost = LOSS.cost(r, H200)
    assert len(LOSS.build(r, H200)) == 2 and LOSS.query_workspace(r, H200) < 2**27
    assert any("128x128_pingpong" in term for term in cost.terms)
    flops = 2 * 16384 * 50257 * 768
    assert flops / H200.tflops["bf16"] * 1e-6 < cost.us < 1.5 * flops / H200.tflops["bf16"] * 1e-6
    assert select(r, H200, aicf.default_registry()).kernel_id == LOSS.id
    many = linear_loss(2**20, 50257, 768, bf16)
    assert LOSS.query_workspace(many, H200) < 2**28


def test_the_gradient_has_few_chunks_and_adds_up_the_smaller_side():
    """In waves of the product that has as many rows as a chunk; workspaces do not grow with rows times size, nor do those of other GPUs."""
    flops = 6 * 16384 * 50257 * 768
    r = linear_loss_grad(16384, 50257, 768, bf16)
    cost = GRAD.cost(r, H200)
    assert len(GRAD.build(r, H200)) == 1 + 3 * 5 and GRAD.query_workspace(r, H200) < 2**29
    assert flops / H200.tflops["bf16"] * 1e-6 < cost.us < 1.5 * flops / H200.tflops["bf16"] * 1e-6
    assert select(r, H200, aicf.default_registry()).kernel_id == GRAD.id
    assert wgmma_loss.steps(300, 1000, 768, 256, H200) == [300]
    for variant in (GRAD, VARIANTS[LINEAR_LOSS_GRAD]):
        one, two = (
            variant.query_workspace(linear_loss_grad(n, 4096, 512, bf16), H200) for n in (2**18, 2**19)
        )
        assert one < two < one + 2**18 * 40 and two < 2**30
