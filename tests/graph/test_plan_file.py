"""Plans that were damaged or edited: refused in words, or run right; they never crash, and never write where they may not."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aicf
from aicf import ExecPlan, nn
from aicf.dispatch import KernelLoader, default_registry
from aicf.errors import AicfError, VerifyError
from aicf.graph.run.executor import Executor
from aicf.ir import KEPT
from examples import examples

from .chains import model_of
from .interpret import by_ops


def _views(ctx, x):
    """Views, a value that takes over another's storage, a reduction, values of several sizes in the arena, a state in place."""
    count = ctx.state("count", (), 0, aicf.i32)
    before = ctx.convert(count, dtype=aicf.f32)
    ctx.update(count, ctx.increment(count))
    e = ctx.exp(x)
    flat = ctx.reshape(e, shape=(12,))
    t = ctx.gemm(ctx.tanh(e), ctx.param("w", (4, 4), nn.init.ones))
    mean = ctx.reduce_mean(t, axes=(1,), keepdims=True)
    return ctx.add(ctx.sub(ctx.add(ctx.reshape(flat, shape=(3, 4)), t), mean), before)


@functools.cache
def programs() -> list[tuple[aicf.Program, dict[str, np.ndarray]]]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.5, 0.5, (3, 4)).astype(np.float32)
    net = nn.Model({"x": aicf.TensorSpec((3, 4))}).add(nn.Linear(4, 6)).add(nn.GELU()).add(nn.Linear(6, 3))
    train = aicf.compile(
        net, "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.AdamW(clip_norm=1.0)
    )
    heads = nn.Model({"x": aicf.TensorSpec((2, 3, 4))}).add(nn.MultiHeadAttention(4, 2))
    strided = aicf.compile(heads, "grad", device="cpu", loss=nn.MeanSquaredError())
    both = rng.uniform(-0.5, 0.5, (2, 2, 3, 4)).astype(np.float32)
    return [
        (train, {"x": x, "y": np.array([0, 2, 1])}),
        (aicf.compile(model_of(_views), device="cpu"), {"x": x}),
        (strided, {"x": both[0], "y": both[1]}),
    ]


def leaves(data: Any, path: tuple = ()) -> list[tuple]:
    """The paths of everything in the data, lists and objects too."""
    found = [path] if path else []
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        found += leaves(value, (*path, key))
    return found


def at(data: Any, path: tuple) -> Any:
    return functools.reduce(lambda d, key: d[key], path, data)


def changed(draw, data: Any) -> None:
    """One thing replaced by another of its kind that is somewhere in the file, or by an odd one, or gone, or there twice."""
    paths = leaves(data)
    path = draw(st.sampled_from(paths))
    parent, key, value = at(data, path[:-1]), path[-1], at(data, path)
    how = draw(st.sampled_from(["like", "like", "like", "like", "near", "odd", "gone", "twice"]))
    if how == "like":
        alike = [p for p in paths if type(at(data, p)) is type(value) and (p[-1] == key or type(key) is int)]
        parent[key] = json.loads(json.dumps(at(data, draw(st.sampled_from(alike)))))
    elif how == "near" and type(value) is int:
        parent[key] = value + draw(st.sampled_from([-256, -8, -1, 1, 4, 256]))
    elif how == "near" and key == "kernel":
        parent[key] = draw(st.sampled_from(["", *(v.id for v in default_registry())]))
    elif how == "odd":
        parent[key] = draw(
            st.sampled_from(
                [None, True, -1, 2**31, 2**62, 2**63, 1e300, "", "\0", "x", [], {}, [[]], "41503100"]
            )
        )
    elif how == "gone":
        del parent[key]
    elif how == "twice" and isinstance(parent, list):
        parent.insert(draw(st.integers(0, len(parent))), json.loads(json.dumps(value)))


