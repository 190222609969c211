"""The attribute rows: one small lattice each. An op fills the rows it has something to say about; composing joins.

`join(mine, theirs)` gives the row of the longer region, or a Conflict, which is data: the row and both values. Rows that are
absent are neutral. `linearity`, `access`, `dtype`, `round`, `avail` and `effects` are join-semilattices, conflicts apart. Order counts
in the others: `program` is a word that grows at its end, and with it grow `core`, `slot`, `epilogue` and `domain`; `escape` is what the
last op says; `recompute` is counted for the whole region and never joined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from ..types import DType

LENGTH_LIMIT = 64  # steps: an op, or several side by side
MAP = "map"  # the core value of map ops: see ops/constraints.py
REDUCE = "reduce"  # the core of reductions
OVER_ROWS = "rows"  # the structure of regions with several, or with maps over the whole rows behind one

Attributes = Mapping[str, Any]
EMPTY: Attributes = MappingProxyType({})


@dataclass(frozen=True)
class Conflict:
    """Why two values of a row have no join. `trigger` is one of conflict, barrier, limit, sync, view."""

    row: str
    left: str
    right: str
    trigger: str = "conflict"

    def __str__(self) -> str:
        return f"{self.row}: {self.left} meets {self.right}"


class Row:
    """A row that has no opinion but the union of both sides: sets of names. Subclasses say what else joining means."""

    name = ""
    neutral: Any = None  # what a row that is absent stands for, where that may have no join with others

    def join(self, mine: Any, theirs: Any) -> Any:
        return mine | theirs

    def text(self, value: Any) -> str:
        return " ".join(sorted(map(str, value))) if isinstance(value, frozenset) else str(value)


class ProgramRow(Row):
    """The steps in order, each an op or several side by side. It is the meaning; the other rows only index it."""

    name = "program"

    def join(self, mine: tuple[str, ...], theirs: tuple[str, ...]) -> Any:
        if len(mine) + len(theirs) > LENGTH_LIMIT:
            return Conflict(self.name, f"{len(mine)} steps", f"the limit of {LENGTH_LIMIT}", "limit")
        return mine + theirs

    def text(self, value: tuple[str, ...]) -> str:
        return " + ".join(value)


class CoreName(str):
    """The op, or several, that a kernel is built around.

    core      what it needs: the core of its schema; "" of several
    reduces   kernels over rows take any number of these
    epilogue_reduction_of  cores whose fused epilogue reduction it may be
    """

    __slots__ = ("core", "epilogue_reduction_of", "reduces")
    core: str
    reduces: bool
    epilogue_reduction_of: frozenset[str]

    def __new__(
        cls,
        text: str,
        core: str = "",
        reduces: bool = False,
        epilogue_reduction_of: frozenset[str] = frozenset(),
    ) -> CoreName:
        name = super().__new__(cls, text)
        name.core, name.reduces, name.epilogue_reduction_of = core, reduces, epilogue_reduction_of
        return name


class CoreRow(Row):
    """The op that a kernel is built around, if any: a product, reductions, or one that nothing else fuses to."""

    name = "core"

    def join(self, mine: CoreName, theirs: CoreName) -> Any:
        both = f"{mine} + {theirs}"
        if mine.core in theirs.epilogue_reduction_of:
            return CoreName(both)
        if mine.reduces and theirs.reduces:
            return CoreName(both, reduces=True)
        return Conflict(self.name, str(mine), str(theirs))


class LinearityRow(Row):
    """Nonlinear absorbs linear: what may no longer be moved across a product."""

    name = "linearity"

    def join(self, mine: str, theirs: str) -> str:
        return "nonlinear" if "nonlinear" in (mine, theirs) else mine


def over_rows(parts: Collection[str], theirs: str) -> bool:
    """Whether a region of these parts and one more is passes over rows: a second reduction, or whatever goes on with such a region."""
    some = {*parts, theirs}
    return some <= {MAP, REDUCE, OVER_ROWS} and (OVER_ROWS in some or (theirs == REDUCE and REDUCE in parts))


class SlotRow(Row):
    """Where the region stands in the schemas of kernels: its structure. What is dead for all candidates ends the region."""

    name = "slot"

    def join(self, mine: str, theirs: str) -> str:
        if theirs == MAP and mine.endswith(MAP):
            return mine
        return OVER_ROWS if over_rows(mine.split("+"), theirs) else f"{mine}+{theirs}"


class EpilogueRow(Row):
    """What stands around a core, by name: flags, which OR, and activations in order. An index; the program is the meaning.

    Activations are appended, never replaced.
    """

    name = "epilogue"

    def join(self, mine: Around, theirs: Around) -> Around:
        return Around(mine.flags | theirs.flags, mine.activations + theirs.activations)


@dataclass(frozen=True)
class Around:
    flags: frozenset[str] = frozenset()  # bias, scale, dropout, residual
    activations: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([*sorted(self.flags), *self.activations])


class Domain(NamedTuple):
    """The points that the region's last part is computed at.

    shape    its extents; of a horizontal region, those of the last part
    phase    how many cores lie behind
    parts    independent domains of more than one shape, side by side
    reads    of an op: whether it reads a value of the region
    source   of a core: the extents of its operand, if it is made elementwise from others in the same place
    reduces  the cores that lie behind are reductions
    wide     behind them ops went on over other extents than theirs, such as whole rows again
    within   of a reshape: the extents of its operand, whose elements it has in the same order
    """

    shape: tuple[int, ...]
    phase: int = 0
    parts: int = 1
    reads: bool = True
    source: tuple[int, ...] | None = None
    reduces: bool = False
    wide: bool = False
    within: tuple[int, ...] | None = None

    def __str__(self) -> str:
        text = f"({', '.join(map(str, self.shape))})" if self.parts == 1 else f"{self.parts} domains"
        return text + (" after the core" if self.phase and not self.source else "")


class DomainRow(Row):
    """Extents unify through the ways operands are read: equal, or reshaped; before any core and after reductions, any."""

    name = "domain"

    def join(self, mine: Domain, theirs: Domain) -> Any:
        if theirs.source is not None:
            if mine.parts == 1 and (mine.shape == theirs.source or mine.reduces):
                reduces = theirs.reduces and (mine.reduces or not mine.phase)
                wide = theirs.reduces and (mine.wide or theirs.wide or mine.shape != theirs.source)
                return Domain(theirs.shape, mine.phase + 1, reduces=reduces, wide=wide)
            return self._conflict(mine, f"({', '.join(map(str, theirs.source))}) of the core's operand")
        if mine.parts == theirs.parts == 1 and mine.shape == theirs.shape:
            return Domain(mine.shape, mine.phase, reduces=mine.reduces, wide=mine.wide)
        if mine.parts == theirs.parts == 1 and theirs.within == mine.shape:
            return Domain(theirs.shape, mine.phase, reduces=mine.reduces, wide=mine.wide)
        if mine.parts == theirs.parts > 1:  # each goes on in its own
            return Domain(theirs.shape, 0, mine.parts)
        if mine.reduces and theirs.reads:
            return Domain(theirs.shape, mine.phase, reduces=True, wide=True)
        moves = mine.parts == theirs.parts == 1 and theirs.reads and not mine.phase
        return Domain(theirs.shape) if moves else self._conflict(mine, str(theirs))

    def _conflict(self, mine: Domain, theirs: str) -> Conflict:
        return Conflict(self.name, str(mine), theirs)


_INTEGERS = sorted((t for t in DType if t.kind == "int"), key=lambda t: t.itemsize)
_PROMOTED = (DType.bool, *_INTEGERS, DType.f32, DType.f64)  # compute types


class DtypeRow(Row):
    """The compute type, promoted; operand types never promote. Numbers of two sorts need a convert between them."""

    name = "dtype"

    def join(self, mine: tuple[DType, bool], theirs: tuple[DType, bool]) -> Any:
        (a, _), (b, linked) = mine, theirs
        if not linked and {a.kind, b.kind} == {"int", "float"}:
            return Conflict(self.name, str(a), f"{b} without a convert")
        return max(a, b, key=_PROMOTED.index), True

    def text(self, value: tuple[DType, bool]) -> str:
        return str(value[0])


@dataclass(frozen=True)
class Effect:
    """What an op does to memory, and how it reads it. Values are known by their place in the region.

    writes     written in place
    scattered  read elsewhere than in the place of the result, or, by a core, until it is done
    core       the op that reads so, if it is one
    """

    writes: frozenset[int] = frozenset()
    scattered: frozenset[int] = frozenset()
    rng: bool = False
    sync: bool = False
    core: str = ""

    def __str__(self) -> str:
        words = [f"writes {len(self.writes)} in place"] * bool(self.writes) + ["random"] * self.rng
        return ", ".join(words)


class EffectsRow(Row):
    """Side effects are sticky. A write in place conflicts with reads of the same storage from other places."""

    name, neutral = "effects", Effect()  # a sync point ends regions of pure ops, too

    def join(self, mine: Effect, theirs: Effect) -> Any:
        if theirs.sync:
            return Conflict(self.name, "the ops before", "an explicit sync point", "sync")
        for writer, reader in ((mine, theirs), (theirs, mine)):
            if writer.writes & reader.scattered:
                read = (
                    f"{reader.core}, a core: all before it may be read until it is done"
                    if reader.core
                    else "a read of it from elsewhere"
                )
                return Conflict(self.name, "a write in place", read, "barrier")
        if mine.writes & theirs.writes:
            return Conflict(self.name, "a write in place", "another of the same storage", "barrier")
        return Effect(
            mine.writes | theirs.writes, mine.scattered | theirs.scattered, mine.rng | theirs.rng,
            core=mine.core or theirs.core,
        )  # fmt: skip


class RoundRow(Row):
    """Whether some value inside is rounded, though the compute type would hold more: stored, converted, or compared."""

    name = "round"

    def join(self, mine: str, theirs: str) -> str:
        return "must" if "must" in (mine, theirs) else "free"


class AvailRow(Row):
    """Alignment in bytes that every pointer has; what vector widths are had from."""

    name = "avail"

    def join(self, mine: int, theirs: int) -> int:
        return min(mine, theirs)


class RecomputeRow(Row):
    """Flops done again because a value is repeated across a greater domain. A cost, never a conflict.

    No op brings it, so it is never joined: composing an op counts it for the region (graph/fuse/compose.py), and traces show it.
    """

    name = "recompute"


class AccessRow(Row):
    """How operands are read: in place, broadcast, by index; transposed or strided by a core."""

    name = "access"


class EscapeRow(Row):
    """Intermediates that something outside reads too. Exact at the flush only: a later op may be the last reader."""

    name = "escape"

    def join(self, mine: int, theirs: int) -> int:
        return theirs


ROWS: tuple[Row, ...] = (
    EffectsRow(), ProgramRow(), CoreRow(), LinearityRow(), SlotRow(), EpilogueRow(), DomainRow(), AccessRow(), DtypeRow(), RoundRow(), AvailRow(), EscapeRow(),
    RecomputeRow(),
)  # fmt: skip
HARD = frozenset({"effects", "program"})  # whatever a kernel takes, a region ends at a conflict of these


SIZED = frozenset({"domain", "recompute"})  # all other rows follow from a region's form
_SIZED_ROWS = [row for row in ROWS if row.name in SIZED]
_UNSIZED_ROWS = [row for row in ROWS if row.name not in SIZED]
_PLACE = {row.name: n for n, row in enumerate(ROWS)}


class Joined(NamedTuple):
    """Rows of the longer region, as far as they have a join; and the first hard Conflict, else the first Conflict."""

    rows: Attributes
    conflict: Conflict | None

    @property
    def hard(self) -> bool:
        return self.conflict is not None and self.conflict.row in HARD


def join_unsized(mine: Attributes, theirs: Attributes) -> Joined:
    """The rows that sizes have no part in: the same for all regions of one form."""
    return _joined(mine, theirs, _UNSIZED_ROWS)


def join(mine: Attributes, theirs: Attributes, known: Joined | None = None) -> Joined:
    """All rows. `known`: the unsized ones, if they were joined for a region of the same form."""
    known = known or join_unsized(mine, theirs)
    if known.hard:
        return Joined(mine, known.conflict)
    sized = _joined(mine, theirs, _SIZED_ROWS)
    found = [c for c in (known.conflict, sized.conflict) if c is not None]
    first = min(found, key=lambda c: _PLACE[c.row]) if found else None
    return Joined({**mine, **known.rows, **sized.rows}, first)


def _joined(mine: Attributes, theirs: Attributes, rows: Iterable[Row]) -> Joined:
    """In the order of the rows."""
    joined, conflict = {}, None
    for row in rows:
        if row.name not in theirs:
            continue
        value, before = theirs[row.name], mine.get(row.name, row.neutral)
        if before is not None:
            value = row.join(before, value)
            if isinstance(value, Conflict):
                if row.name in HARD:
                    return Joined(EMPTY, value)
                conflict = conflict or value
                continue
        joined[row.name] = value
    return Joined(joined, conflict)
