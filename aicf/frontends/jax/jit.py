"""`jit`: JAX traces a function and lowers it to StableHLO; aicf compiles and runs that."""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import update_wrapper
from itertools import islice
from typing import Any

import jax

from ... import near
from ...device.reading import remember
from ...errors import FrontendError, NoKernelError
from ...graph.compile import compile, explain_for
from ...graph.run.compilations import Compilations
from ...graph.run.explain import Explanation
from ...graph.run.program import Program
from ..imported import Imported
from ..stablehlo import read
from .arrays import array_of, feed_of, place_of
from .report import count_left, count_taken

MAX_SIGNATURES = 128  # that a function keeps; the least recently used goes first
_LOWERING: ContextVar[bool] = ContextVar("aicf.jax: a function is being traced", default=False)


def jit(
    fun: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    weights_argnums: int | Sequence[int] = (),
    device: str | None = None,
    fallback: str | None = None,
    **options: Any,
) -> Any:
    """A JAX function, compiled and run by aicf, in place of `jax.jit`: pytrees of arrays in and out, `jax.grad` inside.

    static_argnums, static_argnames   as of jax.jit: arguments whose values are part of the program; they must be hashable
    donate_argnums   arguments that the call uses up: their arrays are deleted after it
    weights_argnums  arguments that are weights, as jax.grad's argnums: with invariant=True, samples may then be columns of a product with them, as in
              `w.T @ x.T`. Without it they have to be rows, as in `x @ w`
    device    "cpu", "cuda", "cuda:1"; by default where the arguments are, else JAX's default device
    fallback  "jax", the default: a function with operations that aicf lacks, or that no kernel of the device takes, runs under jax.jit as a whole; a
              warning says it once, with the list, and `aicf.jax.report()` counts. "error": FrontendError with that list, or NoKernelError
    options   of aicf.compile: precision, numerics, deterministic, invariant, tuning, …; with invariant=True the fallback is "error"

        step = aicf.jax.jit(lambda params, x, y: jax.value_and_grad(loss)(params, x, y))

    A signature (the tree, shapes and element types of the arguments, values of the static ones) is traced and compiled when it first comes.
    `step.compilations` lists them, each with why none of those before would do. `step.explain(*args)` says which kernels run and why, `step.lower(*args)` returns JAX's lowered function.
    """
    if fun is None:
        return lambda function: jit(
            function, static_argnums=static_argnums, static_argnames=static_argnames, donate_argnums=donate_argnums,
            weights_argnums=weights_argnums, device=device, fallback=fallback, **options,
        )  # fmt: skip
    return Jitted(
        fun, static_argnums, static_argnames, donate_argnums, weights_argnums, device, fallback, options
    )


@dataclass(frozen=True)
class _Signature:
    """What a compiled function is good for."""

    tree: Any
    avals: tuple[Any, ...]
    static: tuple[Any, ...]
    place: str
    x64: bool


@dataclass(frozen=True)
class _Compiled:
    """How calls of one signature run: by aicf's program, or, without one, by JAX."""

    program: Program | None
    out_tree: Any
    out_info: tuple[Any, ...]


