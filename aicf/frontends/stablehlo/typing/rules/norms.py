"""Batch normalisation, linear algebra, Fourier transforms and random numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ..call import OpTyping
from ..declare import FLOAT_COMPLEX, FLOATS, INT_FLOAT, SIZES, Attr, Kind, OperandRule, typed
from ..types import BOOL, FLOAT, INT, Dim, RankedTensor, Type, fits, shapes_fit, tensor

ROW = Kind("a 1-dimensional tensor of floating-point type", FLOAT, rank=1)
EPSILON = Attr("epsilon", "f32")
FEATURE = Attr("feature_index", "i64", 0, low="C1")
BOUND = Kind("a 0-dimensional tensor of i1, integer or floating-point type", BOOL | INT | FLOAT, rank=0)


def _normed(
    c: OpTyping, wide: Sequence[RankedTensor], rows: dict[str, tuple[str, RankedTensor]], axis: int
) -> Type:
    """The checks of all three; the type of a row: the size of the feature dimension."""
    operand = wide[0]
    c.require(
        len({each.element for each in (*wide, *(t for _, t in rows.values()))}) == 1,
        "C2",
        "operands have different element types",
    )
    for each in wide[1:]:
        c.require(
            shapes_fit(operand.shape, each.shape), "C3", f"operand is {operand}, and grad_output {each}"
        )
    c.require(axis < operand.rank, "C1", f"feature_index is {axis}, and operand {operand}")
    number, first = next(iter(rows.values()))
    fit = fits(first.shape[0], operand.shape[axis])
    c.require(
        fit, number, f"{next(iter(rows))} is {first}, and operand {operand} with features in dimension {axis}"
    )
    named = list(rows.items())
    for n, (name, (constraint, row)) in enumerate(named):
        for other, (_, before) in named[:n]:
            c.require(
                fits(row.shape[0], before.shape[0]), constraint, f"{name} is {row}, and {other} {before}"
            )
    bounds = None if operand.bounds is None else [operand.bounds[axis]]
    return tensor([operand.shape[axis]], operand.element, bounds)


@typed(
    "batch_norm_grad",
    given=[
        OperandRule("operand", FLOATS),
        OperandRule("scale", ROW),
        OperandRule("mean", ROW),
        OperandRule("variance", ROW),
        OperandRule("grad_output", FLOATS),
        EPSILON,
        FEATURE,
    ],
    results=(FLOATS, ROW, ROW),
    same_elements="C2",
    made="C3",
)
def _(
    c: OpTyping,
    operand: RankedTensor,
    scale: RankedTensor,
    mean: RankedTensor,
    variance: RankedTensor,
    dy: RankedTensor,
    epsilon: float,
    axis: int,
) -> list[Type]:
    row = _normed(
        c, [operand, dy], {"scale": ("C5", scale), "mean": ("C4", mean), "variance": ("C4", variance)}, axis
    )
    return [operand, row, row]


@typed(
    "batch_norm_inference",
    given=[
        OperandRule("operand", FLOATS),
        OperandRule("scale", ROW),
        OperandRule("offset", ROW),
        OperandRule("mean", ROW),
        OperandRule("variance", ROW),
        EPSILON,
        FEATURE,
    ],
    results=(FLOATS,),
    same_elements="C2",
    made="C7",
)
def _(
    c: OpTyping,
    operand: RankedTensor,
    scale: RankedTensor,
    offset: RankedTensor,
    mean: RankedTensor,
    variance: RankedTensor,
    epsilon: float,
    axis: int,
) -> Type:
    _normed(
        c,
        [operand],
        {
            "scale": ("C3", scale),
            "offset": ("C4", offset),
            "mean": ("C5", mean),
            "variance": ("C6", variance),
        },
        axis,
    )
    return operand


@typed(
    "batch_norm_training",
    given=[
        OperandRule("operand", FLOATS),
        OperandRule("scale", ROW),
        OperandRule("offset", ROW),
        EPSILON,
        FEATURE,
    ],
    results=(FLOATS, ROW, ROW),
    same_elements="C2",
    made="C7",
)
def _(
    c: OpTyping, operand: RankedTensor, scale: RankedTensor, offset: RankedTensor, epsilon: float, axis: int
) -> list[Type]:
    row = _normed(c, [operand], {"scale": ("C3", scale), "offset": ("C4", offset)}, axis)
    return [operand, row, row]


@typed(
    "cholesky",
    given=[OperandRule("a", FLOAT_COMPLEX), Attr("lower", "bool", needed=False)],
    results=FLOAT_COMPLEX,
    same_elements="C1",
    made="C1",
)
def _(c: OpTyping, a: RankedTensor, lower: bool) -> Type:
    c.require(a.rank >= 2, "C2", f"a is {a}, expected two dimensions or more")
    c.require(fits(a.shape[-2], a.shape[-1]), "C3", f"a is {a}, whose last two dimensions differ")
    return a


@typed("triangular_solve",
    given=[
        OperandRule("a", FLOAT_COMPLEX), OperandRule("b", FLOAT_COMPLEX), Attr("left_side", "bool"), Attr("lower", "bool"), Attr("unit_diagonal", "bool"),
        Attr("transpose_a", "transpose"),
    ],
    results=FLOAT_COMPLEX, same_elements="C1", made="C4")  # fmt: skip
def _(
    c: OpTyping, a: RankedTensor, b: RankedTensor, left: bool, lower: bool, unit: bool, transpose: str
) -> Type:
    c.require(a.rank >= 2, "C2", f"a is {a}, expected two dimensions or more")
    c.require(fits(a.shape[-2], a.shape[-1]), "C3", f"a is {a}, whose last two dimensions differ")
    c.require(a.rank == b.rank, "C2", f"a is {a}, and b {b}")
    c.require(fits(a.shape[-1], b.shape[-2 if left else -1]), "C3", f"a is {a}, and b {b}")
    c.require(shapes_fit(a.shape[:-2], b.shape[:-2]), "C3", f"a is {a}, and b {b}: their batches differ")
    c.require(transpose != "TRANSPOSE_INVALID", "I6", "transpose_a is TRANSPOSE_INVALID")
    return b


@typed(
    "fft",
    given=[OperandRule("operand", FLOAT_COMPLEX), Attr("fft_type", "fft_type"), Attr("fft_length", "ints")],
    results=FLOAT_COMPLEX,
    made="C5",
)
def _(c: OpTyping, operand: RankedTensor, kind: str, lengths: tuple[int, ...]) -> Type:
    count = len(lengths)
    c.require(1 <= count <= 3, "C3", f"fft_length is {list(lengths)}, expected one to three numbers")
    element = operand.element
    if kind == "RFFT":
        c.require(element in ("f32", "f64"), "C2", f"operand is {operand}, expected f32 or f64")
        element = f"complex<{element}>"
    else:
        c.require(element.startswith("complex"), "C2", f"operand is {operand}, expected complex numbers")
    c.require(operand.rank >= count, "C1", f"fft_length is {list(lengths)}, and operand {operand}")
    shape: list[Dim] = list(operand.shape)
    last = shape[-count:]
    if kind == "RFFT":
        c.require(shapes_fit(last, lengths), "C4", f"fft_length is {list(lengths)}, and operand {operand}")
        shape[-1] = lengths[-1] // 2 + 1 if lengths[-1] else shape[-1]
    if kind == "IRFFT":
        element = element.removeprefix("complex<").removesuffix(">")
        c.require(
            shapes_fit(last[:-1], lengths[:-1]), "C4", f"fft_length is {list(lengths)}, and operand {operand}"
        )
        none = fits(last[-1], 0) and lengths[-1] == 0
        half = int(lengths[-1] / 2) + 1 if abs(lengths[-1]) < 2**50 else lengths[-1] // 2 + 1
        c.require(none or fits(last[-1], half), "C5", f"fft_length is {list(lengths)}, and operand {operand}")
        c.require(lengths[-1] >= 0, "C4", f"fft_length is {list(lengths)}, expected at least 0")
        shape[-1] = lengths[-1]
    bounds = None if operand.bounds is None else list(operand.bounds)
    if bounds and kind in ("RFFT", "IRFFT"):
        bounds[-1] = None
    return tensor(shape, element, bounds)


@typed(
    "rng",
    given=[
        OperandRule("a", BOUND),
        OperandRule("b", BOUND),
        OperandRule("shape", SIZES),
        Attr("rng_distribution", "rng_distribution"),
    ],
    results=Kind("a tensor of i1, integer or floating-point type", BOOL | INT | FLOAT),
    made="C3",
)
def _(c: OpTyping, a: RankedTensor, b: RankedTensor, shape: RankedTensor, distribution: str) -> Type:
    c.require(a.element == b.element, "C1", f"a is {a}, and b {b}")
    c.require(
        distribution != "NORMAL" or a.element in FLOAT,
        "C2",
        f"a is {a}, expected floating-point numbers for NORMAL",
    )
    count = shape.shape[0] or 0
    c.require(count <= 4096, "C3", f"shape has {count} numbers, more than a type has dimensions here")
    return tensor([None] * count, b.element)


@typed(
    "rng_bit_generator",
    given=[Attr("rng_algorithm", "rng_algorithm"), OperandRule("initial_state", INT_FLOAT)],
    results=(
        INT_FLOAT,
        Kind("a tensor of integer or floating-point type whose sizes are known", INT | FLOAT, static=True),
    ),
)
def _(c: OpTyping, algorithm: str, state: RankedTensor) -> list[Type]:
    made = [c.said(0), c.said(1)]
    c.require(
        shapes_fit(state.shape, made[0].shape), "C1", f"initial_state is {state}, and output_state {made[0]}"
    )
    return list(made)
