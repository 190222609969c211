"""What `x + y`, `x @ w`, `x > 0` or `x.sum(-1)` on the Values of a graph emit: each is a thin name of an op, or of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from ..errors import VerifyError
from ..types import DType, bool_
from . import subscript
from .not_numbers import NotNumbers

Number = bool | int | float | np.number | np.bool_
_FEW = 64  # up to here a whole exponent is made of multiplications


class Operators(NotNumbers):
    """The operators and methods of a Value. Operands broadcast as NumPy's; element types never promote, numbers take the Value's."""

    @property
    def dtype(self) -> DType:
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        return len(self.shape)

    # --- arithmetic -------------------------------------------------------------------------------------------------

    def __add__(self, other: Self | Number) -> Self:
        return self._both("add", "+", self, other)

    def __radd__(self, other: Number) -> Self:
        return self._both("add", "+", other, self)

    def __sub__(self, other: Self | Number) -> Self:
        return self._both("sub", "-", self, other)

    def __rsub__(self, other: Number) -> Self:
        return self._both("sub", "-", other, self)

    def __mul__(self, other: Self | Number) -> Self:
        return self._both("mul", "*", self, other)

    def __rmul__(self, other: Number) -> Self:
        return self._both("mul", "*", other, self)

    def __truediv__(self, other: Self | Number) -> Self:
        return self._both("div", "/", self, other)

    def __rtruediv__(self, other: Number) -> Self:
        return self._both("div", "/", other, self)

    def __pow__(self, exponent: Self | Number) -> Self:
        if isinstance(exponent, (int, float, np.number)) and not isinstance(exponent, bool):
            if exponent == 0.5:
                return self._op("sqrt", self)
            if 0 < exponent <= _FEW and exponent == int(exponent):
                return self._power(int(exponent))
            if -_FEW <= exponent < 0 and exponent == int(exponent) and self.dtype.kind == "float":
                return 1 / self._power(-int(exponent))
        return self._both("power", "**", self, exponent)

    def __rpow__(self, base: Number) -> Self:
        return self._both("power", "**", base, self)

    def _power(self, n: int) -> Self:
        """x to a whole power by squaring: x ** 2 is one op, x ** 3 two."""
        if n == 1:
            return self
        half = self._op("square", self._power(n // 2))
        return half * self if n % 2 else half

    def __matmul__(self, other: Self) -> Self:
        return self._product(self, other)

    def __rmatmul__(self, other: Any) -> Self:
        return self._product(other, self)

    def __neg__(self) -> Self:
        return self._op("neg", self)

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return self._op("abs", self)

    # --- comparisons, which give bools, and what bools are joined by ----------------------------------------------------

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return self._both("equal", "==", self, other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return self._both("not_equal", "!=", self, other)

    def __lt__(self, other: Self | Number) -> Self:
        return self._both("less", "<", self, other)

    def __le__(self, other: Self | Number) -> Self:
        return self._both("less_equal", "<=", self, other)

    def __gt__(self, other: Self | Number) -> Self:
        return self._both("greater", ">", self, other)

    def __ge__(self, other: Self | Number) -> Self:
        return self._both("greater_equal", ">=", self, other)

    __hash__ = object.__hash__

    def __and__(self, other: Self | bool) -> Self:
        return self._bools("&")._both("select", "&", self, self._bool(other), False)

    def __or__(self, other: Self | bool) -> Self:
        return self._bools("|")._both("select", "|", self, True, self._bool(other))

    def __xor__(self, other: Self | bool) -> Self:
        return self._bools("^")._both("not_equal", "^", self, other)

    def __invert__(self) -> Self:
        return self._bools("~")._op("not_equal", self, True)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    # --- indexing -----------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Self:
        """NumPy's basic indexing: numbers, slices, `...`, None; and integers of a Value along one axis."""
        try:
            read = subscript.read(index, self.shape)
        except subscript.Refused as refused:
            raise self._error(str(refused), hint=refused.hint) from None
        y, axes = self, read.axes
        if any((a.start, a.limit, a.step) != (0, d, 1) for a, d in zip(axes, self.shape)):
            start, limit, step = ([a[n] for a in axes] for n in range(3))
            y = self._op("slice", y, start=start, limit=limit, step=step)
        if backwards := [n for n, a in enumerate(axes) if a.reverse]:
            y = self._op("reverse", y, dims=backwards)
        sizes = [
            y.shape[n : n + 1] for n in range(self.ndim)
        ]  # by axis of x; indices stand for theirs with a shape of their own
        for axis in read.gathered:
            y = self._op("gather", y, axes[axis].indices, axis=axis)
            sizes[axis] = y.shape[axis : axis + y.ndim - self.ndim + 1]
        shape = tuple(d for n in read.kept for d in ((1,) if n is None else sizes[n]))
        return y if y.shape == shape else y.reshape(shape)

    # --- methods ------------------------------------------------------------------------------------------------------

    def reshape(self, *shape: int | Sequence[int]) -> Self:
        """The elements in row-major order in another shape, of which one size may be -1: what the others leave."""
        return self._op("reshape", self, shape=self._numbers("reshape", shape))

    def transpose(self, *axes: int | Sequence[int]) -> Self:
        """The axes in another order, backwards if none is given."""
        given = self._numbers("transpose", axes) if axes else range(self.ndim)[::-1]
        for a in given:
            self._check_axis("transpose", a, self.ndim)
        return self._op("transpose", self, perm=[a % self.ndim for a in given])

    @property
    def T(self) -> Self:
        """The axes backwards; `x @ w.T` is one gemm."""
        return self.transpose()

    @property
    def mT(self) -> Self:
        """The last two axes exchanged."""
        if self.ndim < 2:
            raise self._error("mT exchanges the last two axes", expected="rank 2 or more")
        return self.transpose(*range(self.ndim - 2), -1, -2)

    def sum(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Self:
        return self._op("reduce_sum", self, **self._over("sum", axis, keepdims))

    def mean(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Self:
        return self._op("reduce_mean", self, **self._over("mean", axis, keepdims))

    def max(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Self:
        return self._op("reduce_max", self, **self._over("max", axis, keepdims))

    def min(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Self:
        return self._op("reduce_min", self, **self._over("min", axis, keepdims))

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Where the greatest element is, as i64: along an axis, or, by default, among all elements in row-major order."""
        return self._place("argmax", axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Where the least element is, as argmax tells it."""
        return self._place("argmin", axis, keepdims)

    def _place(self, op: str, axis: int | None, keepdims: bool) -> Self:
        if axis is not None:
            return self._op(op, self, axis=axis, keepdims=keepdims)
        place = self._op(op, self.reshape(-1), axis=0, keepdims=False)
        return place.reshape((1,) * self.ndim) if keepdims else place

    def astype(self, dtype: Any) -> Self:
        """In another element type; itself where it has that type."""
        dtype = DType.of(dtype)
        return self if dtype is self.dtype else self._op("convert", self, dtype=dtype)

    def expand_dims(self, axis: int) -> Self:
        """With an axis of size 1 at this place of the result."""
        rank = self.ndim + 1
        self._check_axis("expand_dims", axis, rank)
        at = axis % rank
        return self.reshape(*self.shape[:at], 1, *self.shape[at:])

    def squeeze(self, axis: int | Sequence[int] | None = None) -> Self:
        """Without these axes of size 1; without all such if none is named."""
        if axis is None:
            gone = {n for n, d in enumerate(self.shape) if d == 1}
        else:
            axes = self._numbers("squeeze", (axis,))
            for a in axes:
                self._check_axis("squeeze", a, self.ndim)
            gone = {a % self.ndim for a in axes}
        for n in sorted(gone):
            if self.shape[n] != 1:
                raise self._error(f"squeeze: axis {n} has size {self.shape[n]}", expected="an axis of size 1")
        return self.reshape(*(d for n, d in enumerate(self.shape) if n not in gone))

    def split(self, sizes: int | Sequence[int], axis: int = 0) -> list[Self]:
        """Parts along an axis, of these sizes; of one size, the last one of what is left: as torch.split."""
        self._check_axis("split", axis, self.ndim)
        at = axis % self.ndim
        size = self.shape[at]
        if isinstance(sizes, (int, np.integer)):
            if sizes < 1:
                raise self._error(f"split: parts of {sizes}", expected="a size of 1 or more")
            sizes = [min(int(sizes), size - k) for k in range(0, size, int(sizes))]
        given = self._numbers("split", (list(sizes),))
        if any(n < 0 for n in given) or sum(given) != size:
            raise self._error(f"split: sizes {given} of axis {axis}", expected=f"sizes that add up to {size}")
        ends = [sum(given[: k + 1]) for k in range(len(given))]
        lead = (slice(None),) * at
        return [self[(*lead, slice(end - n, end))] for n, end in zip(given, ends)]

    def broadcast_to(self, *shape: int | Sequence[int]) -> Self:
        """Repeated to a shape, by NumPy's rule: axes of size 1 stretch, and new ones come in front."""
        wanted = self._numbers("broadcast_to", shape)
        lead = len(wanted) - self.ndim
        if lead < 0 or any(n not in (1, d) for n, d in zip(self.shape, wanted[lead:])):
            raise self._error(f"broadcast_to: {wanted}", expected=f"a shape that {self.shape} broadcasts to")
        return self._op("broadcast_in_dim", self, shape=wanted, dims=tuple(range(lead, len(wanted))))

    def flip(self, axis: int | Sequence[int] | None = None) -> Self:
        """The elements along these axes backwards, along all if none is named."""
        axes = range(self.ndim) if axis is None else self._numbers("flip", (axis,))
        for a in axes:
            self._check_axis("flip", a, self.ndim)
        return self._op("reverse", self, dims=sorted({a % self.ndim for a in axes}))

    # --- how they emit ------------------------------------------------------------------------------------------------

    def _op(self, kind: str, *operands: Any, **attrs: Any) -> Self:
        if self.emitter is None:
            raise VerifyError(
                f"{self!r} was made by no emitter", hint="a layer's `emit` is given Values that have one"
            )
        made: Self = self.emitter.op(kind, *operands, **attrs)
        return made

    def _both(self, kind: str, symbol: str, *operands: Any) -> Self:
        if any(x is None for x in operands):
            raise self._error(
                f"x {symbol} None: one side is no Value",
                expected="Values or numbers",
                hint="`x is None` asks whether there is a Value",
            )
        return self._op(kind, *operands)

    def _bools(self, symbol: str) -> Self:
        if self.dtype is not bool_:
            raise self._error(
                f"{symbol} joins bools",
                expected="bool, such as x > 0",
                got=repr(self),
                hint="compare first: (x > 0) & (y > 0), in parentheses",
            )
        return self

    def _bool(self, other: Any) -> Any:
        """A number beside a bool, which has no other operand to take its type from."""
        plain = self.emitter is not None and isinstance(other, Number)
        return self.emitter.constant(other, bool_) if plain and self.emitter else other

    def _check_axis(self, what: str, axis: Any, rank: int) -> None:
        if not isinstance(axis, (int, np.integer)) or not -rank <= axis < rank:
            raise self._error(f"{what}: axis {axis!r} is not in [-{rank}, {rank})")

    def _numbers(self, what: str, given: tuple[Any, ...]) -> tuple[int, ...]:
        """`f(2, 3)` and `f((2, 3))` alike."""
        numbers = tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
        for n in numbers:
            if not isinstance(n, (int, np.integer)) or isinstance(n, bool):
                hint = (
                    "the shape is known while a graph is built: x.shape[0]"
                    if isinstance(n, Operators)
                    else None
                )
                raise self._error(f"{what}: {n!r} is not a whole number", hint=hint)
        return tuple(int(n) for n in numbers)

    def _over(self, what: str, axis: int | Sequence[int] | None, keepdims: bool) -> dict[str, Any]:
        """A reduction's attributes; None is all axes, as in NumPy, and () is none of them."""
        if axis is None:
            return {"axes": (), "keepdims": keepdims}
        axes = self._numbers(what, (axis,))
        if not axes and self.ndim:
            raise self._error(f"{what}: axis=() names no axis", hint="axis=None is all of them")
        return {"axes": axes, "keepdims": keepdims}

    def _product(self, a: Any, b: Any) -> Self:
        """a @ b by NumPy's rule: a vector is a row at the left and a column at the right, batches broadcast; one gemm."""
        for x in (a, b):
            if not isinstance(x, Operators):
                raise self._error(
                    f"@ beside a {type(x).__name__}",
                    expected="a Value on both sides",
                    hint='ctx.param("weight", shape, init) is trained; ctx.state("name", shape, lambda shape, rng: array) keeps an array',
                )
            if not x.shape:
                raise self._error(
                    "@ of a 0-D Value",
                    expected="rank 1 or more on both sides",
                    got=repr(x),
                    hint="x * y scales",
                )
        left = a if a.ndim > 1 else a.reshape(1, -1)
        right = b if b.ndim > 1 else b.reshape(-1, 1)
        try:
            batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        except ValueError:
            raise self._error(
                "@: the batches do not broadcast to one shape", got=f"{left.shape[:-2]} of {a!r}, {right.shape[:-2]} of {b!r}",
                expected="leading axes that are equal, 1 or absent",
            ) from None  # fmt: skip
        (left, trans_a), (right, trans_b) = left._untransposed(), right._untransposed()
        left, right = left._over_batch(batch), right._over_batch(batch)
        y = self._op("gemm", left, right, trans_a=trans_a, trans_b=trans_b)
        shape = batch + a.shape[-2:-1] + (b.shape[-1:] if b.ndim > 1 else ())
        return y if y.shape == shape else y.reshape(shape)

    def _untransposed(self) -> tuple[Self, bool]:
        """What gemm reads in place of a transpose: its operand."""
        source = self.emitter.transposed(self) if self.emitter else None
        return (self, False) if source is None else (source, True)

    def _over_batch(self, batch: tuple[int, ...]) -> Self:
        """A factor as gemm takes it: with the whole batch, or with none where it is the same for all of it."""
        own, matrix = self.shape[:-2], self.shape[-2:]
        if own in ((), batch):
            return self
        if all(d == 1 for d in own):
            return self.reshape(matrix)
        if math.prod(own) == math.prod(batch):
            return self.reshape(*batch, *matrix)
        shape = *batch, *matrix
        dims = tuple(range(len(shape) - self.ndim, len(shape)))
        return self._op("broadcast_in_dim", self, shape=shape, dims=dims)
