"""In place or not (C6): what the planner must refuse or keep apart, and random graphs against an interpreter."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from nn.mlp import on_each_device
from registry.synthetic import kernel, registry_of

import aicf
from aicf import nn
from aicf.errors import AliasError
from aicf.graph.emit.passes import lower, optimize
from aicf.graph.fuse import Region
from aicf.graph.run.alias import _Resolver, resolve_aliases, why_not_in_place
from aicf.ir import EXTERNAL, Role
from aicf.ops.schema import schema_of
from aicf.rows import RegionOp, RegionSpec
from aicf.types import AttrPack, OpKind, TensorDesc

from .chains import Fn, graph_of, model_of, planned

EVERYTHING = bool(os.environ.get("AICF_TEST_ALL"))
X = np.arange(12, dtype=np.float32).reshape(3, 4) / 7 - 0.5


def program_of(emit, device="cpu"):
    return aicf.compile(model_of(emit), device=device)


@on_each_device
@pytest.mark.spec("C6")
def test_what_becomes_a_state_is_not_written_over(device):
    def emit(ctx, x):
        state = ctx.state("s", (3, 4), 0.0)
        new = ctx.add(state, x)
        ctx.update(state, new)
        return ctx.add(ctx.neg(new), x)  # neg would like to take over `new`

    program = program_of(emit, device)
    np.testing.assert_allclose(program.run({"x": X})["output"].numpy(), 0 * X, atol=1e-6)
    np.testing.assert_array_equal(program.get("0.s"), X)


@pytest.mark.spec("C6")
@pytest.mark.parametrize(
    "emit, message",
    [
        (
            lambda ctx, w, v: ctx.sgd_step(w, w, 0.5, 0.1, 0.9, 0.0),
            "would write over the constant const.f32.0.5",
        ),
        (
            lambda ctx, w, v: ctx.sgd_step(w, 1.0, w, 0.1, 0.9, 0.0),
            "reads the old value later|would write two results",
        ),
        (lambda ctx, w, v: ctx.sgd_step(w, 1.0, v, 0.1, 0.9, 0.0), "nobody declared that as its update"),
    ],
)
def test_what_may_not_be_written_in_place_is_named(emit, message):
    def layer(ctx, x):
        w, v = ctx.state("w", (), 1.0), ctx.state("v", (), 0.0)
        new, moved = emit(ctx, w, v)
        if "declared" not in message:
            ctx.update(w, new)
        return ctx.add(x, ctx.add(new, moved))

    with pytest.raises(AliasError, match=message):
        program_of(layer)


@pytest.mark.spec("C6")
def test_a_parameter_may_be_returned_by_a_model_in_training():
    model = nn.Model({"x": aicf.TensorSpec(("batch", 1))}, batch=2)
    model.add(Fn(lambda ctx, x: ctx.param("w", (2, 1), nn.init.ones)))
    program = aicf.compile(model, "train", device="cpu", loss=nn.MeanSquaredError(), optimizer=nn.SGD(0.5))
    zeros = np.zeros((2, 1), np.float32)
    assert (program.run({"x": zeros, "y": zeros})["output"].numpy() == 1).all()  # from before the step
    np.testing.assert_allclose(program.get("0.w"), 0.5)


@pytest.mark.spec("C1")
def test_a_refused_layer_leaves_no_update_behind():
    model = nn.Model({"x": aicf.TensorSpec(("batch", 4))}, batch=3)

    def emit(ctx, x, wrong=False):
        count = ctx.state("n", (), 0, aicf.i32)
        ctx.update(count, ctx.increment(count))
        return ctx.add(x, ctx.state("b", (5,), 0.0)) if wrong else x

    with pytest.raises(aicf.errors.TypeInferenceError):
        model.add(Fn(lambda ctx, x: emit(ctx, x, wrong=True)))
    model.add(Fn(emit))
    assert not [v for v in model.graph.updates.values() if v >= len(model.graph.values)]


@pytest.mark.spec("C6")
def test_what_is_returned_is_not_written_over():
    def emit(ctx, x):
        w, v = ctx.neg(x), ctx.fill(shape=(3, 4), value=0.0, dtype=aicf.f32)
        ctx.sync()
        new, _ = ctx.sgd_step(w, x, v, 0.1, 0.9, 0.0)
        return {"old": w, "new": new}

    with pytest.raises(
        AliasError, match="sgd_step writes old in place, and the caller reads the old value later"
    ):
        planned(graph_of(emit))


# --- fused regions ----------------------------------------------------------------------------------------------------


def aliases_of(emit, *signatures: str, shape=(3, 4)) -> dict[str, str]:
    """Result -> whose storage it has, with kernels for single ops, and for each of the signatures."""
    fused = [kernel(f"cpu.fused{n}.v1", us=0.1, signatures=[s]) for n, s in enumerate(signatures)]
    plan, regions, _ = planned(graph_of(emit, shape=shape), registry_of(kernel("cpu.one.v1"), *fused))
    assert set(signatures) <= {r.spec.signature for r in regions}
    return {plan.slots[out].name.split(".")[0]: plan.slots[into].name for out, into in plan.alias.items()}


@pytest.mark.spec("C6")
def test_fused_maps_take_over_whichever_operand_dies_with_them():
    def chain(ctx, x):
        return ctx.log(ctx.relu(ctx.tanh(ctx.exp(x))))

    def second(ctx, x):
        """The operand that dies is not the first, and comes in by another op than the one that makes the result."""
        a = ctx.exp(x)
        return ctx.log(ctx.sub(ctx.neg(x), a))

    assert aliases_of(chain, "tanh + relu") == {"relu": "exp.1"}
    assert aliases_of(second, "neg + sub") == {"sub": "exp.1"}


@pytest.mark.spec("C6")
def test_fused_maps_leave_alone_what_is_read_later_and_what_has_another_type():
    def later(ctx, x):
        a = ctx.exp(x)
        return ctx.gemm(ctx.relu(ctx.tanh(a)), a, trans_b=True)

    def narrow(ctx, x):
        return ctx.log(ctx.add(ctx.tanh(ctx.reduce_sum(x, axes=(0,))), x))

    def mask(ctx, x):
        return ctx.log(ctx.neg(ctx.select(ctx.greater(x, 0.0), x, 1.0)))

    assert aliases_of(later, "tanh + relu") == {}
    assert aliases_of(narrow, "tanh + add") == {}
    assert aliases_of(mask, "select + neg") == {}


@pytest.mark.spec("C6")
def test_one_of_two_results_takes_over_an_operand():
    def emit(ctx, x):
        a = ctx.tanh(ctx.exp(x))
        return ctx.gemm(a, ctx.relu(a), trans_b=True)

    assert aliases_of(emit, "tanh + relu") == {"tanh": "exp.1"}


@pytest.mark.spec("C6", "A13")
def test_ops_side_by_side_take_over_their_own_operands_only():
    """They run in no order: the first must not write what the second is still reading."""

    def emit(ctx, x):
        a, b = ctx.exp(x), ctx.tanh(x)
        ctx.sync()
        first, second = ctx.relu(a), ctx.relu(b)
        return {"o": ctx.gemm(first, second, trans_b=True), "a": ctx.gemm(a, a, trans_b=True)}

    graph = graph_of(emit)
    registry = registry_of(kernel("cpu.one.v1"), kernel("cpu.two.v1", us=0.1, signatures=["relu + relu"]))
    plan, regions, _ = planned(graph, registry)
    assert [r.spec.signature for r in regions][2] == "relu + relu"
    names = {v.vid: v.name for v in graph.values}
    assert {names[out]: names[into] for out, into in plan.alias.items()} == {"relu.4": "tanh.2"}


def one_region(emit, shape=(4, 4)):
    """The whole graph as one region, as if the loop had fused it."""
    graph = optimize(graph_of(emit, shape=shape))
    ops = lower(graph)
    made = [v for op in ops for v in op.out_vids]
    vids = list(dict.fromkeys(v for op in ops for v in (*op.in_vids, *op.out_vids) if v >= 0))
    ins = tuple(v for v in vids if v not in made)
    outs = tuple(v for v in made if graph.values[v].role is Role.output or v in graph.updates.values())
    spec = RegionSpec(
        tuple(
            RegionOp(op.kind, op.attrs, *(tuple(vids.index(v) if v >= 0 else -1 for v in vs) for vs in (op.in_vids, op.out_vids)))
            for op in ops
        ),
        tuple(TensorDesc.dense(graph.values[v].spec) for v in vids),
        *(tuple(map(vids.index, vs)) for vs in (ins, outs)),
    )  # fmt: skip
    return graph, ops, Region(0, len(ops) - 1, spec, ins, outs, *[None] * 4)


def stepped(gradient):
    """A layer that steps `w`, (4,) or (4, 4), by the gradient that `gradient(ctx, x, w)` gives."""

    def emit(ctx, x, shape=(4,)):
        w, v = ctx.state("w", shape, 1.0), ctx.state("v", shape, 0.0)
        for old, new in zip((w, v), ctx.sgd_step(w, gradient(ctx, x, w), v, 0.1, 0.9, 0.0)):
            ctx.update(old, new)
        return {}

    return emit


def square(emit):
    return lambda ctx, x: emit(ctx, x, (4, 4))


@pytest.mark.spec("C6", "A9")
@pytest.mark.parametrize(
    "emit, reason",
    [
        (stepped(lambda ctx, x, w: ctx.reduce_sum(ctx.mul(x, w), axes=(0,))), "until the reduction is done"),
        (square(stepped(lambda ctx, x, w: ctx.gemm(w, x))), "the product reads it"),
        (square(stepped(lambda ctx, x, w: ctx.gemm(x, w, trans_b=True))), "the product reads it"),
    ],
    ids=["reduction", "left", "right"],
)  # fmt: skip
def test_a_step_in_place_is_refused_beside_a_read_from_another_place(emit, reason):
    graph, ops, region = one_region(emit)
    with pytest.raises(AliasError, match="sgd_step writes w in place") as caught:
        resolve_aliases(graph, ops, [region])
    assert reason in str(caught.value)


@pytest.mark.spec("C6")
@pytest.mark.parametrize(
    "emit",
    [
        stepped(lambda ctx, x, w: ctx.mul(ctx.reduce_sum(x, axes=(0,)), w)),
        square(stepped(lambda ctx, x, w: ctx.mul(ctx.gemm(x, x), w))),
        square(stepped(lambda ctx, x, w: ctx.tanh(ctx.mul(x, w)))),
    ],
    ids=["reduction", "product", "map"],
)
def test_a_step_in_place_may_stand_beside_reads_of_the_same_elements(emit):
    graph, ops, region = one_region(emit)
    root, _, _ = resolve_aliases(graph, ops, [region])
    assert {graph.values[v].name for v in root.values()} == {"w", "v"}


@pytest.mark.spec("C6")
def test_an_operand_that_is_walked_in_another_order_is_not_written_over():
    def region(stride):
        x, y = TensorDesc(aicf.f32, (4, 4), stride, "cpu", 64), TensorDesc.dense(aicf.TensorSpec((4, 4)))
        ops = tuple(RegionOp(OpKind("neg"), AttrPack(), (n,), (n + 1,)) for n in range(2))
        return RegionSpec(ops, (x, y, y), (0,), (2,))

    assert why_not_in_place(region((4, 1)), 0, frozenset({0})) == ""
    assert why_not_in_place(region((1, 4)), 0, frozenset({0})) == "it is broadcast or transposed"


# --- random graphs ----------------------------------------------------------------------------------------------------


def random_layer(seed: int, fences: float = 0.0):
    """States, views, in-place steps, products and updates, wired at random; what does not fit is left out.

    fences  how likely one stands before an op: kernels end there, so that more values go through memory
    """

    def emit(ctx, x):
        pick = random.Random(seed)  # the same each time that the layer is emitted
        states = [
            ctx.state(f"s{n}", shape, nn.init.normal()) for n, shape in enumerate([(4, 4), (4, 4), (16,), ()])
        ]
        made, updated = [x, *states], set()
        for _ in range(pick.randint(3, 14)):
            kind, a, b = pick.choice("uubbvvrgBsU"), pick.choice(made), pick.choice(made)
            if fences and pick.random() < fences:
                ctx.sync()
            try:
                if kind == "u":
                    made.append(ctx.op(pick.choice(["neg", "tanh", "relu", "sigmoid"]), a))
                elif kind == "b":
                    made.append(ctx.op(pick.choice(["add", "mul", "sub", "maximum"]), a, b))
                elif kind == "v":
                    shapes = [
                        s
                        for s in [(16,), (4, 4), (2, 8), (1, 4, 4)]
                        if aicf.TensorSpec(s).numel == a.spec.numel
                    ]
                    made.append(ctx.reshape(a, shape=pick.choice(shapes or [a.shape])))
                elif kind == "r":
                    made.append(ctx.reduce_mean(a, axes=(0,)))
                elif kind == "g":
                    made.append(ctx.gemm(a, b, c=pick.choice([None, a]), act=pick.choice([0, 1, 5])))
                elif kind == "B":
                    made.append(ctx.bias_add(a, b))
                elif kind == "s":
                    p, v = pick.sample(states, 2)
                    if p.shape == v.shape and not updated & {p.vid, v.vid}:
                        results = ctx.sgd_step(p, b, v, 0.1, 0.5, 0.0)
                        for old, new in zip((p, v), results):
                            ctx.update(old, new)
                            updated.add(old.vid)
                        made += results
                else:
                    p = pick.choice(states)
                    fitting = [m for m in made if m.shape == p.shape]
                    if p.vid not in updated:
                        ctx.update(p, pick.choice(fitting))
                        updated.add(p.vid)
            except aicf.AicfError:
                continue
        return ctx.copy(made[-1])

    return emit


def interpret(graph, env):
    """Every op in order, each result a tensor of its own: what a plan must compute, wherever it puts things."""
    for op in graph.ops:
        made = schema_of(op.kind).call_reference([env[v] if v >= 0 else None for v in op.inputs], op.attrs)
        env.update(zip(op.outputs, made))
    return env


@on_each_device
@pytest.mark.spec("C6")
def test_random_graphs_with_states_views_and_in_place_steps_compute_what_an_interpreter_does(device):
    ran, seeds = 0, (30 if EVERYTHING else 10) if device == "cpu" else 6
    for seed in range(seeds):
        layer = random_layer(seed, fences=0.3 * (seed % 2))
        graph = graph_of(layer, shape=(4, 4))
        try:
            planned(graph)
        except AliasError:
            continue  # refused with a reason: an old value is read after it was written over
        model = nn.Model({"x": aicf.TensorSpec((4, 4))}, seed=seed).add(Fn(layer))
        program = aicf.compile(model, device=device)
        x = np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32)
        env = {}
        for value in graph.externals(*EXTERNAL):
            name = value.name if value.constant or value.role is Role.input else f"0.{value.name}"
            env[value.vid] = x if value.role is Role.input else program.variables[name].numpy()
        before = dict(env)
        want = interpret(graph, env)
        got = program.run({"x": x})["output"].numpy()
        output = next(v for v in graph.outputs)
        np.testing.assert_allclose(got, want[output.vid], rtol=1e-4, atol=1e-4, err_msg=f"seed {seed}")
        for value in graph.externals(Role.state):
            if not value.constant:
                new = want[graph.updates[value.vid]] if value.vid in graph.updates else before[value.vid]
                np.testing.assert_allclose(
                    program.get(f"0.{value.name}"), new, rtol=1e-4, atol=1e-4, err_msg=f"seed {seed}"
                )
        ran += 1
    assert ran > seeds // 2


def braid(seed: int):
    """Two values at a time, each step a map of one or both, or a product; fences end kernels at random."""

    def emit(ctx, x):
        pick = random.Random(seed)
        a, b = ctx.tanh(x), ctx.sigmoid(x)
        for _ in range(20):
            if pick.random() < 0.5:
                ctx.sync()
            kind = pick.choice("uubbg")
            if kind == "u":
                new = ctx.op(pick.choice(["neg", "relu"]), pick.choice([a, b]))
            elif kind == "b":
                new = ctx.op(pick.choice(["sub", "mul"]), a, b)
            else:
                new = ctx.tanh(ctx.gemm(a, b))
            a, b = (new, b) if pick.random() < 0.5 else (a, new)
        return ctx.add(a, b)

    return emit


@on_each_device
@pytest.mark.spec("C6")
def test_taking_over_storage_changes_no_bit(device, monkeypatch):
    """The same random programs, with the planner allowed to share storage, and not."""
    seeds = range(4 if EVERYTHING else 2 if device == "cpu" else 1)
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)

    def results(seed: int):
        model = nn.Model({"x": aicf.TensorSpec((4, 4))}).add(Fn(braid(seed)))
        program = aicf.compile(model, device=device)
        outputs = [program.run({"x": x})["output"].numpy().copy() for _ in range(2)]
        assert np.isfinite(outputs[0]).all()
        return outputs, fused_takeovers(program.plan)

    shared = [results(seed) for seed in seeds]
    monkeypatch.setattr(_Resolver, "_may", lambda *_: False)
    apart = [results(seed) for seed in seeds]
    assert sum(count for _, count in shared) > 1.5 * len(seeds)
    assert not any(count for _, count in apart)
    for seed, ((with_, _), (without, _)) in enumerate(zip(shared, apart)):
        np.testing.assert_array_equal(with_, without, err_msg=f"seed {seed}")


def fused_takeovers(plan) -> int:
    return sum(vid in plan.alias for step in plan.steps if step.last > step.anchor for vid in step.out_vids)
