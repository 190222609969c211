"""Where does the choice change with a size? Plans are made at powers of two, and between two that differ the places are found by bisection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ...errors import AicfError
from ..fuse import Region

ALIGNED = 16  # sizes that are multiples of it have whatever alignment does for a kernel
MOST = 2**31 - 1


class Chosen(NamedTuple):
    """A region of a plan: its ops and the kernel that was chosen for them."""

    ops: tuple[str, ...]
    kernel: str


@dataclass(frozen=True)
class SizedPlan:
    """What was chosen at one size, and how long a run is predicted to take; `free_us`: without invariant rows, where the plan has them."""

    size: int
    us: float
    regions: tuple[Chosen, ...]
    free_us: float | None = None


@dataclass(frozen=True)
class SizeRange:
    """Sizes from `first` to `last` with one plan.

    every    the plan is that of multiples of this number; `between` is that of a size between them
    """

    first: SizedPlan
    last: SizedPlan
    end: int
    every: int = 1
    between: SizedPlan | None = None


@dataclass
class PlansBySize:
    """Plans by size, each made once."""

    make: Callable[[int], tuple[float, Sequence[Region], float | None]]
    plans: dict[int, SizedPlan] = field(default_factory=dict)

    def at(self, size: int) -> SizedPlan:
        if size not in self.plans:
            us, regions, free_us = self.make(size)
            chosen = tuple(Chosen(tuple(op.kind.name for op in r.spec.ops), r.kernel_id) for r in regions)
            self.plans[size] = SizedPlan(size, us, chosen, free_us)
        return self.plans[size]

    def same(self, one: int, other: int) -> bool:
        return self.at(one).regions == self.at(other).regions


def ranges(asked: PlansBySize, first: int, last: int) -> list[SizeRange]:
    """The sizes from first to last, cut where the plan changes."""
    corners = sorted({first, last, *(2**n for n in range(32) if first < 2**n < last)})
    starts = [first]
    between: dict[int, int] = {}  # a size with a plan of its own, and the multiples that it lies between
    for low, high in pairwise(corners):
        every, odd = _every(asked, low, high)
        if odd is not None:
            between[odd] = every
        starts += _switches(asked, low, high, every)
    made = []
    for start, following in zip(starts, [*starts[1:], last + 1]):
        inside = [size for size in sorted(asked.plans) if start <= size < following]
        upto = max(size for size in inside if asked.same(size, start))
        odd = next((size for size in inside if size in between and not asked.same(size, start)), None)
        every, other = (1, None) if odd is None else (between[odd], asked.at(odd))
        made.append(SizeRange(asked.at(start), asked.at(upto), following - 1, every, other))
    return made


def _switches(asked: PlansBySize, low: int, high: int, every: int) -> list[int]:
    """Sizes in (low, high] at which another plan begins than that of the size before; in steps of `every`, looked for by halves."""
    if high - low <= every:
        return [] if asked.same(low, high) else [high]
    middle = low + (high - low) // (2 * every) * every
    middle = middle if low < middle < high else low + every
    if asked.same(low, high) and asked.same(low, middle):
        return []
    return _switches(asked, low, middle, every) + _switches(asked, middle, high, every)


def _every(asked: PlansBySize, low: int, high: int) -> tuple[int, int | None]:
    """The multiples in this interval that have the plan of those of 16 around them; and a size between them that has another."""
    middle = (low + high) // 2 // ALIGNED * ALIGNED
    if low % ALIGNED or high - low < 2 * ALIGNED or not low < middle < high:
        return 1, None
    after = min(middle + ALIGNED, high)
    around = {asked.at(s).regions for s in (low, middle, after, high)}
    between = None
    for every in (1, 2, 4, 8):
        if asked.at(middle + every).regions in around:
            return every, between
        between = middle + every
    return ALIGNED, between


def differing(before: Sequence[Chosen], now: Sequence[Chosen]) -> list[str]:
    """What is chosen otherwise: `gemm + relu: a → b`; of plans of other ops, which kernels came and went."""
    if [op for c in before for op in c.ops] != [op for c in now for op in c.ops]:
        had, have = Counter(c.kernel for c in before), Counter(c.kernel for c in now)
        gone, new = had - have, have - had
        return [f"without {_counted(gone)}"] * bool(gone) + [f"with {_counted(new)}"] * bool(new)
    found, i, j = [], 0, 0
    while i < len(before):
        a, b = i, j
        i, j = i + 1, j + 1
        while (left := _count(before[a:i])) != (right := _count(now[b:j])):
            i, j = i + (left < right), j + (left > right)
        if before[a:i] != now[b:j]:
            ops = " + ".join(op for c in before[a:i] for op in c.ops)
            found.append(f"{ops}: {_kernels(before[a:i])} → {_kernels(now[b:j])}")
    return found


def _count(regions: Iterable[Chosen]) -> int:
    return sum(len(c.ops) for c in regions)


def _kernels(regions: Iterable[Chosen]) -> str:
    return ", ".join(c.kernel for c in regions)


def _counted(kernels: Counter[str]) -> str:
    return ", ".join(name if n == 1 else f"{n} × {name}" for name, n in kernels.items())


# --- what is asked for ------------------------------------------------------------------------------------------------


def parsed(text: str) -> tuple[str | None, tuple[int, ...], bool]:
    """(the dimension if it is named, sizes, whether all between the two are meant) of `1..4096`, `1,8,64`, `seq=1..4096`."""
    name, equals, sizes = text.rpartition("=")
    parts = sizes.split("..") if ".." in sizes else sizes.split(",")
    numbers = tuple(int(part) if part.strip().isdecimal() else 0 for part in parts)
    through = ".." in sizes
    if (
        not all(1 <= n <= MOST for n in numbers)
        or (equals and not name)
        or (through and (len(numbers) != 2 or numbers[0] >= numbers[1]))
    ):
        raise AicfError(
            f"{text!r} names no sizes", expected="1..4096, or 1,8,64; for another dimension than batch its name first: seq=1..4096",
            hint='--batch 1..4096; in Python aicf.explain_over(model, device, "1..4096")',
        )  # fmt: skip
    return name or None, numbers, through


def dimension(name: str | None, known: Iterable[str]) -> str:
    """The dimension that is meant: the named one, `batch`, or the only one there is."""
    dims = sorted(known)
    if name is None:
        name = "batch" if "batch" in dims else dims[0] if len(dims) == 1 else None
    if name not in dims:
        what = f"no input has a dimension called {name!r}" if name else "which of the dimensions is not said"
        raise AicfError(
            what, expected=" or ".join(dims) or "a model with a named dimension: every size of this one is fixed",
            hint=f'--batch {dims[0]}=1..4096; in Python aicf.explain_over(model, device, "{dims[0]}=1..4096")' if dims else 'aicf.TensorSpec(("batch", 64)) names one',
        )  # fmt: skip
    return name
