"""How `fit` is called, and layers that lack what their base declares: refused in words, with what to write. Arguments are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import AicfError, StateError, VerifyError
from aicf.training import Batches
from aicf.training.call import ELSEWHERE

X, Y = np.ones((16, 6), np.float32), np.zeros(16, np.int64)


def model(*layers, **how):
    made = nn.Model({"x": aicf.TensorSpec(("batch", 6))}, batch=8, **how)
    for layer in layers or (nn.Linear(6, 2),):
        made.add(layer)
    return made


@pytest.fixture(scope="module")
def program():
    return aicf.compile(model(), "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.1))


def batches():
    return Batches({"x": X, "y": Y}, 8)


VALUES = (3, -1, 1.5, True, object(), b"runs", [3], [object()], {"x": 3}, float("nan"), np.zeros(3))
WRONG = {  # what `fit` does not take for a name, of VALUES
    "steps": lambda v: not isinstance(v, int) or isinstance(v, bool) or v < 0,
    "epochs": lambda v: not isinstance(v, int) or isinstance(v, bool) or v < 0,
    "keep": lambda v: not isinstance(v, int) or isinstance(v, bool) or v < 0,
    "log_every": lambda v: not isinstance(v, int) or isinstance(v, bool) or v < 1,
    "checkpoint_every": lambda v: not isinstance(v, int) or isinstance(v, bool) or v < 1,
    "checkpoints": lambda v: True,
    "log": lambda v: not isinstance(v, dict),  # a dict of texts is an iterable of texts
}


@pytest.mark.spec("C14")
@pytest.mark.parametrize("seed", range(40))
def test_arguments_that_make_no_sense_are_refused_in_words(program, seed):
    rng = np.random.default_rng(seed)
    name = list(WRONG)[rng.integers(len(WRONG))]
    value = [v for v in VALUES if WRONG[name](v)][rng.integers(sum(map(WRONG[name], VALUES)))]
    with pytest.raises(AicfError) as refused:
        program.fit(batches(), progress=False, **{"steps": 1, name: value})
    assert name in str(refused.value) and "expected" in str(refused.value), (seed, name, value)


@pytest.mark.parametrize("name", ["epoch", "step", "validations", "log_evry", "nonsense", *ELSEWHERE])
def test_what_other_libraries_call_it(program, name):
    with pytest.raises(AicfError) as refused:
        program.fit(batches(), **{name: 3})
    text = str(refused.value)
    assert f"fit has no {name}" in text and ("next" in text or name == "nonsense")


def test_inputs_and_targets_come_together(program):
    """And the advice works."""
    for call in (
        lambda: program.fit(X, Y),
        lambda: aicf.training.fit(program, X, Y),
        lambda: program.fit(x=X, y=Y),
    ):
        with pytest.raises(AicfError) as refused:
            call()
        advice = str(refused.value).partition("next: ")[2]
        assert advice == "fit(aicf.training.Batches({'x': x, 'y': y}, size=32), epochs=1)"
    history = eval(
        f"program.{advice}".replace("size=32", "size=8"), {"program": program, "aicf": aicf, "x": X, "y": Y}
    )
    assert len(history.losses) == 2
    with pytest.raises(AicfError, match="no batches"):
        program.fit()


def test_paths_are_paths(program, tmp_path):
    program.fit(
        batches(),
        epochs=1,
        checkpoints=tmp_path / "runs",
        log=[str(tmp_path / "a.csv"), Path(tmp_path / "b.jsonl")],
        progress=False,
    )
    assert (
        (tmp_path / "a.csv").exists()
        and (tmp_path / "b.jsonl").exists()
        and list((tmp_path / "runs").iterdir())
    )


# --- layers, losses, optimizers and schedules of the user's ---------------------------------------------------------------

WITHOUT = {
    "emit": (nn.Layer, lambda one: model(nn.Linear(6, 4), one)),
    "targets": (nn.Loss, lambda one: train(loss=one)),
    "meta": (nn.Optimizer, lambda one: train(optimizer=one)),
}


def train(loss=None, optimizer=None):
    return aicf.compile(
        model(),
        "train",
        device="cpu",
        loss=loss or nn.SoftmaxCrossEntropy(),
        optimizer=optimizer or nn.SGD(0.1),
    )


@pytest.mark.parametrize("method", WITHOUT)
@pytest.mark.parametrize("instead", ["forward", "call", "apply", None])
def test_a_method_that_is_not_written_is_named(method, instead):
    base, use = WITHOUT[method]
    own = {instead: lambda self, *values: values[0]} if instead else {}
    one = type("Mine", (base,), own)(*[0.1] * (base is nn.Optimizer))
    with pytest.raises(VerifyError) as refused:
        use(one)
    text = str(refused.value)
    assert f"Mine has no {method}" in text and f"def {method}(self, " in text and "next" in text
    assert instead is None or f"Mine.{instead}" in text


def test_an_emit_without_ctx_is_told_so():
    class Mine(nn.Layer):
        def emit(self, x):
            return x

    for use in (
        lambda: model(Mine()),
        lambda: nn.Model({"x": aicf.TensorSpec(("batch", 6))}, Mine(), batch=8),
    ):
        with pytest.raises(VerifyError, match=r"Mine\.emit does not take") as refused:
            use()
        assert "emit(self, ctx, x)" in str(refused.value)


# --- models that change -------------------------------------------------------------------------------------------------


@pytest.mark.spec("C14")
@pytest.mark.parametrize("seed", range(8))
def test_a_program_of_a_model_that_has_changed_since_is_refused(seed):
    """By a drawn way to change it and to run it; what was compiled anew runs."""
    rng = np.random.default_rng(seed)
    made = model(nn.Linear(6, 4), nn.Tanh())
    program = aicf.compile(made, device="cpu")
    feed = {"x": X[:8]}
    run = (program, program.run, program.replay, program.capture)[rng.integers(4)]
    if rng.integers(2):
        run(feed)
    change = rng.integers(3)
    if change == 0:
        made.add(nn.Linear(4, 2))
    elif change == 1:
        made.layers.pop()
    else:
        made.layers[1] = ("1", nn.Tanh())
    with pytest.raises(StateError, match="the model has changed since this program was compiled") as refused:
        run(feed)
    assert "next: aicf.compile(model, ...)" in str(refused.value) and (
        "test_call.py" in str(refused.value)
    ) == (change == 0)
    again = aicf.compile(made, device="cpu")
    assert again(feed)["output"].shape == (8, 2 if change == 0 else 4)


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_model_without_layers_is_refused(mode):
    empty = nn.Model({"x": aicf.TensorSpec(("batch", 6))}, batch=8)
    how = {} if mode == "infer" else {"loss": nn.SoftmaxCrossEntropy(), "optimizer": nn.SGD(0.1)}
    for use in (
        lambda: aicf.compile(empty, mode, device="cpu", **how),
        lambda: aicf.explain_for(empty, "h200", mode, **how),
    ):
        with pytest.raises(VerifyError, match="the model has no layers") as refused:
            use()
        assert "model.add(" in str(refused.value)
