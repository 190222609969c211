"""The schedule: a topological order in which producers stand next to the consumers that can fuse to them.

Regions are intervals of the schedule, so what is to become one kernel has to be neighbours. The order is found greedily: an
op that continues the open run comes next, else the earliest one that is ready. An op is brought forward by few ops alone, and one that only widens just with
what reads it: whatever is made early is kept until then. Every choice is by the ops' first order, so
equal graphs give equal schedules in every process. What the order must hold to, beside the values:

    storage       an op that writes a tensor in place stays on its side of whatever else reads that tensor or a view of it
    side effects  ops that write in place keep their order among each other
    fences        an op with `constraints["sync"]` stays where it is, and nothing moves across it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any

from ...ir import Graph, LoweredOp
from ...ops.schema import MAP, VIEW, schema_of
from ...rows.cores import declared

LOOK_AHEAD = 16  # ops of a run that are looked at before it begins, and ops that are moved ahead of it
REACH = 32  # ops that one is brought ahead of: what a backward pass alone reads is not made, and kept, in the forward pass
FAN = 8  # readers of one value that are looked at


def schedule(ops: Sequence[LoweredOp], graph: Graph) -> list[LoweredOp]:
    """The ops, each once. Their order is kept unless one is found in which more neighbours can fuse.

    Deterministic; a schedule is its own schedule. Near linear: heaps of what is ready, and bounded looks ahead.
    """
    kept = {v.vid for v in graph.outputs} | set(graph.updates.values())
    facts = _facts(ops, graph, kept)
    fences = [i for i, fact in enumerate(facts) if fact.op.constraints.get("sync")]
    return [f.op for a, b in pairwise([0, *fences, len(facts)]) for f in _improved(facts[a:b])]


def _improved(facts: list[_Fact]) -> list[_Fact]:
    """The greedy order of the greedy order, and so on, while each has more neighbours than the last."""
    problem = _ScheduleProblem(facts)
    run = _Run(problem)
    neighbours = sum([run.take(i) for i in range(len(facts))])
    while True:
        greedy = _Greedy(problem)
        order = list(greedy)
        if greedy.neighbours <= neighbours:
            return problem.facts
        problem, neighbours = _ScheduleProblem([problem.facts[i] for i in order]), greedy.neighbours


# --- ops and their dependences ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fact:
    """What the order asks of an op. Storage: of a value, the first value that lives there."""

    op: LoweredOp
    core: str  # as in its schema: "map", or what it needs a kernel for; "view" of one that needs none
    shape: tuple[int, ...]  # of its first result
    within: tuple[int, ...]  # the same; of a view, of its operand
    source: int  # elements of its first operand
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    touches: frozenset[int]  # storage that is written in place somewhere, and that this op reads or writes
    writes: frozenset[int]  # storage that it writes in place: a side effect
    widens: bool  # whether it is nothing but a conversion to a wider type
    escapes: bool  # whether a result outlives the run, or has several readers
    family: tuple[Any, ...]  # what ops share that are to become one launch side by side


def _facts(ops: Sequence[LoweredOp], graph: Graph, kept: set[int]) -> list[_Fact]:
    storage: dict[int, int] = {}
    written: list[frozenset[int]] = []
    for op in ops:
        aliases: Mapping[int, tuple[int, str]] = op.constraints.get("alias", {})
        view = bool(aliases) and VIEW in schema_of(op.kind).traits
        here = set()
        for result, (operand, how) in aliases.items():
            if how == "must" or view:
                source = op.in_vids[operand]
                storage[op.out_vids[result]] = at = storage.get(source, source)
                if how == "must":
                    here.add(at)
        written.append(frozenset(here))
    shared = frozenset().union(*written)
    readers = Counter([v for op in ops for v in op.in_vids])
    facts, values = [], graph.values
    for op, writes in zip(ops, written):
        reads, schema = tuple(dict.fromkeys([v for v in op.in_vids if v >= 0])), schema_of(op.kind)
        shape = values[op.out_vids[0]].spec.shape if op.out_vids else ()
        facts.append(
            _Fact(
                op,
                "view" if op.constraints.get("view") else schema.core,
                shape,
                values[reads[0]].spec.shape if VIEW in schema.traits else shape,
                values[reads[0]].spec.numel if reads else 0,
                reads,
                op.out_vids,
                writes.union([at for at in [storage.get(v, v) for v in reads] if at in shared]),
                writes,
                schema.name == "convert" and _widens(op, graph),
                any(v in kept or readers[v] > 1 for v in op.out_vids),
                (op.kind_id, op.attr_blob),
            )
        )
    return facts


def _widens(op: LoweredOp, graph: Graph) -> bool:
    before, after = (graph.values[v].dtype.itemsize for v in (op.in_vids[0], op.out_vids[0]))
    return after > before


class _ScheduleProblem:
    """Ops between two fences, by position: which must come before which."""

    def __init__(self, facts: list[_Fact]) -> None:
        self.facts = facts
        self.readers: dict[int, list[int]] = {}
        for i, fact in enumerate(facts):
            for vid in fact.reads:
                self.readers.setdefault(vid, []).append(i)
        steps = Counter(fact.family for fact in facts if fact.writes)
        self.families = frozenset(family for family, count in steps.items() if count > 1)
        self.before = self._dependences()

    def _dependences(self) -> list[set[int]]:
        maker: dict[int, int] = {}
        writer: dict[int, int] = {}  # storage -> who wrote it last
        since: dict[int, list[int]] = {}  # storage -> who read it since
        effect = -1
        before = []
        for i, fact in enumerate(self.facts):
            needs = {maker[v] for v in fact.reads if v in maker}
            for at in fact.touches:
                needs.update([writer[at]] if at in writer else [])
                if at in fact.writes:
                    needs.update(since.pop(at, ()))
                    writer[at] = i
                else:
                    since.setdefault(at, []).append(i)
            if fact.writes:
                needs.update([effect] if effect >= 0 else [])
                effect = i
            if i and self.facts[0].op.constraints.get("sync"):
                needs.add(0)
            maker.update(dict.fromkeys(fact.makes, i))
            before.append(needs)
        return before


class _Run:
    """Ops that stand one after the other and could be one region, as far as cores and shapes tell.

    core    what it is built around so far: "map" for nothing, "" if nothing can join
    shape   what a map must make to join; values: what it must read, with whether a map made it; late: those that come from
            reductions; seen: all that its ops read or made; whole: elements of what its first reduction reads
    """

    def __init__(self, problem: _ScheduleProblem) -> None:
        self.problem = problem
        self.core, self.escapes = "", False
        self.shape: tuple[int, ...] = ()
        self.values: dict[int, bool] = {}
        self.late: set[int] = set()
        self.seen: set[int] = set()
        self.whole = 0
        self.last: _Fact | None = None

    def rank(self, i: int) -> int | None:
        """Whether op i can stand next: None, or the lower, the rather. Who reads the last op goes first, maps before others.

        A reduction may follow on a map of any run: if the core before that map did not take it, they are one region.
        """
        fact, last = self.problem.facts[i], self.last
        if last is None:
            return None
        if (
            fact.writes and fact.family in self.problem.families
        ):  # side by side with its like, not behind a producer
            alike = (
                last.writes and last.family == fact.family and not set(last.makes).intersection(fact.reads)
            )
            return 0 if alike else None
        read = [v for v in fact.reads if v in self.values]
        if not read:
            return None
        if fact.core == MAP:
            again = (
                self.core == MAP and not self.escapes
            )  # over a greater domain: computed again at each point
            fits = again or self.shape == fact.within or self._over_rows(fact)
        else:
            fits = self._takes(fact, read)
        return 2 * (not set(last.makes).intersection(read)) + (fact.core != MAP) if fits else None

    def _takes(self, fact: _Fact, read: list[int]) -> bool:
        """Whether a core may stand next: behind maps that it inlines, other reductions, or a core that takes reductions along."""
        core, mine = declared(fact.core), declared(self.core)
        if core is None or core.prologue is None:
            return False
        if core.reduces:  # what a reduction leaves of rows, the next reduces along other axes
            along = bool(mine and mine.epilogue_reduction) and not core.wide
            return along or self.values[read[0]] or (read[0] in self.late and fact.source == self.whole)
        return self.core == MAP and read == [fact.op.in_vids[core.prologue]]

    def _over_rows(self, fact: _Fact) -> bool:
        """A map over whole rows again: of what reductions left, and of what they came from. A number for all, such as a norm of
        gradients, is no reason to join: what reads it is better side by side with others that do."""
        late, others = self.late.intersection(fact.reads), set(fact.reads) - self.late
        return bool(late) and (not others or not self.seen.isdisjoint(others)) and self.shape != ()

    def _reduces(self, core: str) -> bool:
        known = declared(core)
        return known is not None and known.reduces

    def take(self, i: int) -> bool:
        """Op i comes next, and begins another run if it can't stand in this one: then False."""
        fact, joins = self.problem.facts[i], self.rank(i) is not None
        mapped = fact.core == MAP
        if fact.writes and fact.family in self.problem.families:
            self.core, self.values, self.late, self.seen = "", {}, set(), set()
        elif joins and (mapped or self.core == MAP or self._reduces(self.core)):
            self.core = self.core if mapped else fact.core
            self.values.update(dict.fromkeys(fact.makes, mapped))
            if not mapped or not self.late.isdisjoint(fact.reads):
                self.late.update(fact.makes)
            self.seen.update((*fact.reads, *fact.makes))
            self.whole = self.whole if mapped else self.whole or fact.source
        else:
            core = declared(fact.core)
            self.core = fact.core if mapped or (core and core.epilogue) else ""
            self.values = dict.fromkeys(fact.makes, mapped) if self.core else {}
            self.late = set(fact.makes) if self._reduces(self.core) else set()
            self.seen = {*fact.reads, *fact.makes}
            self.whole = fact.source if self.late else 0
        self.escapes = fact.escapes or (joins and self.escapes)
        self.shape, self.last = fact.shape, fact
        return joins