class Jitted:
    """A function that aicf compiles for each signature of its arguments. `jit` makes it."""

    def __init__(
        self, fun: Callable[..., Any], static_argnums: int | Sequence[int], static_argnames: str | Sequence[str],
        donate_argnums: int | Sequence[int], weights_argnums: int | Sequence[int], device: str | None, fallback: str | None,
        options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        if not callable(fun):
            raise FrontendError(
                f"aicf.jax.jit: {fun!r}", expected="a function", hint="aicf.jax.jit(f), or @aicf.jax.jit"
            )
        invariant = bool(options.get("invariant"))
        if invariant and fallback == "jax":
            raise FrontendError(
                'invariant=True with fallback="jax"', expected='fallback="error": rows that JAX computes may not be invariant',
                hint="leave fallback out",
            )  # fmt: skip
        fallback = ("error" if invariant else "jax") if fallback is None else fallback
        if fallback not in ("jax", "error"):
            raise FrontendError(f"fallback={fallback!r} is unknown", expected="'jax' or 'error'")
        if unknown := sorted(set(options) - set(inspect.signature(compile).parameters)):
            raise FrontendError(
                f"aicf.jax.jit has no option {unknown[0]!r}", expected="those of aicf.compile, and of jax.jit the ones in its docstring",
                hint=near.hint(unknown[0], {}, {*inspect.signature(jit).parameters, *inspect.signature(compile).parameters}),
            )  # fmt: skip
        nums, names = _resolved(fun, _tuple(static_argnums), _tuple(static_argnames))
        self._static_nums, self._static_names, self._donated = nums, names, _tuple(donate_argnums)
        self._weights = _tuple(weights_argnums)
        self._jax = jax.jit(fun, static_argnums=nums or None, static_argnames=names or None, keep_unused=True)
        self._device, self._fallback, self._options = device, fallback, dict(options)
        self._compiled: OrderedDict[_Signature, _Compiled] = OrderedDict()
        self._lock = threading.RLock()
        self._name = getattr(fun, "__qualname__", None) or type(fun).__name__
        self.compilations = Compilations(f"aicf.jax.jit({self._name})")
        update_wrapper(self, fun, updated=())  # not its attributes: fun may be a Jitted

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _LOWERING.get():  # inside of another function that aicf compiles: a part of it
            return self._jax(*args, **kwargs)
        leaves, signature = self._signature(args, kwargs)
        compiled = self._compiled.get(signature) or self._compile(signature, args, kwargs)
        if compiled.program is None:  # JAX's, or a function that returns no array
            return self._jax(*args, **kwargs)
        feed = self._feed(compiled.program, leaves, signature)
        results = [
            array_of(tensor, info) for tensor, info in zip(compiled.program(feed).values(), compiled.out_info)
        ]
        for n in self._donated:
            for leaf in jax.tree_util.tree_leaves(args[n]) if n < len(args) else ():
                if isinstance(leaf, jax.Array):
                    leaf.delete()
        return jax.tree_util.tree_unflatten(compiled.out_tree, results)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """JAX's lowered function for these arguments, arrays or shapes: `.as_text()` is the StableHLO that aicf reads."""
        return self._traced(args, kwargs).lower()

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        token = _LOWERING.set(True)
        try:
            return self._jax.trace(*args, **kwargs)
        finally:
            _LOWERING.reset(token)

    def model(self, *args: Any, **kwargs: Any) -> Imported:
        """What aicf reads for these arguments: a model that `aicf.compile` and `aicf.explain_for` take."""
        return self._read(self.lower(*args, **kwargs), args)

    def _read(self, lowered: Any, args: tuple[Any, ...]) -> Imported:
        """The model, which knows which of its inputs are weights: JAX's order is that of the leaves of arguments that are not static."""
        model, names = read(lowered), list[str]()
        static, weights = (
            {n % len(args) if n < 0 and args else n for n in some}
            for some in (self._static_nums, self._weights)
        )
        inputs = iter(model.inputs)
        for n, arg in enumerate(args):
            if n not in static:
                own = list(islice(inputs, len(jax.tree_util.tree_leaves(arg))))
                names += own if n in weights else []
        model.weight_inputs = frozenset(names)
        return model

    def explain(self, *args: Any, device: str | None = None, **kwargs: Any) -> Explanation:
        """Why each kernel is chosen for these arguments, which may be jax.ShapeDtypeStructs.

        device  the name of a preset, such as "h200", that need not be there; by default the device of a call
        """
        model = self.model(*args, **kwargs)
        if device is not None:
            return explain_for(model, device, **self._options)
        return compile(
            model, device=self._place(jax.tree_util.tree_leaves((args, kwargs))), **self._options
        ).explain()

    def _place(self, leaves: Sequence[Any]) -> str:
        return place_of(leaves, self._device)

    def _signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], _Signature]:
        """(the arrays of a call in JAX's order, what they and the static arguments are)."""
        nums = {n % len(args) if n < 0 and args else n for n in self._static_nums}
        static = tuple((n, args[n]) for n in sorted(nums) if n < len(args))
        named = tuple((n, kwargs[n]) for n in sorted(self._static_names) if n in kwargs)
        dynamic = tuple(a for n, a in enumerate(args) if n not in nums)
        leaves, tree = jax.tree_util.tree_flatten(
            (dynamic, {n: a for n, a in kwargs.items() if n not in self._static_names})
        )
        for name, value in (*static, *named):
            if not isinstance(value, Hashable):
                raise FrontendError(
                    f"the static argument {name} of {self._name} is a {type(value).__name__}", expected="a value that has a hash, such as a tuple",
                    hint="arrays are arguments that are not static",
                )  # fmt: skip
        avals = tuple(_aval(leaf) for leaf in leaves)
        # 1, 1.0 and True are equal, and other programs; within tuples JAX does not tell them apart
        typed = tuple((name, type(value), value) for name, value in (*static, *named))
        return leaves, _Signature(tree, avals, typed, self._place(leaves), bool(jax.config.jax_enable_x64))

    def _compile(self, signature: _Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Compiled:
        with self._lock:
            if (known := self._compiled.get(signature)) is not None:
                return known
            traced = self._traced(args, kwargs)
            lowered, info = traced.lower(), tuple(jax.tree_util.tree_leaves(traced.out_info))
            program: Program | None = None
            try:
                if info:
                    with self.compilations.made("function", _facts(signature)):
                        program = compile(self._read(lowered, args), device=signature.place, **self._options)
                    count_taken(self._name)
            except (FrontendError, NoKernelError) as error:
                if self._fallback == "error":
                    raise
                count_left(self._name, error)
            compiled = _Compiled(program, lowered.out_tree, info)
            remember(self._compiled, signature, compiled, MAX_SIGNATURES)
            return compiled

    def _feed(self, program: Program, leaves: Sequence[Any], signature: _Signature) -> dict[str, Any]:
        names = list(program.recipe.model.inputs)
        return {
            name: feed_of(leaf, aval, signature.place, name)
            for name, leaf, aval in zip(names, leaves, signature.avals, strict=True)
        }

    def __repr__(self) -> str:
        return f"aicf.jax.jit({self._name}: {len(self._compiled)} signatures)"


def _facts(signature: _Signature) -> dict[str, Any]:
    """A signature by name, for people."""
    arrays = {f"array {n}": aval.str_short(True) for n, aval in enumerate(signature.avals)}
    static = {f"static {name}": repr(value) for name, _, value in signature.static}
    return {**arrays, **static, "tree": signature.tree, "on": signature.place, "x64": signature.x64}


def _aval(leaf: Any) -> Any:
    """The abstract value of an argument: its shape and element type."""
    if isinstance(leaf, jax.core.Tracer):
        raise FrontendError(
            "a function of aicf.jax.jit is called while JAX traces another one", got=str(leaf),
            hint="put jax.grad, jax.vmap and jax.jit inside: aicf.jax.jit(jax.grad(f)), not jax.grad(aicf.jax.jit(f))",
        )  # fmt: skip
    return jax.typeof(leaf)


def _tuple(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, (int, str)) else tuple(given)


def _resolved(
    fun: Callable[..., Any], nums: tuple[int, ...], names: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Static arguments by position and by name, each in both ways where the function's signature says so, as jax.jit does."""
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):  # a builtin has none
        return nums, names
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {
        parameters[n].name
        for n in nums
        if -len(plain) <= n < len(plain) and parameters[n].kind is parameters[n].POSITIONAL_OR_KEYWORD
    }
    by_number = {n for n, name in enumerate(plain) if name in names}
    return tuple(sorted({*nums, *by_number})), tuple(sorted({*names, *by_name}))
