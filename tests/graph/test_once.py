"""What is computed once, not in each run: the same bits as if it were not, whoever writes the params; and only where it pays."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import aicf
from aicf import ExecPlan, nn
from aicf.device.spec import preset
from aicf.errors import FeedError, NanError, StateError, VerifyError
from aicf.graph.fuse import once as rules
from aicf.graph.run.diff import Diff
from aicf.graph.run.executor import Executor
from aicf.ir import Role
from examples import EVERYTHING

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
NAMES = ("p", "q", "s", "b")


class Layer:
    """A layer of a function (ctx, x, weights) -> what it returns."""

    def __init__(self, body, state="s"):
        self.body, self.kept = body, state

    def emit(self, ctx, x):
        def drawn(shape, rng):
            return rng.uniform(-1, 1, shape).astype(np.float32)

        made = {name: ctx.param(name, (12, 20), drawn) for name in ("p", "q")}
        made["b"] = ctx.param("b", (20,), drawn)
        made[self.kept] = ctx.state(self.kept, (20, 12), drawn)
        return self.body(ctx, x, made)


def model_of(body, rows=3):
    return nn.Model({"x": aicf.TensorSpec(("batch", 12))}, batch=rows).add(Layer(body), "m")


def derived(ctx, x, w):
    """x @ tanh(p) + x @ transposed(s)ᵀ … : chains, shared parts, a reduction, a view, a constant."""
    t = ctx.tanh(ctx.transpose(w["p"], perm=(1, 0)))  # (20, 12)
    both = ctx.exp(ctx.add(t, w["s"]))
    sums = ctx.reduce_sum(ctx.mul(w["q"], w["q"]), axes=(0,))  # (20,)
    places = ctx.convert(ctx.iota(shape=(20,), axis=0, dtype=aicf.i32), dtype=aicf.f32)
    y = ctx.gemm(x, t, trans_b=True) + ctx.gemm(x, both, trans_b=True)
    return ctx.add(ctx.add(ctx.add(y, sums), ctx.reshape(w["b"], shape=(1, 20))), places)


def oracle(x, w):
    """`derived` in double precision."""
    p, q, s, b = (w[f"m.{name}"].astype(np.float64) for name in NAMES)
    t = np.tanh(p.T)
    return x @ t.T + x @ np.exp(t + s).T + (q * q).sum(0) + b + np.arange(20)


def rows_of(rng, n=3):
    return rng.normal(size=(n, 12)).astype(np.float32)


def bits(results):
    return {name: (t.numpy().shape, t.numpy().tobytes()) for name, t in results.items()}


def other_weights(program, rng):
    return {n: rng.uniform(-1, 1, w.shape).astype(w.dtype) for n, w in program.state_dict().items()}


class Counted:
    """How often setups run."""

    def __init__(self, monkeypatch):
        self.ran = Counter()
        run = Executor.run_setup

        def counting(executor, plan, variables):
            self.ran[plan.key] += 1
            return run(executor, plan, variables)

        monkeypatch.setattr(Executor, "run_setup", counting)

    def since(self):
        count, self.ran = self.ran.total(), Counter()
        return count


# --- numbers ----------------------------------------------------------------------------------------------------------


@on_each_device
@pytest.mark.spec("D16", "C4")
def test_results_are_those_of_computing_it_each_time(device, monkeypatch):
    """Run and replayed, whatever is loaded; the setup runs once for each load."""
    rng, ran = np.random.default_rng(), Counted(monkeypatch)
    model = model_of(derived)
    program = aicf.compile(model, device=device)
    each = aicf.compile(model, device=device, hoist=False)
    assert len(program.plan.kernel_ids) == 3 < len(each.plan.kernel_ids) and each.plan.setup is None
    assert ran.since() == 0
    for _ in range(3):
        program.load_state_dict(other_weights(program, rng))
        weights = program.state_dict()
        for rows in (3, 3, 1, 7, 0):
            x = rows_of(rng, rows)
            wanted = oracle(x, weights)
            for call in (program.run, program.replay, program):
                made = call({"x": x})
                np.testing.assert_allclose(made["output"].numpy(), wanted, rtol=2e-5, atol=2e-5)
                assert bits(made) == bits(each.run({"x": x}))
                plan = program.compiled({"batch": rows}).plan
                assert program.executed == list(plan.kernel_ids if rows else ())
        assert ran.since() == 1
    assert sorted(program.state_dict()) == [f"m.{name}" for name in sorted(NAMES)]


@on_each_device
@pytest.mark.spec("C11", "C17", "D16")
def test_what_a_training_program_learns_is_seen(device, monkeypatch):
    """Programs of one model share params: what one writes, the others' derived values follow, in whatever order they run."""
    rng, ran = np.random.default_rng(), Counted(monkeypatch)
    model = model_of(derived)
    train = aicf.compile(model, "train", device=device, loss=nn.MeanSquaredError(), optimizer=nn.SGD(0.01))
    assert train.plan.setup is None
    infer, wide = (aicf.compile(model, device=device) for _ in range(2))
    each = aicf.compile(model, device=device, hoist=False)
    feed = {"x": rows_of(rng), "y": np.zeros((3, 20), np.float32)}
    x = {"x": feed["x"]}
    before = bits(infer(x))
    assert ran.since() == 1
    for step in range(4):
        train(feed)
        if step % 2:  # several steps in between
            train.run(feed)
        assert bits(infer(x)) == bits(each(x)) == bits(wide.run(x)) != before
        assert ran.since() == 1  # of both: what they keep is one
        before = bits(infer(x))
        np.testing.assert_allclose(
            infer(x)["output"].numpy(), oracle(x["x"], infer.state_dict()), rtol=2e-5, atol=2e-5
        )
        assert ran.since() == 0
    train.fit([feed] * 2, steps=2)
    assert bits(infer(x)) == bits(each(x)) != before


