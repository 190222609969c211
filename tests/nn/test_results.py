"""Models with several results: their names and order, in every mode, in plans, summaries and explanations; what is refused."""

from __future__ import annotations

import copy
import csv
import pickle
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import VerifyError
from aicf.graph.run.plan import ExecPlan
from aicf.types import i32

from .mlp import host, on_each_device, params, same
from .routed import Emits, X, Y, feed, in_numpy, model, routed_loss


class Pair(NamedTuple):
    mean: Any
    spread: Any


def a_pair(ctx, x, y):
    return Pair(y, abs(y))


# --- names, order, numbers ----------------------------------------------------------------------------------------------


@on_each_device
@pytest.mark.parametrize("rows", [5, 1, 0])
def test_results_of_a_dict_have_its_keys_and_order_and_numpy_s_numbers(device, rows):
    program = aicf.compile(model(), device=device)
    fed = {"x": feed(np.random.default_rng(), rows)["x"]}
    got = host(program(fed))
    assert list(got) == list(program.outputs) == ["logits", "hidden", "router"]
    assert same(got, host(program.run(fed)))
    for name, want in in_numpy(params(program), fed["x"]).items() if rows else ():
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=name)
    assert [v.shape for v in got.values()] == [(rows, 3), (rows, 6), ()]
    assert [str(spec) for spec in program.outputs.values()] == [
        "tensor<4x3xf32>",
        "tensor<4x6xf32>",
        "tensor<f32>",
    ]


SHAPES = {
    "a Value": (lambda ctx, x, y: y, ["output"]),
    "a tuple of one": (lambda ctx, x, y: (y,), ["output"]),
    "a tuple": (lambda ctx, x, y: (y.sum(), y, y.max()), ["output.0", "output.1", "output.2"]),
    "a list": (lambda ctx, x, y: [y, y + 1.0], ["output.0", "output.1"]),
    "a named tuple": (a_pair, ["mean", "spread"]),
    "a dict, not sorted": (lambda ctx, x, y: {"z": y + 1.0, "b": y.sum(), "a": y}, ["z", "b", "a"]),
    "a dict with an output": (lambda ctx, x, y: {"aside": y.sum(), "output": y}, ["aside", "output"]),
    "a dict of tuples": (
        lambda ctx, x, y: {"h": (y, [y + 1.0]), "deep": {"er": y.sum()}},
        ["h.0", "h.1.0", "deep.er"],
    ),
    "a tuple of dicts": (lambda ctx, x, y: (y, {"sum": y.sum()}), ["output.0", "output.1.sum"]),
}


@pytest.mark.parametrize("what", SHAPES)
def test_results_have_names_by_where_they_are(what):
    emit, names = SHAPES[what]
    made = model(Emits(emit))
    program = aicf.compile(made, device="cpu")
    got = program({"x": np.ones((5, 8), np.float32)})
    assert list(made.outputs) == list(program.outputs) == list(got) == names
    main = "output" if "output" in names else names[0]
    assert made.output == made.outputs[main]
    assert [str(s) for s in made.outputs.values()] == [str(s) for s in program.outputs.values()]


def all_sorts(ctx, x, y):
    """Values twice, inputs, constants, weights, views."""
    weight = ctx.param("own", (3,), nn.init.ones)
    return {
        "first": y, "second": y, "same": x, "seven": ctx.constant(7.0), "weight": weight, "column": weight.reshape(3, 1),
        "flat": y.reshape(-1), "left": y[:, :2], "scaled": y * weight,
    }  # fmt: skip


@on_each_device
@pytest.mark.spec("C6")
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_values_twice_inputs_constants_weights_and_views_are_what_they_are(device, mode):
    more = {"loss": nn.MeanSquaredError(result="scaled", target="t"), "optimizer": nn.SGD(0.5)}
    program = aicf.compile(model(Emits(all_sorts)), mode, device=device, **(more if mode == "train" else {}))
    rng = np.random.default_rng()
    for run in (program, program.run, program):
        x = rng.standard_normal((5, 8), np.float32)
        w = params(program)
        got = run({"x": x} | ({"t": np.zeros((5, 3), np.float32)} if mode == "train" else {}))
        got = host(got)
        y = x.astype(np.float64) @ w["inner.weight"].T + w["inner.bias"]
        want = {
            "first": y, "second": y, "same": x, "seven": 7.0, "weight": w["own"], "column": w["own"][:, None], "flat": y.ravel(),
            "left": y[:, :2], "scaled": y * w["own"],
        }  # fmt: skip
        assert list(got) == [*want, *(["loss"] if mode == "train" else [])]
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    assert (params(program)["own"] != 1).all() == (mode == "train")


