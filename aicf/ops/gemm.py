"""Matrix products and the bias that follows them (D3-D8)."""

from __future__ import annotations

import numpy as np

from ..types import ActKind, TensorSpec
from .activations import FROM_RESULT, activation_gradient
from .schema import LINEAR, Access, Float, op, require, schema_of

BIAS_SCALAR, BIAS_PER_N, BIAS_PER_M = "Scalar", "PerN", "PerM"


def bias_kind(length: int, m: int, n: int) -> str | None:
    """How a 1-D bias of this length meets an (m, n) matrix (D4): 1 is Scalar, else n is PerN, else m is PerM."""
    return BIAS_SCALAR if length == 1 else BIAS_PER_N if length == n else BIAS_PER_M if length == m else None


def bias_axis_view(bias: np.ndarray, m: int, n: int) -> np.ndarray:
    """The bias as a matrix that broadcasts against (m, n)."""
    return bias.reshape(-1, 1) if bias_kind(bias.shape[0], m, n) == BIAS_PER_M else bias.reshape(1, -1)


def _check_bias(bias: TensorSpec, m: int, n: int, constraint: str) -> None:
    require(bias.rank == 1, constraint, f"bias has rank {bias.rank}, expected 1")
    require(
        bias_kind(bias.shape[0], m, n) is not None,
        constraint,
        f"bias has length {bias.shape[0]}; expected 1 (Scalar), N = {n} (PerN) or M = {m} (PerM)",
    )


@op("gemm", results=("d", "z"), traits=(LINEAR,), core="gemm")
def gemm(
    a: Float,
    b: Float,
    c: Float = None,
    bias: Float = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
    act: int = ActKind.none,
    slope: float = 0.01,
    save_preact: bool = False,
):
    """d = act(z), z = alpha * op(a) @ op(b) + beta * c + bias, where op transposes if asked.

    Shapes: op(a) (M, K), op(b) (K, N), c (M, N), bias (1,), (N,) or (M,); d and, with save_preact, z are (M, N).
    Arithmetic is exact f32 with f32 accumulation; half types are widened when read, and d and z rounded once.
    act is an ActKind; slope belongs to leaky_relu.

    C1  a and b have rank 2                                (aicf's rule; XLA's DotGeneral without batch dimensions)
    C2  the contracted extents agree                       (StableHLO dot_general C10)
    C3  c has the shape of the product
    C4  bias is 1-D of length 1, N or M                    (D4: told apart in that order)
    C5  act is an ActKind
    C6  beta is 1 when there is no c                       (a factor of nothing is a mistake)
    """
    for name, x in (("a", a), ("b", b)):
        require(x.rank == 2, "C1", f"{name} has rank {x.rank}, expected 2")
    (m, ka), (kb, n) = (s[::-1] if t else s for s, t in ((a.shape, trans_a), (b.shape, trans_b)))
    require(ka == kb, "C2", f"op(a) is ({m}, {ka}) and op(b) is ({kb}, {n}): {ka} meets {kb}")
    if c is not None:
        require(c.shape == (m, n), "C3", f"c has shape {c.shape}, the product is ({m}, {n})")
    if bias is not None:
        _check_bias(bias, m, n, "C4")
    require(act in ActKind._value2member_map_, "C5", f"act is {act}, expected 0 to {max(ActKind)}")
    require(c is not None or beta == 1.0, "C6", f"beta is {beta} but there is no c")
    out = TensorSpec((m, n), a.dtype, a.device)
    return (out, out) if save_preact else out


@gemm.reference
def _(a, b, c=None, bias=None, *, alpha, beta, trans_a, trans_b, act, slope, save_preact):
    wide = np.promote_types(a.dtype if a.dtype.kind == "f" else np.float32, np.float32)
    z = alpha * ((a.T if trans_a else a).astype(wide) @ (b.T if trans_b else b).astype(wide))
    if c is not None:
        z = z + beta * c.astype(wide)
    if bias is not None:
        z = z + bias_axis_view(bias.astype(wide), *z.shape)
    d = z
    if act != ActKind.none:
        schema = schema_of(ActKind(act).name)
        (d,) = schema.call_reference([z], {"slope": slope} if act == ActKind.leaky_relu else {})
    return (d.astype(a.dtype), z.astype(a.dtype)) if save_preact else d.astype(a.dtype)


