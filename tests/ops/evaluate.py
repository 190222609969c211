"""Ops by themselves: an elementwise one's scalar function, with the arithmetic a kernel has; what `infer` refuses."""

import builtins
import math
from types import FunctionType, SimpleNamespace

import numpy as np

from aicf.errors import TypeInferenceError
from aicf.ops.schema import schema_of

IEEE = {  # Python's math raises where IEEE 754 has an infinity or a NaN
    "erf": lambda x: type(x)(math.erf(x)), "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "sqrt": np.sqrt, "tanh": np.tanh, "cos": np.cos, "pow": np.power, "floor": np.floor,
}  # fmt: skip


def evaluate(schema, arrays, attrs, number):
    """The scalar function on each element, in the arithmetic of `number`: literals are weak, as in NumPy."""
    scalar = schema.scalar
    globals_ = {**vars(builtins), **scalar.__globals__, "math": SimpleNamespace(**IEEE), "float": number}
    function = FunctionType(scalar.__code__, globals_, schema.name, None, scalar.__closure__)
    with np.errstate(all="ignore"):
        rows = [function(*row, **attrs) for row in zip(*(a.ravel() for a in np.broadcast_arrays(*arrays)))]
    return list(zip(*rows)) if len(schema.results) > 1 else [tuple(rows)]


def refusal(op, specs, attrs):
    """What an op says of operands that it refuses; None if it takes them."""
    schema = schema_of(op)
    try:
        schema.infer(specs, schema.pack(schema.normalized(specs, attrs)))
    except TypeInferenceError as error:
        return error.what
