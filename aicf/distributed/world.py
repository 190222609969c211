"""Which process this is, of how many, and where rank 0 listens: what launchers leave in the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..errors import DistributedError

PORT = 29511  # where nothing names one


@dataclass(frozen=True)
class World:
    """One process of a run.

    rank     its number, from 0
    size     how many there are
    local    its number among those of its machine: which GPU it takes
    address  of rank 0, as a host name or an IP address
    port     where rank 0 listens
    told_by  the launcher
    token    what all ranks of the run have and nobody else has: rank 0 rejects who can't prove it
    """

    rank: int = 0
    size: int = 1
    local: int = 0
    address: str = "127.0.0.1"
    port: int = PORT
    told_by: str = "nobody: a process alone"
    token: str = field(default="", repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.size and self.local >= 0 and 0 < self.port < 2**16):
            raise DistributedError(
                f"{self.told_by} says what can't be", expected="a rank from 0 to one below the number of ranks, and a port",
                got=f"rank {self.rank} of {self.size}, {self.local} on its machine, port {self.port}",
            )  # fmt: skip


def world(environment: Mapping[str, str] | None = None) -> World:
    """What the environment says: variables of torchrun (and `aicf run`), Open MPI, MPICH and Intel MPI, or Slurm, in this order.

    MASTER_ADDR and MASTER_PORT say where rank 0 listens; AICF_PORT names another port. AICF_TOKEN is the token, else the launcher's name of
    the run: torchrun's rendezvous id, the job of Slurm or Open MPI. Without any of these variables the process is
    alone. DistributedError if the variables are incomplete or contradict each other.
    """
    env = os.environ if environment is None else environment
    for found in (_torchrun, _open_mpi, _mpich, _slurm):
        if (made := found(env)) is not None:
            return replace(made, token=env.get("AICF_TOKEN") or _name_of_run(env, made.told_by))
    return World()


# What a launcher calls a run: the same for all of its processes, and another for another run. The first that is set.
NAMES_OF_RUN = {
    "torchrun": ("TORCHELASTIC_RUN_ID",),
    "mpirun (Open MPI)": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    "srun": ("SLURM_JOB_ID",),
}


def _name_of_run(env: Mapping[str, str], launcher: str) -> str:
    """The name of the run; torchrun calls one without a rendezvous id "none", which is no secret."""
    names = (env.get(name, "") for name in NAMES_OF_RUN.get(launcher, ()))
    return next((name for name in names if name not in ("", "none")), "")


def _torchrun(env: Mapping[str, str]) -> World | None:
    if "WORLD_SIZE" not in env or "RANK" not in env:
        return None
    who = "aicf run" if "AICF_RUN" in env else "torchrun"
    ask = _Asking(env, who)
    port = ask.number("MASTER_PORT", PORT)
    # the store of torchrun's own listens at MASTER_PORT
    behind = 1 if any(name.startswith("TORCHELASTIC") for name in env) else 0
    size, rank = ask.number("WORLD_SIZE"), ask.number("RANK")
    local = ask.number(
        "LOCAL_RANK", rank if env.get("MASTER_ADDR") in (None, "localhost", "127.0.0.1") else None
    )
    return World(
        rank, size, local, env.get("MASTER_ADDR", "127.0.0.1"), ask.number("AICF_PORT", port + behind), who
    )


def _open_mpi(env: Mapping[str, str]) -> World | None:
    if "OMPI_COMM_WORLD_SIZE" not in env:
        return None
    ask = _Asking(env, "mpirun (Open MPI)")
    size, there = ask.number("OMPI_COMM_WORLD_SIZE"), ask.number("OMPI_COMM_WORLD_LOCAL_SIZE", 0)
    told = re.search(r"tcp://([^,:;\]]+)", env.get("OMPI_MCA_orte_hnp_uri", ""))
    where = ask.address(there == size, told[1] if told else None)
    rank, local = ask.number("OMPI_COMM_WORLD_RANK"), ask.number("OMPI_COMM_WORLD_LOCAL_RANK")
    return World(rank, size, local, where, ask.port(), ask.who)


def _mpich(env: Mapping[str, str]) -> World | None:
    if "PMI_SIZE" not in env or "PMI_RANK" not in env:
        return None
    ask = _Asking(env, "mpirun (MPICH)")
    size, there = ask.number("PMI_SIZE"), ask.number("MPI_LOCALNRANKS", 0)
    return World(
        ask.number("PMI_RANK"),
        size,
        ask.number("MPI_LOCALRANKID"),
        ask.address(there == size),
        ask.port(),
        ask.who,
    )


def _slurm(env: Mapping[str, str]) -> World | None:
    if "SLURM_PROCID" not in env or "SLURM_NTASKS" not in env or "SLURM_STEP_NODELIST" not in env:
        return None
    ask = _Asking(env, "srun")
    size = ask.number("SLURM_STEP_NUM_TASKS", ask.number("SLURM_NTASKS"))
    if size == 1:
        return None  # a shell or a script of a job, of which srun has started nothing
    first = first_host(env["SLURM_STEP_NODELIST"])
    port = (
        2**15 + ask.number("SLURM_JOB_ID", 0) % 2**14
    )  # the same for all tasks of a job, and rarely that of another's
    return World(
        ask.number("SLURM_PROCID"), size, ask.number("SLURM_LOCALID"), env.get("MASTER_ADDR", first),
        ask.number("AICF_PORT", ask.number("MASTER_PORT", port)), ask.who,
    )  # fmt: skip


def first_host(nodes: str) -> str:
    """Of a node list as Slurm writes it: `gpu[003-007,12],login1` begins with gpu003."""
    found = re.match(r"([^,\[]+)(?:\[([^,\]-]+))?", nodes)
    if found is None:
        raise DistributedError(
            f"SLURM_STEP_NODELIST={nodes!r} names no host", hint="set MASTER_ADDR to the host of rank 0"
        )
    return found[1] + (found[2] or "")


class _Asking:
    """Numbers of an environment; what is missing or no number is told with the launcher's name."""

    def __init__(self, env: Mapping[str, str], who: str) -> None:
        self.env, self.who = env, who

    def number(self, name: str, default: int | None = None) -> int:
        text = self.env.get(name)
        if text is None and default is not None:
            return default
        if text is None or not text.isdecimal():
            raise DistributedError(
                f"{name} is {'not set' if text is None else repr(text)}", expected=f"a number, as {self.who} sets it",
                where="the environment",
            )  # fmt: skip
        return int(text)

    def port(self) -> int:
        return self.number("AICF_PORT", self.number("MASTER_PORT", PORT))

    def address(self, here: bool, told: str | None = None) -> str:
        found = self.env.get("MASTER_ADDR") or told or ("127.0.0.1" if here else None)
        if found is None:
            raise DistributedError(
                f"{self.who} does not say where rank 0 is, and not all ranks are on this machine", expected="MASTER_ADDR",
                hint="mpirun -x MASTER_ADDR=HOST (Open MPI) or -env MASTER_ADDR HOST (MPICH)",
            )  # fmt: skip
        return found
