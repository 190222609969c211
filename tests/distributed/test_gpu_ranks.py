"""Ranks with a GPU each: NCCL in the captured graph, and a rank that dies or hangs while the others' GPUs wait for it."""

from __future__ import annotations

import numpy as np
import pytest

from .test_ranks import run


def _gpus() -> int:
    from aicf.device.runtime import cuda_missing

    if cuda_missing():
        return 0
    from cuda.bindings import driver

    driver.cuInit(0)
    return int(driver.cuDeviceGetCount()[1])


pytestmark = [pytest.mark.gpu, pytest.mark.skipif("_gpus() < 2", reason="needs two GPUs")]


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch):
    monkeypatch.setenv("AICF_RANKS_DEVICE", "cuda")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AICF_RANKS_DEVICE", "cuda")
        status, found = run("train", tmp_path_factory.mktemp("ranks") / "two")
    assert status == 0
    return found


@pytest.mark.spec("C10", "C12")
def test_two_gpus_agree_and_all_ways_have_the_same_bits(trained):
    first, second = trained
    for kind in ("data", "zero", "buckets", "bf16", "drawn"):
        assert first[kind]["state"] == second[kind]["state"], kind
        assert first[kind]["losses"] == second[kind]["losses"], kind
    assert first["data"]["state"] == first["zero"]["state"] == first["buckets"]["state"]
    assert first["fit"] == second["fit"] and first["fit_on"]["losses"] == first["fit_zero_on"]["losses"]


def test_two_gpus_train_as_one(trained):
    """By `accumulate=2`, on one GPU: bit for bit."""
    import sys

    sys.argv[1:] = ["alone", "."]
    from . import ranks

    ranks.DEVICE = "cuda:0"
    program, losses = ranks.compiled(None, accumulate=2), []
    for n in range(5):
        parts = [slice(16 * n % 48 + 8 * r, 16 * n % 48 + 8 * r + 8) for r in range(2)]
        losses.append(
            float(np.mean([float(program({"x": ranks.X[p], "y": ranks.Y[p]})["loss"]) for p in parts]))
        )
    assert trained[0]["data"]["losses"] == losses
    assert trained[0]["data"]["state"] == ranks.digests(program.state_dict())


def test_a_thousand_steps_do_not_drift(tmp_path):
    """Of two GPUs and of one, bit for bit."""
    _, found = run("long", tmp_path)
    assert all(rank["together"] == rank["alone"] == found[0]["alone"] for rank in found)


def test_a_step_is_one_graph(tmp_path):
    _, found = run("captured", tmp_path)
    for rank in found:
        assert rank["graphs"] == 1 and rank["captured"] == rank["total"], rank


@pytest.mark.parametrize("case", ["killed", "hangs"])
def test_a_rank_that_fails_is_named(tmp_path, case, capfd):
    """By an error, or where NCCL does not give the GPU back, by the last words of the process."""
    status, (first, _) = run(case, tmp_path)
    told = first.get("text") or capfd.readouterr().err
    assert status and "rank 1 is gone" in told if case == "killed" else "rank 1 is late" in told, told
