"""program.fit: what it trains, when it stops, what it writes down, and that a run that is resumed is the run itself."""

import csv
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.errors import AicfError, FeedError, LabelError, StateError
from aicf.graph.run.peak import counted_flops, peak_seconds
from aicf.training import Batches, place_of
from aicf.training.logs import log_to

RNG = np.random.default_rng(5)
X = RNG.normal(size=(120, 6)).astype(np.float32)
Y = (X[:, 0] > X[:, 1]).astype(np.int64)
BATCHES = Batches({"x": X, "y": Y}, 16)
HELD_OUT = [{"x": X[:50], "y": Y[:50]}, {"x": X[50:80], "y": Y[50:80]}]


def program(accumulate=1, optimizer=None):
    model = nn.Model({"x": aicf.TensorSpec(("batch", 6))}, batch=16, seed=1)
    model.add(nn.Linear(6, 16)).add(nn.ReLU()).add(nn.Dropout(0.2)).add(nn.Linear(16, 2))
    optimizer = optimizer or nn.AdamW(nn.schedules.Cosine(2e-2, total=60, warmup=5))
    return aicf.compile(
        model,
        "train",
        device="cpu",
        loss=nn.SoftmaxCrossEntropy(),
        optimizer=optimizer,
        accumulate=accumulate,
    )


def same(a, b):
    return a.keys() == b.keys() and all((a[k] == b[k]).all() for k in a)


def test_it_is_the_loop_that_one_would_write():
    by_hand, fitted = program(), program()
    losses = [float(by_hand(feed)["loss"]) for epoch in range(3) for feed in BATCHES.at(epoch)]
    history = fitted.fit(BATCHES, epochs=3)
    assert history.losses == losses and same(by_hand.state_dict(), fitted.state_dict())
    assert history.stopped == "epochs" and history.place.step == 24 and history.place.epoch == 3
    assert program().fit(BATCHES, steps=5, epochs=3).stopped == "steps"
    assert program().fit(lambda epoch: BATCHES.at(epoch), steps=11).losses == losses[:11]
    assert program().fit(iter(list(BATCHES)), steps=99).stopped == "epochs"


@pytest.mark.sample(2)
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("form", ["at", "list"])
def test_a_resumed_run_is_the_run_itself(tmp_path, accumulate, form):
    batches = BATCHES if form == "at" else list(BATCHES)
    whole = program(accumulate)
    told = whole.fit(batches, steps=14, checkpoints=tmp_path / "a", validation=HELD_OUT, validate_every=5)
    first = program(accumulate).fit(
        batches, steps=6, checkpoints=tmp_path / "b", validation=HELD_OUT, validate_every=5
    )
    resumed = program(accumulate)
    rest = resumed.fit(
        batches, steps=14, checkpoints=tmp_path / "b", validation=HELD_OUT, validate_every=5, resume=True
    )
    assert first.losses + rest.losses == told.losses and first.validation + rest.validation == told.validation
    assert same(whole.state_dict(), resumed.state_dict()) and rest.place == told.place


def test_validation_is_the_mean_loss_without_dropout():
    trained = program()
    history = trained.fit(BATCHES, epochs=2, validation=HELD_OUT)
    w = {k: v.astype(np.float64) for k, v in trained.state_dict().items()}

    def loss(x, y):
        logits = np.maximum(x @ w["0.weight"].T + w["0.bias"], 0) @ w["3.weight"].T + w["3.bias"]
        return (np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]).mean()

    assert [step for step, _ in history.validation] == [8, 16]
    assert history.validation[-1][1] == pytest.approx(np.mean([loss(**f) for f in HELD_OUT]), rel=1e-5)


def test_the_best_checkpoints_stay_and_the_newest(tmp_path):
    values = iter([3.0, 1.0, 2.0, 5.0, 4.0])
    fitted = program()
    fitted.in_mode = lambda mode: lambda feed: {"loss": next(values)}
    history = fitted.fit(
        BATCHES, steps=10, validation=HELD_OUT[:1], validate_every=2, checkpoints=tmp_path, keep=2, patience=4
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"step-{n:08d}.safetensors" for n in (4, 6, 10)]
    assert place_of(tmp_path / "step-00000004.safetensors").loss == 1.0 and history.checkpoint.name.endswith(
        "10.safetensors"
    )
    assert history.place.best == 1.0 and history.place.waited == 3


def test_patience_ends_it(tmp_path):
    values = iter([3.0, 1.0, float("nan"), 2.0, 0.0])
    fitted = program()
    fitted.in_mode = lambda mode: lambda feed: {"loss": next(values)}
    history = fitted.fit(BATCHES, steps=100, validation=HELD_OUT[:1], validate_every=2, patience=2)
    assert history.stopped == "early" and history.place.step == 8


