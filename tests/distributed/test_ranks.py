"""Two and three processes that train: the same bits as one process alone, checkpoints, and every way in which a rank can fail the others."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from draws.seeds import rng

from aicf.distributed import launch

WORKER = Path(__file__).with_name("ranks.py")


def run(case: str, folder: Path, ranks: int = 2) -> tuple[int, list[dict]]:
    """(the exit status, what each rank found; of one that ended early nothing)."""
    folder.mkdir(parents=True, exist_ok=True)
    status = launch.launch([sys.executable, str(WORKER), case, str(folder)], ranks)
    files = [folder / f"{rank}.json" for rank in range(ranks)]
    return status, [json.loads(f.read_text()) if f.exists() else {} for f in files]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    status, found = run("everything", folder / "two")
    assert status == 0
    return folder, found


@pytest.fixture(scope="session")
def alone():
    """The same batches on one process, by `accumulate=2`."""
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    assert env == dict(os.environ), "tests run outside of a launcher"
    sys.argv[1:] = ["alone", "."]
    from . import ranks

    program = ranks.compiled(None, accumulate=2)
    losses = []
    for n in range(5):
        parts = [slice(16 * n % 48 + 8 * r, 16 * n % 48 + 8 * r + 8) for r in range(2)]
        losses.append(
            float(np.mean([float(program({"x": ranks.X[p], "y": ranks.Y[p]})["loss"]) for p in parts]))
        )
    return losses, ranks.digests(program.state_dict())


@pytest.mark.spec("C10", "C12")
def test_two_ranks_have_the_bits_of_one(trained, alone):
    _, found = trained
    losses, state = alone
    for kind in ("data", "zero", "buckets"):
        for rank in found:
            assert rank[kind]["losses"] == losses
            assert rank[kind]["state"] == state, kind


def test_optimizer_states_are_shared_out(trained):
    _, (first, second) = trained
    assert first["data"]["own"] == second["data"]["own"] > max(first["zero"]["own"], second["zero"]["own"])


def test_bf16_gradients_are_near_and_equal_on_all_ranks(trained, alone):
    _, (first, second) = trained
    assert first["bf16"]["state"] == second["bf16"]["state"] != alone[1]
    np.testing.assert_allclose(first["bf16"]["losses"], alone[0], rtol=2e-2)


def test_ranks_drop_other_elements(trained):
    """Equal draws would be the run of half a batch twice; the weights are the same on all ranks all the same."""
    _, (first, second) = trained
    assert first["drawn"]["state"] == second["drawn"]["state"]
    assert first["drawn"]["losses"] != first["data"]["losses"]


def test_fit_is_resumed_and_written_once(trained):
    folder, (first, second) = trained
    for name in ("fit", "fit_zero"):
        assert first[name] == second[name]
        assert (
            first[name + "_on"]["losses"] == second[name + "_on"]["losses"]
            and len(first[name + "_on"]["losses"]) == 2
        )
        assert first[name + "_on"]["checkpoint"] == "step-00000006.safetensors"
        assert (folder / "two" / name / "log.csv").read_text().count("\n") >= 4
    assert first["fit"]["losses"] == first["fit_zero"]["losses"]
    assert first["fit_on"]["losses"] == first["fit_zero_on"]["losses"]


@pytest.mark.sample(1, pool="processes")
def test_another_number_of_ranks_goes_on(trained, request):
    """Two were trained: three go on, or one alone."""
    folder, _ = trained
    status, found = run("resume", folder / "others", int(rng(request.node.nodeid).choice([1, 3])))
    assert status == 0
    assert all(rank == found[0] for rank in found) and found[0]["checkpoint"] == "step-00000008.safetensors"
    assert len(found[0]["losses"]) == 2


def test_explain_has_the_collectives(trained):
    _, (first, _) = trained
    assert "collectives of 2 ranks in 1 bucket" in first["shown"] and "cpu.all_reduce.v1" in first["shown"]


def test_ranks_with_other_graphs_are_refused(trained):
    for rank in trained[1]:
        told = rank["graphs"]
        assert told["error"] == "DistributedError"
        assert "rank 1 has another model than rank 0" in told["text"]
        assert "0.weight: tensor<32x20xf32>" in told["text"] and "tensor<48x20xf32>" in told["text"]


@pytest.mark.sample(1, pool="processes")
def test_a_killed_rank_is_named(tmp_path):
    status, (first, second) = run("killed", tmp_path)
    assert status == 7 and second == {}
    assert first["error"] == "DistributedError" and "rank 1 is gone" in first["text"]


def test_a_rank_that_hangs_is_named(trained):
    _, (first, second) = trained
    told = first["hangs"]["text"]
    assert "rank 1 did not come to 'all_reduce of 5 tensors" in told and "was last at" in told
    assert second["hangs"]["error"] == "DistributedError"


def test_a_full_disk_stops_all_and_leaves_no_half(trained):
    first, second = (rank["disk"] for rank in trained[1])
    assert first["error"] == "StateError" and "No space left" in first["text"]
    assert second["error"] == "DistributedError" and "No space left" in second["text"]
    assert first["files"] == second["files"] == []


def test_batches_that_do_not_divide_are_refused(trained):
    for rank in trained[1]:
        assert rank["uneven"]["error"] == "FeedError" and "25 rows for 2 ranks" in rank["uneven"]["text"]
