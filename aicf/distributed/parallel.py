"""How training is spread over ranks: `compile(..., parallel=DataParallel())`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..device import collectives
from ..device.collectives import ALL_REDUCE, Exchanged
from ..device.runtime import CudaRuntime
from ..device.tensor import Runtime
from ..errors import VerifyError
from ..graph.emit.step import ACCUMULATED, GRAD_SUM, keep_if_valid
from ..graph.emit.trace import Recipe
from ..graph.run.plan import ExecPlan
from ..graph.run.variables import Variables
from ..ir import Value
from ..types import DType
from .agreement import HINTS, described, kernels, transfers
from .loopback import HostCommunicator
from .mesh import Mesh
from .pulse import Pulse
from .replicas import share
from .world import World, world

MB = 2**20
_meshes: dict[World, Mesh] = {}


@dataclass(frozen=True)
class DataParallel:
    """Each rank has the whole model and trains on rows of its own; gradients are averaged before each step.

    A batch is of all ranks: `fit` gives each its rows. Programs that are called directly are fed their own rows. Dropout draws other
    numbers on each rank; batch norm counts each rank's rows alone. Means are of ranks: every rank needs as many rows.

    dtype      the type in which gradients are averaged: None is their own; "bf16" halves the bytes, and rounds
    bucket_mb  gradients leave in buckets of about so many megabytes, each as soon as the backward pass has made all of it
    timeout    seconds that ranks wait for one another, before whoever is missing is named
    world      which rank this is; by default what the launcher says

    On GPUs NCCL does it, on a stream of its own beside the backward pass, and as a part of the captured graph. On the CPU device sums
    are in the order of the ranks: with two of them in f32 a step has the bits of `accumulate=2` on one.
    """

    dtype: DType | str | None = None
    bucket_mb: float = 25.0
    timeout: float = 600.0
    world: World | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", None if self.dtype is None else DType.of(self.dtype))
        for name in ("bucket_mb", "timeout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise VerifyError(f"{name}={value!r}", expected="a number above 0")
        if self.reduce_dtype is not None and self.reduce_dtype.kind != "float":
            raise VerifyError(f"dtype={self.dtype!r}", expected="a float type, such as 'bf16'")
        object.__setattr__(self, "world", world() if self.world is None else self.world)

    # --- what compiling asks

    @property
    def _world(self) -> World:
        assert self.world is not None
        return self.world

    @property
    def rank(self) -> int:
        """This process's number."""
        return self._world.rank

    @property
    def ranks(self) -> int:
        """How many processes there are."""
        return self._world.size

    @property
    def bucket_bytes(self) -> int:
        """Bytes of a bucket."""
        return int(self.bucket_mb * MB)

    @property
    def reduce_dtype(self) -> DType | None:
        """The type in which gradients are averaged, None for their own."""
        return None if self.dtype is None else DType.of(self.dtype)

    def sharded(self, optimizer: Any) -> Any:
        """Every rank steps every parameter."""
        return optimizer

    # --- what running asks

    @property
    def mesh(self) -> Mesh:
        """What ranks tell each other by; it is there once a program was compiled."""
        if self._world not in _meshes:
            _meshes[self._world] = Mesh(self._world, self.timeout)
        return _meshes[self._world]

    def place(self, device: str | None) -> str | None:
        """The device of this rank: of several GPUs the one of its number on its machine."""
        return f"cuda:{self._world.local}" if device in (None, "cuda", "auto") and _gpus() else device

    def join(self, runtime: Runtime) -> None:
        """Meet the other ranks, once for a device."""
        mesh = self.mesh
        mesh.timeout = self.timeout
        spec = runtime.spec
        mine = f"{spec.calibration.gpu or 'defaults'} {spec.calibration.digest}"
        mesh.agree_on({"kind of device": [spec.kind, spec.name], "calibration": [mine]}, HINTS)
        if self.ranks == 1 or _joined.get(runtime.place) is mesh:
            return
        if isinstance(runtime, CudaRuntime):
            from .nccl import NcclCommunicator

            found = NcclCommunicator(mesh, runtime)
            collectives.join(runtime.place, found)
            _pulses[runtime.place] = Pulse(mesh, self.timeout, found.abort)
        else:
            collectives.join(runtime.place, HostCommunicator(mesh))
        _joined[runtime.place] = mesh

    @property
    def shards(self) -> bool:
        """Whether ranks keep states that others lack."""
        return False

    def agree(self, title: str, lines: Sequence[str]) -> None:
        """DistributedError, on all ranks, unless all have the same lines."""
        self.mesh.agree(title, lines)

    def prepare(self, recipe: Recipe, runtime: Runtime, **settings: object) -> None:
        """DistributedError, on all ranks, unless all are to compile the same."""
        how = {"parallel": type(self).__name__, "dtype": self.dtype, "bucket_mb": self.bucket_mb, **settings}
        self.mesh.agree_on(described(recipe, runtime.kind, how), HINTS)

    def share(self, runtime: Runtime, variables: Variables, names: Collection[str], runs: int) -> int:
        """Rank 0's values, on all ranks, of what is new, loaded or set since they were equal. The number of runs of rank 0."""
        changed = variables.changed(names)
        if self.ranks == 1 or not changed:
            return runs
        runs = share(self.mesh, runtime, variables, names, changed, runs, self.shards)
        variables.unchanged_now(changed)
        return runs

    def ran(self, runtime: Runtime) -> None:
        """A run was started: it is watched until its end."""
        if (pulse := _pulses.get(runtime.place)) is not None:
            pulse.started(runtime)

    def check(self) -> None:
        """Wait for the runs that were started; DistributedError if one does not end since a rank is gone, or late."""
        for pulse in _pulses.values():
            pulse.wait()

    def compiled(self, plan: ExecPlan) -> None:
        """DistributedError unless all ranks have the same collectives in the same order, of the same types; and, where all step all
        parameters, the same kernels, which give the same bits."""
        parts = {"sequence of collectives": transfers(plan)}
        self.mesh.agree_on(parts if self.shards else {**parts, "kernel": kernels(plan)})

    def mean(self, numbers: Sequence[float], title: str = "mean of losses") -> list[float]:
        """The mean over all ranks of each number."""
        said = self.mesh.all(title, [float(n) for n in numbers])
        return [float(np.mean(of_one)) for of_one in zip(*said)]

    def alone(self, title: str, work: Callable[[], object]) -> None:
        """What rank 0 does while the others wait: a file is written once, and is whole before anyone looks for it. All are told if it fails."""
        if self.rank == 0:
            try:
                work()
            except BaseException as error:
                self.mesh.fail(f"{title}: {error}")
                raise
        self.mesh.wait(title)

    def whole_state(self, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A state dict with what only other ranks have. All ranks come here: sums of gradients between two steps are means of theirs."""
        made = dict(state)
        sums = [name for name in sorted(made) if name.endswith(GRAD_SUM)]
        if self.ranks > 1 and sums and any(self.mesh.all("runs in sums", int(made[ACCUMULATED]))):
            made |= {name: np.array(made[name]) for name in sums}
            parts = [
                Exchanged(ALL_REDUCE, 0, a.size, DType.of(a.dtype), True, array=a)
                for a in map(made.__getitem__, sums)
            ]
            HostCommunicator(self.mesh).run(parts)
        return made


@dataclass(frozen=True)
class ZeRO1(DataParallel):
    """DataParallel, and each parameter's optimizer state is on one rank alone, which steps it and sends it to the others.

    Of Adam's 8 bytes a parameter each rank keeps its part. Parameters are given whole to ranks, the largest first, to whom has least.
    """

    @property
    def shards(self) -> bool:
        """Whether ranks keep states that others lack."""
        return self.ranks > 1

    def sharded(self, optimizer: Any) -> Any:
        """Steps the parameters of this rank, then fetches the others."""
        return optimizer if self.ranks == 1 else _Sharded(optimizer, self)

    def whole_state(self, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A state dict with the optimizer states of all ranks. All ranks come here."""
        made = super().whole_state(state)
        if self.ranks == 1:
            return made
        names = self.mesh.all("names of states", sorted(state))
        for rank, theirs in enumerate(names):
            for name in theirs:
                if name not in set(names[0]) or (rank == 0 and any(name not in other for other in names)):
                    made[name] = self._sent(name, rank, state.get(name))
        return made

    def _sent(self, name: str, owner: int, array: np.ndarray | None) -> np.ndarray:
        mine = owner == self.rank and array is not None
        kind = self.mesh.all(
            f"type of {name}", [array.dtype.str, array.shape] if mine and array is not None else None
        )[owner]
        data = array.tobytes() if mine and array is not None else b""
        due = int(np.prod(kind[1], dtype=np.int64)) * np.dtype(kind[0]).itemsize
        whole = self.mesh.together(f"state {name}", data, lambda bodies: bodies[owner], due, due)
        return np.frombuffer(whole, np.dtype(kind[0])).reshape(kind[1]).copy()


class _Sharded:
    """An optimizer whose steps are of this rank's parameters. Norms of gradients are of all: every rank has them."""

    def __init__(self, optimizer: Any, parallel: DataParallel) -> None:
        self.optimizer, self.parallel = optimizer, parallel
        if not hasattr(optimizer, "steps"):
            raise VerifyError(
                f"ZeRO1 can't share out the steps of {type(optimizer).__name__}", expected="an aicf.nn.Optimizer, which has `steps`",
                hint="parallel=aicf.distributed.DataParallel()",
            )  # fmt: skip

    def emit(self, ctx: Any, params: list[Value], grads: list[Value]) -> None:
        owner = owners(params, self.parallel.ranks)
        inner, own = copy(self.optimizer), {v for v, rank in owner.items() if rank == self.parallel.rank}
        steps = inner.steps
        inner.steps = lambda ctx, each: steps(ctx, [one for one in each if one[0].vid in own])
        graph, ranks = ctx.builder.graph, self.parallel.ranks
        before = set(graph.updates)
        inner.emit(ctx, params, grads)
        keep_if_valid(ctx, set(graph.updates) - before)
        ctx.sync()  # the steps differ from rank to rank; what they send does not
        for param in params:
            now = graph.values[graph.updates.pop(param.vid, param.vid)]
            sent = ctx.broadcast_from(now, ranks=ranks, root=owner[param.vid])
            ctx.update(param, sent)


def owners(params: Iterable[Value], ranks: int) -> dict[int, int]:
    """By vid: the rank that steps a parameter."""
    filled, made = [0] * ranks, {}
    for param in sorted(params, key=lambda p: (-p.spec.nbytes, p.name)):
        made[param.vid] = rank = filled.index(min(filled))
        filled[rank] += param.spec.nbytes
    return made


_joined: dict[str, Mesh] = {}
_pulses: dict[str, Pulse] = {}


def _gpus() -> bool:
    from ..device.runtime import cuda_missing

    return not cuda_missing()
