"""Graphs that are spelt out, looked through, and computed before and after in double precision."""

from __future__ import annotations

import numpy as np

from aicf.graph.emit.builder import Builder, GraphEmitter
from aicf.graph.emit.evaluate import evaluate
from aicf.graph.emit.passes import optimize, verify
from aicf.graph.recognise.run import recognise
from aicf.ir import Role


class Spelt:
    """A graph under construction, and what it is fed."""

    def __init__(self, seed=0):
        self.builder, self.rng, self.fed = Builder(), np.random.default_rng(seed), {}
        self.ctx = GraphEmitter(self.builder, "cpu")

    def input(self, name, *shape, dtype="f32", draw=None):
        value = self.ctx.input(name, shape, dtype)
        array = self.rng.normal(size=shape) if draw is None else draw(self.rng, shape)
        self.fed[value] = np.asarray(array, np.float64 if value.dtype.kind == "float" else value.dtype.numpy)
        return value

    def found(self, *results, before=0.0, after=0.0, strict=False, trains=False, exact=1e-9):
        """What was recognised; results must be what they were, in double precision."""
        values = [r if r.role == "tmp" else self.ctx.copy(r) for r in results]
        faults = self.builder.graph.externals(Role.fault)
        self.fed.update((value, np.zeros(value.shape, np.int64)) for value in faults)
        wanted = [evaluate(self.builder.graph, self.fed)[v] for v in values]
        count = len(self.builder.graph.ops)

        def price(graph, ops, made):
            return after if any(op.oid >= count for op in ops) else before

        notes = recognise(self.ctx, values, price, trains, strict)
        self.decided = [n.told for n in notes if n.what == "what constants decide"]
        for n, value in enumerate(values):
            self.builder.output(f"y{n}", value)
        verify(optimize(self.builder.graph))
        got = evaluate(self.builder.graph, self.fed)
        for value, want in zip(values, wanted):
            np.testing.assert_allclose(got[value], want, rtol=exact, atol=1e-3 * exact)
        return [n for n in notes if n.what != "what constants decide"]

    @property
    def kinds(self):
        return [op.kind for op in self.builder.graph.ops]
