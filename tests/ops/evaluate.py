"""Ops by themselves: an elementwise one's scalar function, with the arithmetic a kernel has; what `infer` refuses."""

import numpy as np

from aicf.errors import TypeInferenceError
from aicf.ops.scalar import in_python
from aicf.ops.schema import schema_of


def evaluate(schema, arrays, attrs, number):
    """The scalar function on each element, in the arithmetic of `number`: literals are weak, as in NumPy."""
    function = in_python(schema.scalar, number)
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
