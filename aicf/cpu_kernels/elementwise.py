"""Maps on the host: any chain or tree of elementwise ops, broadcasts and dropouts as one loop over memory."""

from __future__ import annotations

from ..registry.cost import Cost
from ..registry.variant import HostCall, Reject, alone, at_most, variant
from ..rows.parts import read_parts
from ..rows.program import Map, RegionProgram
from ..rows.read import read
from .costs import loop_cost, loop_us, one_loop

ARRAYS = 50  # more make numba's compile time felt


def program_of(region):
    """A region whose structure is right as a RegionProgram; the checks of `accepts` come first."""
    program = read(region)
    assert isinstance(program, RegionProgram), program
    return program


def dense_results(region):
    for i, t in enumerate(region.results):
        if not t.contiguous:
            return Reject(
                "contiguous", f"result {i} has strides {t.stride} for shape {t.shape}, needs row-major"
            )
    return None


def loops_take(region):
    """What every variant made of loops asks of a region."""
    yield dense_results(region)
    yield at_most("tensors", len(region.operands) + len(region.results), ARRAYS)


@variant("map", id="cpu.elementwise_loop.v2", takes=("map",), masked=True)
class ElementwiseLoop:
    """One pass that LLVM vectorises along the innermost axis. Operands broadcast or strided; results dense. Any dtype.

    Half types are widened as they are read and compute in f32. Bytes: each operand read once, each result written once.
    """

    def accepts(region):
        program = read(region)
        yield program if isinstance(program, Reject) else None
        yield from loops_take(region)

    least, numerics = one_loop, alone

    def cost(region, device):
        return loop_cost(program_of(region).after, region, device)

    def build(region, device):
        from .compiler.loops import MapLoop

        return HostCall.binding(MapLoop(program_of(region).after, region.operands, region.results).bind)


@variant("map", id="cpu.multi_map.v1", takes=("map", "maps"))
class MultiMapLoop:
    """Any number of independent maps that do the same, such as an optimizer's steps, each over its own domain: one loop, called
    for each."""

    def accepts(region):
        yield Reject("ops", "one op is no group") if len(region.ops) < 2 else None
        parts = read_parts(region)
        yield parts if isinstance(parts, Reject) else None
        yield Reject("ops", "one part is no group") if len(parts) < 2 else None
        yield dense_results(region)
        yield at_most("tensors", len(parts[0].loads) + len(parts[0].stores), ARRAYS)

    least, numerics = one_loop, alone

    def cost(region, device):
        terms = {"launch": device.launch_us}
        for part in _parts(region):
            for name, us in loop_us(part, region, device).items():
                terms[name] = terms.get(name, 0.0) + us
        return Cost(terms)

    def build(region, device):
        from .compiler.loops import MapLoop

        loops = [MapLoop(part, region.operands, region.results) for part in _parts(region)]

        def bind(operands, results):
            calls = [loop.bind(operands, results) for loop in loops]

            def run():
                for call in calls:
                    call()

            return run

        return HostCall.binding(bind)


def _parts(region) -> tuple[Map, ...]:
    parts = read_parts(region)
    assert not isinstance(parts, Reject), parts
    return parts
