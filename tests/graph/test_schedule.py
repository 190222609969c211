"""The schedule (A10): laws on random graphs, and the orders that it should find on those that people write."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nn.mlp import mlp, on_each_device

import aicf
from aicf import nn
from aicf.errors import TypeInferenceError
from aicf.graph.compile import compile
from aicf.graph.emit.passes import lower, optimize, verify
from aicf.graph.emit.trace import Recipe, trace
from aicf.graph.fuse.schedule import _Run, schedule
from aicf.ops.schema import VIEW, schema_of
from examples import examples

from .chains import Fn, graph_of, model_of, rows_of, run

# --- laws -------------------------------------------------------------------------------------------------------------

SHAPES = [(4, 4), (4, 4), (4, 4), (16,), (4,), ()]
UNARY, BINARY = ["neg", "relu", "tanh", "copy"], ["add", "mul", "maximum"]


@st.composite
def lowered(draw):
    """(ops, graph): maps, products, reductions, views, random numbers, in-place steps and fences, wired at random."""

    def emit(ctx, x):
        states = [ctx.state(f"s{n}", shape, nn.init.normal()) for n, shape in enumerate(SHAPES)]
        made, updated = [x, *states], {}
        for _ in range(draw(st.integers(1, 25))):
            kind = draw(
                st.sampled_from(["unary", "binary", "gemm", "reduce", "view", "step", "drop", "sync"])
            )
            a, b = (made[-1 - draw(st.integers(0, min(len(made), 9) - 1))] for _ in "ab")
            try:
                if kind == "unary":
                    made.append(ctx.op(draw(st.sampled_from(UNARY)), a))
                elif kind == "binary":
                    made.append(ctx.op(draw(st.sampled_from(BINARY)), a, b))
                elif kind == "gemm":
                    made.append(ctx.gemm(a, b, act=draw(st.sampled_from([0, 1]))))
                elif kind == "reduce":
                    made.append(ctx.reduce_sum(a, axes=draw(st.sampled_from([(), (0,)]))))
                elif kind == "view":
                    made.append(ctx.reshape(a, shape=draw(st.sampled_from([(16,), (4, 4), (2, 8)]))))
                elif kind == "drop":
                    state, number = ctx.random()
                    made.append(ctx.dropout(a, state, rate=0.5, layer=number))
                elif kind == "step":
                    old = draw(st.sampled_from(states))
                    p, v = updated.get(old.vid, old), updated.get(-old.vid - 1)
                    v = ctx.fill(shape=old.shape, value=0.0, dtype=aicf.f32) if v is None else v
                    new, moved = ctx.sgd_step(p, a, v, 0.1, 0.5, 0.0)
                    made += [new, moved]
                    updated[old.vid], updated[-old.vid - 1] = new, moved
                else:
                    ctx.sync()
            except TypeInferenceError:
                continue
        ctx.advance()
        for vid, new in updated.items():
            if vid >= 0:
                ctx.update(states[[s.vid for s in states].index(vid)], new)
        return ctx.copy(made[-1])

    graph = verify(graph_of(emit, shape=(4, 4)))
    return lower(graph), graph


def storage_of(ops) -> dict[int, int]:
    """vid -> the first value that lives in the same memory, by steps in place and views."""
    root = {}
    for op in ops:
        for result, (operand, how) in op.constraints.get("alias", {}).items():
            if how == "must" or VIEW in schema_of(op.kind).traits:
                source = op.in_vids[operand]
                root[op.out_vids[result]] = root.get(source, source)
    return root


def writes(op, root) -> set[int]:
    alias = op.constraints.get("alias", {})
    return {root[op.out_vids[r]] for r, (_, how) in alias.items() if how == "must"}


def in_conflict(first, second, root) -> bool:
    def touched(op):
        return {root.get(v, v) for v in (*op.in_vids, *op.out_vids)}

    return bool(writes(first, root) & touched(second) or writes(second, root) & touched(first))


@pytest.mark.spec("A10")
@examples(300)
@given(lowered())
def test_a_schedule_holds_to_values_storage_effects_and_fences(given_ops):
    ops, graph = given_ops
    got = schedule(ops, graph)
    assert sorted(map(id, got)) == sorted(map(id, ops))  # each op once
    makers = {v for op in ops for v in op.out_vids}
    made = set()
    for op in got:
        assert not (makers & set(op.in_vids)) - made
        made.update(op.out_vids)
    at = {id(op): i for i, op in enumerate(got)}
    root = storage_of(ops)
    for first, second in combinations(ops, 2):
        ordered = at[id(first)] < at[id(second)]
        if in_conflict(first, second, root):
            assert ordered, f"op {second.oid} overtook op {first.oid}, which shares its storage"
        if writes(first, root) and writes(second, root):
            assert ordered, f"the effect of op {second.oid} overtook that of op {first.oid}"
    for i, op in enumerate(ops):
        if op.constraints.get("sync"):
            assert got[i] is op
            assert set(map(id, got[:i])) == set(map(id, ops[:i]))
    assert all(a is b for a, b in zip(schedule(ops, graph), got))
    assert all(a is b for a, b in zip(schedule(got, graph), got))  # its own schedule


@pytest.mark.spec("A10")
@examples(100)
@given(st.permutations(range(8)))
def test_chains_that_come_interleaved_are_taken_apart(picks):
    """Four chains of product and activation, in any order of emission: each stands together."""

    def emit(ctx, x):
        w = ctx.param("w", (4, 4), nn.init.normal())
        left = {n: iter(["gemm", "relu"]) for n in range(4)}
        value, done = dict.fromkeys(left, x), []
        for pick in picks:
            n = pick % 4
            if next(left[n]) == "gemm":
                value[n] = ctx.gemm(x, w)
            else:
                value[n] = ctx.relu(value[n])
                done.append(value[n])
        return {f"o{n}": v for n, v in enumerate(done)}

    assert kinds_of(graph_of(emit, shape=(4, 4))) == ["gemm", "relu"] * 4


# --- examples ---------------------------------------------------------------------------------------------------------


def kinds_of(graph) -> list[str]:
    graph = verify(optimize(graph))
    return [op.kind.name for op in schedule(lower(graph), graph)]


def traced(model, **recipe):
    mode = "train" if recipe else "infer"
    return trace(Recipe(model, mode, **recipe), model.sizes, "cpu")


@pytest.mark.spec("A10")
def test_a_train_step_keeps_activation_gradients_and_reductions_beside_their_products():
    kinds = kinds_of(traced(mlp(sizes=(5, 7, 7, 3)), loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.1)))
    forward = ["gemm", "bias_add", "relu"] * 2 + ["gemm", "bias_add"]
    head = ["cross_entropy", "check_labels", "reduce_sum", "div", "div", "broadcast_in_dim"]
    head += ["cross_entropy_grad"]
    backward = ["reduce_sum"] + ["gemm", "relu_grad", "reduce_sum", "gemm"] * 2 + ["gemm"]
    assert kinds == [*forward, *head, *backward, "increment", *["sgd_step"] * 6]


@pytest.mark.spec("A10")
def test_a_gradient_norm_is_taken_of_all_gradients_at_once():
    optimizer = nn.SGD(0.1, clip_norm=1.0)
    kinds = kinds_of(traced(mlp(sizes=(5, 3)), loss=nn.SoftmaxCrossEntropy(), optimizer=optimizer))
    backward = kinds[kinds.index("cross_entropy_grad") + 1 :]
    assert backward[:2] == ["reduce_sum", "gemm"] and backward.count("sum_of_squares") == 1
    assert backward[-4:] == ["scale_gradient", "scale_gradient", "sgd_step", "sgd_step"]  # one launch each


@pytest.mark.spec("A10")
def test_a_residual_block_is_left_as_it_is():
    model = nn.Model({"x": aicf.TensorSpec(("batch", 4))}, batch=3)
    model.add(nn.Residual(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))
    assert kinds_of(traced(model)) == ["gemm", "bias_add", "relu", "gemm", "bias_add", "add"]


@pytest.mark.spec("A10")
def test_what_the_last_op_of_a_branch_waits_for_is_made_before_the_branch():
    def emit(ctx, x):
        """The mean's shape is not the product's: the sum of both can only join the product's region."""
        y = ctx.relu(ctx.gemm(x, ctx.param("w", (4, 4), nn.init.normal())))
        return ctx.add(y, ctx.reduce_mean(x, axes=(0,)))

    assert kinds_of(graph_of(emit)) == ["reduce_mean", "gemm", "relu", "add"]


