"""Ops by themselves: an elementwise one's scalar function, with the arithmetic a kernel has; what `infer` refuses."""

import numpy as np

from aicf.errors import TypeInferenceError
from aicf.ops.scalar import in_python
from aicf.ops.schema import schema_of
from aicf.types import DType


def evaluate(schema, arrays, attrs, number):
    """The scalar function on each element, in the arithmetic of `number`: literals are weak, as in NumPy."""
    scalar = schema.scalar_for([DType.of(a.dtype) for a in arrays], attrs)
    function, attrs = (
        in_python(scalar, number),
        attrs if scalar is schema.scalar else {},
    )  # one made for types has none
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
