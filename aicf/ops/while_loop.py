"""while_loop: iterations of a body for as long as a condition on what it makes holds."""

from __future__ import annotations

import numpy as np

from ..ir import Subgraph
from ..types import DType
from .scan import count_of, drawn, results_of, returned_by
from .schema import AnyOwn, op, require


@op("while_loop", results=("*ys",))
def while_loop(*xs: AnyOwn, condition: Subgraph, body: Subgraph, carried: int):
    """Iterations of a body while a condition holds.

    The first `carried` operands are what the first iteration begins with; each iteration makes what the next one begins with, and the results are
    what the last one has made. All other operands are the same in every iteration. Both bodies take all operands in this order.

    How many iterations there are is known when it has run: it has no gradient. A condition that always holds never ends.

    C1  carried is 1 or more, and there are as many operands
    C2  both bodies take as many operands as the op
    C3  the ops of both take what they are given
    C4  the condition returns one bool without axes
    C5  the body returns what is carried, of the same types   (as StableHLO while C1 to C3)
    """
    require(1 <= carried <= len(xs), "C1", f"{carried} carried operands of {len(xs)}")
    for sub, name in ((condition, "condition"), (body, "body")):
        require(sub.takes == len(xs), "C2", f"the {name} takes {sub.takes} operands and the op has {len(xs)}")
    flags = returned_by(condition, xs, "C3", "condition")
    made = returned_by(body, xs, "C3", "body")
    told = ", ".join(map(str, flags)) or "nothing"
    require([(t.shape, t.dtype) for t in flags] == [((), DType.bool)], "C4", f"the condition returns {told}")
    require(len(made) == carried, "C5", f"the body returns {len(made)} values, and {carried} are carried")
    for n, (x, y) in enumerate(zip(xs[:carried], made)):
        require(
            (x.shape, x.dtype) == (y.shape, y.dtype), "C5", f"xs[{n}] is {x}, and the body makes {y} of it"
        )
    return xs[:carried]


@while_loop.reference
def _(*xs, condition, body, carried):
    state, same = list(xs[:carried]), xs[carried:]
    while results_of(condition, [*state, *same])[0]:
        state = results_of(body, [*state, *same])
    return tuple(map(np.asarray, state))


@while_loop.counts
def _(*xs, condition, body, carried):
    """Of one iteration."""
    return count_of(condition, xs) + count_of(body, xs)


# what any element type has: x becomes y, which ends the loop, and the others have changed places once
_SWAPS = {
    "condition": drawn(5, lambda emit, x, y, *others: [emit.not_equal(x, y)]),
    "body": drawn(5, lambda emit, x, y, a, b, same: [y, y, b, emit.select(emit.equal(a, same), b, a)]),
}
while_loop.samples((), (), (2, 3), (2, 3), (2, 3), carried=4, **_SWAPS)
while_loop.samples((), (), (3,), (3,), (), carried=4, **_SWAPS)
while_loop.samples((), (), (0, 2), (0, 2), (2,), carried=4, **_SWAPS)
