"""FrozenPlan: a plan bound once and replayed. On CUDA it replays captured graphs, on the CPU device it walks the bound plan:
the same cache key, roles, errors and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ... import channels
from ...device.foreign import Foreign
from ...device.tensor import Tensor
from ...errors import VerifyError
from ...ir import FED, Role
from . import capture
from .capture import CapturedCall
from .edges import Feeds, Results
from .executor import Executor
from .plan import ExecPlan

RoleSet = frozenset[Role]


@dataclass(frozen=True)
class ReplayPolicy:
    """How the external tensors of a plan meet a replay.

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
            copy_roles = frozenset({Role.input}) if static_roles is None else FED - static_roles
        if static_roles is None:
            static_roles = FED - copy_roles
        if static_roles & copy_roles or static_roles | copy_roles != FED:
            raise VerifyError(
                "every role that is fed is either static or copied", expected="input, param and state, each in one of them",
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


class FrozenPlan:
    """A bound plan, its graphs, and the tensors that they work on, kept alive as long as it is."""

    def __init__(
        self, executor: Executor, plan: ExecPlan, found: Mapping[str, Foreign], variables: Mapping[str, Tensor],
        policy: ReplayPolicy,
    ) -> None:  # fmt: skip
        self.runtime, self.plan, self.policy = executor.runtime, plan, policy
        self.bound = executor.bind(plan, found, variables, copied=policy.copy_roles)
        tensors = self.bound.tensors
        copied = plan.externals(*policy.copy_roles) if policy.copy_roles else []
        static = plan.externals(Role.input) if Role.input in policy.static_roles else []
        # what had to be staged is copied by each replay, as by its role; the others are used where they are
        staged = [s for s in static if tensors[s.vid].ptr != found[s.name].ptr]
        used = [(s.name, found[s.name]) for s in static if s not in staged]
        self._static = {name: (fed.ptr, fed.desc.stride) for name, fed in used}
        filled = [(s.name, tensors[s.vid]) for s in (*copied, *staged)]
        self._feeds = Feeds(self.runtime, filled, found, variables)
        self._results = Results(self.runtime, [(s.name, tensors[s.vid]) for s in plan.outputs])
        apart = [s for s in plan.slots.values() if s.offset is None and s.alias_of is None]
        pinned = {tensors[s.vid].ptr: s.spec.nbytes for s in apart}
        # at memory that is there, of the kind that is fed; nothing reads it before a replay does
        aimed = self._feeds.aim(found, variables, gather=False), self._results.fresh()
        self.work = self._work()
        segments = capture.segments_of(self.runtime, self.work, policy.capture)
        del aimed
        self._replayed = False
        self.report = capture.CaptureReport(
            self.runtime.kind, segments, plan.arena_bytes + sum(pinned.values()), tuple(self.bound.notes)
        )

    def _work(self) -> list[CapturedCall]:
        """All calls of a replay, in order: what is fed on the device, the steps, updates, results."""
        feeds, results = self._feeds.copies, self._results.copies
        return [
            *(CapturedCall("feed", c) for c in feeds),
            *self.bound.work(),
            *(CapturedCall("result", c) for c in results),
        ]

    @property
    def step_calls(self) -> range:
        """Of `work`, the steps that have a kernel."""
        first = len(self._feeds.copies)
        return range(first, first + len(self.bound.calls))

    def stale(self, found: Mapping[str, Any]) -> str | None:
        """Which static input is another tensor than the one that was captured; None if all are the same."""
        for name, (pointer, stride) in self._static.items():
            if found[name].ptr != pointer:
                return f"{name} was captured at {pointer:#x} and is now at {found[name].ptr:#x}"
            if found[name].desc.stride != stride:
                return f"{name} was captured with strides {stride} and now has {found[name].desc.stride}"
        return None

    def ready(
        self, found: Mapping[str, Foreign], variables: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """What lies on the host in its slots, and copies told where from and to: the results of the run that follows, and what has to
        live until then."""
        self._feeds.fill(found, variables)
        made = self._feeds.aim(found, variables)
        return self._results.fresh(), made

    def replay(
        self, found: Mapping[str, Foreign], variables: Mapping[str, Tensor], checked: bool
    ) -> tuple[dict[str, Tensor], list[str | None]]:
        """Copy in, run, return fresh copies of the outputs, and what the calls say that they ran. Nothing may be stale.
        `checked` walks the steps and looks for NaN."""
        results, made = self.ready(found, variables)
        if checked:
            for copy in self._feeds.copies:
                copy()
            ran = self.bound.run()
            for copy in self._results.copies:
                copy()
        else:
            ran = [kernel for segment in self.report.segments for kernel in segment.launch()]
        del made
        if not self._replayed:
            self._replayed, launched = True, sum(kernel is not None for kernel in ran)
            text = f"plan {self.plan.key} replayed for the first time: {launched} kernels"
            channels.tell("capture", "replayed", text, plan=self.plan.key, kernels=launched)
        return results, ran
