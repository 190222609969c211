"""How regions over rows are read (A2, A12): passes, run by an interpreter of this file, against formulas in float64; and what is refused."""

from __future__ import annotations

import os

import numpy as np
import pytest
from cpu.regions import Graph, normal, random_rows

from aicf.registry.variant import Reject
from aicf.rows.program import Expression
from aicf.rows.row_program import Part, RowProgram, read_rows
from aicf.types import DType, bf16, f16

ALL = bool(os.environ.get("AICF_TEST_ALL"))
HOWS = {"sum": np.sum, "mean": np.mean, "max": np.max}


def interpret(program: RowProgram, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
    """Row by row and column by column, each part with what it says that it takes and with nothing else."""

    def typed(value: float, expression: Expression, n: int) -> float:
        """As it is held: rounded to its own type where that is asked for, in float64 else."""
        narrow = np.float64(value).astype(expression.dtypes[n].numpy)
        return float(narrow if n in expression.rounded else value)

    def evaluate(part: Part, known: dict[int, float]) -> list[float]:
        expression = part.expression
        values = [typed(known[s], expression, n) for n, s in enumerate(part.takes)]
        for function, ins, outs in expression.steps:
            made = function(*(values[i] for i in ins))
            for out, value in zip(outs, made if isinstance(made, tuple) else (made,)):
                assert out == len(values)
                values.append(typed(value, expression, out))
        return [values[n] for n in expression.results]

    def load(n: int, point: tuple[int, ...]) -> float:
        of = program.loads[n]
        at = of.offset + sum(p * s for p, s in zip(point, of.strides))
        return at if of.operand is None else float(operands[of.operand].reshape(-1)[at])

    def leave(n: int, point: tuple[int, ...], value: float) -> None:
        store = program.stores[n]
        flat = results[store.position].reshape(-1)
        flat[sum(p * s for p, s in zip(point, store.strides))] = value

    still = [n for n in range(len(program.loads)) if n not in program.moves]
    moving = [n for n in range(len(program.loads)) if n in program.moves]
    kept = dict(program.kept)
    first = (0,) * len(program.columns)
    for row in np.ndindex(program.rows):
        known = {n: load(n, (*row, *first)) for n in still}
        known.update(zip(program.before.makes, evaluate(program.before, known)))
        for n in (n for n, after in kept.items() if after == -1):
            leave(n, (*row, *first), known[program.stores[n].slot])
        for p, step in enumerate(program.passes):
            fed: list[list[float]] = [[] for _ in step.reduces]
            for column in np.ndindex(program.columns):
                point = (*row, *column)
                made = evaluate(step.each, known | {n: load(n, point) for n in moving})
                for values, value in zip(fed, made):
                    values.append(value)
                for n, value in zip(step.stores, made[len(fed) :], strict=True):
                    leave(n, point, value)
            for reduce, values in zip(step.reduces, fed):
                known[reduce.result] = HOWS[reduce.how](np.asarray(values, np.float64))
            known.update(zip(step.after.makes, evaluate(step.after, known)))
            for n in (n for n, after in kept.items() if after == p):
                leave(n, (*row, *first), known[program.stores[n].slot])


def read(graph: Graph) -> RowProgram:
    program = read_rows(graph.region)
    assert isinstance(program, RowProgram), program
    return program


def run(graph: Graph) -> list[np.ndarray]:
    operands = [np.ascontiguousarray(a) for a in graph.operands.values()]
    results = [np.full(d.shape, np.nan) for d in graph.region.results]
    interpret(read(graph), operands, results)
    return results


def same(graph: Graph, *wanted: np.ndarray, near: float = 1e-12) -> None:
    for got, want in zip(run(graph), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=near, atol=near)


def over(axis: int | tuple[int, ...]) -> dict:
    return {"axes": (axis,) if isinstance(axis, int) else axis, "keepdims": True}


def softmax_of(x: np.ndarray, axis: int | tuple[int, ...] = -1) -> np.ndarray:
    e = np.exp(x.astype(np.float64))
    return e / e.sum(axis, keepdims=True)


def spelled(x: np.ndarray, axis: int | tuple[int, ...]) -> Graph:
    return Graph(
        {"x": x}, ("reduce_max", "x", "m", over(axis)), ("sub", "x m", "s", {}), ("exp", "s", "e", {}),
        ("reduce_sum", "e", "t", over(axis)), ("div", "e t", "y", {}),
    )  # fmt: skip


@pytest.mark.spec("A2", "A12")
@pytest.mark.parametrize(
    "shape, axis",
    [((3, 5), 1), ((3, 5), 0), ((2, 3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), 2), ((2, 3, 4), (0, 2)), ((2, 3, 4), (1, 2)),
     ((3, 1), 1), ((1, 3), 1), ((4,), 0), ((3, 3), 0)],
    ids=str,
)  # fmt: skip
def test_softmax_over_any_axes(shape, axis):
    x = normal(*shape)
    graph = spelled(x, axis)
    same(graph, softmax_of(x, axis))
    program = read(graph)
    reduced = np.prod([shape[a] for a in ([axis] if isinstance(axis, int) else axis)])
    assert (program.count * program.length, program.length) == (x.size, reduced)
    if reduced > 1:
        assert [len(p.reduces) for p in program.passes] == [1, 1, 0]
        assert [p.stores for p in program.passes] == [(), (), (0,)]


@pytest.mark.spec("A2", "A12")
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_softmax_family_is_read_as_its_steps(axis):
    x, dy = normal(2, 3, 4), normal(2, 3, 4)
    y = softmax_of(x, axis)
    at, g = {"axis": axis}, dy.astype(np.float64)
    same(Graph({"x": x}, ("softmax", "x", "y", at)), y)
    same(Graph({"x": x}, ("log_softmax", "x", "y", at)), np.log(y))
    same(
        Graph({"x": x}, ("logsumexp", "x", "y", at)),
        np.log(np.exp(x.astype(np.float64)).sum(axis, keepdims=True)),
    )
    p = y.astype(np.float32)
    same(
        Graph({"dy": dy, "y": p}, ("softmax_grad", "dy y", "dx", at)),
        p * (g - (g * p).sum(axis, keepdims=True)),
    )
    logs = np.log(y).astype(np.float32)
    want = g - np.exp(logs.astype(np.float64)) * g.sum(axis, keepdims=True)
    same(Graph({"dy": dy, "y": logs}, ("log_softmax_grad", "dy y", "dx", at)), want)


def normalized(x: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = x.astype(np.float64)
    mean, rstd = x.mean(-1, keepdims=True), 1 / np.sqrt(x.var(-1, keepdims=True) + eps)
    return (x - mean) * rstd, mean, rstd


@pytest.mark.spec("A2", "A12")
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4), (7,)], ids=str)
def test_norms_and_their_statistics(shape):
    x, w, b = normal(*shape), normal(shape[-1]), normal(shape[-1])
    h, mean, rstd = normalized(x, 0.25)
    norm = ("layer_norm", "x w b", "y mean rstd", {"eps": 0.25})
    same(Graph({"x": x, "w": w, "b": b}, norm), h * w + b, mean, rstd)
    same(Graph({"x": x, "w": w, "b": b}, norm, keep="y"), h * w + b)
    same(Graph({"x": x, "w": w, "b": b}, norm, keep="mean rstd"), mean, rstd)
    root = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 0.25)
    same(Graph({"x": x, "w": w}, ("rms_norm", "x w", "y r", {"eps": 0.25})), x * root * w, root)


