"""FrozenPlan: a plan bound once and replayed. On CUDA it replays captured graphs, on the CPU device it walks the bound plan:
the same cache key, roles, errors and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...device.interop import Foreign
from ...device.tensor import Tensor
from ...errors import FeedError, VerifyError
from ...ir import EXTERNAL, Role
from ...types import TensorSpec
from . import capture
from .executor import Executor
from .plan import ExecPlan
from .slots import fill_slot

RoleSet = frozenset[Role]


@dataclass(frozen=True)
class ReplayPolicy:
    """How the external tensors of a plan meet a replay (C10).

    copy_roles    have a dense slot of the frozen plan, into which each replay copies what is fed
    static_roles  are used where they are: their pointers belong to the frozen plan
    capture       "auto" captures what can be; "strict" raises for what can't be; "off" captures nothing
    """

    static_roles: RoleSet
    copy_roles: RoleSet
    capture: str = "auto"

    @classmethod
    def of(
        cls, mode: str, static: Iterable[Any] | None, copied: Iterable[Any] | None, capturing: str
    ) -> ReplayPolicy:
        """By default inputs are copied, params and states are static. Naming one of the two sets determines the other."""
        if capturing not in capture.MODES:
            raise VerifyError(f"capture={capturing!r}", expected=" or ".join(map(repr, capture.MODES)))
        given = [None if roles is None else frozenset(map(_role, roles)) for roles in (static, copied)]
        static_roles, copy_roles = given
        if copy_roles is None:
            copy_roles = frozenset({Role.input}) if static_roles is None else EXTERNAL - static_roles
        if static_roles is None:
            static_roles = EXTERNAL - copy_roles
        if static_roles & copy_roles or static_roles | copy_roles != EXTERNAL:
            raise VerifyError(
                "every external role is either static or copied", expected="input, param and state, each in one of them",
                got=f"static_roles={_names(static_roles)}, copy_roles={_names(copy_roles)}",
            )  # fmt: skip
        if mode == "train" and copy_roles - {Role.input}:
            raise VerifyError(
                f"copy_roles={_names(copy_roles)} in train mode", expected="only input",
                hint="params and states are bound once and trained in place; copying them would reset the weights",
            )  # fmt: skip
        return cls(static_roles, copy_roles, capturing)


def _role(role: Any) -> Role:
    try:
        return Role(role)
    except ValueError:
        raise VerifyError(f"{role!r} is no role", expected="input, param or state") from None


def _names(roles: RoleSet) -> str:
    return "{" + ", ".join(sorted(map(str, roles))) + "}"


class _Span(NamedTuple):
    """Bytes that are copied at once, and the tensors in them: name, offset, spec."""

    ptr: int
    nbytes: int
    tensors: list[tuple[str, int, TensorSpec]]


def _spans(tensors: list[tuple[str, Tensor]]) -> list[_Span]:
    """One for each allocation that some of these tensors share, from the first to the last of them."""
    shared: dict[int, list[tuple[str, Tensor]]] = {}
    for name, tensor in tensors:
        shared.setdefault(id(tensor.owner), []).append((name, tensor))
    spans = []
    for held in shared.values():
        start = min(t.ptr for _, t in held)
        end = max(t.ptr + t.spec.nbytes for _, t in held)
        spans.append(_Span(start, end - start, [(name, t.ptr - start, t.spec) for name, t in held]))
    return spans


class FrozenPlan:
    """A bound plan, its graphs, and the tensors that they work on, kept alive as long as it is."""

    def __init__(
        self, executor: Executor, plan: ExecPlan, found: Mapping[str, Foreign], variables: Mapping[str, Tensor],
        policy: ReplayPolicy,
    ) -> None:  # fmt: skip
        self.runtime, self.policy = executor.runtime, policy
        self.bound = executor.bind(plan, found, variables, copied=policy.copy_roles)
        tensors = self.bound.tensors
        self._copied = (
            [(s.name, tensors[s.vid]) for s in plan.externals(*policy.copy_roles)]
            if policy.copy_roles
            else []
        )
        static = plan.externals(Role.input) if Role.input in policy.static_roles else []
        # what had to be staged is copied by each replay, as by its role; the others are used where they are
        staged = [s for s in static if tensors[s.vid].ptr != found[s.name].ptr]
        self._copied += [(s.name, tensors[s.vid]) for s in staged]
        used = [(s.name, found[s.name]) for s in static if s not in staged]
        self._static = {name: (fed.ptr, fed.desc.stride) for name, fed in used}
        self._names = [s.name for s in plan.outputs]
        self._outputs = _spans([(s.name, tensors[s.vid]) for s in plan.outputs])
        self._kernels = [step.kernel_id for step, _ in self.bound.calls]
        pinned = {t.ptr: t.spec.nbytes for t in tensors.values()}
        self.report = capture.CaptureReport(
            self.runtime.kind, capture.segments_of(self.runtime, self.bound.work(), policy.capture),
            sum(pinned.values()), tuple(self.bound.notes),
        )  # fmt: skip

    def stale(self, found: Mapping[str, Any]) -> str | None:
        """Which static input is another tensor than the one that was captured; None if all are the same."""
        for name, (pointer, stride) in self._static.items():
            if found[name].ptr != pointer:
                return f"{name} was captured at {pointer:#x} and is now at {found[name].ptr:#x}"
            if found[name].desc.stride != stride:
                return f"{name} was captured with strides {stride} and now has {found[name].desc.stride}"
        return None

    def replay(
        self, found: Mapping[str, Foreign], variables: Mapping[str, Tensor], checked: bool
    ) -> dict[str, Tensor]:
        """Copy in, run, return fresh copies of the outputs. `checked` walks the steps and looks for NaN."""
        if moved := self.stale(found):
            raise FeedError(
                f"a static input moved: {moved}",
                hint="feed the captured tensor, or copy its role: compile(..., copy_roles={'input'})",
            )
        for name, slot in self._copied:
            if name in found:
                fill_slot(slot, found[name], self.runtime)
            else:
                self.runtime.write(slot, variables[name])
        if checked:
            self.bound.run()
        else:
            for segment in self.report.segments:
                segment.launch()
        results: dict[str, Any] = dict.fromkeys(self._names)  # in their order, not in that of memory
        for span in self._outputs:
            memory = self.runtime.duplicate(span.ptr, span.nbytes)
            for name, offset, spec in span.tensors:
                results[name] = self.runtime.view(memory, offset, spec)
        return results

    @property
    def kernel_ids(self) -> list[str]:
        return self._kernels