def interpreted(
    plan: ExecPlan, feed: dict[str, np.ndarray], start: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Every value in memory of its own, every step by its ops' references: what the plan says, if it may be run at all."""
    known = {s.vid: (feed | start)[s.name] for s in plan.externals()}
    for step in plan.steps:
        with np.errstate(all="ignore"):
            made = by_ops(step.region, [known[v] for v in step.in_vids])
        known.update(zip(step.out_vids, made))
    results = {s.name: known[s.vid] for s in plan.outputs}
    return results | {plan.slots[old].name: known[new] for old, new in plan.updates.items()}


def held(program: aicf.Program) -> dict[str, Any]:
    """The variables of its plan, constants among them."""
    return {s.name: program.variables[s.name] for s in program.plan.externals(*KEPT)}


def check(text: str, program: aicf.Program, feed: dict[str, np.ndarray]) -> bool:
    """Whether the plan was run; then it did what it says."""
    upload = program.runtime.upload
    variables = {name: upload(tensor.numpy(), tensor.spec) for name, tensor in held(program).items()}
    start = {name: tensor.numpy().copy() for name, tensor in variables.items()}
    fed = {name: array.copy() for name, array in feed.items()}
    try:
        plan = ExecPlan.from_json(text, program.registry)
        bound = Executor(program.runtime, KernelLoader(program.registry, program.runtime)).bind(
            plan, fed, variables
        )
    except AicfError as error:
        assert str(error)
        return False
    want = interpreted(plan, feed, start)
    bound.run()
    got = {s.name: bound.tensors[s.vid].numpy() for s in plan.outputs}
    got |= {plan.slots[old].name: bound.tensors[old].numpy() for old in plan.updates}
    for name, array in got.items():
        np.testing.assert_allclose(
            array.astype(float), want[name].astype(float), rtol=1e-3, atol=1e-5, err_msg=name
        )
    for name, array in fed.items():
        np.testing.assert_array_equal(array, feed[name], err_msg=f"{name} was written over")
    written = {plan.slots[old].name for old in plan.updates}
    for name, tensor in variables.items():
        if name not in written:
            np.testing.assert_array_equal(tensor.numpy(), start[name], err_msg=f"{name} was written over")
    return True


@pytest.mark.spec("B14")
@settings(examples(150), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_changed_plan_is_refused_or_does_what_it_says(data):
    program, feed = programs()[data.draw(st.integers(0, 2))]
    plan = json.loads(program.plan.to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        changed(data.draw, plan)
    check(json.dumps(plan), program, feed)


@pytest.mark.spec("B14")
def test_the_plans_themselves_are_run():
    for program, feed in programs():
        assert check(program.plan.to_json(), program, feed)
        assert any(s.alias_of is not None for s in program.plan.slots.values())


# --- one edit, one refusal --------------------------------------------------------------------------------------------


def slot_of(plan: dict, test) -> dict:
    return next(s for s in plan["slots"] if test(s))


def _in_arena(s: dict) -> bool:
    return s["offset"] is not None


def _overlapped(plan: dict) -> None:
    """Everything in one place: what lives at once overlaps."""
    for s in filter(_in_arena, plan["slots"]):
        s["offset"] = 0
    plan["arena_bytes"] = 256


def _worked_on(n: int, *workspace: Any):
    return lambda plan: plan["steps"][n].update(workspace=list(workspace))


def _lives_on(plan: dict) -> None:
    """A workspace where a value lies that is read later."""
    for n, step in enumerate(plan["steps"][1:], 1):
        before = {v for s in plan["steps"][:n] for v in s["out"]}
        after = {v for s in plan["steps"][n + 1 :] for v in s["in"]}
        for slot in filter(_in_arena, plan["slots"]):
            aliases = {slot["vid"], *(s["vid"] for s in plan["slots"] if s["alias_of"] == slot["vid"])}
            if (
                aliases & before & after
                and not aliases.intersection(step["in"] + step["out"])
                and step["kernel"]
            ):
                step["workspace"] = [slot["offset"], 4]
                return
    raise AssertionError("no step at which something else lives")


def _own_operand(plan: dict) -> None:
    offsets = {s["vid"]: s["offset"] for s in filter(_in_arena, plan["slots"])}
    step = next(s for s in plan["steps"] if s["kernel"] and offsets.keys() & {*s["in"]})
    step["workspace"] = [next(offsets[v] for v in step["in"] if v in offsets), 4]


def _set(place: str, value: Any):
    def edit(plan: dict) -> None:
        *path, key = [int(p) if p.isdigit() else p for p in place.split(".")]
        at(plan, tuple(path))[key] = value

    return edit


def _moved(**change: Any):
    return lambda plan: slot_of(plan, _in_arena).update(change)


def _aliased(plan: dict) -> None:
    """A result written over what is read later."""
    late = {v for s in plan["steps"] for v in s["in"]}
    out = next(s for s in plan["slots"] if s["role"] == "output")
    out["alias_of"] = next(s["vid"] for s in plan["slots"] if s["role"] == "param" and s["vid"] in late)


EDITS = {
    "an offset in the middle": (_moved(offset=8), "offset is wrong\n  expected: a multiple of 256"),
    "an offset far outside": (_moved(offset=1 << 40), "arena_bytes is wrong"),
    "an arena too small": (_set("arena_bytes", 0), "arena_bytes is wrong"),
    "no place at all": (_moved(offset=None), "one place that its role can have"),
    "values that overlap": (_overlapped, "is wrong"),
    "an alias of nothing": (_moved(offset=None, alias_of=999), "a slot that has storage of its own"),
    "an alias of a value of another size": (_aliased, "storage of "),
    "a slot of another shape": (lambda p: slot_of(p, _in_arena).update(shape=[2]), "is wrong"),
    "a slot of another type": (lambda p: p["slots"][0].update(dtype="f16"), "row-major"),
    "a slot twice": (lambda p: p["slots"].append(p["slots"][0]), "each slot once"),
    "two inputs of one name": (lambda p: p["slots"][1].update(name=p["slots"][0]["name"]), "a name of its own"),
    "a size without end": (lambda p: p["slots"][0].update(shape=[1 << 50]), "bytes in all"),
    "a slot that is nowhere": (_set("steps.0.in.0", 999), "slots that there are"),
    "a value before it is made": (lambda p: p["steps"].insert(0, p["steps"].pop()), "is wrong"),
    "a step twice": (lambda p: p["steps"].append(p["steps"][-1]), "is wrong"),
    "a step missing": (lambda p: p["steps"].pop(), "a step that makes it"),
    "ops that don't follow": (_set("steps.0.anchor", 1), "expected: ops 0.."),
    "a kernel turned into a view": (_set("steps.0.kernel", ""), "a kernel: this is no view"),
    "a region of other types": (_set("steps.0.region.tensors.0.dtype", "f16"), "is wrong"),
    "a tensor with gaps": (_set("steps.0.region.tensors.0.stride", [9, 1]), "is wrong"),
    "an attribute cut off": (_set("steps.0.region.ops.0.attrs", "41"), "this attribute blob can't be read"),
    "an index too large": (_set("steps.0.region.inputs", [77]), "indices of the"),
    "a workspace in the middle": (_worked_on(0, 8, 4), "steps[0].workspace is wrong\n  expected: a multiple of 256"),
    "a workspace outside": (_worked_on(0, 1 << 40, 4), "arena_bytes is wrong"),
    "a workspace before the arena": (_worked_on(0, -256, 4), "steps[0].workspace is wrong"),
    "a workspace of nothing": (_worked_on(0, 0, 0), "steps[0].workspace is wrong"),
    "a workspace without end": (_worked_on(0, 0, 1 << 50), "steps[0].workspace is wrong"),
    "a workspace of one number": (_worked_on(0, 0), "an offset and bytes"),
    "a workspace over an operand": (_own_operand, "memory apart from what the step reads and writes"),
    "a workspace over what is read later": (_lives_on, "it was written over"),
    "an update of nothing": (lambda p: p["updates"].append([999, 0]), "a param or state, and a slot"),
    "an update of an input": (lambda p: p["updates"].append([0, p["updates"][0][1]]), "a param or state, and a slot"),
    "a field missing": (lambda p: p.pop("updates"), "updates is wrong\n  expected: a value"),
    "a field too many": (lambda p: p.update(more=1), "more is wrong"),
    "a mode of its own": (_set("mode", "fly"), "infer, grad or train"),
    "a kernel that is not there": (_set("steps.0.kernel", "cpu.none.v1"), "no kernel 'cpu.none.v1' is registered"),
    "a kernel of something else": (_set("steps.0.kernel", "cpu.multi_map.v1"), "cpu.multi_map.v1 does not take"),
    "a kernel of another device": (_set("steps.0.kernel", "cuda.gemm_naive.v1"), "cuda.gemm_naive.v1 does not take"),
    "another device": (_set("device", "h200"), "is wrong"),
}  # fmt: skip


@pytest.mark.spec("B14")
@pytest.mark.parametrize("what", EDITS)
@pytest.mark.parametrize("which", [0, 1])
def test_what_is_wrong_with_a_plan_is_named(what, which):
    (program, feed), (edit, said) = programs()[which], EDITS[what]
    data = json.loads(program.plan.to_json())
    edit(data)
    with pytest.raises(AicfError) as error:
        plan = ExecPlan.from_json(json.dumps(data), program.registry)
        Executor(program.runtime, KernelLoader(program.registry, program.runtime)).bind(
            plan, feed, program.variables
        )
    assert said in str(error.value), error.value


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"version":' * 50_000, "\0", "", "NaN", "1" * 10_000, '{"version": 1, "version": 1}', b"\xff\xfe", None, 3]
)  # fmt: skip
def test_what_is_no_json_is_no_plan(text):
    with pytest.raises(VerifyError, match="this is no plan"):
        ExecPlan.from_json(text)


def test_a_plan_needs_the_variables_that_it_was_made_for():
    program, feed = programs()[0]
    executor = Executor(program.runtime, KernelLoader(program.registry, program.runtime))
    with pytest.raises(AicfError, match="is not among the variables"):
        executor.bind(program.plan, feed, {})
    other = {name: program.runtime.empty(aicf.TensorSpec((1,))) for name in held(program)}
    with pytest.raises(AicfError, match="is not among the variables"):
        executor.bind(program.plan, feed, other)
