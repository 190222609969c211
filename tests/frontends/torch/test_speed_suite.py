"""The suite `frontends` with small models on the CPU: both sides are checked and timed, and what is wrong is a failure. `make test-torch`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("benchmarks", reason="a source distribution has no benchmarks")

from benchmarks import harness  # noqa: E402
from benchmarks.harness import Bench  # noqa: E402
from benchmarks.suites import SUITES, frontends  # noqa: E402
from benchmarks.torch_models import SMALL  # noqa: E402


def run(only):
    bench = Bench("cpu", tiny=True, seed=3)
    return harness.run_suite(SUITES["frontends"], bench, only=only, say=lambda text: None)


@pytest.mark.sample(1, pool="models of PyTorch")
@pytest.mark.parametrize("what", ["inference", "training step"])
def test_a_model_is_checked_timed_and_tells_its_kernels(what):
    done = run(f"small GPT-2, {what}")
    assert not done.failures
    (eager,) = (row for row in done.cases if row["peer_name"] == "torch eager")
    assert eager["aicf"] > 0 and eager["peer"] > 0 and eager["unit"] == "ms"
    assert any(kernel.startswith("cpu.") for kernel in eager["kernels"])
    taken, total = (int(word) for word in eager["note"].split()[2:5:2])
    assert 0 < taken <= total


@pytest.mark.sample(1, pool="models of PyTorch")
def test_a_wrong_logit_is_a_failure(monkeypatch):
    def half_as_much_again(torch, module):
        def logits(inputs):
            made = module(**inputs).logits
            return made * 1.5 if torch.compiler.is_compiling() else made

        return logits

    monkeypatch.setattr(frontends, "inference", half_as_much_again)
    (failure,) = run("small ViT, inference").failures
    assert "aicf: logits are off by 0.5" in failure["failed"]


@pytest.mark.sample(1, pool="models of PyTorch")
def test_a_gradient_that_is_missing_a_part_is_a_failure(monkeypatch):
    def without_the_first_sequence(torch, module, half):
        def loss(batch):
            if torch.compiler.is_compiling():
                batch = {name: x[1:] for name, x in batch.items()}
            return module(**batch).loss

        return loss

    monkeypatch.setattr(frontends, "training", without_the_first_sequence)
    (failure,) = run("small BERT, training step").failures
    assert "aicf: " in failure["failed"] and "off by" in failure["failed"]


def test_the_means_are_of_the_ratios_to_each_peer():
    def row(what, peer, ratio):
        return {"case": f"m, {what}, bf16, 1x2", "peer_name": peer, "ratio": ratio, "kernels": []}

    rows = [row("inference", "torch.compile", 2.0), row("inference", "torch.compile", 0.5)]
    rows += [row("training step", "torch.compile", 3.0), row("inference", "torch eager", 4.0)]
    found = {made["case"]: made["aicf"] for made in frontends.summary(rows)}
    assert found == {
        "inference, against torch.compile: geometric mean of ratios": 1.0,
        "inference, against torch eager: geometric mean of ratios": 4.0,
        "training step, against torch.compile: geometric mean of ratios": 3.0,
    }


@pytest.mark.gpu
@pytest.mark.parametrize("name", [m.name for m in SMALL.values()])
def test_small_models_on_a_gpu(name):
    bench = Bench("cuda", tiny=True, seed=3)
    for what in ("inference", "training step"):
        done = harness.run_suite(SUITES["frontends"], bench, only=f"{name}, {what}", say=lambda text: None)
        assert not done.failures
        assert {"torch eager", "torch.compile"} <= {row["peer_name"] for row in done.cases}
