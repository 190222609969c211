"""Plans: who shares whose storage (C6), the arena (D14), JSON and identity (B13, B14, A7)."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from registry.synthetic import kernel, registry_of

import aicf
from aicf import ExecPlan, nn
from aicf.dispatch import KernelLoader
from aicf.errors import AicfError, AliasError, MissingKernelError
from aicf.graph.run.executor import Executor
from aicf.graph.run.plan import Workspace
from aicf.ir import Role
from examples import examples

from .chains import graph_of, model_of, planned, rows_of

plain = registry_of(kernel("cpu.plain.v1"))  # one op a kernel: nothing is fused


def alias_names(plan: ExecPlan) -> dict[str, str]:
    return {plan.slots[out].name: plan.slots[into].name for out, into in plan.alias.items()}


# --- C6: may ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("C6")
def test_relu_takes_over_a_tmp_that_nobody_reads_later():
    plan, _, _ = planned(graph_of(lambda ctx, x: ctx.tanh(ctx.relu(ctx.exp(x)))), plain)
    assert alias_names(plan) == {"relu.2": "exp.1"}
    assert plan.notes == ("%2 is %1 (exp.1): takes over its storage",)


@pytest.mark.spec("C6")
@pytest.mark.parametrize("role", ["input", "param", "state"])
def test_nothing_takes_over_what_came_from_outside(role):
    def emit(ctx, x):
        source = {
            "input": lambda: x, "param": lambda: ctx.param("w", (3, 4), nn.init.ones),
            "state": lambda: ctx.state("s", (3, 4), 1.0),
        }[role]()  # fmt: skip
        return ctx.tanh(ctx.relu(source))

    plan, _, _ = planned(graph_of(emit), plain)
    assert plan.alias == {}


@pytest.mark.spec("C6")
def test_nothing_takes_over_an_output_and_an_output_takes_over_nothing():
    def emit(ctx, x):
        first = ctx.exp(x)
        return {"first": first, "second": ctx.relu(first)}

    plan, _, _ = planned(graph_of(emit), plain)
    assert plan.alias == {}


@pytest.mark.spec("C6")
def test_nothing_takes_over_what_is_read_later():
    def emit(ctx, x):
        e = ctx.exp(x)
        return ctx.sub(ctx.tanh(ctx.relu(e)), e)

    plan, _, _ = planned(graph_of(emit), plain)
    assert alias_names(plan) == {"tanh.3": "relu.2"}


@pytest.mark.spec("C6")
def test_nothing_takes_over_storage_of_another_size():
    def emit(ctx, x):
        column = ctx.exp(ctx.param("w", (1, 4), nn.init.ones))
        return ctx.tanh(ctx.add(column, x))

    plan, _, _ = planned(graph_of(emit), plain)
    assert plan.alias == {}


@pytest.mark.spec("C6")
def test_a_chain_of_takers_has_one_owner_and_the_right_numbers():
    x = rows_of(5, 7)
    emit = lambda ctx, x: ctx.copy(ctx.exp(ctx.neg(ctx.relu(ctx.tanh(x)))))  # noqa: E731
    plan, _, _ = planned(graph_of(emit, shape=(5, 7)), plain)
    assert set(plan.alias.values()) == {1}
    assert plan.arena_bytes == 256
    got = aicf.compile(model_of(emit, 7, 5), device="cpu", registry=plain).run({"x": x})["output"].numpy()
    np.testing.assert_allclose(got, np.exp(-np.maximum(np.tanh(x.astype(float)), 0)), rtol=1e-6)


@pytest.mark.spec("C6")
def test_a_reshape_is_a_view_and_keeps_its_source_alive():
    def emit(ctx, x):
        e = ctx.exp(x)
        flat = ctx.reshape(e, shape=(12,))
        t = ctx.tanh(e)
        return ctx.add(ctx.reshape(flat, shape=(3, 4)), t)

    x = rows_of()
    plan, _, _ = planned(graph_of(emit), plain)
    assert plan.alias == {2: 1, 4: 1}
    assert [s.region.signature for s in plan.steps if not s.kernel_id] == ["reshape", "reshape"]
    got = aicf.compile(model_of(emit), device="cpu", registry=plain).run({"x": x})["output"].numpy()
    np.testing.assert_allclose(got, np.exp(x.astype(float)) + np.tanh(np.exp(x.astype(float))), rtol=1e-6)


# --- C6: must ---------------------------------------------------------------------------------------------------------


def counting(ctx, x, late: bool = False):
    count = ctx.state("count", (), 0, aicf.i32)
    before = None if late else ctx.convert(count, dtype=aicf.f32)
    new = ctx.increment(count)
    ctx.update(count, new)
    return ctx.add(x, ctx.convert(count, dtype=aicf.f32) if late else before)


@pytest.mark.spec("C6")
def test_an_optimizer_step_writes_in_place():
    plan, _, _ = planned(graph_of(counting), plain)
    assert alias_names(plan)["increment.4"] == "count"
    assert "%4 is %1 (count): written in place" in plan.notes
    program = aicf.compile(model_of(counting), device="cpu")
    x = rows_of()
    for n in range(3):
        np.testing.assert_allclose(program.replay({"x": x})["output"].numpy(), x + np.float32(n))
    assert program.get("0.count") == 3


@pytest.mark.spec("C6")
def test_a_later_reader_of_what_is_written_in_place_is_named():
    with pytest.raises(
        AliasError, match="increment writes count in place, and convert reads the old value later"
    ) as e:
        planned(graph_of(lambda ctx, x: counting(ctx, x, late=True)), plain)
    assert "every read of %1 before op 0" in str(e.value)


@pytest.mark.spec("C6")
def test_an_input_is_never_written():
    def emit(ctx, x):
        return ctx.copy(ctx.increment(ctx.input("n", (), aicf.i32)))

    with pytest.raises(AliasError, match="increment would write over the input n"):
        planned(graph_of(emit), plain)


@pytest.mark.spec("C6")
def test_a_state_s_new_value_may_not_live_in_another_state():
    def emit(ctx, x):
        a, b = ctx.state("a", (), 0, aicf.i32), ctx.state("b", (), 0, aicf.i32)
        ctx.update(a, ctx.increment(b))
        return ctx.relu(x)

    with pytest.raises(AliasError, match="nobody declared that as its update"):
        planned(graph_of(emit), plain)


@pytest.mark.spec("C6")
@pytest.mark.parametrize("how", ["run", "replay"])
def test_an_update_that_is_not_in_place_lands_after_the_last_step(how):
    """Two states swap: both old values are read, whatever is written first."""

    def emit(ctx, x):
        a, b = ctx.state("a", (4,), 1.0), ctx.state("b", (4,), 2.0)
        ctx.update(a, ctx.copy(b))
        ctx.update(b, ctx.copy(a))
        return ctx.add(ctx.mul(x, a), b)

    program = aicf.compile(model_of(emit), device="cpu")
    x = rows_of()
    for a, b in ((1, 2), (2, 1), (1, 2)):
        np.testing.assert_allclose(getattr(program, how)({"x": x})["output"].numpy(), x * a + b, rtol=1e-6)
    assert program.get("0.a")[0] == 2


# --- the arena --------------------------------------------------------------------------------------------------------


@st.composite
def recipes(draw):
    """Random DAGs: each entry is an op over earlier values."""
    ops = []
    for n in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["tanh", "relu", "neg", "add", "gemm", "reshape", "reduce_sum", "state"]))
        ops.append((kind, draw(st.integers(0, n)), draw(st.integers(0, n)), draw(st.booleans())))
    return ops


def emit_recipe(recipe):
    def emit(ctx, x):
        made, outputs = [x], {}
        for n, (kind, i, j, out) in enumerate(recipe):
            a, b = made[i], made[j]
            if kind == "state":
                old = ctx.state(f"s{n}", (4, 4), float(n))
                new = ctx.add(old, a)
                ctx.update(old, new)
                made.append(new)
                continue
            value = {
                "add": lambda a=a, b=b: ctx.add(a, b), "gemm": lambda a=a, b=b: ctx.gemm(a, b),
                "reshape": lambda a=a: ctx.reshape(ctx.reshape(a, shape=(16,)), shape=(4, 4)),
                "reduce_sum": lambda a=a: ctx.add(ctx.reduce_sum(a, axes=(0,), keepdims=True), a),
            }.get(kind, lambda kind=kind, a=a: ctx.op(kind, a))()  # fmt: skip
            made.append(value)
            if out:
                outputs[f"out{n}"] = value
        outputs["last"] = ctx.copy(made[-1])
        return outputs

    return emit


@pytest.mark.spec("D14")
@examples(60)
@given(recipes())
def test_no_two_values_that_live_at_once_overlap(recipe):
    for registry in (plain, None):
        graph = graph_of(emit_recipe(recipe), shape=(4, 4))
        plan, _, _ = planned(graph, registry)
        life: dict[int, list[int]] = {}
        for i, step in enumerate(plan.steps):
            for vid in (*step.in_vids, *step.out_vids):
                life.setdefault(plan.alias.get(vid, vid), []).append(i)
        for new in plan.updates.values():
            life[plan.alias.get(new, new)].append(len(plan.steps))
        tmps = [v for v in life if plan.slots[v].role is Role.tmp]
        for v in tmps:
            slot = plan.slots[v]
            assert slot.offset % 256 == 0
            assert slot.offset + slot.spec.nbytes <= plan.arena_bytes
            for w in tmps:
                other = plan.slots[w]
                lives = life[v][0] <= life[w][-1] and life[w][0] <= life[v][-1]
                if v < w and lives:
                    apart = (
                        slot.offset + slot.spec.nbytes <= other.offset
                        or other.offset + other.spec.nbytes <= slot.offset
                    )
                    assert apart, f"{slot} and {other}"


@pytest.mark.spec("D14", "C8")
@examples(12)
@given(recipes(), st.integers(0, 2**32))
def test_random_graphs_compute_what_numpy_computes(recipe, seed):
    """Aliases and arena together: a value overwritten too early would show."""
    x = np.random.default_rng(seed).uniform(-0.5, 0.5, (4, 4)).astype(np.float32)
    known = [x.astype(float)]
    for n, (kind, i, j, _) in enumerate(recipe):
        a, b = known[i], known[j]
        known.append({
            "state": lambda a=a, n=n: n + a, "add": lambda a=a, b=b: a + b, "gemm": lambda a=a, b=b: a @ b,
            "reshape": lambda a=a: a, "reduce_sum": lambda a=a: a.sum(0, keepdims=True) + a,
            "tanh": lambda a=a: np.tanh(a), "relu": lambda a=a: np.maximum(a, 0), "neg": lambda a=a: -a,
        }[kind]())  # fmt: skip
    model = model_of(lambda ctx, x: emit_recipe(recipe)(ctx, x)["last"], 4, 4)
    for registry in (plain, None):
        program = aicf.compile(model, device="cpu", registry=registry, variables=fresh())
        for run in (program.run, program.replay):
            variables = program.state_dict()
            got = run({"x": x})["output"].numpy()
            program.load_state_dict(variables)
            scale = max(1.0, *(abs(k).max() for k in known))
            np.testing.assert_allclose(got / scale, known[-1] / scale, rtol=1e-4, atol=1e-5)


def fresh():
    from aicf.graph.run.variables import Variables

    return Variables(aicf.runtime("cpu"))


# --- identity, JSON, ids ----------------------------------------------------------------------------------------------


def trainer(seed: int = 0, **more) -> aicf.Program:
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=4, seed=seed)
    model.add(nn.Linear(5, 7)).add(nn.GELU()).add(nn.Linear(7, 3))
    optimizer = nn.AdamW(lr=nn.schedules.Cosine(0.1, total=10), clip_norm=1.0)
    return aicf.compile(
        model, "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=optimizer, **more
    )


@pytest.mark.spec("B13", "A7")
def test_equal_conditions_give_equal_plans():
    one, two = trainer(seed=0).plan, trainer(seed=1).plan
    assert one == two
    assert one.key == two.key
    assert one.key != trainer().compiled({"batch": 8}).plan.key


@pytest.mark.spec("B14")
def test_a_plan_goes_through_json_unchanged():
    program = trainer()
    text = program.plan.to_json()
    again = ExecPlan.from_json(text, program.registry)
    assert again == program.plan
    assert again.key == program.plan.key
    assert again.to_json() == text
    assert (
        str(again).splitlines()[1:-1] == str(program.plan).splitlines()[1 : len(str(again).splitlines()) - 1]
    )


@pytest.mark.spec("B14")
def test_a_loaded_plan_runs_as_the_one_that_was_saved():
    program = trainer()
    feed = {"x": rows_of(4, 5), "y": np.arange(4) % 3}
    start = program.state_dict()
    want = {k: v.numpy() for k, v in program.run(feed).items()}
    program.load_state_dict(start)
    plan = ExecPlan.from_json(program.plan.to_json(), program.registry)
    executor = Executor(program.runtime, KernelLoader(program.registry, program.runtime))
    bound = executor.bind(plan, feed, program.variables)
    assert bound.run() == list(plan.kernel_ids)
    for slot in plan.outputs:
        assert bound.tensors[slot.vid].numpy().tobytes() == want[slot.name].tobytes()


@pytest.mark.spec("C8", "B10")
def test_a_bound_plan_keeps_the_arena_in_which_its_steps_have_workspaces(monkeypatch):
    """Calls know pointers only: memory that nobody held would become that of later results, under the steps of a replay."""
    program, allocated, given = trainer(), [], []
    allocate, n = program.runtime.allocate, len(program.plan.steps) - 1
    at = program.plan.arena_bytes
    scratch = replace(program.plan.steps[n], workspace=Workspace(at, 12_345))
    plan = replace(program.plan, steps=(*program.plan.steps[:n], scratch), arena_bytes=at + 12_544)

    def seen(size):
        memory = allocate(size)
        if size == plan.arena_bytes:
            allocated.append((memory.ptr, weakref.ref(memory.owner)))
        return memory

    loader = KernelLoader(program.registry, program.runtime)
    bind, step = loader.bind, program.plan.steps[n]
    uses = {(step.kernel_id, step.region): 12_345}
    monkeypatch.setattr(loader, "workspace", lambda *kernel: uses.get(kernel, 0))
    monkeypatch.setattr(loader, "bind", lambda *args: given.append(args[-1]) or bind(*args))
    monkeypatch.setattr(program.runtime, "allocate", seen)
    bound = Executor(program.runtime, loader).bind(
        plan, {"x": rows_of(4, 5), "y": np.arange(4) % 3}, program.variables
    )
    ((start, arena),) = allocated
    assert given[:-1] == [None] * (len(given) - 1) and given.pop().ptr == start + at
    bound.tensors.clear()
    gc.collect()
    assert arena() is not None
    del bound
    given.clear()
    gc.collect()
    assert arena() is None


@pytest.mark.spec("B14")
@pytest.mark.parametrize("needed, has", [(4, 0), (0, 256), (256, 512)])
def test_a_kernel_whose_workspace_is_not_that_of_its_plan_is_refused(monkeypatch, needed, has):
    """Less is refused as more is: the kernel splits its sums otherwise than when the plan was saved, and its bits are others."""
    program = trainer()
    first, *rest = program.plan.steps
    at = program.plan.arena_bytes
    step = replace(first, workspace=Workspace(at, has)) if has else first
    plan = replace(program.plan, steps=(step, *rest), arena_bytes=at + has)
    loader = KernelLoader(program.registry, program.runtime)
    monkeypatch.setattr(loader, "workspace", lambda id, region: needed * (id == "cpu.gemm_blas.v3"))
    with pytest.raises(AicfError, match="another workspace") as caught:
        Executor(program.runtime, loader).bind(
            plan, {"x": rows_of(4, 5), "y": np.arange(4) % 3}, program.variables
        )
    told = str(caught.value)
    assert f"expected: {needed} bytes\n  got: {has}\n  at: step 0: cpu.gemm_blas.v3" in told
    assert "compile the model again" in told and "calibration" in told


@pytest.mark.spec("B14")
def test_a_plan_whose_kernel_is_gone_is_refused_by_name():
    program = trainer()
    registry = program.registry.copy()
    registry.remove("cpu.gemm_blas.v3")
    with pytest.raises(MissingKernelError, match=r"no kernel 'cpu.gemm_blas.v3' is registered"):
        ExecPlan.from_json(program.plan.to_json(), registry)


@pytest.mark.spec("B14")
@pytest.mark.parametrize(
    "text, said", [("{}", "no plan"), ("[1", "no plan"), ('{"version": 99}', "another version")]
)
def test_what_is_no_plan_is_refused(text, said):
    with pytest.raises(AicfError, match=said):
        ExecPlan.from_json(text)
