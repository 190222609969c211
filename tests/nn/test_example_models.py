"""The examples that are models of a published kind: each trains at a tiny size, and is explained at its real one for a GPU that is not there."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import aicf

ROOT = Path(aicf.__file__).parents[1]
TINY = {
    "resnet": ["--batch", "4", "--size", "32", "--width", "4"],
    "unet": ["--batch", "2", "--size", "8", "--width", "4", "--depth", "1"],
    "vit": ["--batch", "4", "--width", "16", "--depth", "1"],
    "bert": ["--batch", "2", "--width", "16", "--depth", "1"],
}
PARAMETERS = {
    "resnet": 25_557_032,
    "vit": 86_567_656,
    "bert": 109_514_298,
    "unet": 11_872_707,
}  # but for the UNet's, as published


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", TINY)
def test_an_example_trains(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--device", "cpu", "--steps", "3", *TINY[name]])
    example(name).main()
    losses = [float(n) for n in re.findall(r"loss (\S+)", capsys.readouterr().out)]
    assert len(losses) == 3 and np.isfinite(losses).all()


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", TINY)
def test_an_example_has_the_published_size_and_is_explained_for_an_h200(name):
    made = example(name)
    model = made.build()
    assert model.summary().parameters == PARAMETERS[name]
    told = aicf.explain_for(model, "h200").to_json()
    assert all(region["chosen"] for region in told["regions"] if not region["view"])
