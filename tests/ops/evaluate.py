"""An elementwise op's scalar function, called by Python, with the arithmetic a kernel has."""

import numpy as np

from aicf.ops.scalar import in_python


def evaluate(schema, arrays, attrs, number):
    """The scalar function on each element, in the arithmetic of `number`: literals are weak, as in NumPy."""
    function = in_python(schema.scalar, number)
    with np.errstate(all="ignore"):
        rows = [function(*row, **attrs) for row in zip(*(a.ravel() for a in np.broadcast_arrays(*arrays)))]
    return list(zip(*rows)) if len(schema.results) > 1 else [tuple(rows)]
