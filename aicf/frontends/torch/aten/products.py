"""Matrix products, and those with a sum behind them. A transposed operand is read as it lies."""

from __future__ import annotations

from typing import Any

from ....ir import Value
from ..rules import Site, rule
from ..types import Unsupported


def product(
    s: Site, a: Value, b: Value, c: Value | None = None, bias: Value | None = None, **how: Any
) -> Value:
    """a @ b, of matrices or batches of them."""
    flags = {}
    for name, x in (("trans_a", a), ("trans_b", b)):
        before = s.ctx.transposed(x)
        flags[name] = before is not None
        if before is not None:
            a, b = (before, b) if name == "trans_a" else (a, before)
    return s.ctx.gemm(a, b, c, bias, **flags, **how)


@rule("mm", "bmm", heavy=True)
def _mm(s: Site, a: Value, b: Value) -> Value:
    if s.out.dtype.kind != "float":  # PyTorch's are in the operands' type, aicf's of 8 bits in i32
        raise Unsupported("products of integers")
    return product(s, a, b)


rule("_int_mm", heavy=True)(lambda s, a, b: product(s, a, b))


@rule("mv", heavy=True)
def _mv(s: Site, a: Value, b: Value) -> Value:
    return s.reshape(product(s, a, s.reshape(b, (*b.shape, 1))), s.out.shape)


@rule("dot", heavy=True)
def _dot(s: Site, a: Value, b: Value) -> Value:
    return s.reshape(product(s, s.reshape(a, (1, *a.shape)), s.reshape(b, (*b.shape, 1))), ())


@rule("addmm", "baddbmm", heavy=True)
def _addmm(s: Site, c: Value, a: Value, b: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    if s.out.dtype.kind != "float":
        raise Unsupported("products of integers")
    along = c.rank == 0 or (c.shape[-1] in (1, s.out.shape[-1]) and all(n == 1 for n in c.shape[:-1]))
    if beta == 0:
        return product(s, a, b, alpha=float(alpha))
    # of length N it goes along columns, unless it is of one element: see the op
    if along and beta == 1:
        return product(s, a, b, None, s.reshape(c, (c.shape[-1] if c.rank else 1,)), alpha=float(alpha))
    return product(s, a, b, s.spread(c, s.out.shape), None, alpha=float(alpha), beta=float(beta))
