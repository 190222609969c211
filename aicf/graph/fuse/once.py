"""What is computed once, not in each run: kernels that read nothing but params, states that the graph does not write, and constants.

Regions are formed as if all of them ran each time, and then some are taken out of the run as they are. So a run has the same kernels on
the same operands, and its results the same bits. What the run reads of them is kept; whoever runs the plan makes it before, and again
when something has written a param or a state that it is made of. A map that was fused into its reader stays there: it costs no kernel.

What is kept takes memory for as long as the model lives. It is worth that
    if it is small: at most SMALL bytes,
    else if it is at most GROWTH times as large as what it is made of, and saves EXCHANGE of the run's time for each doubling of what is
    there anyway, weights, inputs and results;
    and all that is kept is no more than a SHARE of the device's memory.
What is made of weights of 8 or 4 bits and larger than they are is not kept on a GPU: they are stored so to take less memory.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...device.spec import DeviceSpec
from ...ir import KEPT, Graph, LoweredOp, Role, Value
from ...ops.schema import VIEW, schema_of
from ...registry.trace import microseconds
from ...types import DType
from .online import Region

SMALL = 1 << 20
GROWTH = 8  # an i8 becomes an f64
EXCHANGE = 0.02
SHARE = 0.25
PREFIX = "const.derived"


@dataclass(frozen=True)
class KeptOnce:
    """What one region makes that the run reads; or could, and is made in each run.

    ops, sources   what is computed; names of the params, states and constants that it is made of
    us             predicted, of the region and of those before it that only it needs
    why_not        why it is made in each run; "" where it is kept
    """

    ops: str
    sources: tuple[str, ...]
    nbytes: int
    us: float
    why_not: str = ""


@dataclass(frozen=True)
class Hoisting:
    """A schedule in two.

    run, once   regions that each run has, and those that it has not
    kept        names of the values that the run reads of the others, by vid
    told        of each region that makes what is kept, and of each that could
    """

    run: tuple[Region, ...]
    once: tuple[Region, ...]
    kept: Mapping[int, str] = field(default_factory=dict)
    told: tuple[KeptOnce, ...] = ()


def fixed_values(graph: Graph, weights: Collection[str] = ()) -> set[int]:
    """Values that are the same in each run, as long as nobody writes a param or a state, before any region is formed.

    weights  names of inputs that count as params
    """
    fixed = {v.vid for v in graph.externals(*KEPT) if _is_source(graph, v)}
    fixed |= {v.vid for v in graph.externals(Role.input) if v.name in weights}
    written = set(graph.updates.values())
    for op in graph.ops:
        alias = any(how == "must" for _, how in op.constraints.get("alias", {}).values())
        if not alias and written.isdisjoint(op.outputs) and all(v < 0 or v in fixed for v in op.inputs):
            fixed.update(op.outputs)
    return fixed


def _is_source(graph: Graph, value: Value) -> bool:
    """Meta-parameters and sessions change from run to run."""
    if value.role is Role.fault or value.vid in graph.updates:
        return False
    return not (value.meta or value.session)


def split(graph: Graph, ops: Sequence[LoweredOp], regions: Sequence[Region], device: DeviceSpec) -> Hoisting:
    """The regions of a run, and those that need not be in it."""
    return _Splitter(graph, ops, regions, device).split()


class _Splitter:
    def __init__(
        self, graph: Graph, ops: Sequence[LoweredOp], regions: Sequence[Region], device: DeviceSpec
    ) -> None:
        self.graph, self.values, self.ops, self.regions, self.device = (
            graph,
            graph.values,
            ops,
            regions,
            device,
        )
        self.maker = {vid: i for i, r in enumerate(regions) for vid in r.out_vids}
        self.readers: dict[int, set[int]] = {}
        for i, region in enumerate(regions):
            for vid in region.in_vids:
                self.readers.setdefault(vid, set()).add(i)
        self.views = {i for i, r in enumerate(regions) if self._is_view(r)}
        self.total_us = math.fsum(r.selection.chosen.us for i, r in enumerate(regions) if i not in self.views)
        # without the arena, which is laid out when it is known what runs
        self.total_bytes = sum(v.spec.nbytes for v in graph.values if v.role is not Role.tmp)
        self.origins: dict[int, list[int]] = {}
        self.digests: dict[int, str] = {}
        self.barred: set[int] = set()
        # with the regions before each that were there for nothing else
        self.refused: dict[int, tuple[KeptOnce, set[int]]] = {}

    def split(self) -> Hoisting:
        once = self._all()
        while drop := self._not_worth(once) or self._too_many(once):
            self.barred |= drop
            once = self._all()
        within = set[int]().union(*(found for _, found in self.refused.values()))
        refused = [told for i, (told, _) in self.refused.items() if i not in within]
        if not once:
            return Hoisting(tuple(self.regions), (), told=tuple(refused))
        kept: dict[int, str] = {}
        for vid in [v for i in sorted(once) for v in self._read_later(i, once)]:
            name, count = self._name(vid), 0
            while (own := f"{name}.{count}" if count else name) in kept.values():
                count += 1  # the graph says it twice
            kept[vid] = own
        told = [self._told(i, once) for i in sorted(once)]
        return Hoisting(
            tuple(r for i, r in enumerate(self.regions) if i not in once), tuple(self.regions[i] for i in sorted(once)), kept,
            (*(one for one in told if one.nbytes), *refused),
        )  # fmt: skip

    # --- which could be ---------------------------------------------------------------------------------------------

    def _all(self) -> set[int]:
        """Regions that need not be in a run, without those that are barred and what reads them."""
        fixed = {v.vid for v in self.graph.externals(*KEPT) if _is_source(self.graph, v)}
        lies = set(self.graph.views) | {view.base for view in self.graph.views.values()}
        written = set(self.graph.updates.values())
        once = set()
        for i, region in enumerate(self.regions):
            vids = {*region.in_vids, *region.out_vids}
            if i in self.barred or not fixed.issuperset(region.in_vids) or not lies.isdisjoint(vids):
                continue
            if any(self._has_effects(op) for op in self.ops[region.anchor : region.last + 1]):
                continue
            results = [self.values[v] for v in region.out_vids]
            if any(v.role is not Role.tmp or v.vid in written or not v.spec.numel for v in results):
                continue
            once.add(i)
            fixed.update(region.out_vids)
        return self._without_loose_views(once)

    def _without_loose_views(self, once: set[int]) -> set[int]:
        """A view is no kernel: it stands where it is read. What a run reads of one, and what then reads it, is in the run."""
        while loose := {i for i in once & self.views if self._read_later(i, once)}:
            self.barred |= loose
            once = self._all()
        return once

    @staticmethod
    def _has_effects(op: LoweredOp) -> bool:
        alias = op.constraints.get("alias", {}).values()
        return bool(op.constraints.get("sync")) or any(how == "must" for _, how in alias)

    def _is_view(self, region: Region) -> bool:
        return region.anchor == region.last and VIEW in schema_of(self.ops[region.anchor].kind).traits

    def _read_later(self, i: int, once: set[int]) -> list[int]:
        """The results of a region that a run reads."""
        return [v for v in self.regions[i].out_vids if self.readers.get(v, set()) - once]

    # --- which are worth it -----------------------------------------------------------------------------------------

    def _not_worth(self, once: set[int]) -> set[int]:
        found = set()
        for i in sorted(once):
            told = self._told(i, once)
            if not told.nbytes:
                continue
            if why := self._why_not(told, i):
                self._refuse(i, once, why)
                found.add(i)
        return found

    def _why_not(self, told: KeptOnce, i: int) -> str:
        if told.nbytes <= SMALL:
            return ""
        made_of = sum(self.values[v].spec.nbytes for v in self._sources(i))
        if (
            told.nbytes > made_of
            and self.device.kind == "cuda"
            and any(map(self._are_codes, self._sources(i)))
        ):
            return "it is made of codes, which are there to take less memory"
        if told.nbytes > GROWTH * made_of:
            return f"{told.nbytes / max(made_of, 1):.0f} times what it is made of"
        time, memory = told.us / self.total_us, told.nbytes / self.total_bytes
        if time < EXCHANGE * memory:
            return f"it would save {time:.2%} of the time for {memory:.0%} more memory"
        return ""

    def _are_codes(self, vid: int) -> bool:
        """Numbers of 8 bits or fewer, of a size that matters."""
        spec = self.values[vid].spec
        return spec.dtype in (DType.i8, DType.u8) and spec.nbytes > SMALL // GROWTH

    def _too_many(self, once: set[int]) -> set[int]:
        """The one that saves least for its memory, where all together take too much of the device's."""
        kept = {i: told for i in once if (told := self._told(i, once)).nbytes}
        room = SHARE * self.device.memory_bytes
        if not room or sum(told.nbytes for told in kept.values()) <= room:
            return set()
        worst = min(kept, key=lambda i: (kept[i].us / kept[i].nbytes, -i))
        self._refuse(worst, once, f"there is room for {sized(int(room))}")
        return {worst}

    def _refuse(self, i: int, once: set[int], why: str) -> None:
        told = replace(self._told(i, once), why_not=why)
        self.refused[i] = told, {*self._alone(i, once)} - {i}

    # --- in words and as a name ---------------------------------------------------------------------------------------

    def _sources(self, i: int) -> list[int]:
        """What comes from outside, of a region and those before it, in order."""
        if i not in self.origins:
            found: dict[int, None] = {}
            for vid in self.regions[i].in_vids:
                found.update(dict.fromkeys(self._sources(self.maker[vid]) if vid in self.maker else [vid]))
            self.origins[i] = list(found)
        return self.origins[i]

    def _told(self, i: int, once: set[int]) -> KeptOnce:
        kernels = [self.regions[n] for n in self._alone(i, once) if n not in self.views]
        return KeptOnce(
            " + ".join(region.spec.signature for region in kernels),
            tuple(self.values[v].name for v in self._sources(i)),
            sum(self.values[v].spec.nbytes for v in self._read_later(i, once)),
            math.fsum(region.selection.chosen.us for region in kernels),
        )

    def _alone(self, i: int, once: set[int]) -> list[int]:
        """A region and those before it that are there for nothing else, in order."""
        found, waiting = {i}, {self.maker[v] for v in self.regions[i].in_vids if v in self.maker}
        while waiting:
            n = max(waiting)  # all who read it are known
            waiting.remove(n)
            readers = set[int]().union(*(self.readers.get(v, set()) for v in self.regions[n].out_vids))
            if n in once and readers <= found:
                found.add(n)
                waiting |= {self.maker[v] for v in self.regions[n].in_vids if v in self.maker}
        return sorted(found)

    def _name(self, vid: int) -> str:
        """By how it is made, kernels included: plans that keep the same have the same name for it."""
        kinds = "_".join(op.kind.name for op in self.regions[self.maker[vid]].spec.ops[:3])
        return f"{PREFIX}.{kinds}.{self._digest(vid)}"

    def _digest(self, vid: int) -> str:
        if vid not in self.maker:
            return self.values[vid].name
        if vid not in self.digests:
            region = self.regions[self.maker[vid]]
            made_of = [self._digest(v) for v in region.in_vids]
            told = [region.kernel_id, region.spec.to_json(), made_of, region.out_vids.index(vid)]
            text = json.dumps(told, sort_keys=True).encode()
            self.digests[vid] = hashlib.blake2s(text, digest_size=8).hexdigest()
        return self.digests[vid]


def sentences(told: Sequence[KeptOnce]) -> list[str]:
    """`derived once: transpose(fc.weight) 3.1 MB, 12.3 us of each run`; those of the same ops in one line."""
    groups: dict[tuple[str, str], list[KeptOnce]] = {}
    for one in told:
        groups.setdefault((one.ops, one.why_not), []).append(one)
    lines = []
    for (ops, why_not), ones in groups.items():
        what = f"{ops}({_some(ones[0].sources)})" + (f" and {len(ones) - 1} more" if len(ones) > 1 else "")
        size, us = sized(sum(one.nbytes for one in ones)), microseconds(math.fsum(one.us for one in ones))
        if why_not:
            lines.append(f"in each run: {what} {size}, {us}: {why_not}")
        else:
            lines.append(f"derived once: {what} {size}, {us} less a run")
    return lines


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def sized(nbytes: int) -> str:
    """`3.1 MB`."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B"
