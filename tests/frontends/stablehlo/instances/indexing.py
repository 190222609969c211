"""Places that operands give, and products."""

from __future__ import annotations

from dataclasses import replace

from ..mlir_worker import Instance
from .making import ALL, INTS, PRECISIONS, Maker, T, i64, ints, maker

# --- indexing -----------------------------------------------------------------------------------------------------------


@maker("dynamic_slice", "dynamic_update_slice")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(), m.of(ALL))
    sizes = tuple(m.rng.randint(0, n) for n in x.shape)
    starts = [f"tensor<{m.of(INTS)}>"] * len(x.shape)
    made = replace(x, shape=sizes)
    if name == "dynamic_slice":
        return Instance(
            name,
            [str(m.loose(x)), *starts],
            {"slice_sizes": ints(sizes)},
            [str(m.loose(made))] if m.chance() else None,
        )
    return Instance(
        name, [str(m.loose(x)), str(m.loose(made)), *starts], {}, [str(m.loose(x))] if m.chance() else None
    )


@maker("get_dimension_size", "set_dimension_size")
def _(m: Maker, name: str) -> Instance:
    x = m.loose(T(m.shape(1), m.of(ALL)))
    operands = [str(x)] + ["tensor<i32>"] * (name == "set_dimension_size")
    made = ["tensor<i32>"] if name == "get_dimension_size" and m.chance() else None
    return Instance(name, operands, {"dimension": i64(m.rng.randrange(len(x.shape)))}, made)


@maker("gather", "dynamic_gather")
def _(m: Maker, name: str) -> Instance:
    rank = m.rng.randint(0, 4)
    x = T(tuple(m.rng.randint(1, 6) for _ in range(rank)), m.of(ALL))
    axes = m.some(9, rank)
    collapsed = sorted(axes[: m.rng.randint(0, rank)])
    batching = sorted(a for a in axes if a not in collapsed and m.chance(0.25))
    kept = [a for a in range(rank) if a not in collapsed and a not in batching]
    sizes = [1 if a in collapsed or a in batching else m.rng.randint(0, x.shape[a]) for a in range(rank)]
    free = [a for a in range(rank) if a not in batching]
    index_map = m.rng.sample(free, m.rng.randint(0, len(free)))
    places = [m.rng.randint(1, 4) for _ in range(m.rng.randint(0, 2))] + [x.shape[a] for a in batching]
    starting = list(range(len(places) - len(batching), len(places)))
    vector = m.rng.randint(0, len(places))
    if len(index_map) == 1 and m.chance():
        shape, vector = places, len(places)
    else:
        shape = [*places[:vector], len(index_map), *places[vector:]]
        starting = [n + (n >= vector) for n in starting]
    rank_out = len(kept) + len(places)
    offset = sorted(m.rng.sample(range(rank_out), len(kept)))
    from_sizes, from_places = iter([sizes[a] for a in kept]), iter(places)
    made = T(
        tuple(next(from_sizes) if n in offset else next(from_places) for n in range(rank_out)), x.element
    )
    numbers = (
        f"#stablehlo.gather<offset_dims = {offset}, collapsed_slice_dims = {collapsed}, operand_batching_dims = {batching}, "
        f"start_indices_batching_dims = {starting}, start_index_map = {index_map}, index_vector_dim = {vector}>"
    )
    operands = [str(m.loose(x)), str(m.loose(T(tuple(shape), m.of(["i32", "i64", "ui8"]))))]
    attributes = {"dimension_numbers": numbers}
    if name == "gather":
        attributes["slice_sizes"] = ints(sizes)
    else:
        operands.append(f"tensor<{rank}xi64>")
    return Instance(name, operands, attributes, [str(m.loose(made))] if m.chance() else None)


# --- products -----------------------------------------------------------------------------------------------------------


@maker("dot")
def _(m: Maker, name: str) -> Instance:
    k, element = m.size(), m.of(ALL)
    lhs, rhs = T((*m.shape(0, 1), k), element), T((k, *m.shape(0, 1)), element)
    return Instance(
        name,
        [str(m.loose(lhs)), str(m.loose(rhs))],
        {},
        [str(m.loose(T((*lhs.shape[:-1], *rhs.shape[1:]), element)))],
    )


@maker("dot_general")
def _(m: Maker, name: str) -> Instance:
    batch, summed, left, right = m.shape(0, 2), m.shape(0, 2), m.shape(0, 2), m.shape(0, 2)
    element = m.of(ALL)

    def side(own):
        labels = (
            [("b", n) for n in range(len(batch))]
            + [("s", n) for n in range(len(summed))]
            + [("o", n) for n in range(len(own))]
        )
        m.rng.shuffle(labels)
        sizes = {"b": batch, "s": summed, "o": own}
        at = {key: [labels.index((key, n)) for n in range(len(sizes[key]))] for key in "bs"}
        free = tuple(sizes["o"][n] for key, n in labels if key == "o")
        return T(tuple(sizes[key][n] for key, n in labels), element), at, free

    (lhs, a, free_left), (rhs, b, free_right) = side(left), side(right)
    numbers = (
        f"#stablehlo.dot<lhs_batching_dimensions = {a['b']}, rhs_batching_dimensions = {b['b']}, "
        f"lhs_contracting_dimensions = {a['s']}, rhs_contracting_dimensions = {b['s']}>"
    )
    attributes = {"dot_dimension_numbers": numbers}
    if m.chance(0.3):
        config = [f"#stablehlo<precision {m.of(PRECISIONS)}>" for _ in range(m.of([0, 1, 2, 2, 3]))]
        attributes["precision_config"] = f"[{', '.join(config)}]"
    if m.chance(0.2):
        left_type, right_type, total = m.of(
            [
                ("f16", "f16", "f32"),
                ("bf16", "bf16", "f32"),
                ("tf32", "tf32", "f32"),
                ("f8E5M2", "f8E4M3FN", "f32"),
                ("f64", "f64", "f32"),
            ]
        )
        attributes["algorithm"] = (
            f"#stablehlo.dot_algorithm<lhs_precision_type = {left_type}, rhs_precision_type = {right_type}, accumulation_type = {total}, "
            f"lhs_component_count = 1, rhs_component_count = {m.of([1, 1, 0])}, num_primitive_operations = {m.of([1, 1, 3])}, "
            f"allow_imprecise_accumulation = {m.of(['true', 'false'])}>"
        )
    made = T((*batch, *free_left, *free_right), m.of([element, element, "f32"]))
    return Instance(name, [str(m.loose(lhs)), str(m.loose(rhs))], attributes, [str(m.loose(made))])