@pytest.mark.spec("A2")
def test_two_reductions_of_one_depth_share_a_pass():
    x, y = normal(3, 5), normal(3, 5)
    graph = Graph(
        {"x": x, "y": y}, ("reduce_sum", "x", "a", over(1)), ("mul", "x y", "p", {}), ("reduce_mean", "p", "b", over(1)),
        ("mul", "x a", "q", {}), ("add", "q b", "z", {}),
    )  # fmt: skip
    x, y = x.astype(np.float64), y.astype(np.float64)
    same(graph, x * x.sum(1, keepdims=True) + (x * y).mean(1, keepdims=True))
    assert [[r.how for r in p.reduces] for p in read(graph).passes] == [["sum", "mean"], []]


@pytest.mark.spec("A2")
def test_row_values_of_row_values_are_computed_once_for_the_row():
    x, c, d = normal(3, 5), normal(3, 1), normal(3, 1)
    graph = Graph(
        {"x": x, "c": c, "d": d}, ("exp", "c", "e", {}), ("mul", "e d", "f", {}), ("mul", "x f", "p", {}),
        ("reduce_sum", "p", "s", over(1)), ("square", "s", "t", {}), ("add", "t f", "u", {}), ("sub", "x u", "y", {}),
        keep="y u f",
    )  # fmt: skip
    x, f = x.astype(np.float64), np.exp(c.astype(np.float64)) * d
    u = (x * f).sum(1, keepdims=True) ** 2 + f
    same(graph, x - u, u, f)
    program = read(graph)
    assert len(program.before.expression.steps) == 2  # exp and mul, not in any pass
    assert len(program.passes[0].after.expression.steps) == 2
    assert [len(p.each.expression.steps) for p in program.passes] == [1, 1]
    assert sorted(program.kept) == [(1, 0), (2, -1)]


@pytest.mark.spec("A2")
@pytest.mark.parametrize("axis", [0, 1])
def test_column_and_row_vectors_meet_whole_rows(axis):
    x, column, row, number = normal(3, 5), normal(3, 1), normal(5), np.float32(0.5)
    graph = Graph(
        {"x": x, "column": column, "row": row, "number": np.asarray(number)}, ("add", "x column", "a", {}),
        ("mul", "a row", "b", {}), ("reduce_max", "b", "m", over(axis)), ("sub", "b m", "c", {}), ("mul", "c number", "y", {}),
    )  # fmt: skip
    b = (x.astype(np.float64) + column) * row
    same(graph, (b - b.max(axis, keepdims=True)) * 0.5)


