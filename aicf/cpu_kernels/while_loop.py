"""while_loop on the host: the kernels of its two bodies, bound once, in every iteration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..registry.bodies import WhileBodies
from ..registry.variant import HostCall, contiguous, one_op, variant
from .scan import COPY_US, calls_of


@variant("while_loop", id="cpu.while_loop.v1")
class WhileOnHost:
    """The kernels of the condition, and those of the body for as long as it holds. What is carried lies in one place, which an iteration's results are
    copied into. Bytes and limit: those of the bodies. The cost is that of one iteration: how many there are is known when it has run."""

    def accepts(region):
        yield one_op(region)
        yield contiguous(region)

    def cost(region, device):
        bodies, copies = WhileBodies(region, device), COPY_US * len(region.results)
        both = replace(bodies.body, steps=(*bodies.condition.steps, *bodies.body.steps))
        return both.cost(1).plus(rows=copies, start=2 * copies)

    def build(region, device):
        bodies = WhileBodies(region, device)
        return HostCall.binding(
            lambda operands, results: _bound(bodies, device, [operands[n] for n in bodies.places], results)
        )


def _bound(bodies, device, operands, results):
    """The whole loop as a call, on these arrays."""
    state = [np.empty(t.shape, t.dtype.numpy) for t in bodies.operands[: bodies.carried]]
    made, flag = [np.empty_like(a) for a in state], np.empty((), bool)
    given = [*state, *operands[bodies.carried :]]
    asks, calls = (
        calls_of(plan, device, given, into)
        for plan, into in ((bodies.condition, [flag]), (bodies.body, made))
    )
    begin, onward, end = list(zip(state, operands)), list(zip(state, made)), list(zip(results, state))

    def run():
        for target, source in begin:
            target[...] = source
        while True:
            for call in asks:
                call()
            if not flag:
                break
            for call in calls:
                call()
            for target, source in onward:
                target[...] = source
        for target, source in end:
            target[...] = source

    return run