@on_each_device
@pytest.mark.spec("C8", "C10")
def test_params_that_are_fed_for_one_run(device, monkeypatch):
    """A run that is fed params has a plan with nothing derived of them; the next one has what it had."""
    rng, ran = np.random.default_rng(), Counted(monkeypatch)
    program = aicf.compile(model_of(derived), device=device)
    x = {"x": rows_of(rng)}
    before, other = bits(program(x)), other_weights(program, rng)
    held = program.state_dict()
    for names in (["m.p"], ["m.s"], ["m.b"], list(other)):
        fed = {name: other[name] for name in names}
        made = program.run({**x, **fed})["output"].numpy()
        np.testing.assert_allclose(made, oracle(x["x"], {**held, **fed}), rtol=2e-5, atol=2e-5)
        assert bits(program(x)) == bits(program.run(x)) == before
    assert ran.since() == 1
    with pytest.raises(FeedError, match=r"m\.p is bound once"):
        program.replay({**x, "m.p": other["m.p"]})
    (name, *_) = sorted(program.plan.derived)
    with pytest.raises(FeedError, match=r"const\.derived"):
        program.run({**x, name: np.zeros(program.variables[name].shape, np.float32)})
    copied = aicf.compile(model_of(derived), device=device, copy_roles=("input", "param", "state"))
    assert copied.plan.setup is None
    copied.load_state_dict(held)
    for fed in ({}, other, {"m.q": other["m.q"]}, {}):
        made = copied.replay({**x, **fed})["output"].numpy()
        np.testing.assert_allclose(made, oracle(x["x"], {**held, **fed}), rtol=2e-5, atol=2e-5)


@on_each_device
@pytest.mark.parametrize("policy", ["bf16", "f16"])
@pytest.mark.spec("D15")
def test_what_is_derived_of_copies_in_a_half(device, policy):
    """A param's copy in a half is made anew before what is derived of the copy is."""
    rng, model = (
        np.random.default_rng(),
        model_of(lambda ctx, x, w: ctx.gemm(x, ctx.transpose(ctx.tanh(w["p"]), perm=(1, 0)), trans_b=True)),
    )
    program = aicf.compile(model, device=device, policy=policy)
    each = aicf.compile(model, device=device, policy=policy, hoist=False)
    assert program.plan.derived and len(program.plan.kernel_ids) < len(each.plan.kernel_ids)
    train = aicf.compile(
        model, "train", device=device, loss=nn.MeanSquaredError(), optimizer=nn.SGD(0.5), policy=policy
    )
    x = {"x": rows_of(rng)}
    seen = set()
    for n in range(4):
        if n % 2:
            for _ in range(6):  # a scale of the loss that is too large skips a few
                train({**x, "y": np.full((3, 20), 2, np.float32)})
        else:
            program.load_state_dict(other_weights(program, rng))
        made = program(x)
        assert bits(made) == bits(each(x)) == bits(program.run(x))
        wanted = x["x"] @ np.tanh(program.get("m.p").astype(np.float64))
        np.testing.assert_allclose(made["output"].numpy(), wanted, rtol=0.05, atol=0.05)
        seen.add(made["output"].numpy().tobytes())
    assert len(seen) == 4


