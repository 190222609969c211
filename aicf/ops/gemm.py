"""Matrix products and the bias that follows them."""

from __future__ import annotations

import functools
import math

import numpy as np

from ..types import ActKind, DType, Precision, TensorSpec, bf16, f16, f32, i8, i32, numel, u8
from .activations import FROM_RESULT, activation_gradient
from .schema import (
    ACCUMULATES,
    LINEAR,
    Access,
    Factor,
    Float,
    FloatOwn,
    op,
    refuse_gradient,
    require,
    schema_of,
)

BIAS_SCALAR, BIAS_PER_N, BIAS_PER_M = "Scalar", "PerN", "PerM"


def bias_kind(length: int, m: int, n: int) -> str | None:
    """How a 1-D bias of this length meets an (m, n) matrix: 1 is Scalar, else n is PerN, else m is PerM."""
    return BIAS_SCALAR if length == 1 else BIAS_PER_N if length == n else BIAS_PER_M if length == m else None


def bias_axis_view(bias: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The bias as a matrix that broadcasts against (..., m, n)."""
    return bias.reshape(-1, 1) if bias_kind(bias.shape[0], *shape[-2:]) == BIAS_PER_M else bias.reshape(1, -1)


def _check_bias(bias: TensorSpec, m: int, n: int, constraint: str) -> None:
    require(bias.rank == 1, constraint, f"bias has rank {bias.rank}, expected 1")
    require(
        bias_kind(bias.shape[0], m, n) is not None,
        constraint,
        f"bias has length {bias.shape[0]}; expected 1 (Scalar), N = {n} (PerN) or M = {m} (PerM)",
    )


@op("gemm", results=("d", "z"), traits=(LINEAR, ACCUMULATES), core="gemm")
def gemm(
    a: Factor,
    b: Factor,
    c: Float = None,
    bias: Float = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
    act: ActKind = ActKind.none,
    slope: float = 0.01,
    save_preact: bool = False,
    precision: Precision = Precision.exact,
    out_dtype: DType | None = None,
):
    """d = act(z), z = alpha * op(a) @ op(b) + beta * c + bias, where op transposes the last two axes if asked.

    Shapes: op(a) (..., M, K), op(b) (..., K, N), c (..., M, N), bias (1,), (N,) or (M,); d and, with save_preact, z are
    (..., M, N). Leading axes are those of a batch; a or b may have none, and is then the same for all of it.
    Accumulation is in f32; what is narrower is widened when read, and d and z rounded once. precision says
    what fp8 is excepted from: with the default, f32 operands are multiplied as they are. slope belongs to leaky_relu. out_dtype is
    the results' element type, None for that of a and b. a and b may be fp8, of which there is no gradient: it would have to be
    rounded to fp8 too. They may be i8 and u8, also one of each: then sums and results are i32, which wraps around; what scales them
    stands behind the op, and kernels fuse it.

    C1  a and b have rank 2 or more
    C2  the contracted extents agree                       (StableHLO dot_general C10)
    C3  c has the shape of the product
    C4  bias is 1-D of length 1, N or M                    (told apart in that order)
    C5  out_dtype is f32, f16 or bf16, or, unless a and b are fp8, None; of integers it is i32 or None
    C6  beta is 1 when there is no c                       (a factor of nothing is a mistake)
    C7  batches are equal, or one of them is absent        (StableHLO dot_general C9; broadcast others first)
    C8  a and b have one element type, or both are fp8, or both are i8 or u8
    C9  c and bias have one element type: the results', or f32
    C10 of integers there is no c, no bias, no act, alpha is 1 and nothing is saved
    """
    for name, x in (("a", a), ("b", b)):
        require(x.rank >= 2, "C1", f"{name} has rank {x.rank}, expected 2 or more")
    (m, ka), (kb, n) = (s[-2:][:: -1 if t else 1] for s, t in ((a.shape, trans_a), (b.shape, trans_b)))
    require(ka == kb, "C2", f"op(a) is ({m}, {ka}) and op(b) is ({kb}, {n}): {ka} meets {kb}")
    batch = a.shape[:-2] or b.shape[:-2]
    require(
        b.shape[:-2] in ((), batch),
        "C7",
        f"the batch of a is {a.shape[:-2]}, of b {b.shape[:-2]}; needs equal ones",
    )
    if c is not None:
        require(c.shape == (*batch, m, n), "C3", f"c has shape {c.shape}, the product is {(*batch, m, n)}")
    if bias is not None:
        _check_bias(bias, m, n, "C4")
    require(c is not None or beta == 1.0, "C6", f"beta is {beta} but there is no c")
    fp8, whole = a.dtype.is_fp8, a.dtype.kind == "int"
    require(
        a.dtype is b.dtype or (fp8 and b.dtype.is_fp8) or (whole and b.dtype.kind == "int"),
        "C8",
        f"b is {b.dtype} but a is {a.dtype}; operands never promote, convert one of them",
    )
    choices = (i32, None) if whole else (f32, f16, bf16, *([] if fp8 else [None]))
    require(
        out_dtype in choices,
        "C5",
        f"out_dtype is {out_dtype}, expected one of {', '.join(map(str, choices))}",
    )
    if whole:
        what = [n for n, x in (("c", c), ("bias", bias), ("act", act), ("save_preact", save_preact)) if x]
        what += [f"alpha {alpha}"] * (alpha != 1.0)
        require(not what, "C10", f"a is {a.dtype}, and there is {', '.join(what)}; scale the i32 result")
    out = TensorSpec((*batch, m, n), i32 if whole else out_dtype or a.dtype, a.device)
    for name, added in (("c", c), ("bias", bias)):
        if added is not None:
            message = f"{name} is {added.dtype}, expected {out.dtype}, as the results, or f32"
            require(added.dtype in (out.dtype, f32), "C9", message)
    return (out, out) if save_preact else out


@gemm.normalizer
def _(specs, attrs):
    """The type that results have anyway is None."""
    own = specs[0].dtype if specs and specs[0] else None
    own = i32 if own in (i8, u8) else own
    return {**attrs, "out_dtype": None} if own and attrs.get("out_dtype") is own else attrs


@gemm.reference
def _(
    a, b, c=None, bias=None, *, alpha, beta, trans_a, trans_b, act, slope, save_preact, precision, out_dtype
):
    factors = [x.swapaxes(-1, -2) if t else x for x, t in ((a, trans_a), (b, trans_b))]
    if a.dtype.kind in "iu":  # f64 has these sums
        return (
            (factors[0].astype(np.float64) @ factors[1].astype(np.float64)).astype(np.int64).astype(np.int32)
        )
    wide = np.promote_types(a.dtype if a.dtype.kind == "f" else np.float32, np.float32)
    if precision == Precision.tf32 and a.dtype == np.float32:
        factors = [round_tf32(x) for x in factors]
    z = alpha * (factors[0].astype(wide) @ factors[1].astype(wide))
    if c is not None:
        z = z + beta * c.astype(wide)
    if bias is not None:
        z = z + bias_axis_view(bias.astype(wide), z.shape)
    d = z
    if act != ActKind.none:
        schema = schema_of(act.name)
        (d,) = schema.call_reference([z], {"slope": slope} if act == ActKind.leaky_relu else {})
    return (d.astype(a.dtype), z.astype(a.dtype)) if save_preact else d.astype(a.dtype)


def round_tf32(x: np.ndarray) -> np.ndarray:
    """f32 to 10 bits of mantissa, halves away from zero, as cvt.rna.tf32.f32 does (PTX ISA, cvt)."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)


@gemm.counts
def _(a, b, *rest, trans_a, trans_b, **attrs):
    (m, k), n = a.shape[-2:][:: -1 if trans_a else 1], b.shape[-2 if trans_b else -1]
    return 2 * math.prod(np.broadcast_shapes(a.shape[:-2], b.shape[:-2])) * m * n * k


@gemm.expands
def _(emit, a, b, c, bias, *, act, slope, save_preact, **attrs):
    """The sum of products; bias and activation are maps behind it, of a value that is rounded nowhere."""
    z = emit.gemm(a, b, c, **attrs)
    if bias is not None:
        z = emit.bias_add(z, bias)
    d = z
    if act != ActKind.none:
        given = {"slope": slope} if act == ActKind.leaky_relu else {}
        d = emit.op(ActKind(act).name, z, **given)
    return (d, z) if save_preact else d


@gemm.gradient
def _(emit, a, b, c, bias, d, z, dd, dz, alpha, beta, trans_a, trans_b, act, slope, precision, out_dtype):
    """gA, gB, gC and gBias from A, B, C, gY and Z: gZ is one elementwise op of gY and Z (or of D, where act's
    derivative is a function of it), then two products, and a reduction if there is a bias.

    They stay ops of their own: gZ is read by both products, which share no loop; a kernel that formed it in each would
    compute the derivative K / tile times over and read two tensors instead of one. Where dY comes from a product, that one's
    kernel takes gZ and the reduction along.

    gZ has the results' element type; if that is not the operands', it is rounded to theirs before it is multiplied.
    """
    if a.dtype.kind == "int":
        return None, None, None, None
    refuse_gradient("gemm", a=a.dtype, b=b.dtype)
    product = functools.partial(emit.gemm, precision=precision)
    gz = dd
    if act != ActKind.none and dd is not None:
        if z is None and act.name not in FROM_RESULT:  # not stashed: form the pre-activation again
            z = product(
                a, b, c, bias, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b, out_dtype=out_dtype
            )
        attrs = {"slope": slope} if act == ActKind.leaky_relu else {}
        gz = activation_gradient(emit, act.name, dd, z, d, **attrs)
    if dz is not None:
        gz = dz if gz is None else emit.add(gz, dz)
    g = _like(emit, gz, a)
    gc = None if c is None else _like(emit, gz, c)
    if c is not None and beta != 1.0:
        gc = emit.scale(gc, factor=beta)
    # (op(a) op(b))' : each factor's gradient is the product with the other, transposed back into its own layout
    ga = (
        product(b, g, alpha=alpha, trans_a=trans_b, trans_b=True)
        if trans_a
        else product(g, b, alpha=alpha, trans_b=not trans_b)
    )
    rows = a, g
    if (
        len(b.shape) < len(gz.shape) and not trans_a
    ):  # rows of all the batch meet the same b: one long product
        rows = [emit.reshape(x, shape=(numel(x.shape[:-1]), x.shape[-1])) for x in rows]
    gb = (
        product(*rows[::-1], alpha=alpha, trans_a=True, trans_b=trans_a)
        if trans_b
        else product(*rows, alpha=alpha, trans_a=not trans_a)
    )
    ga, gb = (_over_batch(emit, g, len(x.shape)) for g, x in ((ga, a), (gb, b)))
    return ga, gb, gc, None if bias is None else _bias_gradient(emit, _like(emit, gz, bias), bias)


def _like(emit, gradient, x):
    """A gradient in the element type of x."""
    return gradient if gradient.dtype is x.dtype else emit.convert(gradient, dtype=x.dtype)


def _over_batch(emit, gradient, rank):
    """What is the same for all of a batch has the sum of their gradients."""
    axes = tuple(range(len(gradient.shape) - rank))
    return emit.reduce_sum(gradient, axes=axes, keepdims=False) if axes else gradient


def _bias_gradient(emit, gz, bias):
    kind, axes = bias_kind(bias.shape[0], *gz.shape[-2:]), tuple(range(len(gz.shape)))
    if kind == BIAS_SCALAR:
        return emit.reshape(emit.reduce_sum(gz, axes=axes, keepdims=False), shape=(1,))
    kept = axes[-1 if kind == BIAS_PER_N else -2]
    return emit.reduce_sum(gz, axes=tuple(a for a in axes if a != kept), keepdims=False)


gemm.samples((4, 7), (7, 5), None, None)
gemm.samples((7, 4), (5, 7), None, (5,), trans_a=True, trans_b=True, act=ActKind.relu)
gemm.samples(
    (3, 6), (2, 6), (3, 2), (3,), alpha=0.5, beta=-1.5, trans_b=True, act=ActKind.gelu, save_preact=True
)
gemm.samples((6, 3), (6, 4), None, (1,), trans_a=True, act=ActKind.leaky_relu, slope=0.2)
gemm.samples((33, 65), (65, 17), (33, 17), (17,), act=ActKind.tanh)
gemm.samples((3, 0), (0, 4), None, (4,), act=ActKind.sigmoid)
gemm.samples((0, 3), (3, 4), None, None, act=ActKind.gelu_erf)
gemm.samples((2, 3, 4, 7), (2, 3, 7, 5), (2, 3, 4, 5), (4,), act=ActKind.relu)
gemm.samples((3, 4, 7), (7, 5), None, (5,), act=ActKind.gelu)
gemm.samples((3, 7, 4), (5, 7), None, (1,), trans_a=True, trans_b=True)
gemm.samples((4, 7), (3, 5, 7), None, None, trans_b=True, alpha=0.5)
gemm.samples((4, 7), (7, 5), None, None, act=ActKind.relu, out_dtype=DType.f32)


@op("bias_add", alias={0: (0, "may")}, traits=(LINEAR,))
def bias_add(x: Float, bias: FloatOwn):
    """y = x + bias, with the bias as Scalar, PerN or PerM by its length.

    Shapes: x and y (..., M, N), bias (1,), (N,) or (M,).

    C1  x has rank 2 or more
    C2  bias is 1-D of length 1, N or M
    C3  bias has the element type of x, or f32
    """
    require(x.rank >= 2, "C1", f"x has rank {x.rank}, expected 2 or more")
    m, n = x.shape[-2:]
    _check_bias(bias, m, n, "C2")
    require(bias.dtype in (x.dtype, f32), "C3", f"bias is {bias.dtype}, expected {x.dtype}, as x, or f32")
    return x


def _bias_access(x, bias):
    axis = {BIAS_SCALAR: -1, BIAS_PER_N: len(x) - 1, BIAS_PER_M: len(x) - 2}[bias_kind(bias[0], *x[-2:])]
    return Access(0, tuple(range(len(x)))), Access(1, (axis,))


@bias_add.maps(_bias_access)
def _(x, bias):
    return x + bias


@bias_add.reference
def _(x, bias):
    return x + bias_axis_view(bias, x.shape)


@bias_add.gradient
def _(emit, dy, bias):
    return dy, _bias_gradient(emit, _like(emit, dy, bias), bias)


bias_add.samples((4, 7), (7,))
bias_add.samples((4, 7), (4,))
bias_add.samples((3, 5), (1,))
bias_add.samples((5, 5), (5,))
bias_add.samples((0, 5), (5,))
bias_add.samples((2, 3, 4, 5), (4,))
bias_add.samples((2, 4, 5), (5,))