def test_logs(tmp_path):
    rows = []
    fitted = program()
    fitted.fit(
        BATCHES,
        steps=12,
        checkpoints=tmp_path,
        log=[tmp_path / "a.csv", str(tmp_path / "b.jsonl"), rows.append],
        log_every=4,
    )
    with open(tmp_path / "a.csv") as file:
        table = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert (
        [int(r["step"]) for r in table]
        == [r["step"] for r in lines]
        == [r["step"] for r in rows]
        == [4, 8, 12]
    )
    assert [float(r["loss"]) for r in table] == [r["loss"] for r in lines] and all(
        r["rate"] > 0 for r in lines
    )
    assert lines[-1]["lr"] == pytest.approx(fitted.get_last_lr())
    (tmp_path / "step-00000012.safetensors").unlink()
    program().fit(BATCHES, steps=8, checkpoints=tmp_path)
    program().fit(BATCHES, steps=10, checkpoints=tmp_path, resume=True, log=tmp_path / "a.csv", log_every=1)
    table = csv.DictReader((tmp_path / "a.csv").read_text().splitlines())
    assert [int(r["step"]) for r in table] == [4, 8, 9, 10]  # 12 was another future
    with pytest.raises(AicfError, match=r"nothing is known of logs like a\.xml"):
        fitted.fit(BATCHES, steps=1, log=tmp_path / "a.xml")


def test_the_share_of_the_peak_is_the_products_part_of_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(aicf.Program, "peak_seconds", property(lambda self: 1e-4))
    shown = []
    loop = sys.modules["aicf.training.fit"]  # the package's attribute is the function
    monkeypatch.setattr(loop, "line", lambda *_, **__: nullcontext(lambda *now: shown.append(now[-1])))
    history = program().fit(BATCHES, steps=6, log=tmp_path / "a.csv", log_every=6)
    (row,) = history.rows
    assert row["peak"] == pytest.approx(6e-4 / row["seconds"])
    assert f"/s · {row['peak']:.0%} of peak" in shown[-1]
    (line,) = csv.DictReader((tmp_path / "a.csv").read_text().splitlines())
    assert float(line["peak"]) == row["peak"] and line["skipped_steps"] == ""
    monkeypatch.undo()
    assert program().fit(BATCHES, steps=1).rows[-1]["peak"] is None, "nobody knows the peak of a CPU"


@pytest.mark.parametrize("policy, precision, rate", [
    ("f32", "exact", 66.9), ("f32", "tf32", 494), ("f32", "tf32x3", 494 / 3), ("bf16", "exact", 989), ("f16", "exact", 989),
])  # fmt: skip
def test_products_are_counted_at_the_peak_of_their_type(policy, precision, rate):
    model = nn.Model({"x": (512, 128)}).add(nn.Linear(128, 256)).add(nn.ReLU()).add(nn.Linear(256, 64))
    explained = aicf.explain_for(
        model,
        "h200",
        "train",
        loss=nn.MeanSquaredError(),
        optimizer=nn.SGD(0.1),
        policy=policy,
        precision=precision,
    )
    flops = 2 * 512 * (128 * 256 * 2 + 256 * 64 * 3)  # forward and backward; no gradient of the input
    scan = policy == "f16" and 128 * 256 + 256 + 256 * 64 + 64  # of all gradients, for one that is not finite
    assert counted_flops(explained.plan) == flops + scan
    assert peak_seconds(explained.plan, preset("h200")) == pytest.approx(flops / (rate * 1e12), rel=0.01)


def test_skipped_steps_are_told():
    model = nn.Model({"x": aicf.TensorSpec(("batch", 6))}, batch=16, seed=1).add(nn.Linear(6, 2))
    fitted = aicf.compile(
        model, "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.1),
        policy=aicf.Policy("f16", loss_scale=aicf.LossScale(init=2.0**127, backoff=2.0**-60)),
    )  # fmt: skip
    row = fitted.fit(BATCHES, steps=6, log_every=6).rows[-1]
    assert (row["loss_scale"], row["skipped_steps"]) == (
        float(fitted.get("loss_scale")),
        int(fitted.get("skipped_steps")),
    )
    assert 1 <= row["skipped_steps"] <= 3 and row["step"] == 6


