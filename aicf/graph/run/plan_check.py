"""Whether a plan that comes from a file can be run: all that the executor relies on.

Kernels are given pointers and sizes, and believe them. So a plan that was damaged or edited is refused here, unless it is a
plan all the same: regions are well typed and have their slots' types; values are made once, before they are read; those that
live at once do not overlap; what is written over another value is read by nobody later, and only in the place where it is
written. That a kernel takes its region, on this device, is asked when it is built (`KernelLoader.build`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...device.tensor import ALIGNMENT
from ...files import Bad
from ...ir import EXTERNAL, KEPT, Role, StridedView
from ...ops.schema import MOVES, VIEW, schema_of
from ...types import TensorSpec, pointer_alignment, row_major
from ..fuse.strided import read_through, written_through
from .alias import why_not_in_place
from .memory import whole
from .plan import ExecPlan, Slot, Step, Workspace

LARGEST = 1 << 48  # bytes of a tensor, or of all of them
Span = tuple[int, int] | None  # of the arena: from where to where; None lies elsewhere


def check_setup(plan: ExecPlan, first: ExecPlan) -> None:
    """A setup is a plan that makes states of the other one, of params and states that neither writes."""
    try:
        for what, made, wanted in (("mode", first.mode, plan.mode), ("device", first.device, plan.device)):
            if made != wanted:
                raise Bad(what, wanted, made)
        others = [slot for slot in first.externals() if slot.role not in (Role.param, Role.state)]
        if others or first.updates:
            raise Bad(
                "slots", "params and states that it does not write", others[0].name if others else "updates"
            )
        PlanCheck(first).run()
        states = {slot.name: slot for slot in plan.externals(Role.state)}
        for slot in first.outputs:
            if slot.name not in states or states[slot.name].spec != slot.spec:
                raise Bad(f"slot %{slot.vid}", f"a state of the plan: {slot.name}, {slot.spec}", "none")
        if written := sorted(plan.written & (plan.derived | first.bound)):
            raise Bad("slots", "states that no run writes", written[0])
    except Bad as bad:
        raise Bad(f"setup.{bad.at}", bad.expected, bad.got) from None


def check_numbers(steps: Sequence[Step]) -> None:
    """Together they have all ops of the schedule, once each."""
    order = sorted(range(len(steps)), key=lambda n: (steps[n].anchor, n))
    first = 0
    for n in order:
        step, count = steps[n], len(steps[n].region.ops)
        if (step.anchor, step.last) != (first, first + count - 1):
            raise Bad(f"steps[{n}]", f"ops {first}..{first + count - 1}", f"{step.anchor}..{step.last}")
        first = step.last + 1


class PlanCheck:
    """The steps in order, with what every piece of memory holds."""

    def __init__(self, plan: ExecPlan) -> None:
        self.plan, self.slots = plan, plan.slots
        self.there = {s.vid for s in plan.externals()}  # values that have been made and not written over
        self.made = set(self.there)
        self.holds: dict[int, list[int]] = {}  # owner of storage -> values that were put there
        self.unconfirmed: set[int] = set()  # written by strides, until the op comes whose operands lie so
        self.parts: set[int] = set()  # views of those
        self.through: dict[int, tuple[int, ...]] = {}  # of these, those that would fill them

    def run(self) -> None:
        self._slots()
        for n, step in enumerate(self.plan.steps):
            if n and step.anchor <= self.plan.steps[n - 1].last:
                raise Bad(
                    f"steps[{n}]", f"ops {self.plan.steps[n - 1].last + 1}..", f"{step.anchor}..{step.last}"
                )
            self._types(n, step)
            self._step(n, step)
        self._end()

    def root(self, vid: int) -> int:
        alias = self.slots[vid].alias_of
        return vid if alias is None else alias

    # --- slots --------------------------------------------------------------------------------------------------------

    def _slots(self) -> None:
        end = total = 0
        names: dict[tuple[bool, str], int] = {}
        for vid, slot in self.slots.items():
            at, external = f"slot %{vid}", slot.role in EXTERNAL
            total += slot.spec.nbytes
            if total >= LARGEST:
                raise Bad(at, f"less than {LARGEST} bytes in all", str(slot.spec))
            if slot.role is not Role.tmp and names.setdefault((external, slot.name), vid) != vid:
                raise Bad(at, "a name of its own", slot.name)
            places = slot.offset is not None, slot.alias_of is not None
            allowed = {Role.tmp: ((True, False), (False, True)), Role.output: ((False, False), (False, True))}
            if places not in allowed.get(slot.role, ((False, False),)):
                raise Bad(
                    at,
                    "one place that its role can have",
                    f"{slot.role}, offset {slot.offset}, alias of {slot.alias_of}",
                )
            if slot.offset is not None:
                if slot.offset % ALIGNMENT:
                    raise Bad(f"{at}.offset", f"a multiple of {ALIGNMENT}", slot.offset)
                end = max(end, slot.offset + whole(slot.spec.nbytes))
            if slot.alias_of is not None:
                owner = self.slots.get(slot.alias_of)
                if owner is None or owner.alias_of is not None:
                    raise Bad(f"{at}.alias_of", "a slot that has storage of its own", slot.alias_of)
                if slot.stride is not None:
                    _within(at, slot, owner)
                elif (owner.spec.dtype, owner.spec.numel) != (slot.spec.dtype, slot.spec.numel):
                    raise Bad(f"{at}.alias_of", f"storage of {slot.spec}", str(owner.spec))
            elif slot.stride is not None:
                raise Bad(f"{at}.stride", "an alias", str(slot.spec))
        end = max(end, self._workspaces())
        if end != self.plan.arena_bytes:
            raise Bad("arena_bytes", f"{end}, where the last of the slots ends", self.plan.arena_bytes)

    def _workspaces(self) -> int:
        """Where the last of them ends."""
        end = 0
        for n, step in enumerate(self.plan.steps):
            if scratch := step.workspace:
                at = f"steps[{n}].workspace"
                if not step.kernel_id:
                    raise Bad(at, "none: nothing runs", scratch.nbytes)
                if scratch.offset < 0 or scratch.offset % ALIGNMENT or not 0 < scratch.nbytes < LARGEST:
                    raise Bad(
                        at,
                        f"a multiple of {ALIGNMENT}, and up to {LARGEST} bytes",
                        [scratch.offset, scratch.nbytes],
                    )
                end = max(end, scratch.offset + whole(scratch.nbytes))
        return end

    # --- steps --------------------------------------------------------------------------------------------------------

    def _types(self, n: int, step: Step) -> None:
        """Each slot has the type that the region says, and lies as it says."""
        region = step.region
        for which, indices, vids in (
            ("in", region.inputs, step.in_vids),
            ("out", region.outputs, step.out_vids),
        ):
            at = f"steps[{n}].{which}"
            if len(vids) != len(indices):
                raise Bad(at, f"the {len(indices)} slots of the region", vids)
            for i, vid in zip(indices, vids):
                if vid not in self.slots:
                    raise Bad(at, "slots that there are", vid)
                slot, owner, desc = self.slots[vid], self.slots[self.root(vid)], region.tensors[i]
                strided = (
                    slot.stride is not None and step.kernel_id
                )  # views that are no kernels are told as copies
                lies = desc.stride == slot.stride if strided else desc.contiguous
                if TensorSpec(desc.shape, desc.dtype, desc.device) != slot.spec or not lies:
                    raise Bad(
                        at,
                        f"%{vid}: {slot.spec} of {slot.spec.device}, {slot.strided or 'row-major'}",
                        f"{desc} of {desc.device}",
                    )
                aligned = owner.alignment if owner.role in EXTERNAL else ALIGNMENT
                aligned = (
                    aligned
                    if not strided
                    else min(aligned, pointer_alignment(slot.start * slot.spec.dtype.itemsize))
                )
                if desc.device == "cuda" and desc.alignment > aligned:
                    raise Bad(at, f"%{vid} aligned to {aligned} bytes", desc.alignment)

    def _step(self, n: int, step: Step) -> None:
        for vid in step.in_vids:
            if vid not in self.there:
                raise Bad(
                    f"steps[{n}].in",
                    f"%{vid} made by a step before",
                    "it was written over" if vid in self.made else "it is not made",
                )
        for vid in step.out_vids:
            if vid in self.made or step.out_vids.count(vid) > 1:
                raise Bad(f"steps[{n}].out", "a slot that is made once", f"%{vid}")
        self.made.update(step.out_vids)
        if not step.kernel_id:
            self._view(n, step)
            return
        for position, vid in enumerate(step.out_vids):
            if self.slots[vid].stride is not None:
                self.unconfirmed.add(vid)
            elif (into := self.root(vid)) != vid:
                self._in_place(n, step, position, into)
        read, written = {self.root(v) for v in step.in_vids}, [self.root(v) for v in step.out_vids]
        for k, owner in enumerate(written):
            strided = step.out_vids[k] in self.unconfirmed
            beside = (read | set(written[:k])) - {owner}
            whole = {self.root(v) for v in step.in_vids if v not in self.unconfirmed | self.parts}
            again = owner in (whole if strided else written[:k])
            if again or any(self._overlap(owner, other) for other in beside):
                raise Bad(
                    f"steps[{n}].out",
                    "memory apart from what the step reads and writes else",
                    f"%{step.out_vids[k]}",
                )
        for vid in step.out_vids:
            self._write(vid)
        if step.workspace:
            self._workspace(f"steps[{n}].workspace", step.workspace, {*read, *written})

    def _workspace(self, at: str, workspace: Workspace, used: set[int]) -> None:
        """It lies apart from what the step reads and writes; what lay there is there no more."""
        span = workspace.offset, workspace.offset + workspace.nbytes
        if touched := [owner for owner in used if _meet(span, self._span(owner))]:
            raise Bad(at, "memory apart from what the step reads and writes", f"that of %{touched[0]}")
        for other in [o for o in self.holds if _meet(span, self._span(o))]:
            self.there.difference_update(self.holds.pop(other))

    def _view(self, n: int, step: Step) -> None:
        (op, *more) = step.region.ops
        if more or len(step.out_vids) != 1 or not {VIEW, MOVES}.intersection(schema_of(op.kind).traits):
            raise Bad(f"steps[{n}].kernel", "a kernel: this is no view", step.region.signature)
        (out,), source = step.out_vids, step.in_vids[0]
        if VIEW not in schema_of(op.kind).traits or any(self.slots[v].strided for v in (out, source)):
            self._strided_view(n, step)
        elif self.root(out) != self.root(source) or out == self.root(out):
            raise Bad(
                f"steps[{n}].out", f"%{out} as an alias of %{self.root(source)}", self.slots[out].alias_of
            )
        self.holds.setdefault(self.root(out), []).append(out)
        self.there.add(out)

    def _strided_view(self, n: int, step: Step) -> None:
        """The result lies in the operand as the op reads it, or the operands fill the result, which kernels have written through them."""
        (out,), vids, (op,) = step.out_vids, step.in_vids, step.region.ops
        result = self.slots[out].spec.shape
        shapes = [self.slots[vid].spec.shape for vid in vids]
        access = schema_of(op.kind).accesses(shapes, len(result), op.attrs)
        whole = sum(self.slots[vid].spec.numel for vid in vids) == self.slots[out].spec.numel
        if len(op.inputs) != len(vids) or not whole * len(vids):
            made: list[StridedView | None] = []
        else:
            made = [written_through(a, self._at(out), s, result) for a, s in zip(access, shapes)]
        written = all(vid in self.unconfirmed or vid in self.through for vid in vids)
        if written and made == [self._at(vid) for vid in vids]:
            self.through[out] = vids
            self.parts.add(out)
            if self.root(out) == out:
                self._confirm(out)
            return
        if len(vids) != 1 or read_through(access[0], self._at(vids[0]), shapes[0], result) != self._at(out):
            raise Bad(
                f"steps[{n}].out",
                f"%{out} where {op.kind} finds it in %{vids[0]}, or %{vids[0]} where it leaves it",
                f"%{out}{self.slots[out].strided}, %{vids[0]}{self.slots[vids[0]].strided}",
            )
        self.parts.update([out] if vids[0] in self.unconfirmed | self.parts else [])

    def _confirm(self, vid: int) -> None:
        for operand in self.through.pop(vid, ()):
            self.unconfirmed.discard(operand)
            self._confirm(operand)

    def _at(self, vid: int) -> StridedView:
        slot = self.slots[vid]
        stride = row_major(slot.spec.shape) if slot.stride is None else slot.stride
        return StridedView(self.root(vid), slot.start, stride)

    def _in_place(self, n: int, step: Step, position: int, into: int) -> None:
        at, out, owner = f"steps[{n}].out", step.out_vids[position], self.slots[into]
        positions = frozenset(p for p, v in enumerate(step.in_vids) if self.root(v) == into)
        if not positions:
            raise Bad(at, f"%{out} written over something that the step reads", f"%{into}")
        if owner.role is not Role.tmp and owner.role not in KEPT:
            raise Bad(at, f"a place that may be written over for %{out}", f"%{into} ({owner.role})")
        if owner.role is not Role.tmp and self.plan.updates.get(into) != out:
            raise Bad(at, f"%{out} as the update of %{into}", self.plan.updates.get(into))
        if reason := why_not_in_place(step.region, position, positions):
            raise Bad(at, f"%{out} in a place of its own: {reason}", f"over %{into}")

    def _overlap(self, a: int, b: int) -> bool:
        return a == b or _meet(self._span(a), self._span(b))

    def _span(self, vid: int) -> Span:
        slot = self.slots[vid]
        return None if slot.offset is None else (slot.offset, slot.offset + slot.spec.nbytes)

    def _write(self, vid: int) -> None:
        """What lay there is there no more."""
        owner, beside = self.root(vid), list[int]()
        if vid in self.unconfirmed and (self.unconfirmed | self.parts).issuperset(self.holds.get(owner, ())):
            beside = self.holds.pop(
                owner, []
            )  # parts of one result, as the op that joins them has to confirm
        for other in [o for o in self.holds if self._overlap(owner, o)]:
            self.there.difference_update(self.holds.pop(other))
        self.there.discard(owner)
        self.holds[owner] = [*beside, vid]
        self.there.add(vid)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        for slot in self.slots.values():
            if slot.vid not in self.made:
                raise Bad(f"slot %{slot.vid}", "a step that makes it", "none")
        for vid in sorted(self.unconfirmed):
            raise Bad(
                f"slot %{vid}", "an op whose operand it is, and that finds it so", self.slots[vid].strided
            )
        self._present((slot.vid for slot in self.plan.outputs), "the outputs")
        for old, new in self.plan.updates.items():
            if old not in self.slots or self.slots[old].role not in KEPT or new not in self.slots:
                raise Bad("updates", "a param or state, and a slot", (old, new))
            if self.slots[old].spec != self.slots[new].spec:
                raise Bad("updates", f"%{old}: {self.slots[old].spec}", f"%{new}: {self.slots[new].spec}")
            if self.root(new) != old and self.slots[self.root(new)].role in EXTERNAL:
                raise Bad(
                    "updates", f"%{new} in a place of its own, or in that of %{old}", f"%{self.root(new)}"
                )
        self._present(self.plan.updates.values(), "the updates")

    def _present(self, vids: Iterable[int], which: str) -> None:
        for vid in vids:
            if vid not in self.there:
                raise Bad(which, f"%{vid} at the end of the steps", "it was written over")


def _meet(a: Span, b: Span) -> bool:
    return a is not None and b is not None and a[0] < b[1] and b[0] < a[1]


def _within(at: str, slot: Slot, owner: Slot) -> None:
    """Strides that stay inside of what a slot is an alias of."""
    assert slot.stride is not None
    if len(slot.stride) != slot.spec.rank or not slot.spec.numel or slot.spec.dtype is not owner.spec.dtype:
        raise Bad(f"{at}.stride", f"strides for {slot.spec} in {owner.spec}", slot.stride)
    last = slot.start + sum((n - 1) * step for n, step in zip(slot.spec.shape, slot.stride))
    if last >= owner.spec.numel:
        raise Bad(f"{at}.stride", f"elements of the {owner.spec.numel} of %{owner.vid}", last)