@gemm.gradient
def _(emit, a, b, c, bias, d, z, dd, dz, alpha, beta, trans_a, trans_b, act, slope):
    """gA, gB, gC and gBias from A, B, C, gY and Z (D6): gZ is one elementwise op of gY and Z (or of D, where act's
    derivative is a function of it), then two products, and a reduction if there is a bias.

    They stay ops of their own: gZ is read by both products and the reduction, which share no loop; a kernel that formed it
    in each would compute the derivative K / tile times over and read two tensors instead of one.
    """
    gz = dd
    if act != ActKind.none and dd is not None:
        if z is None and ActKind(act).name not in FROM_RESULT:  # not stashed: form the pre-activation again
            z = emit.gemm(a, b, c, bias, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b)
        attrs = {"slope": slope} if act == ActKind.leaky_relu else {}
        gz = activation_gradient(emit, ActKind(act).name, dd, z, d, **attrs)
    if dz is not None:
        gz = dz if gz is None else emit.add(gz, dz)
    # (op(a) op(b))' : each factor's gradient is the product with the other, transposed back into its own layout
    ga = (
        emit.gemm(b, gz, alpha=alpha, trans_a=trans_b, trans_b=True)
        if trans_a
        else emit.gemm(gz, b, alpha=alpha, trans_b=not trans_b)
    )
    gb = (
        emit.gemm(gz, a, alpha=alpha, trans_a=True, trans_b=trans_a)
        if trans_b
        else emit.gemm(a, gz, alpha=alpha, trans_a=not trans_a)
    )
    gc = None if c is None else gz if beta == 1.0 else emit.scale(gz, factor=beta)
    return ga, gb, gc, None if bias is None else _bias_gradient(emit, gz, bias)


def _bias_gradient(emit, gz, bias):
    kind = bias_kind(bias.shape[0], *gz.shape)
    if kind == BIAS_SCALAR:
        return emit.reshape(emit.reduce_sum(gz, axes=(0, 1), keepdims=False), shape=(1,))
    return emit.reduce_sum(gz, axes=(0,) if kind == BIAS_PER_N else (1,), keepdims=False)


gemm.samples((4, 7), (7, 5), None, None)
gemm.samples((7, 4), (5, 7), None, (5,), trans_a=True, trans_b=True, act=ActKind.relu)
gemm.samples(
    (3, 6), (2, 6), (3, 2), (3,), alpha=0.5, beta=-1.5, trans_b=True, act=ActKind.gelu, save_preact=True
)
gemm.samples((6, 3), (6, 4), None, (1,), trans_a=True, act=ActKind.leaky_relu, slope=0.2)
gemm.samples((33, 65), (65, 17), (33, 17), (17,), act=ActKind.tanh)
gemm.samples((3, 0), (0, 4), None, (4,), act=ActKind.sigmoid)
gemm.samples((0, 3), (3, 4), None, None, act=ActKind.gelu_erf)


@op("bias_add", alias={0: (0, "may")}, traits=(LINEAR,))
def bias_add(x: Float, bias: Float):
    """y = x + bias, with the bias as Scalar, PerN or PerM by its length (D4).

    Shapes: x and y (M, N), bias (1,), (N,) or (M,).

    C1  x has rank 2
    C2  bias is 1-D of length 1, N or M
    """
    require(x.rank == 2, "C1", f"x has rank {x.rank}, expected 2")
    m, n = x.shape
    _check_bias(bias, m, n, "C2")
    return x


def _bias_access(x, bias):
    axis = {BIAS_SCALAR: -1, BIAS_PER_N: 1, BIAS_PER_M: 0}[bias_kind(bias[0], *x)]
    return Access(0, (0, 1)), Access(1, (axis,))


@bias_add.maps(_bias_access)
def _(x, bias):
    return x + bias


@bias_add.reference
def _(x, bias):
    return x + bias_axis_view(bias, *x.shape)


@bias_add.gradient
def _(emit, dy, bias):
    return dy, _bias_gradient(emit, dy, bias)


bias_add.samples((4, 7), (7,))
bias_add.samples((4, 7), (4,))
bias_add.samples((3, 5), (1,))
bias_add.samples((5, 5), (5,))
bias_add.samples((0, 5), (5,))
