"""Systems of equations with a triangular matrix: row by row, each row's step spelt out."""

from __future__ import annotations

from ....ir import Value
from ..emission import Emission
from ..nodes import Operation
from ..table import UnsupportedForm, rule

MOST_ROWS = 128  # each is some ops of the graph


@rule("stablehlo.triangular_solve")
def _(e: Emission, node: Operation, a: Value, b: Value) -> Value:
    """Brought to a lower triangle on the left: x @ a = b is aᵀ @ xᵀ = bᵀ, and an upper triangle is a lower one from the end."""
    attrs, rows = node.attrs, a.shape[-1]
    if a.dtype.kind != "float" or a.dtype.itemsize < 4:
        raise UnsupportedForm(f"of {a.dtype}")
    if rows > MOST_ROWS:
        raise UnsupportedForm(f"of {rows} rows, more than {MOST_ROWS}")
    if 0 in b.shape:
        return b
    lower, left = bool(attrs["lower"]), bool(attrs["left_side"])
    if (attrs["transpose_a"] != "NO_TRANSPOSE") == left:
        a, lower = _turned(e, a), not lower
    x = b if left else _turned(e, b)
    last = (a.rank - 2, a.rank - 1)
    if not lower:
        a, x = e.ctx.reverse(a, dims=last), e.ctx.reverse(x, dims=last[:1])
    x = _forward(e, a, x, bool(attrs["unit_diagonal"]))
    if not lower:
        x = e.ctx.reverse(x, dims=last[:1])
    return x if left else _turned(e, x)


def _turned(e: Emission, x: Value) -> Value:
    order = (*range(x.rank - 2), x.rank - 1, x.rank - 2)
    return e.ctx.transpose(x, perm=order)


def _part(e: Emission, x: Value, rows: tuple[int, int], columns: tuple[int, int]) -> Value:
    """Some rows and columns of matrices."""
    whole = x.shape[:-2]
    start, limit = (*(0 for _ in whole), rows[0], columns[0]), (*whole, rows[1], columns[1])
    return e.ctx.slice(x, start=start, limit=limit)


def _forward(e: Emission, a: Value, b: Value, unit: bool) -> Value:
    """A lower triangle: row n is what b has there, less the rows before it by their coefficients, over the diagonal."""
    ctx, rows, columns = e.ctx, a.shape[-1], b.shape[-1]
    solved: Value | None = None
    for n in range(rows):
        row = _part(e, b, (n, n + 1), (0, columns))
        if solved is not None:
            coefficients = _turned(e, _part(e, a, (n, n + 1), (0, n)))
            row = ctx.sub(
                row, ctx.reduce_sum(ctx.mul(coefficients, solved), axes=(a.rank - 2,), keepdims=True)
            )
        if not unit:
            row = ctx.div(row, _part(e, a, (n, n + 1), (n, n + 1)))
        solved = row if solved is None else ctx.concatenate(solved, row, axis=a.rank - 2)
    assert solved is not None
    return solved
