"""Ops with bodies."""

from __future__ import annotations

from ..mlir_worker import Instance
from .making import Maker, T, i64, ints, maker

# --- bodies -------------------------------------------------------------------------------------------------------------


def reducer(elements: list[str], op: str = "add") -> str:
    """A body that joins two values of each type."""
    count = len(elements)
    arguments = ", ".join(f"%x{n}: tensor<{elements[n % count]}>" for n in range(2 * count))
    ops = " ".join(
        f'%y{n} = "stablehlo.{op}"(%x{n}, %x{n + count}) : (tensor<{e}>, tensor<{e}>) -> tensor<{e}>'
        for n, e in enumerate(elements)
    )
    returned = f'"stablehlo.return"({", ".join(f"%y{n}" for n in range(count))}) : ({", ".join(f"tensor<{e}>" for e in elements)}) -> ()'
    return f"^bb0({arguments}): {ops} {returned}"


WIDER = {
    "i8": ["i8", "i32"],
    "f16": ["f16", "f32"],
    "f32": ["f32", "bf16", "f64"],
    "i32": ["i32", "i64"],
    "i1": ["i1"],
    "complex<f32>": ["complex<f32>", "complex<f64>"],
}


@maker("reduce")
def _(m: Maker, name: str) -> Instance:
    shape = m.shape(0, 4)
    dims = m.some(m.rng.randint(0, 3), len(shape))
    elements = [m.of(WIDER) for _ in range(m.of([1, 1, 2]))]
    made = [m.of(WIDER[e]) if m.chance(0.3) else e for e in elements]
    inputs, inits = [str(m.loose(T(shape, e))) for e in elements], [str(T((), e)) for e in elements]
    out = tuple(n for axis, n in enumerate(shape) if axis not in dims)
    attributes = {"dimensions": ints(dims)}
    if m.chance(0.3):
        return Instance(name, inputs + inits, attributes)
    return Instance(
        name, inputs + inits, attributes, [str(m.loose(T(out, e))) for e in made], [reducer(made)]
    )


@maker("map")
def _(m: Maker, name: str) -> Instance:
    shape, element = m.shape(0, 3), m.of(["f32", "i32"])
    inputs = [str(m.loose(T(shape, element))) for _ in range(2)]
    return Instance(
        name,
        inputs,
        {"dimensions": ints(range(len(shape)))},
        [str(m.loose(T(shape, element)))],
        [reducer([element], "multiply")],
    )


@maker("sort")
def _(m: Maker, name: str) -> Instance:
    shape = m.shape(1, 3)
    elements = [m.of(["f32", "i32", "ui8"]) for _ in range(m.of([1, 2]))]
    arguments = ", ".join(f"%x{n}: tensor<{elements[n // 2]}>" for n in range(2 * len(elements)))
    body = (
        f'^bb0({arguments}): %p = "stablehlo.compare"(%x0, %x1) {{comparison_direction = #stablehlo<comparison_direction LT>}} : '
        f'(tensor<{elements[0]}>, tensor<{elements[0]}>) -> tensor<i1> "stablehlo.return"(%p) : (tensor<i1>) -> ()'
    )
    types = [str(T(shape, e)) for e in elements]
    attributes = {"dimension": i64(m.rng.randrange(-len(shape), len(shape)))} if m.chance(0.8) else {}
    return (
        Instance(name, types, attributes, types, [body])
        if m.chance(0.8)
        else Instance(name, types, attributes)
    )
