"""ExecPlan: the whole truth of a run. Steps with chosen kernels, slots, aliases, arena offsets; the executor decides
nothing. It prints, saves to JSON and loads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import islice, starmap
from typing import Any

from rich.console import RenderableType

from ...device.spec import DeviceSpec
from ...ir import EXTERNAL, KEPT, Graph, LoweredOp, Role, Value
from ...lazy import lazy
from ...pages import objects
from ...pages.notebook import InNotebook
from ...printing import Printed, paragraphs
from ...registry.registry import KernelRegistry
from ...rows import RegionSpec
from ...text import printable
from ...types import Shape, TensorDesc, TensorSpec
from ..fuse import Region
from ..fuse.once import Hoisting
from .alias import resolve_aliases
from .memory import place

PLAN_VERSION = 2
SHOWN = 64  # values, steps, notes that are printed


@dataclass(frozen=True)
class Slot:
    """Where a value lives: bound (externals), in the arena at `offset` (tmp), its own (output), or as `alias_of`: all of that, or by
    strides from element `start` of it on."""

    vid: int
    name: str
    spec: TensorSpec
    role: Role
    offset: int | None = None
    alias_of: int | None = None
    alignment: int = 0  # of externals: what selection assumed; binding checks it
    start: int = 0
    stride: Shape | None = None  # in elements; None is row-major

    @property
    def strided(self) -> str:
        """How it lies in what it is an alias of; "" if it is all of that."""
        return "" if self.stride is None else f" from {self.start}, strides {self.stride}"


@dataclass(frozen=True)
class Workspace:
    """Bytes of the arena that a kernel has to itself while it runs; before and after, values lie there."""

    offset: int
    nbytes: int


@dataclass(frozen=True)
class Step:
    """One kernel: `ops[anchor..last]` of the schedule. An empty kernel id is a view: nothing to run."""

    anchor: int
    last: int
    region: RegionSpec
    kernel_id: str
    in_vids: tuple[int, ...]
    out_vids: tuple[int, ...]
    where: str = field(default="", compare=False)
    workspace: Workspace | None = None
    ops: tuple[LoweredOp, ...] = field(default=(), compare=False, repr=False)  # no part of what is saved


@dataclass(frozen=True)
class ExecPlan(InNotebook, Printed):
    """Kernels, and where each tensor lies.

    setup   its results are states of this plan: what depends on params, other states and constants alone. It runs before a run
               if something has written one of these since
    """

    mode: str
    device: str
    slots: Mapping[int, Slot]
    steps: tuple[Step, ...]
    updates: Mapping[int, int]
    arena_bytes: int
    notes: tuple[str, ...] = field(default=(), compare=False)  # alias decisions, in words
    setup: ExecPlan | None = None  # what makes states that no run writes, before the first run

    @property
    def alias(self) -> dict[int, int]:
        """out vid -> in vid whose storage it shares."""
        return {s.vid: s.alias_of for s in self.slots.values() if s.alias_of is not None}

    @lazy
    def written(self) -> frozenset[str]:
        """Names of the params and states that a run updates."""
        return frozenset(self.slots[vid].name for vid in self.updates)

    @lazy
    def trains(self) -> bool:
        """Whether a run writes params."""
        return any(self.slots[vid].role is Role.param for vid in self.updates)

    @lazy
    def bound(self) -> frozenset[str]:
        """Names of the params and states that it has, or that the setup has."""
        own = frozenset(slot.name for slot in self.externals(*KEPT))
        return own if self.setup is None else own | self.setup.bound

    def externals(self, *roles: Role) -> list[Slot]:
        """Tensors that come from outside, of these roles; of all if none is given."""
        wanted = frozenset(roles) or EXTERNAL
        return [s for s in self.slots.values() if s.role in wanted]

    @property
    def outputs(self) -> list[Slot]:
        """Tensors that a run returns."""
        return [s for s in self.slots.values() if s.role is Role.output]

    @lazy
    def workspace_bytes(self) -> int:
        """The largest workspace of a step: a part of the arena."""
        return max((s.workspace.nbytes for s in self.steps if s.workspace), default=0)

    @lazy
    def peak_bytes(self) -> int:
        """All memory of a run: what is bound to it, its results, and the arena; what its setup has besides."""
        owners = (s for s in self.slots.values() if s.alias_of is None and s.offset is None)
        own = self.arena_bytes + sum(s.spec.nbytes for s in owners)
        if self.setup is None:
            return own
        there = {s.name for s in self.externals()}
        more = (s for s in self.setup.externals() if s.name not in there)
        return own + self.setup.arena_bytes + sum(s.spec.nbytes for s in more)

    @lazy
    def derived(self) -> frozenset[str]:
        """Names of the states that the setup makes."""
        return frozenset() if self.setup is None else frozenset(s.name for s in self.setup.outputs)

    @lazy
    def lives(self) -> dict[int, tuple[int, int]]:
        """Of each value in the arena: the first and the last step at which its place is its own. What is copied into a state at the end
        lives until then."""
        found: dict[int, tuple[int, int]] = {}
        last = len(self.steps) - 1
        used = [(n, vid) for n, step in enumerate(self.steps) for vid in (*step.in_vids, *step.out_vids)]
        for n, vid in [*used, *((last, new) for new in self.updates.values())]:
            owner = self.alias.get(vid, vid)
            if self.slots[owner].offset is not None:
                found[owner] = found.get(owner, (n, n))[0], n
        return found

    @property
    def kernel_ids(self) -> tuple[str, ...]:
        """The kernels of all steps, in the order they run."""
        return tuple(step.kernel_id for step in self.steps if step.kernel_id)

    @lazy
    def key(self) -> str:
        """A digest of everything the plan says; equal plans have equal keys in every process."""
        return hashlib.blake2s(self.to_json(indent=None).encode(), digest_size=12).hexdigest()

    def _rendering(self) -> RenderableType:
        return paragraphs(self._told(SHOWN))

    def text(self) -> str:
        """All of it, each value, step and note on a line of its own, however long."""
        return printable("\n".join(self._told()))

    def _told(self, most: int | None = None) -> Iterator[str]:
        yield (
            f"plan {self.key} · {self.mode} on {self.device} · {len(self.kernel_ids)} kernels · "
            f"arena {self.arena_bytes} B · peak {self.peak_bytes} B"
        )
        yield from _first(map(self._slot_told, self.slots.values()), len(self.slots), "values", most)
        yield from _first(starmap(_step_told, enumerate(self.steps)), len(self.steps), "steps", most)
        yield from _first((f"  {note}" for note in self.notes), len(self.notes), "notes on aliases", most)
        if self.setup is not None:
            yield "before, when params have changed:"
            yield from self.setup._told(most)

    def _repr_html_(self) -> str:
        places = {slot.vid: self._place(slot) for slot in self.slots.values()}
        return objects.plan(
            {
                "mode": self.mode, "device": self.device, "plan": self.key, "memory": {"arena": self.arena_bytes, "peak": self.peak_bytes},
                "values": [{**v, "place": places[v["vid"]]} for v in values_json(self, self.slots, range(len(self.steps)))],
                "steps": [
                    {"ops": s.region.signature, "kernel": s.kernel_id, "reads": s.in_vids, "writes": s.out_vids,
                     "workspace": (s.workspace.offset, s.workspace.nbytes) if s.workspace else None}
                    for s in self.steps
                ],
            }
        )  # fmt: skip

    def _slot_told(self, slot: Slot) -> str:
        return f"  %{slot.vid} {slot.name}: {slot.spec} ({slot.role}) {self._place(slot)}"

    def _place(self, slot: Slot) -> str:
        if slot.alias_of is not None:
            return f"is %{slot.alias_of}{slot.strided}"
        if slot.offset is not None:
            return f"arena+{slot.offset}"
        return "bound" if slot.role in EXTERNAL else "own"

    # --- JSON -------------------------------------------------------------------------------------------------------

    def to_json(self, indent: int | None = 1) -> str:
        """The plan as text, equal from run to run; `from_json` reads it."""
        return json.dumps(self._data(), indent=indent, sort_keys=True)

    def _data(self) -> dict[str, Any]:
        return {
            "version": PLAN_VERSION,
            "mode": self.mode,
            "device": self.device,
            "slots": [
                {
                    "vid": s.vid,
                    "name": s.name,
                    "shape": list(s.spec.shape),
                    "dtype": s.spec.dtype.name,
                    "role": s.role.value,
                    "offset": s.offset,
                    "alias_of": s.alias_of,
                    "alignment": s.alignment,
                    **({} if s.stride is None else {"start": s.start, "stride": list(s.stride)}),
                }
                for s in self.slots.values()
            ],
            "steps": [
                {
                    "anchor": s.anchor,
                    "last": s.last,
                    "region": s.region.to_json(),
                    "kernel": s.kernel_id,
                    "in": list(s.in_vids),
                    "out": list(s.out_vids),
                    **({"workspace": [s.workspace.offset, s.workspace.nbytes]} if s.workspace else {}),
                }
                for s in self.steps
            ],
            "updates": sorted(self.updates.items()),
            "arena_bytes": self.arena_bytes,
            **({} if self.setup is None else {"setup": self.setup._data()}),
        }

    @classmethod
    def from_json(cls, text: str, registry: KernelRegistry | None = None) -> ExecPlan:
        """Load a plan, if it is one in all that the executor relies on; VerifyError says what is wrong with it.

        With a registry, a kernel id that it does not have is refused by name.
        """
        from .plan_file import parse

        plan = parse(text)
        if registry is not None:
            for id in plan.kernel_ids:
                registry.by_id(id)
        return plan


def values_json(plan: ExecPlan, slots: Mapping[int, Slot], regions: Sequence[int]) -> list[dict[str, Any]]:
    """The values of the plan and its setup; of those in the plan's arena where they lie, and from which region to which one they need
    their place.

    regions   of each step the number
    """
    lives = {vid: [regions[first], regions[last]] for vid, (first, last) in plan.lives.items()}
    return [
        {
            "vid": slot.vid,
            "name": slot.name,
            "type": str(slot.spec),
            "role": slot.role.value,
            "bytes": slot.spec.nbytes,
            **({} if slot.alias_of is None else {"alias_of": slot.alias_of}),
            **({"offset": slot.offset, "life": lives[slot.vid]} if slot.vid in lives else {}),
        }
        for slot in slots.values()
    ]


def _step_told(n: int, step: Step) -> str:
    outs, ins = (", ".join(f"%{v}" for v in vids) for vids in (step.out_vids, step.in_vids))
    scratch = step.workspace
    uses = f"   {scratch.nbytes} B at arena+{scratch.offset}" if scratch else ""
    return f"  {n:3} {outs} = {step.kernel_id or 'view'}({ins})   {step.region.signature}{uses}"


def _first(lines: Iterable[str], count: int, what: str, most: int | None) -> Iterator[str]:
    yield from islice(lines, most)
    if most is not None and count > most:
        yield f"  and {count - most} more {what}: plan.text() has all"


def make_plans(
    graph: Graph, ops: Sequence[LoweredOp], parts: Hoisting, device: DeviceSpec, mode: str, registry: KernelRegistry
) -> ExecPlan:  # fmt: skip
    """The plan of a run, with that of what comes before it. The ops keep their places in the schedule."""
    if not parts.once:
        return make_plan(graph, ops, parts.run, device, mode, registry)
    read = {v for region in parts.once for v in region.in_vids}
    before, run = [], []
    for value in graph.values:
        held = value.role in KEPT
        once, each = copy(value), copy(value)
        if value.vid in parts.kept:
            once.name = each.name = parts.kept[value.vid]
            once.role, each.role = Role.output, Role.state
        elif value.role is not Role.tmp and not (held and value.vid in read):
            once.role = Role.tmp  # it has nothing to do with it
        before.append(once)
        run.append(each)
    returned = [v.vid for v in before if v.role is Role.output]
    first = make_plan(Graph(before, graph.ops, returned=returned), ops, parts.once, device, mode, registry)
    rest = replace(graph, values=run)
    return replace(make_plan(rest, ops, parts.run, device, mode, registry), setup=first)


def make_plan(
    graph: Graph,
    ops: Sequence[LoweredOp],
    regions: Sequence[Region],
    device: DeviceSpec,
    mode: str,
    registry: KernelRegistry,
) -> ExecPlan:
    """Decide storage: aliases from the ops' in-place constraints, then arena offsets from the lifetimes of values and workspaces."""
    aliases, views, notes = resolve_aliases(graph, ops, regions)
    run = [(i, r) for i, r in enumerate(regions) if i not in views and any(t.numel for t in r.spec.results)]
    asked = {i: registry.by_id(r.kernel_id).query_workspace(r.spec, device) for i, r in run}
    needed = {i: nbytes for i, nbytes in asked.items() if nbytes}
    offsets, arena = place(graph, regions, aliases, needed)
    used = {v for r in regions for v in (*r.in_vids, *r.out_vids)}
    used |= {v.vid for v in graph.values if v.role in (Role.input, Role.param, Role.output)}
    used |= {v for pair in graph.updates.items() for v in pair}
    assumed = (
        TensorDesc.dense(TensorSpec(())).alignment if device.kind == "cuda" else 1
    )  # host loops take any pointer
    slots = {
        v.vid: Slot(
            v.vid,
            v.name,
            v.spec,
            v.role,
            offsets.get(v.vid),
            aliases.get(v.vid),
            max(assumed, v.dtype.itemsize) if v.role in EXTERNAL else 0,
            *((view.start, view.stride) if (view := graph.views.get(v.vid)) else ()),
        )
        for v in _in_order(graph)
        if v.vid in used
    }
    steps = tuple(
        Step(
            r.anchor,
            r.last,
            r.spec,
            "" if i in views else r.kernel_id,
            r.in_vids,
            r.out_vids,
            ops[r.anchor].where,
            Workspace(offsets[~i], needed[i]) if i in needed else None,
            tuple(ops[r.anchor : r.last + 1]),
        )
        for i, r in enumerate(regions)
    )
    return ExecPlan(mode, device.name, slots, steps, dict(graph.updates), arena, tuple(notes))


def _in_order(graph: Graph) -> list[Value]:
    """All values; outputs, among the places that they have, in the order in which they are returned."""
    returned = iter(graph.outputs)
    return [next(returned) if v.role is Role.output else v for v in graph.values]