def drawn(rng):
    """A model of random ops on its input, its weights and constants, as a function that is emitted anew each time."""
    seed = int(rng.integers(2**32))

    def body(ctx, x, w):
        draw = np.random.default_rng(seed)
        cold = [
            w["p"],
            w["q"],
            ctx.transpose(w["s"], perm=(1, 0)),
            ctx.convert(ctx.iota(shape=(12, 20), axis=1, dtype=aicf.i32), dtype=aicf.f32),
        ]
        hot = [ctx.gemm(x, w["p"])]  # (batch, 20)
        for _ in range(int(draw.integers(4, 14))):
            a, b = (cold[draw.integers(len(cold))] for _ in range(2))
            h = hot[draw.integers(len(hot))]
            match draw.integers(9):
                case 0:
                    cold.append(ctx.tanh(a))
                case 1:
                    cold.append(ctx.sub(a, b))
                case 2:
                    cold.append(ctx.mul(ctx.softmax(a, axis=1), b))
                case 3:
                    cold.append(ctx.reshape(ctx.reshape(a, shape=(240,)), shape=(12, 20)))
                case 4:
                    cold.append(ctx.transpose(ctx.reshape(a, shape=(20, 12)), perm=(1, 0)))
                case 5:
                    hot.append(ctx.tanh(ctx.add(h, ctx.reduce_mean(a, axes=(0,)))))
                case 6:
                    hot.append(ctx.add(h, ctx.gemm(x, a)))
                case 7:
                    hot.append(ctx.mul(h, w["b"]))
                case _:
                    hot.append(ctx.sub(h, hot[draw.integers(len(hot))]))
        hot.append(ctx.add(hot[-1], ctx.gemm(x, ctx.sub(cold[-1], cold[-2]))))
        return {"last": hot[-1], "cold": ctx.exp(ctx.tanh(cold[-1])), "weight": w["q"]}

    return body


@pytest.mark.spec("C4", "C12")
def test_random_models_have_the_bits_of_computing_all_each_time():
    """Beside the same model without it, and beside its own references, which compute all each time."""
    rng, hoisted = np.random.default_rng(), 0
    for _ in range(60 if EVERYTHING else 4):
        numerics = str(rng.choice(["fused", "strict"]))
        model = model_of(drawn(rng))
        program = aicf.compile(model, device="cpu", numerics=numerics)
        each = aicf.compile(model, device="cpu", numerics=numerics, hoist=False)
        hoisted += program.plan.setup is not None
        for rows in (3, 1):
            program.load_state_dict(other_weights(program, rng))
            x = {"x": rows_of(rng, rows)}
            fed = {name: program.get(name) for name in program.state_dict()}
            assert (
                bits(program(x)) == bits(each(x)) == bits(program.run(x)) == bits(program.run({**x, **fed}))
            )
        assert ExecPlan.from_json(program.plan.to_json(), program.registry).key == program.plan.key
    assert hoisted > (4 if EVERYTHING else 0)


# --- what is no constant ----------------------------------------------------------------------------------------------


def test_what_a_run_writes_or_a_program_sets_is_computed_each_time():
    def body(ctx, x, w):
        count = ctx.state("count", (), 0, aicf.i32)
        by_count = ctx.mul(w["b"], ctx.convert(count, dtype=aicf.f32))
        by_scale = ctx.mul(ctx.reduce_sum(w["p"], axes=(0,)), ctx.meta("scale", 2.0))
        made = ctx.add(ctx.add(ctx.gemm(x, w["p"]), by_count), by_scale)
        ctx.update(count, ctx.increment(count))
        return made

    program = aicf.compile(model_of(body), device="cpu")
    rng = np.random.default_rng()
    held = {n: w.astype(np.float64) for n, w in program.state_dict().items()}
    for n in range(5):
        if n == 3:
            program.set(scale=-1.0)
        x, scale = rows_of(rng), 2.0 if n < 3 else -1.0
        wanted = x @ held["m.p"] + held["m.b"] * n + held["m.p"].sum(0) * scale
        made = (program.run if n % 2 else program.replay)({"x": x})["output"].numpy()
        np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)


