"""The example's GPT, smaller: it learns a sentence by heart and says it, and its runs can be cut in two."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

import aicf
from aicf import nn

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt.py"


@pytest.fixture
def gpt(monkeypatch):
    spec = spec_from_file_location("gpt_example", EXAMPLE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in {"LENGTH": 32, "BATCH": 4, "SIZE": 32, "DEPTH": 2, "HEADS": 2}.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_it_learns_a_sentence_by_heart_and_says_it(gpt):
    sentence = b"Beautiful is better than ugly."
    model = gpt.build()
    train = aicf.compile(
        model, "train", device="cpu", loss=gpt.loss(), optimizer=nn.AdamW(1e-2, clip_norm=1.0)
    )
    tokens = np.frombuffer(sentence, np.uint8)[None]
    history = train.fit(
        [{"x": tokens[:, :-1].astype(np.int32), "y": tokens[:, 1:].astype(np.int64)}], epochs=60
    )
    assert history.losses[0] == pytest.approx(np.log(256), rel=0.1) and history.losses[-1] < 0.1
    said = gpt.write(aicf.compile(model, device="cpu"), sentence[:4], len(sentence) - 4, temperature=0.05)
    assert said == sentence


def test_the_example_s_run_can_be_cut_in_two(gpt, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpt, "text", lambda: np.frombuffer(EXAMPLE.read_bytes(), np.uint8))

    def run(*args):
        monkeypatch.setattr(
            sys, "argv", ["gpt.py", "--device", "cpu", "--total", "9", "--json", str(tmp_path / "o"), *args]
        )
        gpt.main()
        return json.loads((tmp_path / "o").read_text())

    whole = run("--steps", "9", "--checkpoints", str(tmp_path / "a"), "--sample-every", "4")
    told = capsys.readouterr().err
    assert "step 4: " in told and "The " in told.partition("step 8: ")[2]
    first = run("--steps", "4", "--checkpoints", str(tmp_path / "b"))
    rest = run("--steps", "9", "--checkpoints", str(tmp_path / "b"), "--resume")
    assert first["losses"] + rest["losses"] == whole["losses"] and rest["sample"] == whole["sample"]
    assert len(whole["losses"]) == 9 and whole["tokens_per_s"] > 0 and whole["sample"].startswith("The ")