def test_what_goes_wrong_is_said_and_written_nowhere(tmp_path):
    wrong = [dict(feed) for feed in BATCHES]
    wrong[3]["y"] = wrong[3]["y"] + 5
    fitted = program()
    with pytest.raises(LabelError, match="is no class"):
        fitted.fit(wrong, epochs=1, checkpoints=tmp_path)
    assert not list(tmp_path.iterdir()) and int(fitted.get("step")) == 3


@pytest.mark.parametrize(
    "how, what",
    [
        ({"steps": -1}, "steps can't be -1"),
        ({"epochs": 1.5}, "epochs can't be 1.5"),
        ({"log_every": 0}, "log_every can't be 0"),
        ({"resume": True}, "nothing to resume from"),
        ({"patience": 3}, "there are none"),
        ({"validation": (X, Y)}, r"validation\[0\] is no feed"),
        ({"validation": iter([])}, "many times"),
        ({"batches": {"x": X, "y": Y}}, "are no batches"),
        ({"batches": 5}, "are no batches"),
        ({"batches": []}, "no batches in epoch 0"),
        ({"batches": iter([]), "epochs": 2}, "can't be gone through 2 times"),
        ({"batches": [{"x": X}]}, "the feed"),
    ],
)
def test_what_can_t_be(how, what):
    with pytest.raises(AicfError, match=what):
        program().fit(**{"batches": BATCHES, **how})


def test_a_program_that_does_not_train():
    model = nn.Model({"x": ("batch", 6)}, batch=2).add(nn.Linear(6, 2))
    with pytest.raises(AicfError, match="compiled to train"):
        aicf.compile(model, device="cpu").fit(BATCHES)
    with pytest.raises(AicfError, match="compiled to train"):
        aicf.training.fit(model, BATCHES)


def test_checkpoints_that_are_none(tmp_path):
    aicf.save(tmp_path / "step-00000003.safetensors", {"x": np.ones(3)})
    with pytest.raises(StateError, match="no checkpoint of a training run"):
        program().fit(BATCHES, steps=5, checkpoints=tmp_path, resume=True)
    (tmp_path / "step-00000003.safetensors").write_bytes(b"cut off")
    before = program()
    state = before.state_dict()
    with pytest.raises(StateError, match="is damaged"):
        before.fit(BATCHES, steps=5, checkpoints=tmp_path, resume=True)
    assert same(state, before.state_dict())
    with pytest.raises(StateError, match="can't be made"):
        program().fit(BATCHES, steps=5, checkpoints=tmp_path / "step-00000003.safetensors")
    with pytest.raises(FeedError, match="the feed"):
        program().fit([{"x": X[:4], "y": Y[:4].astype(np.int32)}], steps=1)


def test_a_checkpoint_under_the_name_of_another_step_is_refused(tmp_path):
    program().fit(BATCHES, steps=3, checkpoints=tmp_path, checkpoint_every=1, keep=3)
    files = sorted(tmp_path.iterdir())
    files[-1].write_bytes(files[0].read_bytes())
    with pytest.raises(StateError, match="is not the checkpoint of step 3") as error:
        program().fit(BATCHES, steps=5, checkpoints=tmp_path, resume=True)
    assert f"rename it to {files[0].name}" in error.value.hint
    files[-1].rename(files[0])  # as it says
    assert program().fit(BATCHES, steps=5, checkpoints=tmp_path, resume=True)


INTERRUPTED = """
import sys
from tests.training.test_fit import BATCHES, program
program().fit(BATCHES, epochs=10**6, checkpoints=sys.argv[1], on_step=lambda p, place: place.step == 30 and print("now", flush=True))
"""


def read_all(terminal, into):
    try:
        while part := os.read(terminal, 65536):
            into += part
    except OSError:  # nobody writes to it any more
        pass


@pytest.mark.sample(1, pool="processes")
def test_ctrl_c_ends_it_behind_a_whole_step(tmp_path):
    """In a terminal of its own, with a bar."""
    main, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    run = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, tmp_path], cwd=os.path.dirname(__file__) + "/../..", env=environment,
        stdin=terminal, stdout=subprocess.PIPE, stderr=terminal, text=True,
    )  # fmt: skip
    os.close(terminal)
    shown = bytearray()
    reader = threading.Thread(target=read_all, args=(main, shown), daemon=True)
    reader.start()  # from the start: a terminal that nobody reads takes no more
    assert run.stdout.readline() == "now\n"
    run.send_signal(signal.SIGINT)
    assert run.wait(60) != 0
    reader.join(60)
    assert b"KeyboardInterrupt" in shown and b"loss" in shown
    os.close(main)
    (path,) = tmp_path.iterdir()
    place = place_of(path)
    resumed = program()
    resumed.fit(BATCHES, steps=place.step + 1, checkpoints=tmp_path, resume=True)
    whole = program()
    whole.fit(BATCHES, steps=place.step + 1)
    assert place.step >= 30 and same(whole.state_dict(), resumed.state_dict())


