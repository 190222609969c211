"""Products of matrices and more."""

from __future__ import annotations

from ..call import OpTyping
from ..declare import Attr, OperandRule, typed
from ..types import Dim, RankedTensor, Type, fits, narrower, shown
from ..values import Record
from .movement import unique, within

PRECISION = Attr("precision_config", "precisions", needed=False, default=())
_KNOWN = {
    ("f16", "f16", "f16"): (1,), ("f16", "f16", "f32"): (1,), ("bf16", "bf16", "bf16"): (1,), ("bf16", "bf16", "f32"): (1, 3, 6, 9),
    ("tf32", "tf32", "f32"): (1, 3), ("f32", "f32", "f32"): (1,), ("f64", "f64", "f64"): (1,),
}  # fmt: skip
_F8 = {"f8E3M4", "f8E4M3", "f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E4M3B11FNUZ", "f8E5M2FNUZ"}


def precise(c: OpTyping, constraint: str, config: tuple[str, ...]) -> None:
    c.require(len(config) <= 2, constraint, f"precision_config has {len(config)} entries, expected at most 2")


@typed("dot", given=[OperandRule("lhs"), OperandRule("rhs"), PRECISION])
def _(c: OpTyping, lhs: RankedTensor, rhs: RankedTensor, config: tuple[str, ...]) -> Type:
    precise(c, "I3", config)
    ranks = lhs.rank in (1, 2) and rhs.rank in (1, 2)
    c.require(
        ranks and fits(lhs.shape[-1], rhs.shape[0]),
        "C1",
        f"lhs is {lhs}, and rhs {rhs}: no vectors or matrices that fit",
    )
    dims = [(n, lhs.bound(axis)) for axis, n in enumerate(lhs.shape[:-1])]
    dims += [(n, rhs.bound(axis)) for axis, n in enumerate(rhs.shape) if axis]
    return c.shaped([n for n, _ in dims], lhs.element, "C2", [bound for _, bound in dims])


@typed(
    "dot_general",
    given=[
        OperandRule("lhs"), OperandRule("rhs"), Attr("dot_dimension_numbers", "dot"), Attr("precision_config", "precisions", needed=False, default=(), at=7),
        Attr("algorithm", "dot_algorithm", needed=False, at=8),
    ],
)  # fmt: skip
def _(
    c: OpTyping,
    lhs: RankedTensor,
    rhs: RankedTensor,
    numbers: Record,
    config: tuple[str, ...],
    algorithm: Record | None,
) -> Type:
    batch = numbers.ints("lhs_batching_dimensions"), numbers.ints("rhs_batching_dimensions")
    summed = numbers.ints("lhs_contracting_dimensions"), numbers.ints("rhs_contracting_dimensions")
    precise(c, "C11", config)
    for constraint, name, (left, right) in (("C1", "batching", batch), ("C2", "contracting", summed)):
        c.require(
            len(left) == len(right),
            constraint,
            f"lhs_{name}_dimensions is {list(left)}, and rhs_{name}_dimensions {list(right)}",
        )
    unique(c, "C3", "lhs_batching_dimensions with lhs_contracting_dimensions", (*batch[0], *summed[0]))
    unique(c, "C4", "rhs_batching_dimensions with rhs_contracting_dimensions", (*batch[1], *summed[1]))
    within(c, "C5", "lhs_batching_dimensions", batch[0], lhs.rank)
    within(c, "C6", "lhs_contracting_dimensions", summed[0], lhs.rank)
    within(c, "C7", "rhs_batching_dimensions", batch[1], rhs.rank)
    within(c, "C8", "rhs_contracting_dimensions", summed[1], rhs.rank)
    for constraint, pairs in (("C9", zip(*batch)), ("C10", zip(*summed))):
        for a, b in pairs:
            sizes = lhs.shape[a], rhs.shape[b]
            c.require(
                fits(*sizes),
                constraint,
                f"dimension {a} of lhs is {shown(sizes[0])}, and dimension {b} of rhs {shown(sizes[1])}",
            )
    dims: list[tuple[Dim, Dim]] = [
        narrower((lhs.shape[a], lhs.bound(a)), (rhs.shape[b], rhs.bound(b)), n)
        for n, (a, b) in enumerate(zip(*batch))
    ]
    for side, taken in ((lhs, (*batch[0], *summed[0])), (rhs, (*batch[1], *summed[1]))):
        dims += [(n, side.bound(axis)) for axis, n in enumerate(side.shape) if axis not in taken]
    made = c.shaped([n for n, _ in dims], lhs.element, "C12", [bound for _, bound in dims])
    if algorithm is not None:
        _check_algorithm(c, algorithm, config)
    return made


def _check_algorithm(c: OpTyping, algorithm: Record, config: tuple[str, ...]) -> None:
    c.require(
        set(config) <= {"DEFAULT"},
        "C21",
        f"precision_config is {', '.join(config)} beside an algorithm, expected DEFAULT",
    )
    for constraint, name in (
        ("C22", "lhs_component_count"),
        ("C23", "rhs_component_count"),
        ("C24", "num_primitive_operations"),
    ):
        c.require(
            algorithm.number(name) >= 1,
            constraint,
            f"{name} is {algorithm.number(name)}, expected at least 1",
        )
    left, right, total = (
        str(algorithm.fields[f"{name}_type"]) for name in ("lhs_precision", "rhs_precision", "accumulation")
    )
    steps, loose = (
        algorithm.number("num_primitive_operations"),
        bool(algorithm.fields["allow_imprecise_accumulation"]),
    )
    single = algorithm.number("lhs_component_count") == algorithm.number("rhs_component_count") == 1
    eight = left in _F8 and right in _F8 and total == "f32" and steps == 1
    known = single and (eight or (not loose and steps in _KNOWN.get((left, right, total), ())))
    c.require(
        known,
        "I8",
        f"no hardware is known to have the algorithm {left} x {right} -> {total} in {steps} operations",
    )


@typed("einsum", given=[OperandRule("lhs"), OperandRule("rhs"), Attr("einsum_config", "text")])
def _(c: OpTyping, lhs: RankedTensor, rhs: RankedTensor, config: str) -> Type:
    return c.said()


@typed("unary_einsum", given=[OperandRule("operand"), Attr("einsum_config", "text")])
def _(c: OpTyping, operand: RankedTensor, config: str) -> Type:
    return c.said()