def test_random_numbers_are_drawn_each_time():
    """Of a weight and a constant state alone, and yet another one in each run."""

    def body(ctx, x, w):
        state, layer = ctx.random()
        return ctx.gemm(
            x,
            ctx.transpose(
                ctx.dropout(ctx.transpose(w["p"], perm=(1, 0)), state, rate=0.5, layer=layer), perm=(1, 0)
            ),
        )

    program = aicf.compile(model_of(body), device="cpu")
    x = {"x": rows_of(np.random.default_rng())}
    assert len({program(x)["output"].numpy().tobytes() for _ in range(6)}) == 6
    assert {name.split(".")[2] for name in program.plan.derived} <= {"transpose"}


# --- decisions --------------------------------------------------------------------------------------------------------


class Wide:
    """A weight of `rows` x 256 and what is made of it, behind so many products."""

    def __init__(self, rows, make, products):
        self.rows, self.make, self.products = rows, make, products

    def emit(self, ctx, x):
        w = ctx.param("w", (self.rows, 256), lambda shape, rng: np.ones(shape, np.float32))
        for n in range(self.products):
            x = ctx.gemm(x, ctx.param(f"v{n}", (256, 256), nn.init.ones))
        return self.make(ctx, x, w)


def wide(rows, make, batch, products=0):
    return nn.Model({"x": aicf.TensorSpec((batch, 256))}).add(Wide(rows, make, products), "m")


def decided(model, device="cpu"):
    """(kept, made in each run): bytes and reasons by the ops."""
    found = aicf.explain_for(model, device).to_json().get("derived", [])
    return (
        {one["ops"]: one["nbytes"] for one in found if not one["why_not"]},
        {one["ops"]: one["why_not"] for one in found if one["why_not"]},
    )


def test_what_grows_is_made_in_each_run():
    """Running sums of a row that is repeated are so many times as large as it; the row itself is kept."""

    def repeated(ctx, x, w):
        many = ctx.broadcast_in_dim(ctx.reduce_sum(w, axes=(0,)), shape=(8192, 256), dims=(1,))
        return ctx.gemm(x, ctx.cumsum(many, axis=0), trans_b=True)

    kept, refused = decided(wide(16, repeated, 2))
    assert kept == {"reduce_sum": 1024}
    ((ops, why),) = refused.items()
    assert "cumsum" in ops and why == "512 times what it is made of"  # 8192 rows of 16
    small = decided(
        wide(
            16,
            lambda ctx, x, w: ctx.gemm(
                x,
                ctx.cumsum(
                    ctx.broadcast_in_dim(ctx.reduce_sum(w, axes=(0,)), shape=(64, 256), dims=(1,)), axis=0
                ),
                trans_b=True,
            ),
            2,
        )
    )
    assert sum(small[0].values()) == 64 * 256 * 4 and not small[1]


def transposed_product(ctx, x, w):
    return ctx.reduce_max(ctx.gemm(x, ctx.exp(ctx.transpose(w, perm=(1, 0)))), axes=(0,))


@pytest.mark.parametrize("products, keeps", [(0, True), (100, False)])
def test_time_is_weighed_against_memory(products, keeps):
    """Beside nothing else the transpose is much of the time. Beside a hundred products it is next to nothing, for memory that is the same."""
    model = wide(4096, transposed_product, 100_000, products)
    kept, refused = decided(model, "h200")
    assert list(kept if keeps else refused) == ["transpose + exp"] and not (refused if keeps else kept)
    explained = aicf.explain_for(model, "h200")
    text = " ".join(str(explained).split())
    said = (
        "derived once: transpose + exp(m.w) 4.2 MB" if keeps else "in each run: transpose + exp(m.w) 4.2 MB"
    )
    assert said in text and ("more memory" in text) is not keeps
    assert (explained.plan.setup is not None) is keeps


def test_all_together_is_a_share_of_the_device_s_memory():
    """Where room is short, what saves most for its bytes is kept."""

    def body(ctx, x, w):
        one = ctx.exp(ctx.transpose(w, perm=(1, 0)))
        other = ctx.cumsum(ctx.exp(w), axis=0)
        return ctx.gemm(x, one), ctx.gemm(x, other, trans_b=True)

    model = wide(4096, body, 2)
    found = aicf.explain_for(model, "cpu").to_json()["derived"]
    best = max(found, key=lambda one: one["us"])["ops"]
    for room, count in ((100 << 20, 2), (5 << 20, 1), (1 << 20, 0)):
        kept, refused = decided(model, replace(preset("cpu"), memory_bytes=int(room / rules.SHARE)))
        assert len(kept) == count and len(refused) == 2 - count
        assert count != 1 or list(kept) == [best]
        assert all("there is room for" in why for why in refused.values())


