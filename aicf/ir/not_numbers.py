"""What a Value of a graph is not: a number, an array, a list. Python asks it in many ways; each answer says what to write instead."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from ..errors import VerifyError


class Emits(Protocol):
    """What an operator needs of its Value's emitter."""

    def op(self, kind: str, *operands: Any, **attrs: Any) -> Any: ...

    def constant(self, value: Any, dtype: Any) -> Any: ...

    def here(self) -> str: ...

    def transposed(self, x: Any) -> Any: ...


class NotNumbers:
    """The questions that have no answer while a graph is built."""

    emitter: Emits | None

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    def __bool__(self) -> NoReturn:
        raise self._error(
            "a Value has no truth while a graph is built: its numbers are there when a program runs",
            hint="ctx.select(x > 0, a, b) chooses element by element; conditions are joined by &, | and ~; `x is None` asks for absence",
        )

    def __iter__(self) -> NoReturn:
        raise self._error(
            "a Value can't be iterated over: a loop in Python would emit ops for each of its elements",
            hint="ops take whole tensors: x.sum(0), x * y; for some rows: [x[i] for i in range(x.shape[0])]",
        )

    def __contains__(self, item: object) -> NoReturn:
        raise self._error(
            "`y in x` has no answer while a graph is built",
            hint="(x == y).astype(x.dtype).max() is 1 where some element of x is y",
        )

    def __len__(self) -> int:
        if not self.shape:
            raise self._error("a 0-D Value has no length", hint="x.shape is ()")
        return self.shape[0]

    def _no_number(self, *_: object, **__: object) -> NoReturn:
        raise self._error(
            "a Value is no number or array while a graph is built: it has numbers when a program runs",
            hint="functions of math and NumPy are ops here: ctx.exp(x), ctx.sqrt(x)",
        )

    __float__ = __int__ = __complex__ = __array__ = _no_number
    __array_ufunc__ = None  # so that `np.float32(2) * x` comes here, too

    def _no_operator(self, *_: object) -> NoReturn:
        raise self._error(
            "Values have no //, % or divmod", hint="x / y divides floats; ctx.convert(x / y, dtype=aicf.i32) cuts the fraction off",
        )  # fmt: skip

    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = __rdivmod__ = _no_operator

    def __setitem__(self, *_: object) -> NoReturn:
        raise self._error(
            "a Value can't be assigned to: it is what an op made",
            hint="ctx.select(mask, new, x) is x with other elements where the mask is true; ctx.update(state, new) keeps a state",
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or "emitter" not in vars(self) or self.emitter is None:
            raise AttributeError(f"a Value has no attribute {name!r}", name=name, obj=self)
        try:
            getattr(self.emitter, name)
        except Exception as unknown:  # says which op may be meant
            hint = getattr(unknown, "hint", None)
            said = f"; among ops: {hint}" if hint else ""
        else:
            said = f"; ctx.{name}(x) emits the op"
        raise AttributeError(f"a Value has no attribute {name!r}{said}", name=name, obj=self)

    def _error(self, what: str, **more: Any) -> VerifyError:
        return VerifyError(
            what, where=self.emitter.here() if self.emitter else "", **{"got": repr(self)} | more
        )
