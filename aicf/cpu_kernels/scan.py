"""scan on the host: the kernels of its body, bound once, in every step."""

from __future__ import annotations

import numpy as np

from ..registry.bodies import ScanSteps
from ..registry.variant import HostCall, contiguous, one_op, variant

COPY_US = 0.6  # a row into, or out of, the place that kernels are bound to


@variant("scan", id="cpu.scan.v1")
class ScanOnHost:
    """The kernels of the body, step after step. What a step is given and makes lies in one place, into and out of which rows are copied.
    Bytes and limit: those of the body."""

    def accepts(region):
        yield one_op(region)
        yield contiguous(region)

    def cost(region, device):
        steps = ScanSteps(region, device)
        copies = steps.length * (steps.stacked + len(region.results))
        return steps.plan.cost(steps.length).plus(rows=COPY_US * copies, start=COPY_US * len(region.results))

    def build(region, device):
        steps = ScanSteps(region, device)
        return HostCall.binding(
            lambda operands, results: _bound(steps, device, [operands[n] for n in steps.places], results)
        )


def calls_of(plan, device, given, made):
    """The kernels of a body, bound to what it is given and to what it makes."""
    arena = np.empty(plan.arena, np.uint8)

    def array(spot, desc):
        whole = {"operand": given, "result": made}.get(spot.what)
        memory = arena if whole is None else whole[spot.number].reshape(-1).view(np.uint8)
        if desc.numel == 0:
            return np.empty(desc.shape, desc.dtype.numpy)
        strides = [step * desc.dtype.itemsize for step in desc.stride]
        return np.ndarray(desc.shape, desc.dtype.numpy, memory, spot.offset, strides)

    calls = []
    for step in plan.steps:
        ins = [array(spot, t) for spot, t in zip(step.ins, step.region.operands)]
        outs = [array(spot, t) for spot, t in zip(step.outs, step.region.results)]
        calls.append(step.variant.build(step.region, device).bind(ins, outs))
    return calls


def _bound(steps, device, operands, results):
    """The whole scan as a call, on these arrays."""
    moving = range(steps.carried + steps.stacked)
    given = [
        np.empty(t.shape, t.dtype.numpy) if n in moving else a
        for n, (t, a) in enumerate(zip(steps.operands, operands))
    ]
    made = [np.empty(t.shape, t.dtype.numpy) for t in steps.results]
    made = [made[first] for first in steps.plan.same]
    calls = calls_of(steps.plan, device, given, made)
    first = list(zip(given[: steps.carried], operands))
    enter = [(given[n], operands[n]) for n in steps.rows]
    leave = list(zip(results[steps.carried :], made[steps.carried :]))
    onward = list(zip(given[: steps.carried], made))
    last = list(zip(results, given[: steps.carried]))

    def run():
        for target, source in first:
            target[...] = source
        for t in steps.order:
            for target, source in enter:
                target[...] = source[t]
            for call in calls:
                call()
            for target, source in leave:
                target[t] = source
            for target, source in onward:
                target[...] = source
        for target, source in last:
            target[...] = source

    return run