def test_maps_that_fuse_stay_where_they_are():
    """A map of a row of weights that a kernel computes where it reads it is no kernel, and nothing is kept of it."""
    model = model_of(lambda ctx, x, w: ctx.tanh(ctx.add(ctx.gemm(x, w["p"]), ctx.mul(w["b"], 3.0))))
    programs = [aicf.compile(model, device="cpu", hoist=hoist) for hoist in (True, False)]
    assert programs[0].plan.key == programs[1].plan.key and not programs[0].plan.derived
    ops = [[op.kind.name for op in r.spec.ops] for r in programs[0].compiled().regions]
    assert any({"mul", "add"} <= set(names) for names in ops)


@pytest.mark.parametrize("mode", ["grad", "train"])
def test_other_modes_compute_all_each_time(mode):
    how = {"optimizer": nn.SGD(0.1)} if mode == "train" else {}
    program = aicf.compile(model_of(derived), mode, device="cpu", loss=nn.MeanSquaredError(), **how)
    assert program.plan.setup is None and "derived" not in program.explain().to_json()


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("C6", "F5")
def test_a_plan_says_what_is_before_it():
    program = aicf.compile(model_of(derived), device="cpu")
    plan, first = program.plan, program.plan.setup
    names = {slot.name for slot in plan.externals(Role.state)}
    assert {slot.name for slot in first.outputs} == plan.derived <= names
    assert plan.bound >= {"m.p", "m.q", "m.s"} and not first.updates
    anchors = sorted((s.anchor, s.last) for s in (*plan.steps, *first.steps))
    assert anchors[0][0] == 0 and all(b[0] == a[1] + 1 for a, b in pairwise(anchors))
    # every byte that is there: what is bound to both, results, arenas
    held = {s.name: s.spec.nbytes for p in (plan, first) for s in p.externals()}
    results = sum(s.spec.nbytes for s in plan.outputs)
    assert plan.peak_bytes == sum(held.values()) + results + plan.arena_bytes + first.arena_bytes
    text = str(plan)
    assert "before, when params have changed:" in text and all(name in text for name in plan.derived)
    again = ExecPlan.from_json(plan.to_json(), program.registry)
    assert again.key == plan.key and again.setup is not None and again.setup.key == first.key


def test_a_saved_plan_is_run_with_what_the_program_has():
    program = aicf.compile(model_of(derived), device="cpu")
    x = {"x": rows_of(np.random.default_rng())}
    wanted = bits(program(x))
    plan = ExecPlan.from_json(program.plan.to_json(), program.registry)
    bound = program._executor.bind(plan, x, program.variables)
    bound.run()
    assert {s.name: (s.spec.shape, bound.tensors[s.vid].numpy().tobytes()) for s in plan.outputs} == wanted
    other = aicf.compile(model_of(derived), device="cpu", hoist=False)
    with pytest.raises(StateError, match=r"const\.derived"):
        other._executor.bind(plan, x, other.variables)


def damaged(data, what):
    first = data["setup"]
    match what:
        case "no plan":
            data["setup"] = 7
        case "another mode":
            first["mode"] = "train"
        case "another device":
            first["device"] = "h200"
        case "nested":
            first["setup"] = json.loads(json.dumps(first))
        case "a result that nobody has":
            next(s for s in first["slots"] if s["role"] == "output")["name"] = "const.derived.other"
        case "a result of another type":
            next(s for s in data["slots"] if s["name"].startswith("const.derived"))["shape"] = [1]
        case "an input":
            next(s for s in first["slots"] if s["role"] == "param")["role"] = "input"
        case "a step twice":
            first["steps"].append(first["steps"][-1])
        case "a step less":
            del first["steps"][0]
        case "none":
            del data["setup"]
        case "an op twice":
            step = first["steps"][0]
            step["anchor"], step["last"] = data["steps"][0]["anchor"], data["steps"][0]["last"]
        case "a kernel's place":
            first["arena_bytes"] += 256


@pytest.mark.parametrize(
    "what",
    ["no plan", "another mode", "another device", "nested", "a result that nobody has", "a result of another type", "an input",
     "a step twice", "a step less", "none", "an op twice", "a kernel's place"],
)  # fmt: skip
def test_a_damaged_setup_is_refused(what):
    plan = aicf.compile(model_of(derived), device="cpu").plan
    data = json.loads(plan.to_json())
    damaged(data, what)
    with pytest.raises(VerifyError, match="this is no plan that can be run"):
        ExecPlan.from_json(json.dumps(data))