# --- the greedy order -------------------------------------------------------------------------------------------------


class _Greedy:
    """Iterates over positions, in the new order."""

    def __init__(self, problem: _ScheduleProblem) -> None:
        self.problem, self.run = problem, _Run(problem)
        self.missing = [len(needs) for needs in problem.before]
        self.after: list[list[int]] = [[] for _ in problem.facts]
        for i, needs in enumerate(problem.before):
            for j in needs:
                self.after[j].append(i)
        self.done = [False] * len(problem.facts)
        self.first = 0  # of those that are not done
        self.ready = [i for i, count in enumerate(self.missing) if not count]  # ascending, so a heap
        self.near: list[tuple[int, int]] = []  # those of them that continue the run
        self.wanted: list[int] = []  # to be done before a run begins that needs them
        self.looked = [False] * len(problem.facts)
        self.neighbours = 0  # that can fuse

    def __iter__(self) -> Iterator[int]:
        for _ in self.problem.facts:
            i = self._next()
            self._place(i)
            yield i

    def _next(self) -> int:
        while self.near:
            rank, i = heappop(self.near)
            now = self.run.rank(i)
            if now == rank:
                return i
            if now is not None:  # the run has gone on
                heappush(self.near, (now, i))
        while True:
            queue = self.wanted or self.ready
            i = heappop(queue)
            if self.done[i]:
                continue
            if queue is self.wanted or self.looked[i]:
                return i
            self.looked[i] = True
            self.wanted = self._wanted(i)
            if not self.wanted:
                return i
            heappush(self.ready, i)

    def _place(self, i: int) -> None:
        self.done[i] = True
        while self.first < len(self.done) and self.done[self.first]:
            self.first += 1
        if self.run.take(i):
            self.neighbours += 1
        else:
            self.near = []
        for j in sorted(self.after[i]):
            self.missing[j] -= 1
            if not self.missing[j]:
                heappush(self.ready, j)
                if j <= self.first + REACH and (rank := self.run.rank(j)) is not None and self._goes_on(j):
                    heappush(self.near, (rank, j))

    def _goes_on(self, j: int) -> bool:
        """Whether op j is worth having now: what only widens is stored in twice the bytes, unless a reader joins it."""
        if not self.problem.facts[j].widens:
            return True
        run = copy(self.run)
        run.values, run.late, run.seen = dict(run.values), set(run.late), set(run.seen)
        run.take(j)
        return any(self.missing[r] == 1 and run.rank(r) is not None for r in self._readers(j))

    # --- looking ahead

    def _wanted(self, i: int) -> list[int]:
        """What should come before the run that op i begins, lest its later ops wait for it: a heap.

        A reader of two values joins the run of the one that is made last. Where the other one's run could not take it, that
        other one is better made first.
        """
        facts, run, chain, wanted = self.problem.facts, _Run(self.problem), {i}, set[int]()
        run.take(i)
        readers = self._readers(i)
        while readers and len(chain) < LOOK_AHEAD:
            c = heappop(readers)
            if c in chain or facts[c].core != MAP or run.rank(c) is None:
                continue
            others = [j for j in self.problem.before[c] if not (self.done[j] or j in chain or j in wanted)]
            if any(self._continues(j, c) for j in others):
                continue
            first = self._ancestors(others, chain, wanted)
            if first is None:
                continue
            wanted |= first
            chain.add(c)
            run.take(c)
            for reader in self._readers(c):
                heappush(readers, reader)
        heap = list(wanted)
        heapify(heap)
        return heap

    def _readers(self, i: int) -> list[int]:
        found = [c for v in self.problem.facts[i].makes for c in self.problem.readers.get(v, ())[:FAN]]
        return sorted(c for c in found if not self.done[c])

    def _continues(self, j: int, c: int) -> bool:
        run = _Run(self.problem)
        run.take(j)
        return run.rank(c) is not None

    def _ancestors(self, of: Sequence[int], chain: set[int], known: set[int]) -> set[int] | None:
        """What is not done of these ops and all they need; None if that includes the chain, or is too much."""
        found, stack = set[int](), list(of)
        while stack:
            j = stack.pop()
            if j in chain or len(found) > LOOK_AHEAD:
                return None
            if j not in found:
                found.add(j)
                stack += [k for k in self.problem.before[j] if not (self.done[k] or k in known)]
        return found