@pytest.mark.spec("A2", "A12")
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_residual_that_something_else_reads_leaves_as_well(axis):
    x, r = normal(2, 3, 4), normal(2, 3, 4)
    graph = Graph(
        {"x": x, "r": r}, ("add", "x r", "h", {}), ("softmax", "h", "y", {"axis": axis}), keep="h y",
    )  # fmt: skip
    h = x.astype(np.float64) + r
    same(graph, h, softmax_of(h, axis))
    assert [p.stores for p in read(graph).passes] == [(0,), (), (1,)]


@pytest.mark.spec("A15")
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_halves_inside_are_rounded_where_they_are_stored_and_nowhere_else(dtype):
    x, r = normal(3, 8, dtype=dtype), normal(3, 8, dtype=dtype)
    steps = [("add", "x r", "h", {}), ("softmax", "h", "y", {"axis": 1})]
    for keep in ("h y", "y"):
        *_, got = run(Graph({"x": x, "r": r}, *steps, keep=keep))
        h = x.astype(np.float64) + r.astype(np.float64)
        if keep == "h y":
            h = h.astype(dtype.numpy).astype(np.float64)
        np.testing.assert_array_equal(got, softmax_of(h).astype(dtype.numpy).astype(np.float64))


@pytest.mark.spec("A8")
def test_regions_of_one_form_share_what_was_read_but_for_sizes():
    small, large = spelled(normal(3, 5), 1), spelled(normal(4, 6), 1)
    assert small.region.form is large.region.form
    a, b = read(small), read(large)
    assert a.passes is b.passes and (a.rows, a.columns, b.rows, b.columns) == ((3,), (5,), (4,), (6,))
    assert a.stores[0].strides == (5, 1) and b.stores[0].strides == (6, 1)


def transposed() -> Graph:
    """A row's sum without its axis beside a square: it would be added along the other one."""
    return Graph(
        {"x": normal(3, 3)}, ("reduce_sum", "x", "s", {"axes": (1,), "keepdims": False}), ("add", "x s", "y", {})
    )  # fmt: skip


REFUSED = {
    "other axes": (
        Graph({"x": normal(3, 5)}, ("reduce_max", "x", "m", over(1)), ("sub", "x m", "s", {}), ("reduce_sum", "s", "y", over(0))),
        "axes", r"reduce_sum reduces axes (0,) of (3, 5), not those before it",
    ),
    "more axes": (
        Graph({"x": normal(3, 5)}, ("reduce_max", "x", "m", over(1)), ("sub", "x m", "s", {}), ("reduce_sum", "s", "y", over((0, 1)))),
        "axes", r"reduce_sum reduces axes (0, 1) of (3, 5), not those before it",
    ),
    "other rows": (
        Graph({"x": normal(3, 5), "z": normal(5)}, ("reduce_sum", "x", "s", over(1)), ("reduce_sum", "z", "t", over(0)),
              ("add", "x s", "y", {}), keep="y t"),
        "results", "result 1 (f32[1]) has not all axes of the rows: it would be written again and again",
    ),
    "no map": (
        Graph({"x": normal(3, 3)}, ("reduce_max", "x", "m", over(1)), ("gemm", "x m", "y", {})),
        "core", "gemm is no map, and no reduction",
    ),
    "nothing reduced": (Graph({"x": normal(3, 5)}, ("exp", "x", "y", {}), ("neg", "y", "z", {})), "core", "nothing is reduced"),
    "transposed": (transposed(), "access", "f32[3x3] is read along one axis in two ways"),
}  # fmt: skip


@pytest.mark.spec("A12", "B8")
@pytest.mark.parametrize("graph, condition, reason", REFUSED.values(), ids=list(REFUSED))
def test_what_is_no_rows_is_refused_with_the_reason(graph, condition, reason):
    refused = read_rows(graph.region)
    assert isinstance(refused, Reject)
    assert (refused.condition, refused.reason) == (condition, reason)


@pytest.mark.spec("A8", "B8")
def test_a_reason_has_the_sizes_of_its_own_region():
    for shape in ((3, 5), (4, 6)):
        graph = Graph({"x": normal(*shape)}, ("reduce_max", "x", "m", over(1)), ("sub", "x m", "s", {}),
                      ("reduce_sum", "s", "y", over(0)))  # fmt: skip
        assert f"axes (0,) of {shape}" in str(read_rows(graph.region))


@pytest.mark.spec("A2")
def test_a_result_s_element_type_is_that_of_its_tensor():
    program = read(Graph({"x": normal(3, 5, dtype=f16)}, ("rms_norm", "x", "y r", {"eps": 0.1})))
    assert [program.dtypes[s.slot] for s in program.stores] == [DType.f16, DType.f32]


@pytest.mark.spec("A2", "A12")
@pytest.mark.parametrize("block", range(40 if ALL else 1))
def test_random_regions_are_read_as_what_their_ops_compute(block):
    for seed in range(100 * block, 100 * block + (100 if ALL else 60)):
        graph = random_rows(seed)
        for got, want in zip(run(graph), graph.wanted(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6, err_msg=f"seed {seed}")