def test_what_a_graph_says_twice_is_kept_twice():
    def body(ctx, x, w):
        first, second = (ctx.transpose(ctx.exp(w["p"]), perm=(1, 0)) for _ in range(2))
        return ctx.gemm(x, first, trans_b=True) - 2 * ctx.gemm(x, second, trans_b=True)

    program = aicf.compile(model_of(body), device="cpu")
    assert len(program.plan.derived) == 2
    for seed in range(2):
        program.load_state_dict(other_weights(program, np.random.default_rng(seed)))
        x = rows_of(np.random.default_rng())
        wanted = -x @ np.exp(program.get("m.p").astype(np.float64))
        np.testing.assert_allclose(program({"x": x})["output"].numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_plans_of_all_sizes_keep_one_and_the_same():
    """A setup does not depend on the batch: its results are there once, and refreshed once."""
    program = aicf.compile(model_of(derived), device="cpu")
    plans = [program.compiled({"batch": n}).plan for n in (1, 3, 50)]
    assert len({frozenset(plan.derived) for plan in plans}) == 1
    assert len([name for name in program.variables.shared._own if name.startswith(rules.PREFIX)]) == len(
        plans[0].derived
    )


def test_an_explanation_tells_it_and_pages_draw_it(tmp_path):
    program = aicf.compile(model_of(derived), device="cpu")
    explained = program.explain()
    text = " ".join(str(explained).split())
    for said in ("derived once: ", "1 once ", "less a run"):
        assert said in text, text
    data = explained.to_json()
    assert [r["anchor"] for r in data["regions"]] == sorted(r["anchor"] for r in data["regions"])
    assert sum(r.get("once", False) for r in data["regions"]) == len(program.plan.setup.steps)
    assert explained.gain.kernels == len(program.plan.kernel_ids)
    runs = [r["candidates"][0]["us"] for r in data["regions"] if not r.get("once") and not r["view"]]
    assert abs(explained.predicted_us - sum(runs)) < 1e-9
    page = program.report(tmp_path / "page.html").read_text()
    assert ", once" in page and "const.derived" in page


def test_explanations_of_two_devices_are_compared():
    """Where one keeps what the other makes in each run, the ops are the same."""
    model = wide(4096, transposed_product, 2)
    sides = [
        aicf.explain_for(model, device, hoist=hoist).to_json()
        for device, hoist in (("h200", True), ("cpu", True), ("h200", False))
    ]
    for other in sides[1:]:
        assert "stretches" in str(Diff(sides[0], other))


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_setup_that_fails_is_run_again(monkeypatch):
    program = aicf.compile(model_of(derived), device="cpu")
    x = {"x": rows_of(np.random.default_rng())}
    good = program.state_dict()
    wanted = bits(program(x))
    run = Executor.run_setup

    def failing(*_):
        raise MemoryError

    monkeypatch.setattr(Executor, "run_setup", failing)
    program.load_state_dict({n: w + 1 for n, w in good.items()})
    for _ in range(2):
        with pytest.raises(MemoryError):
            program(x)
    monkeypatch.setattr(Executor, "run_setup", run)
    made = program(x)["output"].numpy()
    np.testing.assert_allclose(made, oracle(x["x"], program.state_dict()), rtol=2e-5, atol=2e-5)
    program.load_state_dict(good)
    assert bits(program(x)) == wanted


def test_the_first_nan_is_told_of_the_setup_too(monkeypatch):
    monkeypatch.setenv("AICF_CHECK", "nan")
    program = aicf.compile(
        model_of(lambda ctx, x, w: ctx.gemm(x, ctx.transpose(ctx.sqrt(w["p"]), perm=(1, 0)), trans_b=True)),
        device="cpu",
    )
    assert program.plan.derived
    with pytest.raises(NanError, match="made the first NaN: sqrt"):
        program({"x": rows_of(np.random.default_rng())})
    ones = {name: np.ones_like(w) for name, w in program.state_dict().items()}
    program.load_state_dict(ones)
    x = rows_of(np.random.default_rng())
    np.testing.assert_allclose(
        program({"x": x})["output"].numpy(), x.astype(np.float64) @ np.ones((12, 20)), rtol=1e-5, atol=1e-5
    )
