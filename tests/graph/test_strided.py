"""Values that lie in the storage of others by strides, for kernels that take them. The oracle is NumPy, by the ops' references."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from draws.seeds import rng
from registry.synthetic import kernel, registry_of

import aicf
from aicf import ExecPlan, nn
from aicf.device.runtime import runtime
from aicf.device.spec import preset
from aicf.dispatch import KernelLoader
from aicf.errors import VerifyError
from aicf.graph.emit.passes import lower, optimize
from aicf.graph.fuse.strided import find_views, is_strided, read_through, written_through
from aicf.graph.run.executor import Executor
from aicf.ir import StridedView
from aicf.ops.schema import MOVES, schema_of, schemas
from aicf.registry.registry import KernelRegistry
from aicf.registry.select import Selector
from aicf.registry.variant import Reject
from aicf.types import reshaped_strides, row_major
from examples import EVERYTHING

from .chains import graph_of, model_of, planned

CPU = aicf.default_registry()
B, T, HEADS, D = 2, 5, 3, 4
X = np.random.default_rng(3).normal(size=(B * T, 3 * HEADS * D)).astype(np.float32)


def without_strides() -> KernelRegistry:
    return registry_of(*(replace(variant, strided=False) for variant in CPU))


# --- strides ----------------------------------------------------------------------------------------------------------


def in_memory(view: StridedView, memory: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    steps = tuple(step * memory.itemsize for step in view.stride)
    return np.lib.stride_tricks.as_strided(memory[view.start :], shape, steps)


def test_a_reshape_has_strides_where_numpy_makes_a_view():
    draw, seen = random.Random(5), set()
    for _ in range(1500):
        whole = [draw.choice([1, 2, 3, 4, 6]) for _ in range(draw.randint(1, 4))]
        array = (
            np.arange(int(np.prod(whole)))
            .reshape(whole)
            .transpose(draw.sample(range(len(whole)), len(whole)))
        )
        array = array[
            tuple(slice(draw.randint(1, d)) if draw.random() < 0.3 else slice(None) for d in array.shape)
        ]
        left, new = array.size, []
        while left > 1:
            new.append(draw.choice([d for d in range(2, left + 1) if left % d == 0]))
            left //= new[-1]
        for _ in range(draw.randint(0, 2)):
            new.insert(draw.randint(0, len(new)), 1)
        found = reshaped_strides(array.shape, tuple(s // array.itemsize for s in array.strides), tuple(new))
        view = array.reshape(new)
        seen.add(found is None)
        assert (found is not None) == np.shares_memory(array, view), (array.shape, array.strides, new)
        if found is not None:
            made = np.lib.stride_tricks.as_strided(array, new, [s * array.itemsize for s in found])
            np.testing.assert_array_equal(made, view)
    assert seen == {True, False}
    assert reshaped_strides((0, 3), (3, 1), (5, 0)) == row_major((5, 0))


MOVERS = [s for s in schemas() if MOVES in s.traits]


@pytest.mark.parametrize("schema", MOVERS, ids=lambda s: s.name)
def test_where_elements_lie_is_what_the_reference_says(schema):
    rng = np.random.default_rng(2)
    read = written = 0
    for sample in schema.sample_specs:
        shapes, attrs = list(sample["shapes"]), sample["attrs"]
        operands = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        specs = [aicf.TensorSpec(shape) for shape in shapes]
        packed = schema.pack(schema.normalized(specs, attrs))
        (result,) = schema.call_reference(operands, packed)
        if not result.size or not all(x.size for x in operands):
            continue
        access = schema.accesses(shapes, result.ndim, packed)
        at = StridedView(0, 3, tuple(5 * s for s in row_major(shapes[0])))
        memory = np.zeros(3 + 5 * operands[0].size, np.float32)
        in_memory(at, memory, shapes[0])[...] = operands[0]
        view = read_through(access[0], at, shapes[0], result.shape) if len(shapes) == 1 else None
        if view is not None:
            np.testing.assert_array_equal(in_memory(view, memory, result.shape), result)
            read += 1
        if sum(x.size for x in operands) == result.size:
            at = StridedView(0, 3, tuple(5 * s for s in row_major(result.shape)))
            memory = np.zeros(3 + 5 * result.size, np.float32)
            for x, a in zip(operands, access):
                view = written_through(a, at, x.shape, result.shape)
                in_memory(view, memory, x.shape)[...] = x
            np.testing.assert_array_equal(in_memory(at, memory, result.shape), result)
            written += 1
    assert read or schema.name == "concatenate"
    assert written


# --- plans ------------------------------------------------------------------------------------------------------------


def heads(ctx, joined, n):
    size = HEADS * D
    own = ctx.slice(joined, start=(0, 0, n * size), limit=(B, T, (n + 1) * size))
    return ctx.transpose(ctx.reshape(own, shape=(B, T, HEADS, D)), perm=(0, 2, 1, 3))


def attended(ctx, x, also=None):
    """Heads of one tensor, attention, and its result as rows again."""
    joined = ctx.reshape(ctx.tanh(x), shape=(B, T, 3 * HEADS * D))
    q, k, v = (heads(ctx, joined, n) for n in range(3))
    y = ctx.attention(q, k, v, causal=True)
    rows = ctx.reshape(ctx.transpose(y, perm=(0, 2, 1, 3)), shape=(B * T, HEADS * D))
    made = {"output": ctx.exp(rows)}
    return {**made, "also": also(ctx, q, y)} if also else made


def expected(x):
    joined = np.tanh(x.astype(np.float64)).reshape(B, T, 3, HEADS, D)
    q, k, v = (joined[:, :, n].transpose(0, 2, 1, 3) for n in range(3))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(D) + np.triu(np.full((T, T), -np.inf), 1)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    y = e / e.sum(-1, keepdims=True) @ v
    return np.exp(y.transpose(0, 2, 1, 3).reshape(B * T, HEADS * D))


def strided_slots(plan):
    return {s.name.split(".")[0] for s in plan.slots.values() if s.stride is not None}


@pytest.mark.spec("C6")
def test_heads_are_read_where_they_lie_and_written_where_they_are_read():
    plan, regions, _ = planned(graph_of(attended, shape=X.shape))
    assert [r.spec.signature for r, s in zip(regions, plan.steps) if s.kernel_id] == [
        "tanh + reshape", "attention", "exp",
    ]  # fmt: skip
    assert strided_slots(plan) == {"slice", "reshape", "transpose", "attention"}
    assert "written by strides" in str(plan) and "strides (180, 4, 36, 1)" in str(plan)
    assert ExecPlan.from_json(plan.to_json()) == plan
    program = aicf.compile(
        model_of(lambda ctx, x: attended(ctx, x)["output"], X.shape[1], X.shape[0]), device="cpu"
    )
    np.testing.assert_allclose(program.run({"x": X})["output"].numpy(), expected(X), rtol=2e-6)
    told = str(program.explain().verbose())
    assert "a view: nothing runs; %" in told and "strides" in told


@pytest.mark.spec("C6")
def test_heads_of_what_is_fed_and_of_what_is_returned_are_read_where_they_lie():
    def fed(ctx, x):
        q, k, v = (heads(ctx, ctx.reshape(x, shape=(B, T, 3 * HEADS * D)), n) for n in range(3))
        return ctx.transpose(ctx.attention(q, k, v, causal=True), perm=(0, 2, 1, 3))

    def returned(ctx, x):
        joined = ctx.reshape(ctx.tanh(x), shape=(B, T, 3 * HEADS * D))
        q, k, v = (heads(ctx, joined, n) for n in range(3))
        y = ctx.transpose(ctx.attention(q, k, v, causal=True), perm=(0, 2, 1, 3))
        return {"output": y, "joined": joined, "rows": ctx.exp(ctx.reshape(y, shape=(B * T, HEADS * D)))}

    plan, regions, _ = planned(graph_of(fed, shape=X.shape))
    assert [r.spec.signature for r, s in zip(regions, plan.steps) if s.kernel_id] == ["attention"]
    assert strided_slots(plan) == {"slice", "reshape", "transpose", "attention"}
    program = aicf.compile(model_of(fed, X.shape[1], X.shape[0]), device="cpu")
    want = np.log(expected(np.arctanh(np.tanh(X)))).reshape(B, T, HEADS, D)
    np.testing.assert_allclose(program.run({"x": np.tanh(X)})["output"].numpy(), want, rtol=1e-4, atol=1e-5)
    for again in range(2):  # frozen: what was fed lies elsewhere
        x = np.tanh(X + again)
        got = program.replay({"x": x})["output"].numpy()
        np.testing.assert_allclose(got, program.run({"x": x})["output"].numpy(), rtol=1e-6)

    plan, regions, _ = planned(graph_of(returned, shape=X.shape))
    assert [r.spec.ops[0].kind.name for r, s in zip(regions, plan.steps) if s.kernel_id] == [
        "tanh",
        "attention",
        "exp",
    ]
    program = aicf.compile(model_of(returned, X.shape[1], X.shape[0]), device="cpu")
    made = program.run({"x": X})
    np.testing.assert_allclose(made["rows"].numpy(), expected(X), rtol=2e-6)
    np.testing.assert_allclose(
        made["output"].numpy().reshape(B * T, -1), np.log(expected(X)), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(made["joined"].numpy().reshape(X.shape), np.tanh(X), rtol=1e-6)


@pytest.mark.spec("C6")
def test_what_others_read_is_copied():
    """q and the result of attention are read by a map, too: both are tensors of their own then, and k and v are not."""

    def also(ctx, q, y):
        return ctx.add(ctx.exp(q), y)

    plan, regions, _ = planned(graph_of(lambda ctx, x: attended(ctx, x, also), shape=X.shape))
    (at,) = [n for n, r in enumerate(regions) if r.spec.signature == "attention"]
    q, k, v = plan.steps[at].in_vids
    assert [plan.slots[vid].stride is None for vid in (q, k, v, plan.steps[at].out_vids[0])] == [
        True,
        False,
        False,
        True,
    ]


@pytest.mark.spec("C6")
def test_what_is_returned_or_kept_has_storage_of_its_own():
    plan, _, _ = planned(graph_of(lambda ctx, x: attended(ctx, x, lambda ctx, q, y: q), shape=X.shape))
    (q,) = [s for s in plan.outputs if s.name == "also"]
    assert q.alias_of is None and q.stride is None
    weight = ("w", (B, T, 3 * HEADS * D), nn.init.ones)

    def of_a_param(ctx, x):
        joined = ctx.param(*weight)
        q, k, v = (heads(ctx, joined, n) for n in range(3))
        return ctx.exp(ctx.attention(q, k, v))

    plan, _, _ = planned(graph_of(of_a_param, shape=X.shape))
    assert strided_slots(plan) == {"transpose"}  # of what was copied


def taker(us, reject=lambda region: None):
    return kernel("cpu.made_up.v1", "attention", us=us, reject=reject, strided=True)


def _attention(region):
    return Reject("op", "is another's") if region.kind.name == "attention" else None


@pytest.mark.parametrize(
    "variant, names",
    [
        (
            taker(lambda region: 2.0 if is_strided(region) else 1.0),
            {"slice", "reshape", "transpose", "attention"},
        ),
        (taker(lambda region: 9.0 if is_strided(region) else 1.0), set()),
        (taker(1.0, lambda region: Reject("strides", "no") if is_strided(region) else None), set()),
        (
            taker(1.0, lambda region: None if region.results[0].contiguous else Reject("result", "no")),
            {"slice", "reshape", "transpose"},
        ),
        (
            taker(1.0, lambda region: None if region.operands[0].contiguous else Reject("operand", "no")),
            {"attention"},
        ),
        (kernel("cpu.made_up.v1", "attention", us=1.0), set()),
    ],
    ids=["cheaper", "dearer", "refuses", "refuses results", "refuses operands", "not asked"],
)
def test_a_kernel_says_which_strides_it_takes_and_what_they_cost(variant, names):
    """Each of four copies that it spares takes a microsecond."""
    registry = registry_of(variant, kernel("cpu.any.v1", reject=_attention))
    plan, _, _ = planned(graph_of(attended, shape=X.shape), registry)
    assert strided_slots(plan) == names


def test_a_gradient_of_heads_is_written_side_by_side():
    """The gradients of queries, keys and values lie in their concatenation; numbers are those of copies, bit for bit."""
    net = nn.Model({"x": aicf.TensorSpec(("batch", T, 8))}, batch=B).add(nn.MultiHeadAttention(8, 4, 2))
    x, y = np.random.default_rng(1).normal(size=(2, B, T, 8)).astype(np.float32)
    found = []
    for registry in (CPU, without_strides()):
        program = aicf.compile(net, "grad", device="cpu", loss=nn.MeanSquaredError(), registry=registry)
        found.append({name: t.numpy() for name, t in program({"x": x, "y": y}).items()})
        moved = {
            s.region.signature
            for s in program.plan.steps
            if s.kernel_id and s.region.kind.name in ("slice", "concatenate", "transpose")
        }
        assert bool(moved) is (registry is not CPU)
    assert found[0].keys() == found[1].keys()
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name], err_msg=name)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "more", [{"beam": 4}, {"numerics": "strict"}, {"accumulate": 2}, {"policy": "bf16"}], ids=str
)
def test_views_stand_in_every_way_to_compile(more):
    """Training steps with and without views leave the same parameters."""
    x, y = np.random.default_rng(1).normal(size=(2, B, T, 8)).astype(np.float32)
    left = []
    for registry in (CPU, without_strides()):
        net = nn.Model({"x": aicf.TensorSpec(("batch", T, 8))}, batch=B).add(
            nn.MultiHeadAttention(8, 4, rope=1e4)
        )
        asked = {"loss": nn.MeanSquaredError(), "optimizer": nn.SGD(0.1), "registry": registry}
        program = aicf.compile(net, "train", device="cpu", **asked, **more)
        for _ in range(3):
            program({"x": x, "y": y})
        assert bool(strided_slots(program.plan)) is (registry is CPU)
        left.append(program.state_dict())
    for name, array in left[0].items():
        np.testing.assert_allclose(array, left[1][name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_nan_checks_look_at_strided_values(monkeypatch):
    monkeypatch.setenv("AICF_CHECK", "nan")
    program = aicf.compile(
        model_of(lambda ctx, x: attended(ctx, x)["output"], X.shape[1], X.shape[0]), device="cpu"
    )
    np.testing.assert_allclose(program.run({"x": X})["output"].numpy(), expected(X), rtol=2e-6)


@pytest.mark.parametrize(
    "change", [{"start": 1}, {"stride": [1, 1, 1, 1]}, {"stride": [180, 4, 360, 1]}, {"start": 10**6}]
)
def test_a_plan_with_other_strides_is_refused(change):
    plan, _, _ = planned(graph_of(attended, shape=X.shape))
    data = json.loads(plan.to_json())
    for n, slot in enumerate(data["slots"]):
        if "stride" in slot:
            edited = {**data, "slots": [*data["slots"][:n], {**slot, **change}, *data["slots"][n + 1 :]]}
            with pytest.raises(VerifyError):
                ExecPlan.from_json(json.dumps(edited))


# --- random programs --------------------------------------------------------------------------------------------------


class _Drawn:
    """A graph of movers, maps and attention over values of B x HEADS x T x D elements, by chance."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def __call__(self, ctx, x):
        values = [x, ctx.tanh(x), ctx.exp(x)]
        for _ in range(self.draw.randint(6, 14)):
            values.append(
                getattr(
                    self,
                    self.draw.choice(["moved", "moved", "attended", "attended", "mapped", "joined", "part"]),
                )(ctx, values)
            )
        leaving = self.draw.sample(list(dict.fromkeys(values[1:])), 3)  # each leaves once
        return {f"out{n}": v if self.draw.random() < 0.4 else ctx.neg(v) for n, v in enumerate(leaving)}

    def pick(self, values):
        return self.draw.choice(values[-5:])

    def moved(self, ctx, values):
        x = self.pick(values)
        if self.draw.random() < 0.5:
            return ctx.reshape(
                x, shape=self.draw.choice([(2, 3, 4, 4), (2, 4, 3, 4), (6, 16), (96,), (2, 2, 12, 2)])
            )
        return ctx.transpose(x, perm=tuple(self.draw.sample(range(x.rank), x.rank)))

    def attended(self, ctx, values):
        q, k, v = (self.as_heads(ctx, self.pick(values)) for _ in range(3))
        return ctx.attention(q, k, v, causal=True)

    def as_heads(self, ctx, x):
        if x.rank == 4 and x.shape[-3:] == (3, 4, 4):
            return x
        if x.shape == (2, 4, 3, 4):
            return ctx.transpose(x, perm=(0, 2, 1, 3))
        return ctx.reshape(x, shape=(2, 3, 4, 4))

    def mapped(self, ctx, values):
        return ctx.tanh(self.pick(values))

    def joined(self, ctx, values):
        """Two halves of two values, side by side."""
        x, y = (self.as_heads(ctx, self.pick(values)) for _ in range(2))
        axis = self.draw.choice([0, 2, 3])
        cut = [n // 2 if at == axis else n for at, n in enumerate(x.shape)]
        return ctx.concatenate(*(ctx.slice(z, start=(0,) * 4, limit=tuple(cut)) for z in (x, y)), axis=axis)

    def part(self, ctx, values):
        """A slice of two values side by side."""
        x, y = (self.as_heads(ctx, self.pick(values)) for _ in range(2))
        both = ctx.concatenate(x, y, axis=2)
        first = self.draw.randint(0, 4)
        return ctx.slice(both, start=(0, 0, first, 0), limit=(2, 3, first + 4, 4))


def by_references(graph, x):
    known = {graph.externals()[0].vid: x}
    for op in graph.ops:
        known.update(
            zip(op.outputs, schema_of(op.kind).call_reference([known.get(v) for v in op.inputs], op.attrs))
        )
    return {v.name: known[v.vid] for v in graph.outputs}


def by_default(region):
    return Reject("strides", "takes none") if is_strided(region) else _attention(region)


@pytest.mark.spec("C6")
@pytest.mark.parametrize(
    "variants, least",
    [
        (
            (
                kernel("cpu.any.v1", reject=by_default, masked=True),
                kernel("cpu.made_up.v1", "attention", strided=True),
            ),
            10,
        ),
        ((kernel("cpu.any.v1", strided=True, masked=True),), 60),
    ],
    ids=["attention takes strides", "all ops do"],
)
def test_random_programs_of_views(variants, least, request):
    registry, strided = registry_of(*variants), 0
    x = np.random.default_rng(2).normal(size=(2, 3, 4, 4)).astype(np.float32)
    executor = Executor(runtime("cpu"), KernelLoader(registry, runtime("cpu")))
    seeds = rng(request.node.nodeid).integers(2**31, size=120 if EVERYTHING else 30)
    for seed in map(int, seeds):
        graph = graph_of(_Drawn(seed), shape=x.shape)
        plan, _, _ = planned(graph, registry)
        assert ExecPlan.from_json(plan.to_json()) == plan
        bound = executor.bind(plan, {"x": x}, None)
        bound.run()
        strided += any(s.stride is not None for s in plan.slots.values())
        for name, want in by_references(optimize(graph), x).items():
            (slot,) = [s for s in plan.outputs if s.name == name]
            got = bound.tensors[slot.vid].numpy()
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=f"{seed} {name}")
    assert strided > least * len(seeds) / 120