@pytest.mark.spec("A10")
def test_branches_that_meet_are_each_kept_together():
    def emit(ctx, x):
        w = ctx.param("w", (4, 4), nn.init.normal())
        left, right = ctx.gemm(x, w), ctx.gemm(x, w, trans_b=True)
        left, right = ctx.relu(left), ctx.tanh(right)
        return ctx.add(left, right)

    assert kinds_of(graph_of(emit)) == ["gemm", "relu", "gemm", "tanh", "add"]


@pytest.mark.spec("A10")
def test_a_map_goes_before_a_reduction_of_the_same_value():
    def emit(ctx, x):
        y = ctx.neg(x)
        return {"sum": ctx.reduce_sum(y, axes=(0,)), "map": ctx.tanh(y)}

    assert kinds_of(graph_of(emit)) == ["neg", "tanh", "reduce_sum"]


@pytest.mark.spec("A10")
def test_an_order_as_good_is_kept():
    def emit(ctx, x):
        made = [ctx.tanh(x), ctx.reduce_sum(x, axes=(0,)), ctx.relu(x), ctx.neg(x)]
        return {f"o{n}": v for n, v in enumerate(made)}

    assert kinds_of(graph_of(emit)) == ["tanh", "reduce_sum", "relu", "neg"]


@pytest.mark.spec("A10")
def test_a_step_in_place_stays_behind_readers_of_the_old_value_and_of_its_views():
    def emit(ctx, x):
        w, v = ctx.state("w", (4, 4), 1.0), ctx.state("v", (4, 4), 0.0)
        g = ctx.relu(x)
        view = ctx.reshape(w, shape=(16,))
        other = ctx.gemm(x, x)
        read = ctx.neg(view)
        for old, new in zip((w, v), ctx.sgd_step(w, g, v, 0.1, 0.9, 0.0)):
            ctx.update(old, new)
        return {"o": ctx.tanh(other), "r": read}

    kinds = kinds_of(graph_of(emit, shape=(4, 4)))
    assert kinds.index("neg") < kinds.index("sgd_step")
    assert kinds.index("tanh") == kinds.index("gemm") + 1


