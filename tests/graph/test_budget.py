"""What is computed of constants while a graph is looked through has a budget, in bytes and in steps."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.graph.emit.builder import Builder, GraphEmitter
from aicf.graph.emit.evaluate import ENDLESS, STEPS, FoldBudget, price_of
from aicf.graph.recognise.flow import Flow
from aicf.types import f32, i32, i64

MIB = 1 << 20


def test_a_budget_takes_all_or_nothing_and_says_why():
    budget = FoldBudget(limit=100)
    assert budget.spend(60) == "" and budget.spend(0, STEPS - 1) == ""
    assert budget.spend(41) == (
        "41 bytes of constants would be computed while the model is read, and 40 of 100 are left: AICF_FOLD_MB sets the limit"
    )
    assert budget.spend(40, 2).startswith(
        "its constants take 2 steps to compute while the model is read, and 1 of "
    )
    assert budget.spend(40, 1) == "" and (budget.nbytes, budget.steps) == (100, STEPS)


def emitter():
    return GraphEmitter(Builder(), "cpu")


def counting(ctx, steps, inner=1):
    """The last number of a scan that adds its counter, in each step by a scan of its own."""

    def step(total, n):
        def turn(t, k):
            return ctx.add(t, ctx.mul(n, 0)), ()

        end, _ = (
            ctx.scan(turn, total, ctx.iota(shape=(inner,), axis=0, dtype=i32)) if inner > 1 else (total, ())
        )
        return ctx.add(end, 1), ()

    end, _ = ctx.scan(step, ctx.constant(0, i32), ctx.iota(shape=(steps,), axis=0, dtype=i32))
    return end


def test_steps_of_an_op_count_those_of_its_body_in_each_iteration():
    rng = np.random.default_rng()
    for _ in range(20):
        outer, inner = (int(v) for v in rng.integers(2, 1000, 2))
        ctx = emitter()
        counting(ctx, outer, inner)
        nbytes, steps = price_of(ctx.builder.graph, ctx.builder.graph.ops[-1])
        assert nbytes == 4 and outer * (inner + 1) < steps < 5 * outer * (inner + 2)
    ctx = emitter()
    ctx.while_loop(lambda v: ctx.less(v, 9.0), lambda v: ctx.add(v, 1.0), ctx.constant(0.0, f32))
    assert price_of(ctx.builder.graph, ctx.builder.graph.ops[-1])[1] == ENDLESS


class Chosen(nn.Layer):
    """x where a loop of constants counts to its number of steps, as it always does; else -x."""

    def __init__(self, *steps):
        self.steps = steps

    def emit(self, ctx, x):
        end = counting(ctx, *self.steps)
        return ctx.select(ctx.equal(end, ctx.constant(self.steps[0], i32)), x, ctx.neg(x))


@pytest.mark.parametrize(
    "steps, decided", [((5,), True), ((3, 4), True), ((5_000_000,), False), ((3000, 3000), False)]
)
def test_a_loop_of_constants_is_run_while_the_model_is_compiled_if_it_is_short(steps, decided):
    start = time.process_time()
    explained = aicf.explain_for(nn.Model({"x": aicf.TensorSpec((4,))}).add(Chosen(*steps)), "cpu")
    assert time.process_time() - start < 10
    kinds = {op.kind.name for region in explained.regions for op in region.spec.ops}
    assert ("scan" not in kinds) is decided


def test_masks_of_constants_are_computed_up_to_the_limit(monkeypatch):
    """Of many large ones, the first; and those that repeat rows or columns take no memory of their own."""
    monkeypatch.setenv("AICF_FOLD_MB", "16")
    ctx = emitter()
    size = 1 << 19
    x = ctx.input("x", (), i64)
    row = ctx.iota(shape=(size,), axis=0, dtype=i64)
    masks = [ctx.add(ctx.mul(row, n), 1) for n in range(2, 12)]
    wide = [ctx.greater(ctx.broadcast_in_dim(m, shape=(64, size), dims=(1,)), 3) for m in masks[:1]]
    tracemalloc.start()
    flow = Flow(ctx, [*masks, *wide, x])
    known = [flow.known(m) for m in masks]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert known[0] is not None and known[-1] is None and peak < 3 * 16 * MIB
    np.testing.assert_array_equal(known[0], np.arange(size) * 2 + 1)
    monkeypatch.setenv("AICF_FOLD_MB", "512")
    assert all(Flow(ctx, masks).known(m) is not None for m in masks)
    repeated = Flow(ctx, wide).known(wide[0])
    assert repeated is not None and repeated.shape == (64, size) and repeated.strides[0] == 0
