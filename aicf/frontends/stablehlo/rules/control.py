"""Control flow, decided while the graph is read where what it depends on is known: loops are scans, branches chosen. A branch that data
choose is computed as all branches, and a selection."""

from __future__ import annotations

from collections.abc import Mapping

from ....ir import Value
from ..emission import Emission
from ..loops import UNROLLED, as_scan, as_while, counters_of
from ..nodes import Operation
from ..table import UnsupportedForm, rule

MAX_UNROLLED = 20_000  # operations of all loops' turns


@rule("stablehlo.while")
def _(e: Emission, node: Operation, *values: Value, outer: Mapping[int, Value]) -> list[Value]:
    """A scan of as many steps as there are turns; a short loop is unrolled. A while_loop where data decide how many there are."""
    body, state = node.bodies[1], list(values)
    length = max(sum(1 for inner in node.bodies for _ in inner.walk()), 1)
    known, same = counters_of(e, node, state, outer)
    if known is None:
        if e.ctx.device != "cpu":
            raise UnsupportedForm("whose number of turns depends on data, which no kernel for CUDA has")
        return as_while(e, node, state, outer, same)
    if known.turns * length > UNROLLED or e.unrolled > MAX_UNROLLED:
        return as_scan(e, node, state, outer, known, same)
    e.unrolled += known.turns * length
    for _ in range(known.turns):
        state = e.run(body, state, outer)
    return state


@rule("stablehlo.case")
@rule("stablehlo.if")
def _(e: Emission, node: Operation, chosen: Value, *, outer: Mapping[int, Value]) -> list[Value]:
    """`case` takes its last branch for an index that is none; `if` its first where the condition is true."""
    bodies, known = node.bodies, e.known(chosen)
    last = len(bodies) - 1
    if known is not None:
        first = 0 if known else 1
        index = int(known) if node.name == "stablehlo.case" else first
        return e.run(bodies[index if 0 <= index <= last else last], (), outer)
    results = e.run(bodies[last], (), outer)
    for n in reversed(range(last)):
        here = chosen if node.name == "stablehlo.if" else e.ctx.equal(chosen, n)
        results = [e.ctx.select(here, a, b) for a, b in zip(e.run(bodies[n], (), outer), results)]
    return results
