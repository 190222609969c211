"""Regions formed of small graphs by made-up variants: what the tests of selection share."""

from __future__ import annotations

from hypothesis import strategies as st
from registry.synthetic import STRUCTURES, kernel, structured

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.graph.emit.passes import lower
from aicf.graph.fuse import form_regions
from aicf.registry.select import Selector
from aicf.registry.variant import Reject, structure
from aicf.rows.parts import read_parts
from aicf.rows.read import read

from .chains import graph_of

CPU = preset("cpu")
DEVICES = ["cpu", "t4", "h200"]
one = kernel("cpu.one.v1")  # any one op, 1 us
anything = structured("cpu.anything.v1", us=0.25)  # any structure


def lowered(emit, device="cpu", shape=(3, 4)):
    graph = graph_of(emit, device, shape)
    return lower(graph), graph


def formed(emit, registry=None, device="cpu", **more):
    spec = preset(device)
    ops, graph = lowered(emit, spec.kind)
    return form_regions(ops, graph, Selector(registry or aicf.default_registry(), spec), **more)


def story(regions) -> list[tuple[str, str]]:
    return [(r.spec.signature, r.ended.trigger) for r in regions]


def weight(ctx, name="w", shape=(4, 4)):
    return ctx.param(name, shape, nn.init.normal())


def chain(*kinds):
    def emit(ctx, x):
        for kind in kinds:
            x = ctx.op(kind, x)
        return x

    return emit


def unreadable(region) -> Reject | None:
    """Why no kernel that is composed from a region's maps could take it."""
    if len(region.ops) == 1:
        return None
    program = read_parts(region) if structure(region) == "maps" else read(region)
    return program if isinstance(program, Reject) else None


@st.composite
def registries(draw, device="cpu"):
    """Some variants with random structures, costs and gaps in what they accept, beside one that takes any op alone."""
    made = [kernel(f"{device}.one.v1", us=1.0)]
    for n in range(draw(st.integers(0, 4))):
        gaps = draw(st.frozensets(st.integers(1, 6), max_size=3))
        base, each = draw(st.sampled_from([0.2, 0.9, 1.7])), draw(st.sampled_from([0.0, 0.1, 0.8, 1.3]))
        jump = draw(st.sampled_from([0.0, 0.0, 3.0]))
        made.append(
            structured(
                f"{device}.k{n}.v1", draw(st.sampled_from(["*", "map", "elementwise", "gemm", "reduce", "relu", "add"])),
                takes=tuple(draw(st.lists(st.sampled_from(STRUCTURES), min_size=1, max_size=4, unique=True))),
                us=lambda r, base=base, each=each, jump=jump: base + each * len(r.ops) + jump * (len(r.ops) % 3 == 2),
                reject=lambda r, gaps=gaps: Reject("ops", "a gap") if len(r.ops) in gaps else unreadable(r),
                priority=draw(st.integers(0, 1)),
            )
        )  # fmt: skip
    return made
