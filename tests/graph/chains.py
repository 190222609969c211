"""Graphs and models that the tests of this folder build from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import aicf
from aicf import nn
from aicf.graph.compile import compile
from aicf.graph.emit.builder import Builder, GraphEmitter
from aicf.graph.emit.passes import lower, optimize, verify
from aicf.graph.fuse import Region, form_regions
from aicf.graph.fuse.schedule import schedule
from aicf.graph.fuse.strided import find_views
from aicf.graph.run.plan import ExecPlan, make_plan
from aicf.ir import Graph, LoweredOp
from aicf.registry.registry import KernelRegistry
from aicf.registry.select import Selector


class Fn(nn.Layer):
    """A layer from a function of (ctx, x)."""

    def __init__(self, emit: Callable) -> None:
        self.function = emit

    def emit(self, ctx, x):
        return self.function(ctx, x)


def model_of(emit: Callable, columns: int = 4, rows: int = 3) -> nn.Model:
    return nn.Model({"x": aicf.TensorSpec(("batch", columns))}, batch=rows).add(Fn(emit))


def graph_of(emit: Callable, device: str = "cpu", shape: tuple[int, ...] = (3, 4)) -> Graph:
    """`emit(ctx, x)` returns a value, or a dict of them, which become outputs."""
    builder = Builder()
    ctx = GraphEmitter(builder, device)
    made = emit(ctx, ctx.input("x", shape))
    for name, value in (made if isinstance(made, dict) else {"output": made}).items():
        builder.output(name, value)
    return builder.graph


def planned(
    graph: Graph, registry: KernelRegistry | None = None, device: aicf.DeviceSpec | None = None
) -> tuple[ExecPlan, list[Region], list[LoweredOp]]:
    """A graph through the rest of `compile`."""
    registry, device = registry or aicf.default_registry(), device or aicf.device.spec.preset("cpu")
    selector = Selector(registry, device)
    ops = schedule(find_views(lower(verify(optimize(graph))), graph, selector), graph)
    regions = form_regions(ops, graph, selector)
    return make_plan(graph, ops, regions, device, "infer", registry), regions, ops


def run(emit: Callable, x: np.ndarray, device: str = "cpu", **more) -> np.ndarray:
    """Compile a layer of one function and run it."""
    program = compile(model_of(emit, x.shape[1], x.shape[0]), device=device, **more)
    return program.run({"x": x})["output"].numpy()


def rows_of(rows: int = 3, columns: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, rows, columns]).normal(size=(rows, columns)).astype(np.float32)
