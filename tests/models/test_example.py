"""examples/pretrained.py writes what the model says, by ids and by text."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from . import oracle

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "pretrained.py")


@pytest.fixture
def run(monkeypatch, capsys):
    def run(*args):
        monkeypatch.setattr(sys, "argv", ["pretrained.py", *args, "--device", "cpu"])
        runpy.run_path(EXAMPLE, run_name="__main__")
        return capsys.readouterr().out.strip()

    return run


def greedy(config, tensors, ids, count):
    ids = list(ids)
    for _ in range(count):
        ids.append(int(oracle.logits(config, tensors, np.array([ids]))[0, -1].argmax()))
        if ids[-1] == config.get("eos_token_id"):
            break
    return ids


def test_ids_are_continued(run, tmp_path):
    for config in (oracle.GPT2, oracle.LLAMA):
        place, tensors = oracle.made(tmp_path / config["model_type"], config, np.random.default_rng())
        said = run(str(place), "--ids", "3", "1", "4", "--count", "6", "--temperature", "0")
        assert said == " ".join(map(str, greedy(config, tensors, [3, 1, 4], 6)))
    with pytest.raises(SystemExit):
        run(str(place))


def test_text_is_continued_by_the_folder_s_tokenizer(run, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    place, tensors = oracle.made(tmp_path / "m", oracle.LLAMA, np.random.default_rng())
    words = {f"w{n}": n for n in range(oracle.LLAMA["vocab_size"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(place / "tokenizer.json"))
    said = run(str(place), "w3 w1 w4", "--count", "6", "--temperature", "0")
    assert said.split() == [f"w{n}" for n in greedy(oracle.LLAMA, tensors, [3, 1, 4], 6)]


def test_text_without_a_tokenizer_says_what_is_needed(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    place, _ = oracle.made(tmp_path / "m", oracle.GPT2, np.random.default_rng())
    with pytest.raises(SystemExit, match="pip install tokenizers"):
        run(str(place), "w1")
