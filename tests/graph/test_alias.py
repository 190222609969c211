"""In place or not (C6): what the planner must refuse or keep apart, and random graphs against an interpreter."""

from __future__ import annotations

import random

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import AliasError
from aicf.ir import EXTERNAL, Role
from aicf.ops.schema import schema_of

from .chains import Fn, graph_of, model_of, planned

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 7 - 0.5


def program_of(emit):
    return aicf.compile(model_of(emit), device="cpu")


@pytest.mark.spec("C6")
def test_what_becomes_a_state_is_not_written_over():
    def emit(ctx, x):
        state = ctx.state("s", (3, 4), 0.0)
        new = ctx.add(state, x)
        ctx.update(state, new)
        return ctx.add(ctx.neg(new), x)  # neg would like to take over `new`

    program = program_of(emit)
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


# --- random graphs ----------------------------------------------------------------------------------------------------


def random_layer(seed: int):
    """States, views, in-place steps, products and updates, wired at random; what does not fit is left out."""

    def emit(ctx, x):
        pick = random.Random(seed)  # the same each time that the layer is emitted
        states = [
            ctx.state(f"s{n}", shape, nn.init.normal()) for n, shape in enumerate([(4, 4), (4, 4), (16,), ()])
        ]
        made, updated = [x, *states], set()
        for _ in range(pick.randint(3, 14)):
            kind, a, b = pick.choice("uubbvvrgBsU"), pick.choice(made), pick.choice(made)
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


@pytest.mark.spec("C6")
def test_random_graphs_with_states_views_and_in_place_steps_compute_what_an_interpreter_does():
    ran = 0
    for seed in range(60):
        graph = graph_of(random_layer(seed), shape=(4, 4))
        try:
            planned(graph)
        except AliasError:
            continue  # refused with a reason: an old value is read after it was written over
        model = nn.Model({"x": aicf.TensorSpec((4, 4))}, seed=seed).add(Fn(random_layer(seed)))
        program = aicf.compile(model, device="cpu")
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
    assert ran > 30
