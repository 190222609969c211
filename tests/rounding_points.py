"""Which ops may make a jump of a rounding error, written down by hand: the tests' own word for it, beside what aicf finds (A15)."""

from __future__ import annotations

from collections.abc import Sequence

from aicf.rows import RegionOp
from aicf.types import TensorDesc

JUMPS = {
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "relu_grad", "leaky_relu_grad",  # 0 or dy
    "lion_step",  # by the sign of what it averages
    "argmax_key",  # a rank among the numbers of a type
    "argmax_place",  # of i64 alone, where nothing is rounded
    "floor", "ceil", "trunc", "round", "round_half_away", "sign", "floor_divide", "trunc_divide", "mod", "rem", "atan2",
    "is_finite", "is_inf", "is_nan", "logical_and", "logical_or", "logical_xor", "logical_not",  # the last four of bools alone
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "shift_left", "shift_right_arithmetic", "shift_right_logical",
    "adam_correction", "lamb_trust", "schedule_cosine", "schedule_linear",  # of f32 alone, where nothing is rounded
}  # fmt: skip


def jumps(op: RegionOp, tensors: Sequence[TensorDesc]) -> bool:
    """Comparisons, steps, and floats cut off to integers or bools."""
    cut = any(tensors[t].dtype.kind == "float" for t in op.inputs if t >= 0)
    return op.kind.name in JUMPS or (cut and any(tensors[t].dtype.kind != "float" for t in op.outputs))
