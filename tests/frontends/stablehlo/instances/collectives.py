"""What devices exchange."""

from __future__ import annotations

from dataclasses import replace

from ..mlir_worker import Instance
from .bodies import WIDER, reducer
from .making import ALL, Maker, T, i64, maker


def _groups(m: Maker, rows: int, columns: int) -> str:
    ids = m.some(99, rows * columns)
    lists = [ids[n * columns : (n + 1) * columns] for n in range(rows)]
    return f"dense<{lists}> : tensor<{rows}x{columns}xi64>"


def _channel(m: Maker, given: dict[str, str]) -> dict[str, str]:
    if m.chance():
        given["channel_handle"] = f"#stablehlo.channel_handle<handle = {m.of([1, 1, 2, 0, -1])}, type = 0>"
    if m.chance(0.4):
        given["use_global_device_ids"] = "unit"
    return given


@maker("all_gather")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(1, 3), m.of(ALL))
    dim, count = m.rng.randrange(len(x.shape)), m.rng.randint(1, 3)
    made = replace(x, shape=tuple(n * count if axis == dim else n for axis, n in enumerate(x.shape)))
    given = {"all_gather_dim": i64(dim), "replica_groups": _groups(m, m.rng.randint(1, 2), count)}
    operands = m.of([1, 1, 2])
    return Instance(
        name,
        [str(m.loose(x)) for _ in range(operands)],
        _channel(m, given),
        [str(m.loose(made)) for _ in range(operands)],
    )


@maker("all_to_all")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(1, 3), m.of(ALL))
    split, concat, count = m.rng.randrange(len(x.shape)), m.rng.randrange(len(x.shape)), m.rng.randint(1, 3)
    x = replace(x, shape=tuple(n * count if axis == split else n for axis, n in enumerate(x.shape)))
    made = [n // count if axis == split else n for axis, n in enumerate(x.shape)]
    made[concat] *= count
    given = {
        "split_dimension": i64(split),
        "concat_dimension": i64(concat),
        "split_count": i64(count),
        "replica_groups": _groups(m, 1, count),
    }
    return Instance(name, [str(m.loose(x))], given, [str(m.loose(replace(x, shape=tuple(made))))])


@maker("reduce_scatter")
def _(m: Maker, name: str) -> Instance:
    x = T(tuple(m.rng.randint(1, 4) for _ in range(m.rng.randint(1, 3))), m.of(WIDER))
    dim, count = m.rng.randrange(len(x.shape)), m.rng.randint(1, 3)
    whole = replace(x, shape=tuple(n * count if axis == dim else n for axis, n in enumerate(x.shape)))
    element = m.of(WIDER[x.element]) if m.chance(0.3) else x.element
    given = {"scatter_dimension": i64(dim), "replica_groups": _groups(m, 1, count)}
    return Instance(
        name,
        [str(m.loose(whole))],
        _channel(m, given),
        [str(m.loose(replace(x, element=element)))],
        [reducer([element])],
    )


@maker("all_reduce")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(), m.of(WIDER))
    element = m.of(WIDER[x.element]) if m.chance(0.3) else x.element
    count = m.of([1, 1, 2])
    given = _channel(m, {"replica_groups": _groups(m, 1, m.rng.randint(1, 4))})
    made = [str(m.loose(replace(x, element=element))) for _ in range(count)]
    return Instance(name, [str(m.loose(x)) for _ in range(count)], given, made, [reducer([element])])


@maker("collective_permute", "collective_broadcast")
def _(m: Maker, name: str) -> Instance:
    x = m.loose(T(m.shape(), m.of(ALL)))
    count = m.rng.randint(1, 3)
    if name == "collective_permute":
        pairs = [list(pair) for pair in zip(m.some(count, 4), m.some(count, 4))]
        given = {"source_target_pairs": f"dense<{pairs}> : tensor<{count}x2xi64>"}
    else:
        given = {"replica_groups": _groups(m, 1, count)}
    return Instance(name, [str(x)], given, [str(m.loose(x))])