@pytest.mark.spec("C6")
@pytest.mark.parametrize(
    "perms",
    [[(0, 1, 2, 3), (2, 3, 0, 1)], [(0, 2, 1, 3), (0, 2, 1, 3)], [(3, 2, 1, 0), (0, 1, 2, 3)]],
    ids=str,
)
def test_a_value_that_two_results_would_contain_is_written_into_one(perms):
    """Both transposes could have their operand written through them; it has one address, so the other one reads it there."""

    def twice(ctx, x):
        y = ctx.attention(x, x, x, causal=True)
        return {f"out{n}": ctx.tanh(ctx.transpose(y, perm=perm)) for n, perm in enumerate(perms)}

    registry = registry_of(kernel("cpu.any.v1", strided=True, masked=True))
    x = np.random.default_rng(3).normal(size=(2, 3, 4, 4)).astype(np.float32)
    graph = graph_of(twice, shape=x.shape)
    plan, _, _ = planned(graph, registry)
    assert ExecPlan.from_json(plan.to_json()) == plan
    executor = Executor(runtime("cpu"), KernelLoader(registry, runtime("cpu")))
    bound = executor.bind(plan, {"x": x}, None)
    bound.run()
    for name, want in by_references(optimize(graph), x).items():
        (slot,) = [s for s in plan.outputs if s.name == name]
        np.testing.assert_allclose(bound.tensors[slot.vid].numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.spec("A7")
def test_tuning_measures_no_strides():
    net = nn.Model({"x": aicf.TensorSpec((B, T, 8))}).add(nn.MultiHeadAttention(8, 4))
    program = aicf.compile(net, device="cpu", tune=0.01)
    assert any(s.stride is not None for s in program.plan.slots.values())
    assert not any(is_strided(m.region) for m in program.tuning.regions.values())


def test_models_without_such_kernels_are_left_alone():
    graph = graph_of(lambda ctx, x: ctx.gemm(ctx.transpose(x, perm=(1, 0)), x), shape=(4, 4))
    ops = lower(optimize(graph))
    assert find_views(ops, graph, Selector(CPU, preset("cpu"))) == ops
    assert not graph.views
