"""Convolutions, windows that slide, and scatter."""

from __future__ import annotations

from ..mlir_worker import Instance
from .bodies import WIDER, reducer
from .making import INTS, Maker, T, i64, ints, maker, pairs


def _count(size: int, window: int, stride: int, low: int, high: int, base: int, dilation: int) -> int:
    padded = low + ((size - 1) * base + 1 if size else 0) + high
    span = (window - 1) * dilation + 1 if window else 0
    return 0 if padded <= 0 or span > padded else (padded - span) // stride + 1


@maker("convolution", "dynamic_conv")
def _(m: Maker, name: str) -> Instance:
    places = m.rng.randint(0, 3)
    features, batches = m.of([(1, 1), (1, 1), (2, 1), (1, 2)])
    batch, taken, made = batches * m.rng.randint(1, 3), m.rng.randint(1, 3), 2 * m.rng.randint(1, 3)
    sizes, windows = (
        [m.rng.randint(1, 8) for _ in range(places)],
        [m.rng.randint(1, 4) for _ in range(places)],
    )
    strides, base, dilation = ([m.rng.randint(1, 3) for _ in range(places)] for _ in range(3))
    padding = [(m.rng.randint(-1, 2), m.rng.randint(-1, 2)) for _ in range(places)]
    given = {}
    if name == "convolution" and m.chance(0.8):
        given["padding"] = pairs(padding)
    elif name == "convolution":
        padding = [(0, 0)] * places
    for key, values in (("window_strides", strides), ("lhs_dilation", base), ("rhs_dilation", dilation)):
        if m.chance(0.8):
            given[key] = ints(values)
        else:
            values[:] = [1] * places
    if m.chance(0.3):
        given["window_reversal"] = f"array<i1: {', '.join(['true'] * places)}>" if places else "array<i1>"
    out = [
        _count(*each[:3], *each[3], *each[4:])
        for each in zip(sizes, windows, strides, padding, base, dilation)
    ]
    element = m.of(["f32", "i8", "bf16", "complex<f32>"])

    def laid(first: int, second: int, rest: list[int], letters: str):
        order = [letters[0], letters[1], *map(str, range(places))]
        m.rng.shuffle(order)
        size = {letters[0]: first, letters[1]: second, **{str(n): each for n, each in enumerate(rest)}}
        return f"[{', '.join(order)}]", T(tuple(size[each] for each in order), element)

    (x, lhs), (w, rhs), (y, result) = (
        laid(batch, features * taken, sizes, "bf"),
        laid(taken, made, windows, "io"),
        laid(batch // batches, made, out, "bf"),
    )
    given["dimension_numbers"] = f"#stablehlo.conv<{x}x{w}->{y}>"
    given |= {"feature_group_count": i64(features), "batch_group_count": i64(batches)}
    operands = [str(m.loose(lhs)), str(m.loose(rhs))]
    if name == "dynamic_conv":
        operands.append(f"tensor<{places}x2xi64>")
    return Instance(name, operands, given, [str(m.loose(result))])


@maker("reduce_window")
def _(m: Maker, name: str) -> Instance:
    rank = m.rng.randint(0, 3)
    sizes = [m.size() for _ in range(rank)]
    windows, strides, base, dilation = ([m.rng.randint(1, 3) for _ in range(rank)] for _ in range(4))
    padding = [(m.rng.randint(-1, 2), m.rng.randint(-1, 2)) for _ in range(rank)]
    given = {"window_dimensions": ints(windows)}
    if m.chance(0.8):
        given["padding"] = pairs(padding)
    else:
        padding = [(0, 0)] * rank
    for key, values in (
        ("window_strides", strides),
        ("base_dilations", base),
        ("window_dilations", dilation),
    ):
        if m.chance(0.8):
            given[key] = ints(values)
        else:
            values[:] = [1] * rank
    out = tuple(
        _count(*each[:3], *each[3], *each[4:])
        for each in zip(sizes, windows, strides, padding, base, dilation)
    )
    elements = [m.of(WIDER) for _ in range(m.of([1, 1, 2]))]
    made = [m.of(WIDER[e]) if m.chance(0.3) else e for e in elements]
    operands = [str(m.loose(T(tuple(sizes), e))) for e in elements] + [str(T((), e)) for e in elements]
    if m.chance(0.3):
        return Instance(name, operands, given)
    return Instance(name, operands, given, [str(m.loose(T(out, e))) for e in made], [reducer(made)])


@maker("select_and_scatter")
def _(m: Maker, name: str) -> Instance:
    rank = m.rng.randint(0, 3)
    sizes = [m.size() for _ in range(rank)]
    windows, strides = ([m.rng.randint(1, 3) for _ in range(rank)] for _ in range(2))
    padding = [(m.rng.randint(0, 2), m.rng.randint(0, 2)) for _ in range(rank)]
    given = {"window_dimensions": ints(windows), "window_strides": ints(strides), "padding": pairs(padding)}
    element = m.of(WIDER)
    made = m.of(WIDER[element]) if m.chance(0.3) else element
    source = tuple(_count(*each[:3], *each[3], 1, 1) for each in zip(sizes, windows, strides, padding))
    operands = [str(m.loose(T(tuple(sizes), element))), str(m.loose(T(source, element))), str(T((), element))]
    select = (
        f'^bb0(%x: tensor<{element}>, %y: tensor<{element}>): %p = "stablehlo.compare"(%x, %y) '
        f"{{comparison_direction = #stablehlo<comparison_direction NE>}} : (tensor<{element}>, tensor<{element}>) -> tensor<i1> "
        '"stablehlo.return"(%p) : (tensor<i1>) -> ()'
    )
    if m.chance(0.2):
        return Instance(name, operands, given)
    return Instance(name, operands, given, [str(m.loose(T(tuple(sizes), made)))], [select, reducer([made])])


@maker("scatter")
def _(m: Maker, name: str) -> Instance:
    rank = m.rng.randint(0, 4)
    shape = tuple(m.rng.randint(1, 6) for _ in range(rank))
    axes = m.some(9, rank)
    inserted = sorted(axes[: m.rng.randint(0, rank)])
    batching = sorted(a for a in axes if a not in inserted and m.chance(0.25))
    kept = [a for a in range(rank) if a not in inserted and a not in batching]
    free = [a for a in range(rank) if a not in batching]
    targets = m.rng.sample(free, m.rng.randint(0, len(free)))
    places = [m.rng.randint(1, 4) for _ in range(m.rng.randint(0, 2))] + [shape[a] for a in batching]
    indexing = list(range(len(places) - len(batching), len(places)))
    vector = m.rng.randint(0, len(places))
    if len(targets) == 1 and m.chance():
        indices, vector = places, len(places)
    else:
        indices = [*places[:vector], len(targets), *places[vector:]]
        indexing = [n + (n >= vector) for n in indexing]
    out = len(kept) + len(places)
    window = sorted(m.rng.sample(range(out), len(kept)))
    from_windows, from_places = iter([m.rng.randint(0, shape[a]) for a in kept]), iter(places)
    update = tuple(next(from_windows) if n in window else next(from_places) for n in range(out))
    numbers = (
        f"#stablehlo.scatter<update_window_dims = {window}, inserted_window_dims = {inserted}, input_batching_dims = {batching}, "
        f"scatter_indices_batching_dims = {indexing}, scatter_dims_to_operand_dims = {targets}, index_vector_dim = {vector}>"
    )
    elements = [m.of(WIDER) for _ in range(m.of([1, 1, 2]))]
    made = [m.of(WIDER[e]) if m.chance(0.3) else e for e in elements]
    operands = [str(m.loose(T(shape, e))) for e in elements]
    operands.append(str(m.loose(T(tuple(indices), m.of([*INTS, "index"])))))
    operands += [str(m.loose(T(update, e))) for e in elements]
    given = {"scatter_dimension_numbers": numbers}
    if m.chance(0.2):
        return Instance(name, operands, given)
    return Instance(name, operands, given, [str(m.loose(T(shape, e))) for e in made], [reducer(made)])
