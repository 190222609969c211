"""Random operands: values within an op's domain, for whoever has to run ops on data that nobody gave."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..types import DType, Shape
from .constraints import OperandDecl
from .record import OpSchema


def draw(
    schema: OpSchema,
    decl: OperandDecl,
    dtype: DType,
    shapes: Sequence[Shape | None],
    rng: np.random.Generator,
) -> np.ndarray:
    """Values for one operand of an op whose operands have these shapes, before they are rounded to `dtype`.

    Floats are normal and integers from -5 to 5, or from 0 to 10, unless the op says otherwise with `draws`; meta-parameters, which are
    always f32, lie between 0.1 and 0.9.
    """
    shape = shapes[schema.declared(len(shapes)).index(decl)]
    assert shape is not None, decl.name
    domain = schema.domains.get(decl.parameter, (0.1, 0.9) if decl.type.name == "f32" else None)
    if callable(domain):
        return np.asarray(domain(rng, shape, shapes))
    if domain is not None:
        low, high = domain
        return np.asarray(rng.uniform(low, high, shape))
    return plain(dtype, shape, rng)


def plain(dtype: DType, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Values for a tensor of which only the type is known."""
    if dtype.kind == "float":
        return np.asarray(rng.normal(size=shape))
    least, most = (0, 2) if dtype is DType.bool else (0, 11) if dtype.numpy.kind == "u" else (-5, 6)
    return np.asarray(rng.integers(least, most, shape))
