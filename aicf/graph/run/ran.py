"""RunTrace: what one run of a plan did: which kernel ran on which memory, in which order, on which stream, in which graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ...device.tensor import Tensor
from ...text import printable
from .capture import CaptureReport
from .plan import ExecPlan, Step


@dataclass(frozen=True)
class TensorAt:
    """A value and where it was."""

    vid: int
    name: str
    type: str
    stride: tuple[int, ...]
    pointer: int

    def __str__(self) -> str:
        return printable(f"%{self.vid} {self.name} {self.type} strides {self.stride} at {self.pointer:#x}")


@dataclass(frozen=True)
class StepRan:
    """step    its number in the plan
    kernel  the id; "" of a view, for which nothing ran
    """

    step: int
    kernel: str
    region: str
    reads: tuple[TensorAt, ...]
    writes: tuple[TensorAt, ...]
    workspace: tuple[int, int] | None  # offset in the arena, bytes
    where: str


@dataclass(frozen=True)
class RunTrace:
    """how       "run", "replay" or "call"
    launched  what the calls said that they ran, in order
    graphs    of a replay, which calls were replayed as graphs and which one by one, and why
    """

    plan: str
    device: str
    how: str
    stream: int
    steps: tuple[StepRan, ...]
    launched: tuple[str, ...]
    graphs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{self.how} of plan {self.plan} on {self.device}, stream {self.stream:#x}: {len(self.launched)} kernels"
        ]
        for s in self.steps:
            lines.append(
                f"step {s.step}: {s.region} -> {s.kernel or 'a view, nothing runs'}"
                + (f"   # {s.where}" if s.where else "")
            )
            lines += [f"    reads  {tensor}" for tensor in s.reads]
            lines += [f"    writes {tensor}" for tensor in s.writes]
            if s.workspace:
                lines.append(f"    workspace {s.workspace[1]} B at arena+{s.workspace[0]}")
        lines += ["launched, in order:", *(f"  {kernel}" for kernel in self.launched)]
        return printable("\n".join([*lines, *self.graphs, *self.notes]))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class FirstRun(Protocol):
    """What is told of the first run of a plan."""

    def ran(self, trace: RunTrace) -> None: ...


Place = Callable[[int], "tuple[tuple[int, ...], int]"]  # vid -> (strides, pointer)


def trace_of(
    plan: ExecPlan, how: str, stream: int, place: Place, launched: Sequence[str | None], report: CaptureReport | None = None,
    notes: Sequence[str] = (),
) -> RunTrace:  # fmt: skip
    def at(vid: int) -> TensorAt:
        slot = plan.slots[vid]
        return TensorAt(vid, slot.name, str(slot.spec), *place(vid))

    def ran(n: int, step: Step) -> StepRan:
        scratch = (step.workspace.offset, step.workspace.nbytes) if step.workspace else None
        reads, writes = (tuple(map(at, vids)) for vids in (step.in_vids, step.out_vids))
        return StepRan(n, step.kernel_id, step.region.signature, reads, writes, scratch, step.where)

    steps = tuple(ran(n, step) for n, step in enumerate(plan.steps))
    graphs = tuple(str(report).splitlines()) if report else ()
    return RunTrace(
        plan.key, plan.device, how, stream, steps, tuple(k for k in launched if k), graphs, tuple(notes)
    )


def places_of(tensors: Mapping[int, Tensor]) -> Place:
    return lambda vid: (tensors[vid].stride, tensors[vid].ptr)
