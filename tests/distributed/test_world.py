"""What launchers say, and what ranks tell each other: no process is started."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.distributed import DataParallel, World, ZeRO1, pulse, world
from aicf.distributed.mesh import Mesh
from aicf.distributed.parallel import owners
from aicf.distributed.pulse import Pulse
from aicf.distributed.world import first_host
from aicf.errors import DistributedError, VerifyError
from aicf.training.shard import Shard

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node7", "MASTER_PORT": "29400"}


@pytest.mark.parametrize(
    ("env", "made"),
    [
        ({}, World()),
        (TORCHRUN, World(3, 8, 1, "node7", 29400, "torchrun")),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "x"}, World(3, 8, 1, "node7", 29401, "torchrun")),
        ({**TORCHRUN, "AICF_PORT": "4000"}, World(3, 8, 1, "node7", 4000, "torchrun")),
        (
            {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
             "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"},
            World(2, 4, 0, "10.96.0.1", 29511, "mpirun (Open MPI)"),
        ),
        (
            {"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            World(1, 2, 1, "127.0.0.1", 29511, "mpirun (MPICH)"),
        ),
        (
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "gpu[003-006]", "SLURM_JOB_ID": "17"},
            World(5, 16, 1, "gpu003", 2**15 + 17, "srun"),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "gpu1"}, World()),
    ],
)  # fmt: skip
def test_launchers(env, made):
    assert world(env) == made


@pytest.mark.parametrize(
    ("env", "token"),
    [
        (TORCHRUN, ""),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "x", "SLURM_JOB_ID": "17"}, "x"),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "x", "AICF_TOKEN": "secret"}, "secret"),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "gpu3", "SLURM_JOB_ID": "17"}, "17"),
        ({"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "AICF_TOKEN": "secret"}, "secret"),
    ],
)  # fmt: skip
def test_tokens_of_launchers(env, token):
    found = world(env)
    assert found.token == token and "secret" not in repr(found)


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({**TORCHRUN, "RANK": "8"}, "rank 8 of 8"),
        ({**TORCHRUN, "WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
        ({**TORCHRUN, "MASTER_PORT": "99999999"}, "port"),
        ({"PMI_SIZE": "4", "PMI_RANK": "1", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, "MASTER_ADDR"),
    ],
)  # fmt: skip
def test_environments_that_make_no_sense(env, text):
    with pytest.raises(DistributedError, match=text):
        world(env)


@pytest.mark.parametrize(
    ("nodes", "first"), [("a1", "a1"), ("a1,b2", "a1"), ("n[08-11,15],m", "n08"), ("n[3,5]", "n3")]
)
def test_node_lists(nodes, first):
    assert first_host(nodes) == first


def meshes(ranks, timeout=5.0):
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    worlds = [World(rank, ranks, rank, "127.0.0.1", port) for rank in range(ranks)]
    return in_threads(ranks, lambda rank: Mesh(worlds[rank], timeout))


def in_threads(ranks, work):
    """What each rank returns, or raises."""
    made: list = [None] * ranks

    def one(rank):
        try:
            made[rank] = work(rank)
        except Exception as error:
            made[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a rank hangs"
    return made


def test_all_hear_all():
    ranks = meshes(4)
    said = in_threads(4, lambda r: ranks[r].all("numbers", {"rank": r}))
    assert said == [[{"rank": r} for r in range(4)]] * 4
    summed = in_threads(
        4,
        lambda r: ranks[r].together("sum", bytes([r]), lambda parts: bytes([sum(p[0] for p in parts)]), 1, 1),
    )
    assert summed == [bytes([6])] * 4


def test_who_differs_is_named_with_the_line():
    ranks = meshes(3)
    found = in_threads(3, lambda r: ranks[r].agree("plan", ["a", "b" if r < 2 else "c"]))
    for error in found:
        assert isinstance(error, DistributedError) and error.rank == 2
        assert (
            "rank 2 has another plan" in str(error)
            and "line 2: b" in str(error)
            and "line 2: c" in str(error)
        )


def test_other_turns_are_told_apart():
    ranks = meshes(2)
    found = in_threads(2, lambda r: ranks[r].wait("step" if r else "checkpoint"))
    assert all(
        isinstance(e, DistributedError) and "'step', turn 1" in str(e) and "'checkpoint', turn 1" in str(e)
        for e in found
    )


def test_who_is_gone_and_who_does_not_come():
    ranks = meshes(3)
    in_threads(3, lambda r: ranks[r].wait("first"))

    def work(rank):
        if rank == 2:
            ranks[rank].close()
            return None
        return ranks[rank].wait("second")

    found = in_threads(3, work)
    assert all("rank 2 is gone" in str(e) and "'first', turn 1" in str(e) for e in found[:2])
    ranks = meshes(3, timeout=1.0)
    found = in_threads(3, lambda r: None if r == 1 else ranks[r].wait("step 5"))
    assert all("rank 1 did not come to 'step 5'" in str(found[r]) and found[r].rank == 1 for r in (0, 2))


def test_an_error_of_one_reaches_all():
    ranks = meshes(3)

    def work(rank):
        if rank == 1:
            ranks[rank].fail("no space left")
            return None
        return ranks[rank].wait("checkpoint")

    found = in_threads(3, work)
    assert all(isinstance(found[r], DistributedError) and "no space left" in str(found[r]) for r in (0, 2))


def test_nobody_joins():
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with pytest.raises(DistributedError, match=r"rank 1 did not join"):
        Mesh(World(0, 2, 0, "127.0.0.1", port), 0.3)
    with pytest.raises(DistributedError, match="rank 1 does not reach rank 0"):
        Mesh(World(1, 2, 0, "127.0.0.1", port), 0.3)


# --- pulses -----------------------------------------------------------------------------------------------------------


class Gpu:
    """A runtime whose runs are done when the test says so."""

    def __init__(self):
        self.is_done, self.stream, self.place = False, self, "test"

    def record(self):
        return self


MADE = []  # in this test


def pulses(ranks, aborted, timeout=30.0):
    joined = meshes(ranks)
    MADE.extend(in_threads(ranks, lambda r: Pulse(joined[r], timeout, lambda: aborted.append(r))))
    return MADE[-ranks:]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(pulse, "EVERY", 0.02)
    monkeypatch.setattr(pulse, "LOST", 0.2)
    monkeypatch.setattr(pulse, "FREED", 0.1)
    monkeypatch.setattr(pulse.os, "_exit", lambda status: None)
    yield
    for made in MADE:  # what would end this process once `_exit` is itself again
        if made.failed is not None:
            made._beating.join()
    for thread in threading.enumerate():
        if thread.name == "aicf end":
            thread.join()
    MADE.clear()


def test_a_run_that_ends_is_waited_for(quick):
    gpus, aborted = [Gpu(), Gpu()], []
    made = pulses(2, aborted)

    def work(rank):
        made[rank].started(gpus[rank])
        threading.Timer(0.3, lambda: setattr(gpus[rank], "is_done", True)).start()
        return made[rank].wait()

    assert in_threads(2, work) == [None, None] and not aborted


def test_a_rank_that_is_gone_ends_the_wait(quick):
    gpus, aborted = [Gpu(), Gpu()], []
    made = pulses(2, aborted)
    made[0].started(gpus[0])
    made[1]._to.shutdown(socket.SHUT_RDWR)
    with pytest.raises(DistributedError, match=r"run 1 did not end in .* rank 1 is gone"):
        made[0].wait()
    with pytest.raises(DistributedError, match="rank 1 is gone"):
        made[0].started(gpus[0])
    assert made[0].failed.rank == 1


def test_a_late_rank_is_named(quick):
    gpus, aborted = [Gpu(), Gpu()], []
    made = pulses(2, aborted, timeout=0.5)
    made[0].started(gpus[0])
    with pytest.raises(DistributedError, match="rank 1 is late"):
        made[0].wait()
    assert "rank 1: 0 runs done, 0 started" in str(made[0].failed)


# --- shares -----------------------------------------------------------------------------------------------------------


def test_shards_are_all_of_a_batch_in_order():
    x = np.arange(24).reshape(12, 2)
    feeds = [{"x": x[:6], "t": np.float32(2)}, {"x": x[6:], "t": np.float32(3)}]
    parts = [list(Shard(feeds, rank, 3).at(0)) for rank in range(3)]
    for n, feed in enumerate(feeds):
        np.testing.assert_array_equal(np.concatenate([p[n]["x"] for p in parts]), feed["x"])
        assert all(p[n]["t"] == feed["t"] for p in parts)


VALID = 1  # beside gradients ranks exchange whether labels are classes


def small(batch=8):
    model = nn.Model({"x": aicf.TensorSpec(("batch", 20))}, batch=batch)
    return model.add(nn.Linear(20, 64)).add(nn.ReLU()).add(nn.Linear(64, 5))


def shown(parallel, device="h200", mode="train"):
    return aicf.explain_for(
        small(), device, mode, loss=nn.SoftmaxCrossEntropy(), optimizer=nn.Adam(), parallel=parallel
    )


def test_a_step_of_many_ranks_is_explained_without_them():
    times = {}
    for ranks in (2, 8, 64, 1024):
        found = shown(DataParallel(world=World(size=ranks)))
        assert f"of {ranks} ranks in 1 bucket" in str(found)
        assert found.to_json()["collectives"]["nbytes"] == 4 * (20 * 64 + 64 + 64 * 5 + 5 + VALID)
        times[ranks] = found.collectives.us
    assert times[2] < times[8] < times[64] < times[1024]
    assert shown(DataParallel(world=World())).collectives is None
    assert shown(None).collectives is None


def test_buckets_leave_when_they_are_whole():
    """The last layer's gradients are sent before the first layer's are made."""
    found = shown(DataParallel(world=World(size=2), bucket_mb=1e-3))
    kinds = [[op.kind.name for op in region.spec.ops] for region in found.regions]
    sent = [n for n, ops in enumerate(kinds) if ops == ["all_reduce"]]
    assert len(sent) == 4 + VALID and found.collectives.buckets > 1
    assert any("gemm" in ops for ops in kinds[sent[0] :]), kinds
    assert found.collectives.exposed_us < found.collectives.us


def test_a_gradient_that_is_read_elsewhere_is_copied():
    """d loss / d p of x + p is the gradient that goes on backwards, too."""

    class Biased(nn.Layer):
        def emit(self, ctx, x):
            p = ctx.param("p", x.shape, nn.init.zeros)
            return ctx.tanh(x * 2.0 + p) + p

    model = (
        nn.Model({"x": aicf.TensorSpec((4, 20))}).add(nn.Linear(20, 20)).add(Biased()).add(nn.Linear(20, 5))
    )
    found = aicf.explain_for(
        model, "h200", "train", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.1), parallel=DataParallel(world=World(size=2))
    )  # fmt: skip
    assert found.collectives.count == 5 + VALID


def test_every_rank_steps_its_own():
    class Param:
        def __init__(self, vid, nbytes):
            self.vid, self.name, self.spec = vid, f"p{vid}", type("Spec", (), {"nbytes": nbytes})

    params = [Param(v, n) for v, n in enumerate((100, 10, 60, 50, 40))]
    assert owners(params, 2) == {0: 0, 2: 1, 3: 1, 4: 0, 1: 1}
    assert set(owners(params, 8).values()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("how", [{"bucket_mb": 0}, {"timeout": -1}, {"dtype": "i32"}, {"bucket_mb": "much"}])
def test_settings_that_make_no_sense(how):
    with pytest.raises((VerifyError, TypeError)):
        DataParallel(**how)


def test_zero_needs_an_optimizer_that_can_be_shared():
    class Mine:
        def emit(self, ctx, params, grads):
            pass

    with pytest.raises(VerifyError, match="can't share out the steps of Mine"):
        ZeRO1(world=World(size=2)).sharded(Mine())


def test_a_plan_of_ranks_needs_them():
    with pytest.raises(DistributedError, match="a plan for 2 ranks on cpu"):
        aicf.device.collectives.joined("cpu", 2)