@pytest.mark.sample(1, pool="long graphs")
@pytest.mark.spec("A6", "A10")
def test_ten_thousand_ops_are_scheduled_in_linear_time(monkeypatch):
    """Counted: how often an op is asked whether it can stand next. The clock is in test_linear."""
    asked = []
    rank = _Run.rank
    monkeypatch.setattr(_Run, "rank", lambda run, i: asked.append(i) or rank(run, i))

    def per_op(layers: int) -> float:
        model = mlp(sizes=(2,) * (layers + 1), batch=2)
        graph = optimize(traced(model, loss=nn.SoftmaxCrossEntropy(), optimizer=nn.Adam(clip_norm=1.0)))
        ops = lower(graph)
        asked.clear()
        schedule(ops, graph)
        return len(asked) / len(ops)

    assert per_op(620) < 1.1 * per_op(40) < 30


# --- explicit fences --------------------------------------------------------------------------------------------------


def fenced(ctx, x, used: bool = True):
    w = ctx.param("w", (4, 4), nn.init.normal())
    y = ctx.gemm(x, w)
    ctx.sync()
    z = ctx.tanh(y)
    return ctx.add(ctx.relu(y), z if used else 1.0)


def fences(graph) -> list[str]:
    return [op.kind.name for op in lower(optimize(graph)) if op.constraints.get("sync")]


@pytest.mark.spec("A9")
def test_a_fence_stands_before_the_next_op_even_if_that_is_dropped():
    assert fences(graph_of(fenced)) == ["tanh"]
    assert fences(graph_of(lambda ctx, x: fenced(ctx, x, used=False))) == ["relu"]
    assert (
        schema_of("tanh").alias and lower(graph_of(fenced))[1].constraints["alias"] == schema_of("tanh").alias
    )


@pytest.mark.spec("A9")
def test_nothing_moves_across_a_fence():
    def emit(ctx, x, sync):
        w = ctx.param("w", (4, 4), nn.init.normal())
        left, right = ctx.gemm(x, w), ctx.gemm(x, w, trans_b=True)
        if sync:
            ctx.sync()
        return {"l": ctx.relu(left), "r": ctx.relu(right)}

    assert kinds_of(graph_of(lambda ctx, x: emit(ctx, x, False))) == ["gemm", "relu"] * 2
    assert kinds_of(graph_of(lambda ctx, x: emit(ctx, x, True))) == ["gemm", "gemm", "relu", "relu"]


