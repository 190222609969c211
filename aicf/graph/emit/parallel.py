"""Gradients of several ranks: one mean of each, as early in the graph as it is whole, in buckets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from ...ir import Op, Role, Value
from ...ops.schema import VIEW, schema_of
from ...types import DType, f32
from .builder import GraphEmitter


class Parallel(Protocol):
    """How a run is spread over ranks: see aicf.distributed (DataParallel)."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def bucket_bytes(self) -> int: ...
    @property
    def reduce_dtype(self) -> DType | None: ...

    def sharded(self, optimizer: Any) -> Any:
        """What steps the parameters of this rank, where each steps its own; the optimizer itself where all step all."""

    def place(self, device: str | None) -> str | None:
        """Which device this rank takes."""

    def join(self, runtime: Any) -> None:
        """Meet the other ranks."""

    def prepare(self, recipe: Any, runtime: Any, **settings: object) -> None:
        """All ranks are to compile the same."""

    def compiled(self, plan: Any) -> None:
        """All ranks have the same collectives."""

    def share(self, runtime: Any, variables: Any, names: Collection[str], runs: int) -> int:
        """Before a run: what is new, loaded or set is rank 0's on all ranks; so is the number of runs."""

    def ran(self, runtime: Any) -> None:
        """A run was started."""

    def check(self) -> None:
        """Wait for the runs that were started; DistributedError if a rank is known to be gone, or late."""

    @property
    def shards(self) -> bool: ...

    def agree(self, title: str, lines: Sequence[str]) -> None:
        """All ranks say the same."""

    def alone(self, title: str, work: Callable[[], object]) -> None:
        """Rank 0 does something, and the others wait."""

    def mean(self, numbers: Sequence[float], title: str = ...) -> list[float]:
        """Over all ranks."""

    def whole_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state dict with what only other ranks have."""


def reduced(
    ctx: GraphEmitter, parallel: Parallel, grads: Sequence[Value], steps: bool = False
) -> list[Value]:
    """The mean over all ranks of each gradient. A gradient that something else reads, too, is copied before it is written.

    steps  whether a step follows: then the run is valid from here on if it is valid on all ranks, which the first bucket tells
    """
    graph = ctx.builder.graph
    before = len(graph.ops)
    order = {id(op): n for n, op in enumerate(graph.ops)}
    made: dict[int, Value] = {}
    owners: set[int] = set()
    places: list[int] = []  # of each op that is emitted here: behind which of those before it
    bucket, filled = 0, 0
    distinct = {grad.vid: grad for grad in grads}
    whole = {vid: order[id(grad.producer)] if grad.producer else -1 for vid, grad in distinct.items()}
    if steps and (flag := ctx.builder.valid) is not None:
        ctx.builder.valid = _valid_everywhere(ctx, parallel, flag)
        places += [order[id(flag.producer)] if flag.producer else -1] * (len(graph.ops) - before)
    for vid in sorted(whole, key=lambda vid: (whole[vid], vid)):
        grad = distinct[vid]
        owner = _owner(ctx, grad)
        alone = owner.role is Role.tmp and owner.vid not in owners and not _readers(ctx, grad, owner)
        owners.add(owner.vid)
        kind = parallel.reduce_dtype or grad.dtype
        if kind is not grad.dtype:
            sent = ctx.convert(grad, dtype=kind)
        else:
            sent = grad if alone else ctx.copy(grad)
        if filled and filled + sent.spec.nbytes > parallel.bucket_bytes:
            bucket, filled = bucket + 1, 0
        filled += sent.spec.nbytes
        mean = ctx.all_reduce(sent, ranks=parallel.ranks, mean=True, bucket=bucket)
        made[vid] = mean if kind is grad.dtype else ctx.convert(mean, dtype=grad.dtype)
        places += [whole[vid]] * (len(graph.ops) - before - len(places))
    _move_ahead(graph.ops, before, places)
    return [made[grad.vid] for grad in grads]


def _valid_everywhere(ctx: GraphEmitter, parallel: Parallel, flag: Value) -> Value:
    """Whether a run is valid on all ranks: a label that is no class on one of them stops the step of all, so that no rank goes on from
    other parameters."""
    valid = ctx.all_reduce(ctx.convert(flag, dtype=f32), ranks=parallel.ranks, mean=True, bucket=0)
    everywhere: Value = valid > 1 - 0.5 / parallel.ranks  # a mean of ones may be rounded
    return everywhere


def _owner(ctx: GraphEmitter, value: Value) -> Value:
    """Whose memory a value may turn out to be a view of."""
    while value.producer is not None and VIEW in schema_of(value.producer.kind).traits:
        value = ctx.builder.graph.values[value.producer.inputs[0]]
    return value


def _readers(ctx: GraphEmitter, grad: Value, owner: Value) -> bool:
    """Whether anything but the way to the gradient reads its memory."""
    at, values = grad, ctx.builder.graph.values
    if at.users:
        return True
    while at is not owner:
        assert at.producer is not None
        at = values[at.producer.inputs[0]]
        if len(at.users) > 1:
            return True
    return False


def _move_ahead(ops: list[Op], before: int, places: Sequence[int]) -> None:
    """Ops from `before` on go behind the ops that `places` names; those of one bucket behind the last of its."""
    last: dict[int, int] = {}
    late = ops[before:]
    for op, place in zip(late, places):
        if op.kind == "all_reduce":
            last[op.attrs["bucket"]] = max(last.get(op.attrs["bucket"], -1), place)
    behind: dict[int, list[Op]] = {}
    bucket = 0
    for n, op in enumerate(late):
        following = (o.attrs["bucket"] for o in late[n:] if o.kind == "all_reduce")
        bucket = op.attrs["bucket"] if op.kind == "all_reduce" else bucket
        widens = op.kind == "convert" and n and late[n - 1].kind == "all_reduce"
        home = bucket if op.kind == "all_reduce" or widens else next(following, bucket)
        behind.setdefault(last[home], []).append(op)
    moved: list[Op] = list(_buckets(behind.pop(-1, [])))
    for place, op in enumerate(ops[:before]):
        moved.append(op)
        moved += _buckets(behind.pop(place, []))
    ops[:] = moved


def _buckets(ops: Sequence[Op]) -> list[Op]:
    """What comes before the transfers, the transfers side by side, what comes behind them."""
    sent = [op for op in ops if op.kind == "all_reduce"]
    made = {vid for op in sent for vid in op.outputs}
    behind = [op for op in ops if made.intersection(op.inputs)]
    return [op for op in ops if op not in sent and op not in behind] + sent + behind