@pytest.mark.spec("C6")
def test_results_are_no_views_of_one_another():
    program = aicf.compile(model(Emits(all_sorts)), device="cpu")
    for run in (program, program.run):
        got = run({"x": np.ones((5, 8), np.float32)})
        spans = sorted((t.ptr, t.ptr + t.spec.nbytes) for t in got.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("mode", ["infer", "grad", "train"])
def test_plans_for_a_gpu_have_the_same_results(mode):
    more: dict[str, Any] = {} if mode == "infer" else {"loss": nn.MeanSquaredError(result="scaled")}
    if mode == "train":
        more["optimizer"] = nn.AdamW(1e-3)
    here = aicf.compile(model(Emits(all_sorts)), mode, device="cpu", **more)
    for policy in ("f32", "bf16"):
        there = aicf.explain_for(model(Emits(all_sorts)), "h200", mode, policy=policy, **more)
        assert [s.name for s in there.plan.outputs] == list(here.outputs)
        assert ExecPlan.from_json(there.plan.to_json(), here.registry).key == there.plan.key


def test_nan_and_infinity_stay_in_the_results_that_they_reach():
    program = aicf.compile(model(), device="cpu")
    x = np.zeros((3, 8), np.float32)
    x[0, 0], x[1, 1] = np.nan, np.inf
    got = host(program({"x": x}))
    assert np.isnan(got["logits"][0]).all() and np.isfinite(got["logits"][2]).all()
    assert (np.abs(got["hidden"][1]) == 1).all() and np.isnan(got["router"])


# --- training -------------------------------------------------------------------------------------------------------------


@on_each_device
@pytest.mark.spec("C9")
def test_a_training_step_returns_what_was_before_it_and_a_replay_is_a_run(device):
    def made():
        return aicf.compile(
            model(), "train", device=device, loss=nn.LossFunction(routed_loss, y=Y), optimizer=nn.AdamW(1e-2),
        )  # fmt: skip

    replayed, walked = made(), made()
    rng = np.random.default_rng()
    for _ in range(3):
        fed = feed(rng)
        want = in_numpy(params(replayed), fed["x"])
        got = host(replayed(fed))
        assert same(got, host(walked.run(fed)))
        assert list(got) == ["logits", "hidden", "router", "loss", "accuracy"]
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    assert same(replayed.state_dict(), walked.state_dict())
    before = replayed.state_dict()
    replayed.capture(feed(rng, 3))
    assert same(replayed.state_dict(), before)


def test_runs_between_steps_return_all_results_too():
    program = aicf.compile(
        model(), "train", device="cpu", loss=nn.LossFunction(routed_loss, y=Y), optimizer=nn.SGD(0.1), accumulate=2,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    assert [list(program(feed(rng))) for _ in range(3)] == [list(program.outputs)] * 3


@pytest.mark.parametrize("policy", ["bf16", "f16"])
def test_results_of_a_policy_are_f32_and_exempt_layers_may_return_dicts(policy):
    how = aicf.Policy(compute=policy, exempt=("Half",))

    class Half(nn.Layer):
        def emit(self, ctx, given):
            assert given["x"].dtype is aicf.f32
            return {"twice": given["x"] * 2.0}

    class Whole(nn.Layer):
        def __init__(self):
            self.inner, self.half = nn.Linear(8, 3), Half()

        def emit(self, ctx, x):
            y = self.inner(x)
            return {"logits": y, **self.half({"x": y}), "router": y.sum()}

    program = aicf.compile(
        model(Whole()), "train", device="cpu", loss=nn.LossFunction(routed_loss, y=Y), optimizer=nn.SGD(0.1), policy=how,
    )  # fmt: skip
    got = host(program(feed(np.random.default_rng())))
    assert {v.dtype for v in got.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(got["twice"], 2 * got["logits"])


def test_fit_trains_and_validates_models_of_several_results(tmp_path):
    rng = np.random.default_rng(3)
    data = [feed(rng, 16) for _ in range(6)]
    for fed in data:
        fed["y"] = fed["x"][:, :3].argmax(1)
    made = model()
    loss = nn.LossFunction(routed_loss, y=Y)
    program = aicf.compile(made, "train", device="cpu", loss=loss, optimizer=nn.Adam(3e-2))
    log = tmp_path / "log.csv"
    history = program.fit(
        data, epochs=8, validation=data[:2], checkpoints=tmp_path, progress=False, log=log, log_every=3
    )
    assert history.validation[-1][1] < history.validation[0][1]
    first, last = history.rows[0], history.rows[-1]
    logged = [row["accuracy"] for row in history.rows if row["accuracy"] is not None]
    assert logged[-1] > logged[0] and last["validation_accuracy"] > 0.5
    again = copy.copy(made)
    steps = aicf.compile(again, "train", device="cpu", loss=loss, optimizer=nn.Adam(3e-2))
    runs = [host(steps(fed)) for fed in data[:3]]
    for name in ("accuracy", "router", "loss"):
        assert first[name] == pytest.approx(np.mean([run[name] for run in runs]), rel=1e-5), name
    judge = program.in_mode("infer")
    judged = [host(judge(fed)) for fed in data[:2]]
    assert last["validation_router"] == pytest.approx(np.mean([run["router"] for run in judged]))
    table = list(csv.DictReader(log.read_text().splitlines()))
    for name in ("router", "validation_accuracy"):
        told = ["" if row[name] is None else str(row[name]) for row in history.rows]
        assert [row[name] for row in table] == told and "" in told
    aicf.save(tmp_path / "w.safetensors", program.state_dict())
    served, learned = aicf.compile(copy.copy(made), device="cpu"), aicf.compile(made, device="cpu")
    served.load_state_dict(aicf.load(tmp_path / "w.safetensors"))
    fed = {"x": data[0]["x"]}
    assert same(host(served(fed)), host(learned(fed)))


# --- plans, copies, what is shown -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["infer", "grad", "train"])
def test_a_saved_plan_has_the_results_in_their_order(mode):
    turned = model(Emits(lambda ctx, x, y: {"late": (y + 1.0).sum(), "early": y}))
    loss = nn.LossFunction(lambda out, y: out["late"] ** 2 + 0.0 * y.astype(aicf.f32).sum(), y=Y)
    more: dict[str, Any] = {} if mode == "infer" else {"loss": loss}
    if mode == "train":
        more["optimizer"] = nn.SGD(0.1)
    program = aicf.compile(turned, mode, device="cpu", **more)
    plan = program.plan
    loaded = ExecPlan.from_json(plan.to_json(), program.registry)
    assert loaded == plan and loaded.key == plan.key
    assert [s.name for s in loaded.outputs] == list(program.outputs)
    assert list(program.outputs)[:2] == ["late", "early"]


def test_models_with_several_results_travel_and_show_them():
    made = model(Emits(a_pair))
    fed = {"x": np.ones((2, 8), np.float32)}
    wanted = host(aicf.compile(made, device="cpu")(fed))
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert same(host(aicf.compile(other, device="cpu")(fed)), wanted)
    rows = {row.name: row for row in model().summary().rows}
    assert [(rows[n].layer, rows[n].shape) for n in ("logits", "hidden", "router")] == [
        ("result", ("batch", 3)), ("result", ("batch", 6)), ("result", ()),
    ]  # fmt: skip
    assert "result" not in {row.layer for row in nn.Model(X, nn.Linear(8, 2), batch=4).summary().rows}
    told = str(aicf.explain_for(model(), "h200", "grad", loss=nn.LossFunction(routed_loss, y=Y)))
    listed = "logits: tensor<4x3xf32> · hidden: tensor<4x6xf32> · router: tensor<f32> · loss: tensor<f32> · accuracy: tensor<f32>"
    assert f"returns {listed}" in " ".join(told.split())
    assert "returns" not in str(aicf.explain_for(nn.Model(X, nn.Linear(8, 2), batch=4), "h200"))


def test_the_command_line_explains_a_file_with_such_a_model(tmp_path, capsys):
    from aicf import cli

    path = tmp_path / "mine.py"
    path.write_text(
        "import aicf\nfrom aicf import nn\n\n"
        "class Two(nn.Layer):\n    def __init__(self): self.a = nn.Linear(4, 2)\n"
        "    def emit(self, ctx, x):\n        y = self.a(x)\n        return {'y': y, 'total': y.sum()}\n\n"
        "def build(): return nn.Model((3, 4), Two())\n"
        "def loss(): return nn.LossFunction(lambda out: out['total'])\n"
    )
    assert cli.main(["explain", str(path), "--device", "h200"]) == 0
    assert "returns y: tensor<3x2xf32> · total: tensor<f32>" in capsys.readouterr().out
    assert cli.main(["explain", str(path), "--device", "cpu", "--mode", "grad"]) == 0
    assert "total: tensor<f32> · loss: tensor<f32>" in capsys.readouterr().out


# --- generation -----------------------------------------------------------------------------------------------------------


class Speaker(nn.Layer):
    def __init__(self, several: bool) -> None:
        self.embed = nn.Embedding(11, 8)
        self.block = nn.TransformerBlock(8, nn.MultiHeadAttention(8, 2, rope=100.0), nn.MLP(8))
        self.head, self.several = nn.Linear(8, 11), several

    def emit(self, ctx: Any, tokens: Any) -> Any:
        x = self.block(self.embed(tokens))
        logits = self.head(x)
        if not self.several:
            return logits
        return {"pooled": x.mean(1), "output": logits, "x": x}  # what is pooled no cache could serve


@pytest.mark.sample(1)
@pytest.mark.parametrize("cache", [True, False])
def test_generation_reads_the_output_of_several_results(cache):
    tokens = {"tokens": aicf.TensorSpec(("batch", "seq"), i32)}
    one, several = (
        aicf.compile(nn.Model(tokens, Speaker(s), batch=2, seq=12, seed=5), device="cpu")
        for s in (False, True)
    )
    how: dict[str, Any] = {"temperature": 0.7, "seed": 3, "cache": cache}
    want = aicf.generate(one, [[1, 2], [3]], 6, **how)
    got = aicf.generate(several, [[1, 2], [3]], 6, **how)
    assert all((a == b).all() for a, b in zip(got, want))


# --- layers of layers -----------------------------------------------------------------------------------------------------


def test_a_layer_may_hand_several_values_to_another_in_any_container():
    class Split(nn.Layer):
        def emit(self, ctx, x):
            return x[:, :4], {"rest": [x[:, 4:]]}

    class Join(nn.Layer):
        def emit(self, ctx, parts):
            first, other = parts
            return {"sum": first + other["rest"][0], "first": first}

    chain = nn.Model(X, batch=4).add(Split()).add(Join())
    x = np.random.default_rng().standard_normal((4, 8), np.float32)
    for made in (chain, nn.Model(X, nn.Sequential(Split(), Join()), batch=4), copy.copy(chain)):
        got = host(aicf.compile(made, device="cpu")({"x": x}))
        np.testing.assert_array_equal(got["sum"], x[:, :4] + x[:, 4:])
        np.testing.assert_array_equal(got["first"], x[:, :4])
    assert aicf.compile(nn.Model(X, batch=4).add(Split()), device="cpu").outputs.keys() == {
        "output.0",
        "output.1.rest.0",
    }


# --- what is refused ------------------------------------------------------------------------------------------------------


REFUSED = {
    "an input's name": (lambda ctx, x, y: {"x": y}, "a result and an input are both called 'x'", "%0 x: tensor<4x8xf32>", "another key"),
    "a weight's name": (lambda ctx, x, y: {"inner.weight": y}, "a result and a param are both called 'inner.weight'"),
    "the loss's name": (lambda ctx, x, y: {"a": y, "loss": y.sum()}, "a result can't be called 'loss'", "other than loss, grad"),
    "a gradient's name": (lambda ctx, x, y: {"grad.inner.weight": y}, "a result can't be called 'grad.inner.weight'"),
    "gradients' name": (lambda ctx, x, y: {"grad": (y, y)}, "a result can't be called 'grad.0'"),
    "an empty dict": (lambda ctx, x, y: {}, "Emits.emit's result is an empty dict", "expected: a Value"),
    "an empty tuple": (lambda ctx, x, y: (), "Emits.emit's result is an empty tuple"),
    "an empty list inside": (lambda ctx, x, y: {"y": y, "h": []}, "Emits.emit's result 'h' is an empty list"),
    "nothing": (lambda ctx, x, y: {"y": y, "aux": None}, "Emits.emit's result 'aux' is nothing"),
    "a number": (lambda ctx, x, y: (y, 1.0), "Emits.emit's result '1' is a float"),
    "a key that is a number": (lambda ctx, x, y: {0: y}, "0 can't be the name of a result", "expected: text"),
    "an empty key": (lambda ctx, x, y: {"": y}, "'' can't be the name of a result"),
    "a number as a key inside": (lambda ctx, x, y: {"h": {1: y}}, "1 in 'h' can't be the name of a result"),
    "two of a name": (lambda ctx, x, y: {"a.b": y, "a": {"b": x}}, "two results are called 'a.b'"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_results_that_make_no_sense_are_refused_where_the_model_is_made(what):
    emit, *said = REFUSED[what]
    with pytest.raises(VerifyError) as raised:
        model(Emits(emit))
    for part in (*said, ".py:"):
        assert part in str(raised.value), raised.value


def test_a_name_that_only_training_needs_is_refused_then():
    made = model(Emits(lambda ctx, x, y: {"inner.weight.momentum": y}))
    aicf.compile(made, device="cpu")
    with pytest.raises(VerifyError, match=r"a result and a state are both called 'inner.weight.momentum'"):
        aicf.compile(made, "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.1, 0.9))
