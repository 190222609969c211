"""Movement of elements."""

from __future__ import annotations

from dataclasses import replace

from ..mlir_worker import Instance
from .making import ALL, COMPLEX, FLOATS, INTS, Maker, T, i64, ints, maker

# --- movement -----------------------------------------------------------------------------------------------------------


@maker("iota")
def _(m: Maker, name: str) -> Instance:
    made = T(m.shape(1), m.of(INTS + FLOATS + COMPLEX))
    return Instance(name, [], {"iota_dimension": i64(m.rng.randrange(len(made.shape)))}, [str(made)])


@maker("constant")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(), m.of(["i32", "i64", "i8"]))
    return Instance(
        name, [], {"value": f"dense<{m.rng.randint(-3, 3)}> : {x}"}, [str(x)] if m.chance() else None
    )


@maker("reshape", "dynamic_reshape")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(), m.of(ALL))
    order = [n for n in x.shape if n != 1] + [1] * m.rng.randint(0, 2)
    m.rng.shuffle(order)
    made = replace(x, shape=tuple(order))
    operands = [str(m.loose(x))]
    if name == "dynamic_reshape":
        operands.append(f"tensor<{len(order)}x{m.of(['i32', 'i64', 'index'])}>")
    return Instance(name, operands, {}, [str(m.loose(made) if name != "reshape" or m.chance(0.3) else made)])


@maker("broadcast")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(), m.of(ALL))
    sizes = m.shape(0, 2)
    return Instance(
        name,
        [str(m.loose(x))],
        {"broadcast_sizes": ints(sizes)},
        [str(m.loose(replace(x, shape=(*sizes, *x.shape))))] if m.chance() else None,
    )


@maker("broadcast_in_dim", "dynamic_broadcast_in_dim")
def _(m: Maker, name: str) -> Instance:
    made = T(m.shape(1, 5), m.of(ALL))
    dims = m.some(m.rng.randint(0, 3), len(made.shape))
    x = replace(made, shape=tuple(made.shape[d] if m.chance(0.7) else 1 for d in dims))
    operands, attributes = [str(m.loose(x))], {"broadcast_dimensions": ints(dims)}
    if name != "broadcast_in_dim":
        operands.append(f"tensor<{len(made.shape)}x{m.of(['i32', 'i64', 'index'])}>")
        if m.chance() and x.shape:
            attributes["known_expanding_dimensions"] = ints(m.some(1, len(x.shape)))
        if m.chance(0.3) and x.shape:
            attributes["known_nonexpanding_dimensions"] = ints(m.some(1, len(x.shape)))
        made = m.loose(made)
    elif m.chance(0.2):
        made = m.loose(made)
    return Instance(name, operands, attributes, [str(made)])


@maker("transpose")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(), m.of(ALL))
    order = m.some(9, len(x.shape))
    made = replace(x, shape=tuple(x.shape[n] for n in order))
    return Instance(
        name, [str(m.loose(x))], {"permutation": ints(order)}, [str(m.loose(made))] if m.chance() else None
    )


@maker("slice")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(), m.of(ALL))
    starts = [m.rng.randint(0, n) for n in x.shape]
    limits = [m.rng.randint(start, n) for start, n in zip(starts, x.shape)]
    strides = [m.rng.randint(1, 3) for _ in x.shape]
    made = replace(x, shape=tuple(-((a - b) // s) for a, b, s in zip(starts, limits, strides)))
    attributes = {"start_indices": ints(starts), "limit_indices": ints(limits), "strides": ints(strides)}
    return Instance(name, [str(m.loose(x))], attributes, [str(m.loose(made))] if m.chance() else None)


@maker("pad", "dynamic_pad")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(), m.of(ALL))
    low, high = ([m.rng.randint(-2, 3) for _ in x.shape] for _ in range(2))
    interior = [m.rng.randint(0, 2) for _ in x.shape]
    made = replace(
        x,
        shape=tuple(
            max(0, a + n + b + max(n - 1, 0) * i) for a, b, i, n in zip(low, high, interior, x.shape)
        ),
    )
    operands = [str(m.loose(x)), str(replace(x, shape=()))]
    if name == "dynamic_pad":
        operands += [f"tensor<{len(low)}x{m.of(['i64', 'index'])}>"] * 3
        return Instance(name, operands, {}, [str(m.loose(made))])
    attributes = {
        "edge_padding_low": ints(low),
        "edge_padding_high": ints(high),
        "interior_padding": ints(interior),
    }
    return Instance(name, operands, attributes, [str(m.loose(made))] if m.chance() else None)


@maker("concatenate")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(1), m.of(ALL))
    axis = m.rng.randrange(len(x.shape))
    parts = [
        replace(x, shape=tuple(m.size() if n == axis else d for n, d in enumerate(x.shape)))
        for _ in range(m.rng.randint(1, 4))
    ]
    made = replace(
        x, shape=tuple(sum(p.shape[axis] for p in parts) if n == axis else d for n, d in enumerate(x.shape))
    )
    return Instance(
        name,
        [str(m.loose(p)) for p in parts],
        {"dimension": i64(axis)},
        [str(m.loose(made))] if m.chance() else None,
    )


@maker("reverse")
def _(m: Maker, name: str) -> Instance:
    x = m.loose(T(m.shape(), m.of(ALL)))
    return Instance(
        name, [str(x)], {"dimensions": ints(m.some(2, len(x.shape)))}, [str(x)] if m.chance() else None
    )


@maker("dynamic_iota")
def _(m: Maker, name: str) -> Instance:
    made = m.loose(T(m.shape(1), m.of(INTS + FLOATS)))
    return Instance(
        name,
        [f"tensor<{len(made.shape)}xi64>"],
        {"iota_dimension": i64(m.rng.randrange(len(made.shape)))},
        [str(made)],
    )


@maker("real_dynamic_slice")
def _(m: Maker, name: str) -> Instance:
    x = m.loose(T(m.shape(1), m.of(ALL)))
    return Instance(
        name, [str(x), *[f"tensor<{len(x.shape)}xi64>"] * 3], {}, [str(T((None,) * len(x.shape), x.element))]
    )