@pytest.mark.spec("A9")
def test_the_op_behind_a_fence_stays_right_behind_it():
    def emit(ctx, x):
        ctx.sync()
        y = ctx.relu(ctx.gemm(x, ctx.param("w", (4, 4), nn.init.normal())))
        return ctx.add(y, ctx.reduce_mean(x, axes=(0,)))

    assert kinds_of(graph_of(emit)) == ["gemm", "relu", "reduce_mean", "add"]


@pytest.mark.spec("A9")
def test_a_fence_at_the_end_of_a_layer_stands_before_the_next_one_and_a_refused_layer_leaves_none():
    model = nn.Model({"x": aicf.TensorSpec(("batch", 4))}, batch=3)
    model.add(nn.Linear(4, 4))

    def refused(ctx, x):
        ctx.sync()
        return ctx.add(x, ctx.state("b", (5,), 0.0))

    with pytest.raises(TypeInferenceError):
        model.add(Fn(refused))

    def last(ctx, x):
        y = ctx.relu(x)
        ctx.sync()
        return y

    model.add(Fn(last)).add(nn.Tanh())
    assert fences(traced(model)) == ["tanh"]


@on_each_device
@pytest.mark.spec("A9")
def test_a_fence_changes_no_number(device):
    x = rows_of()
    assert (run(fenced, x, device) == run(unfenced, x, device)).all()


def unfenced(ctx, x):
    y = ctx.gemm(x, ctx.param("w", (4, 4), nn.init.normal()))
    return ctx.add(ctx.relu(y), ctx.tanh(y))


def steps_in_place(ctx, x):
    """The second step's gradient is ready first, next to it."""
    p, q, v, u = (ctx.state(name, (4, 4), 1.0) for name in "pqvu")
    scalars = [ctx.constant(0.1), ctx.constant(0.9), ctx.constant(0.0)]
    soon = ctx.tanh(x)
    late = ctx.gemm(ctx.gemm(x, x), x)
    # unlike: not side by side
    for state, grad, moment, nesterov in ((p, late, v, False), (q, soon, u, True)):
        new, moved = ctx.sgd_step(state, grad, moment, *scalars, nesterov=nesterov)
        ctx.update(state, new)
        ctx.update(moment, moved)
    return ctx.relu(x)


@on_each_device
@pytest.mark.spec("A9", "C6")
def test_steps_that_wait_for_each_other_make_the_same_step(device):
    program = compile(model_of(steps_in_place, 4, 4), device=device)
    x = rows_of(4)
    program.run({"x": x})
    wide = x.astype(float)
    for name, moment, grad, nesterov in (("p", "v", wide @ wide @ wide, 0), ("q", "u", np.tanh(wide), 1)):
        moved = 0.9 + grad
        step = grad + 0.9 * moved if nesterov else moved
        np.testing.assert_allclose(program.get(f"0.{moment}"), moved, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(program.get(f"0.{name}"), 1 - 0.1 * step, rtol=1e-4, atol=1e-4)


@pytest.mark.spec("A9", "A10")
def test_side_effects_never_move_across_each_other():
    """The second step waits for the first one all the same."""
    graph = graph_of(steps_in_place, shape=(4, 4))
    ops = lower(verify(optimize(graph)))
    steps = [op for op in ops if op.kind.name == "sgd_step"]
    assert [op.oid for op in schedule(ops, graph) if op.kind.name == "sgd_step"] == [op.oid for op in steps]


@pytest.mark.spec("D15")
def test_what_only_widens_is_not_stored():
    """Norms' gradients read activations and gradients in f32, and those of weights are f32: kernels widen what they read or make."""
    model = nn.Model({"x": aicf.TensorSpec((2, 128, 256))})
    for _ in range(3):
        model.add(nn.TransformerBlock(256, nn.MultiHeadAttention(256, 4), nn.MLP(256)))
    asked = {"loss": nn.MeanSquaredError(), "optimizer": nn.AdamW(clip_norm=1.0), "policy": "bf16"}
    plan = aicf.explain_for(model, "h200", "train", **asked).plan
    whole = [s for s in plan.slots.values() if s.offset is not None and s.spec.shape[:2] == (2, 128)]
    wide = [s.name.split(".")[0] for s in whole if s.spec.dtype is aicf.f32 and s.spec.shape[2:] != (1,)]
    assert wide == ["squared_error"]
    made = [s.region.signature for s in plan.steps]
    assert sum(signature.startswith("gemm + convert") for signature in made) == 12
