"""Whether an op's reference and its scalar function compute the same: two statements of one op, by the same author.

Under AICF_CHECK=ops each op is looked at when it is first emitted or called, with the attributes it then has. Set it where
an op is tested, in a conftest.py; `check_op("squash")` does it at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import ml_dtypes
import numpy as np

from ..config import check_enabled
from ..errors import MismatchError, RegistryError
from ..types import DType, TensorSpec, numel, rounded, row_major
from .draw import draw
from .record import OpSchema, schema_of
from .scalar import in_python
from .schema import ELEMENTWISE

COUNT = 60  # elements of each operand, where the op takes any shape
LARGEST = 2000  # samples of more elements are left out

_looked_at: set[tuple[OpSchema, bytes]] = set()


def look_at(schema: OpSchema, attrs: Mapping[str, Any]) -> None:
    """Under AICF_CHECK=ops, `check_op` once for an op, and once for these attributes where it compares with those of its argument."""
    if not check_enabled("ops") or schema.scalar is None or schema.reference_fn is None:
        return
    key = schema, schema.pack(attrs).blob if ELEMENTWISE in schema.traits else b""
    if key not in _looked_at:
        _looked_at.add(key)
        check_op(schema, **attrs)


def check_op(op: str | OpSchema, seed: int = 0, **attrs: Any) -> None:
    """Compare a map op's scalar function with its reference on random operands. MismatchError names the first that tell them apart.

    attrs  of an elementwise op; those of its first sample if none are given. Other ops are compared on all their samples

    Both compute in f64, or in integers, so that rounding is no excuse.
    """
    schema = schema_of(op) if isinstance(op, str) else op
    if schema.scalar is None or schema.reference_fn is None:
        raise RegistryError(f"{schema.name} has no scalar function and reference to compare")
    rng = np.random.default_rng([seed, *schema.name.encode()])
    if ELEMENTWISE in schema.traits:
        first = schema.sample_specs[0]["attrs"] if schema.sample_specs else {}
        count = len(schema.operands) + 2 * schema.variadic
        _compare(schema, [(COUNT,)] * count, attrs or first, rng)
        return
    for sample in schema.sample_specs:
        if None not in sample["shapes"] and max([1, *map(numel, sample["shapes"])]) <= LARGEST:
            _compare(schema, sample["shapes"], sample["attrs"], rng)


def _compare(schema: OpSchema, shapes: Any, attrs: Mapping[str, Any], rng: np.random.Generator) -> None:
    declared = schema.declared(len(shapes))
    dtypes = [_admitted(decl.type) for decl in declared]
    shared = next((t for d, t in zip(declared, dtypes) if d.type.shared), DType.f32)
    arrays = [
        draw(schema, decl, dtype, shapes, rng).astype(np.float64 if dtype.kind == "float" else dtype.numpy)
        for decl, dtype in zip(declared, dtypes)
    ]
    specs = [TensorSpec(a.shape, t) for a, t in zip(arrays, dtypes)]
    pack = schema.pack(schema.normalized(specs, attrs))
    results = schema.infer(specs, pack)
    wanted = schema.call_reference(arrays, pack)
    number = np.float64 if shared.kind == "float" else shared.numpy.type
    accesses = schema.accesses(shapes, results[0].rank, pack)
    function = in_python(schema.scalar_for(_argument_types(accesses, dtypes), pack), number)
    given = schema.constants_fn(pack) if schema.constants_fn else pack
    constants = {name: given[name] for name in _keywords(function)}
    shape, made = results[0].shape, []
    with np.errstate(all="ignore"):
        for index in np.ndindex(shape):
            try:
                found = function(*_arguments(accesses, arrays, index, shape), **constants)
            except Exception as error:
                error.add_note(f"in {schema.name}'s scalar function, which AICF_CHECK=ops runs in Python")
                raise
            made.append(found if len(results) > 1 else (found,))
        for n, (column, spec) in enumerate(zip(zip(*made), results)):
            agree = _agree(column, np.reshape(wanted[n], -1), spec.dtype)
            if not agree.all():
                place = int(np.argmin(agree))
                operands = _arguments(accesses, arrays, np.unravel_index(place, shape), shape)
                got, want = column[place], np.reshape(wanted[n], -1)[place]
                raise _disagreement(schema, function.__code__, accesses, operands, pack, n, got, want)


def _argument_types(accesses: Any, operands: list[DType]) -> list[DType]:
    """Of the scalar function; a masked read is two arguments."""
    made: list[DType] = []
    for access in accesses:
        made.append(DType.i64 if access.operand is None else operands[access.operand])
        made += [DType.bool] * access.masked
    return made


def _keywords(function: FunctionType) -> tuple[str, ...]:
    """What it takes by name only: the attributes that it reads."""
    code = function.__code__
    return code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]


def _admitted(constraint: Any) -> DType:
    return min(constraint.dtypes, key=lambda t: t.id)  # f32 where it may be


def _arguments(
    accesses: Any, arrays: list[np.ndarray], index: tuple[int, ...], shape: tuple[int, ...]
) -> list[Any]:
    """Of the scalar function at a point of the result."""
    made: list[Any] = []
    for access in accesses:
        if not access.masked:
            made.append(_element(access, arrays, index, shape))
            continue
        own = arrays[access.operand]
        at = [start + (index[axis] * step if axis >= 0 else 0) for axis, start, step in access.walked()]
        inside = all(0 <= at[axis] < own.shape[axis] for axis in access.bounded)
        for axis, follows, start, every in access.spread:
            at[axis], rest = divmod(index[follows] - start, every)
            inside = inside and rest == 0 and 0 <= at[axis] < own.shape[axis]
        for axis, argument in access.index:
            number = int(_element(accesses[argument], arrays, index, shape))
            at[axis] = number + own.shape[axis] * (number < 0)
            inside = inside and 0 <= at[axis] < own.shape[axis]
        made += [own[tuple(at)] if inside else own.dtype.type(0), np.bool_(inside)]
    return made


def _element(access: Any, arrays: list[np.ndarray], index: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """One argument of the scalar function at a point of the result."""
    own = shape if access.operand is None else arrays[access.operand].shape
    if access.in_order:
        return arrays[access.operand].reshape(-1)[np.ravel_multi_index(index, shape) if shape else 0]
    place = 0
    for (axis, start, step), size, stride in zip(access.walked(), own, row_major(own)):
        place += stride * (start + (index[axis] * step if axis >= 0 and size != 1 else 0))
    return np.int64(place) if access.operand is None else arrays[access.operand].reshape(-1)[place]


def _agree(got: Sequence[Any], want: np.ndarray, dtype: DType) -> np.ndarray:
    """Which elements agree."""
    if dtype.kind != "float":  # one by one: together, large integers and floats would become floats
        return np.array([rounded(np.asarray(x), dtype) for x in got], dtype.numpy) == want
    near = max(1e-6, 0.0 if dtype is DType.f32 else 2 * float(ml_dtypes.finfo(dtype.numpy).eps))
    return np.isclose(np.array(got, np.float64), np.float64(want), rtol=near, atol=near, equal_nan=True)


def _disagreement(
    schema: OpSchema,
    code: CodeType,
    accesses: Any,
    operands: Any,
    attrs: Mapping[str, Any],
    n: int,
    got: Any,
    want: Any,
) -> Exception:
    declared, names = schema.declared(len(accesses)), []
    for access in accesses:
        names.append("index" if access.operand is None else declared[access.operand].name)
        names += [f"whether {names[-1]} has an element"] * access.masked
    told = itertools.chain(zip(names, operands), attrs.items())
    return MismatchError(
        f"{schema.name}: its reference and its scalar function disagree on {schema.results[n]}",
        details=[f"{name} = {value.item() if isinstance(value, np.generic) else value!r}" for name, value in told],
        expected=f"{np.float64(want):.9g}, the reference's", got=f"{np.float64(got):.9g}, the scalar function's",
        where=f"{code.co_filename}:{code.co_firstlineno}",
        hint=f"kernels are made of the scalar function, tests and gradients are held to the reference: one of them is not {schema.name}",
    )  # fmt: skip