def test_another_run_s_folder_is_refused(tmp_path):
    program().fit(BATCHES, steps=3, checkpoints=tmp_path)
    with pytest.raises(StateError, match="checkpoints of another run"):
        program().fit(BATCHES, steps=2, checkpoints=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000003.safetensors"]


def judged(values):
    fitted, left = program(), iter(values)
    fitted.in_mode = lambda mode: lambda feed: {"loss": next(left)}
    return fitted


def test_a_checkpoint_has_the_loss_of_its_own_step(tmp_path):
    """Saved twice where an epoch ends: before its validation, and with it."""
    judged([4.0, 1.0, 3.0]).fit(
        BATCHES, epochs=3, validation=HELD_OUT[:1], checkpoints=tmp_path, checkpoint_every=4, keep=1
    )
    found = {p.name: place_of(p) for p in tmp_path.iterdir()}
    assert {int(name[5:13]): place.loss for name, place in found.items()} == {16: 1.0, 24: 3.0}


@pytest.mark.parametrize("every", [None, 8])
def test_a_validation_that_was_cut_off_is_made_by_who_resumes(tmp_path, every):
    def cut():
        yield 4.0
        raise KeyboardInterrupt

    how = {"epochs": 3, "validation": HELD_OUT[:1], "validate_every": every, "checkpoints": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        judged(cut()).fit(BATCHES, **how)
    history = judged([1.0, 3.0]).fit(BATCHES, resume=True, **how)
    assert history.validation == [(16, 1.0), (24, 3.0)] and history.place.waited == 1


def test_rows_have_the_mean_of_all_steps_since_the_last(tmp_path):
    history = program().fit(BATCHES, steps=13, checkpoints=tmp_path, checkpoint_every=4, log_every=5)
    assert [r["step"] for r in history.rows] == [5, 10, 13]
    for row, part in zip(history.rows, (slice(0, 5), slice(5, 10), slice(10, 13))):
        assert row["loss"] == pytest.approx(np.mean(history.losses[part]))


def test_a_step_that_was_cut_in_two_has_the_losses_of_both(tmp_path):
    """An epoch ends between the runs of a step."""
    odd = list(BATCHES)[:5]
    whole = program(2).fit(odd, epochs=2)
    first = program(2).fit(odd, epochs=1, checkpoints=tmp_path)
    rest = program(2).fit(odd, epochs=2, checkpoints=tmp_path, resume=True)
    assert first.losses + rest.losses == whole.losses and len(whole.losses) == 5


def test_patience_is_remembered(tmp_path):
    how = {
        "validation": HELD_OUT[:1],
        "validate_every": 2,
        "patience": 2,
        "checkpoints": tmp_path,
        "steps": 20,
    }
    assert judged([1.0, 2.0, 3.0]).fit(BATCHES, **how).place.step == 6
    history = judged([]).fit(BATCHES, resume=True, **how)
    assert history.stopped == "early" and history.losses == [] and history.place.step == 6


def test_an_iterator_keeps_what_was_not_needed():
    feeds = iter(list(BATCHES))
    assert program().fit(feeds, steps=3).stopped == "steps" and len(list(feeds)) == len(BATCHES) - 3


@pytest.mark.parametrize(
    "told", ["[" * 100_000, '{"step": -1}', '{"step": 3, "loss": "low"}', '{"step": 3, "partial": 5}', "[]"]
)
def test_hostile_metadata(tmp_path, told):
    aicf.save(tmp_path / "step-00000001.safetensors", {"x": np.ones(1)}, {"aicf.training": told})
    with pytest.raises(StateError):
        place_of(tmp_path / "step-00000001.safetensors")
    with pytest.raises(StateError):
        program().fit(BATCHES, steps=2, checkpoints=tmp_path, resume=True)


def test_numbers_that_json_has_none_of_are_null(tmp_path):
    """A line with NaN in it is no JSON: readers other than Python's refuse the file."""
    path = tmp_path / "a.jsonl"
    write = log_to(path, 0, ("norm",))
    write({"step": 1, "loss": float("nan"), "lr": np.float64("inf"), "norm": 0.5})

    def refused(name):
        raise AssertionError(name)

    row = json.loads(path.read_text(), parse_constant=refused)
    assert (row["step"], row["loss"], row["lr"], row["norm"]) == (1, None, None, 0.5)
