"""Whole programs drawn at random, run as kernels.

A program is data: inputs, states and steps, each value with a name, so that a step is dropped by its name. Its oracle is in
balls.py; a step whose bound would say next to nothing is not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import aicf
from aicf.ops.schema import schema_of
from aicf.types import DType, TensorSpec

from .balls import ACTS, BINARY, ORACLES, UNARY, Ball

F32, F16, BF16, I32 = DType.f32, DType.f16, DType.bf16, DType.i32
LARGEST, MOST_ELEMENTS = 200.0, 1500
IN_PLACE = {"add_gradient", "sgd_step"}

# --- programs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One op; its result is called `name`. Operands are names of values, numbers, or None."""

    name: str
    kind: str
    operands: tuple[str | float | None, ...]
    attrs: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        given = [o if isinstance(o, str) else repr(o) for o in self.operands]
        return f"{self.name} = ctx.{self.kind}({', '.join([*given, *(f'{k}={v!r}' for k, v in self.attrs)])})"


@dataclass(frozen=True)
class Fed:
    """An input, or a state that a step writes over. Its numbers follow from its name and the program's seed."""

    name: str
    spec: TensorSpec
    below: int = 0  # indices: what they are less than

    def array(self, seed: int) -> np.ndarray:
        rng = np.random.default_rng([seed, *self.name.encode()])
        if self.below:
            return rng.integers(-self.below, self.below, self.spec.shape).astype(np.int32)
        values = rng.normal(size=self.spec.shape) * rng.choice([0.3, 1.0, 3.0])
        return values.astype(np.float32).astype(self.spec.dtype.numpy)


@dataclass(frozen=True)
class Program:
    """`outputs` are names of steps. It is a model as well: what `aicf.compile` takes."""

    seed: int
    fed: tuple[Fed, ...]
    states: tuple[Fed, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def inputs(self) -> dict[str, TensorSpec]:
        return {f.name: f.spec for f in self.fed}

    def emit(self, ctx: Any, inputs: Mapping[str, Any]) -> Any:
        pool = dict(inputs)
        for f in self.states:
            pool[f.name] = ctx.state(
                f.name, f.spec.shape, lambda shape, rng, f=f: f.array(self.seed), f.spec.dtype
            )
        for step in self.steps:
            given = [pool[o] if isinstance(o, str) else o for o in step.operands]
            made = ctx.op(step.kind, *given, **dict(step.attrs))
            pool[step.name] = made[0] if isinstance(made, tuple) else made
            if step.kind in IN_PLACE:
                for result, (operand, _) in schema_of(step.kind).alias.items():
                    ctx.update(given[operand], made[result] if isinstance(made, tuple) else made)
        for name in self.outputs[1:]:
            ctx.builder.output(name, pool[name])
        return pool[self.outputs[0]]

    def exact(self, types: dict[str, DType] | None = None) -> dict[str, Ball]:
        """Every value by name; what a state is at the end under its own name. Their element types go into `types`."""
        pool = {f.name: Ball.of(f.array(self.seed).astype(np.float64)) for f in (*self.fed, *self.states)}
        ends = {}
        types = {} if types is None else types
        types.update({f.name: f.spec.dtype for f in (*self.fed, *self.states)})
        with np.errstate(all="ignore"):
            for step in self.steps:
                pool[step.name] = made = computed(step, pool, types)
                if step.kind in IN_PLACE:
                    ends[step.operands[0]] = made
                    if step.kind == "sgd_step":  # without momentum the velocity is the gradient
                        ends[step.operands[2]] = pool[step.operands[1]]
        return pool | ends

    def run(self, **how: Any) -> dict[str, np.ndarray]:
        compiled = aicf.compile(replace(self), device="cpu", **how)  # a model of its own: no other's states
        made = compiled.run({f.name: f.array(self.seed) for f in self.fed})
        found = {n: made["output" if n == self.outputs[0] else n].numpy() for n in self.outputs}
        return found | {f.name: compiled.get(f.name) for f in self.states}

    def __str__(self) -> str:
        told = [f"{f.name} = ctx.input({f.name!r}, {f.spec.shape}, {str(f.spec.dtype)!r})" for f in self.fed]
        told += [f"{f.name} = ctx.state({f.name!r}, {f.spec.shape}, …)" for f in self.states]
        return "\n".join(
            [f"seed {self.seed}", *told, *map(str, self.steps), f"outputs {', '.join(self.outputs)}"]
        )

    def without(self, name: str) -> Program | None:
        """Without a step and all that reads it; None if nothing is left."""
        gone, kept = {name}, []
        for step in self.steps:
            if step.name in gone or gone.intersection(o for o in step.operands if isinstance(o, str)):
                gone.add(step.name)
            else:
                kept.append(step)
        return self.having(kept, [n for n in self.outputs if n not in gone])

    def given(self, name: str) -> Program | None:
        """With an input in place of what a step makes; None where that is an output, or no float."""
        types: dict[str, DType] = {}
        shape = self.exact(types)[name].v.shape
        if name in self.outputs or types[name].kind != "float":
            return None
        fed = (*self.fed, Fed(name, TensorSpec(shape, types[name])))
        return replace(self, fed=fed).having([s for s in self.steps if s.name != name], list(self.outputs))

    def having(self, steps: list[Step], outputs: list[str]) -> Program | None:
        """Of these steps what the outputs and states need."""
        needed, kept = set(outputs), []
        for step in reversed(steps):
            if step.name in needed or step.kind in IN_PLACE:
                needed.update(o for o in step.operands if isinstance(o, str))
                kept.append(step)
        if not outputs:
            return None
        fed, states = (tuple(f for f in all if f.name in needed) for all in (self.fed, self.states))
        return replace(
            self, fed=fed or self.fed[:1], states=states, steps=tuple(kept[::-1]), outputs=tuple(outputs)
        )


def computed(step: Step, pool: Mapping[str, Ball], types: dict[str, DType]) -> Ball:
    """What a step makes, as it is stored; its type goes into `types`."""
    own = next((types[o] for o in step.operands if isinstance(o, str) and types[o] is not DType.bool), F32)
    attrs = dict(step.attrs)
    given = []
    for o in step.operands:
        number = Ball.of(0.0 if o is None or isinstance(o, str) else o).stored(own)
        given.append(pool[o] if isinstance(o, str) else None if o is None else number)
    types[step.name] = DType.from_id(attrs["dtype"]) if step.kind == "convert" else own
    if step.kind in ("greater", "less_equal"):
        types[step.name] = DType.bool
    if step.kind in ("add_gradient", "sgd_step"):
        types[step.name] = F32
    return ORACLES[step.kind](*given, **attrs).stored(types[step.name])


# --- drawing ----------------------------------------------------------------------------------------------------------

RULES = {
    "unary": 6, "binary": 6, "number": 2, "ratio": 1, "broadcast": 1, "reduce": 4, "rows": 4, "gemm": 2, "transpose": 2, "slice": 2,
    "reverse": 1, "reshape": 2, "pad": 1, "concatenate": 1, "gather": 1, "convert": 1, "choose": 1, "step": 1,
}  # fmt: skip


class _Drawer:
    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, np.random.default_rng(seed)
        extents = [1, 2, 3, 4, 5, 7, 8, 16, 33, 0]
        self.extents = [
            int(n)
            for n in self.rng.choice(extents, 2, p=[0.1, 0.14, 0.16, 0.2, 0.14, 0.1, 0.06, 0.05, 0.03, 0.02])
        ]
        self.dtype = (F32, F16, BF16)[self.rng.choice(3, p=[0.6, 0.2, 0.2])]
        self.fed: list[Fed] = []
        self.states: list[Fed] = []
        self.steps: list[Step] = []
        self.pool: dict[str, Ball] = {}
        self.types: dict[str, DType] = {}
        self.gone: set[str] = set()
        self.fresh(self.shape(int(self.rng.choice([1, 2, 3, 4], p=[0.1, 0.5, 0.3, 0.1]))))

    def program(self, count: int) -> Program:
        rules = [r for r in RULES if r not in ("concatenate", "gather") or known(r)]
        chances = np.array([RULES[r] for r in rules], float)
        for _ in range(20 * count):
            if len(self.steps) >= count:
                break
            with np.errstate(all="ignore"):
                getattr(self, "_" + rules[self.rng.choice(len(rules), p=chances / chances.sum())])()
        if not any(s.kind not in IN_PLACE and self.types[s.name].kind == "float" for s in self.steps):
            self.add("neg", next(f.name for f in self.fed))
        read = {o for s in self.steps for o in s.operands}
        made = [s.name for s in self.steps if s.kind not in IN_PLACE and self.types[s.name].kind == "float"]
        inner = [n for n in made if n in read]
        outputs = [n for n in made if n not in read]
        outputs += (
            [
                str(n)
                for n in self.rng.choice(inner, min(len(inner), int(self.rng.integers(0, 3))), replace=False)
            ]
            if inner
            else []
        )
        whole = Program(
            self.seed, tuple(self.fed), tuple(self.states), tuple(self.steps), tuple(outputs or made[-1:])
        )
        return whole.having(list(self.steps), list(whole.outputs)) or whole

    # --- values

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def of(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def shape(self, rank: int) -> tuple[int, ...]:
        while (
            math.prod(shape := tuple(self.of([*self.extents, *self.extents, 1]) for _ in range(rank)))
            > MOST_ELEMENTS
        ):
            rank = max(rank - 1, 1)
        return shape

    def fresh(
        self, shape: tuple[int, ...], dtype: DType | None = None, state: bool = False, below: int = 0
    ) -> str:
        held = self.states if state else self.fed
        fed = Fed(f"{'s' if state else 'x'}{len(held)}", TensorSpec(shape, dtype or self.dtype), below)
        held.append(fed)
        self.pool[fed.name] = Ball.of(fed.array(self.seed).astype(np.float64))
        self.types[fed.name] = fed.spec.dtype
        return fed.name

    def pick(self, fits: Callable[[np.ndarray], bool] = lambda v: True) -> str | None:
        """A float of the pool that can be gone on from; later ones more often."""
        found = [
            n for n, b in self.pool.items()
            if n not in self.gone and self.types[n] is self.dtype and fits(b.v) and np.isfinite(b.v).all()
        ]  # fmt: skip
        return self.of(found[-3:] if self.chance(0.6) else found) if found else None

    def add(self, kind: str, *operands: str | float | None, leaf: bool = False, **attrs: Any) -> str | None:
        """The step, where the op takes it and its numbers are such that a test of them says something."""
        step = Step(f"t{len(self.steps)}", kind, operands, tuple(attrs.items()))
        try:
            made = computed(step, self.pool, self.types)
        except ValueError:  # shapes that do not fit
            return None
        fine = made.v.size <= MOST_ELEMENTS and made.v.ndim <= 4
        finite = np.isfinite(made.v) & np.isfinite(made.e)
        loose = 0.02 if self.types[step.name] is F32 else 0.3
        fine = fine and bool(
            (np.abs(made.v[finite]) <= LARGEST).all()
            and (made.e[finite] <= loose * (1 + np.abs(made.v[finite]))).all()
        )
        if not fine or not (finite.all() or self.chance(0.2)):
            del self.types[step.name]
            return None
        self.steps.append(step)
        self.pool[step.name] = made
        return step.name

    # --- rules

    def _unary(self) -> None:
        if x := self.pick():
            self.add(self.of(UNARY), x)

    def _beside(self, x: str) -> str:
        """Something that broadcasts with x."""
        shape = self.pool[x].v.shape
        if self.chance(0.6):
            like = self.pick(lambda v: _broadcasts(v.shape, shape))
            if like:
                return like
        drop = int(self.rng.integers(0, len(shape) + 1)) if self.chance(0.5) else 0
        return self.fresh(tuple(1 if self.chance(0.25) else d for d in shape[drop:]))

    def _binary(self) -> None:
        if x := self.pick():
            pair = [x, self._beside(x)]
            self.add(self.of(BINARY), *(pair if self.chance(0.7) else pair[::-1]))

    def _number(self) -> None:
        if x := self.pick():
            kind = self.of(["add", "mul", "maximum", "scale"])
            self.add(kind, x, factor=-0.75) if kind == "scale" else self.add(
                kind, x, self.of([0.5, -1.25, 2.0])
            )

    def _ratio(self) -> None:
        """a / (b^2 + 1), or the square root of what is below."""
        a = self.pick()
        b = a and self.add("square", self._beside(a))
        c = b and self.add("add", b, 1.0)
        if c:
            self.add("div", a, c) if self.chance(0.6) else self.add(self.of(["sqrt", "log"]), c)

    def _broadcast(self) -> None:
        if x := self.pick(lambda v: v.ndim < 3):
            shape = self.pool[x].v.shape
            dims = sorted(self.rng.choice(len(shape) + 1, len(shape), replace=False).tolist())
            target = [self.of(self.extents)] * (len(shape) + 1)
            for size, d in zip(shape, dims):
                target[d] = size if size != 1 or self.chance(0.3) else self.of(self.extents)
            self.add("broadcast_in_dim", x, shape=tuple(target), dims=tuple(dims))

    def _reduce(self) -> None:
        if x := self.pick(lambda v: v.ndim > 0):
            rank = self.pool[x].v.ndim
            axes = sorted(self.rng.choice(rank, int(self.rng.integers(1, rank + 1)), replace=False).tolist())
            kind = f"reduce_{self.of(['sum', 'mean', 'max'])}"
            y = self.add(kind, x, axes=tuple(axes), keepdims=(kept := self.chance(0.6)))
            if y and kept and self.chance(0.6):
                self.add(self.of(["sub", "mul", "add"]), x, y)

    def _rows(self) -> None:
        if x := self.pick(lambda v: v.ndim > 0):
            shape, kind = (
                self.pool[x].v.shape,
                self.of(["softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm"]),
            )
            if kind == "layer_norm":
                self.add(kind, x, self.fresh(shape[-1:]), self.fresh(shape[-1:]), eps=self.of([1e-5, 0.1]))
            elif kind == "rms_norm":
                self.add(kind, x, self.fresh(shape[-1:]), eps=self.of([1e-6, 0.1]))
            else:
                self.add(
                    kind, x, axis=len(shape) - 1 if self.chance(0.7) else int(self.rng.integers(len(shape)))
                )

    def _gemm(self) -> None:
        x = self.pick(lambda v: v.ndim in (2, 3))
        if x is None:
            return
        *batch, m, k = self.pool[x].v.shape
        trans_a, trans_b = not batch and self.chance(0.3), self.chance(0.4)
        m, k = (k, m) if trans_a else (m, k)
        n = self.of(self.extents)
        shape = (n, k) if trans_b else (k, n)
        w = self.pick(lambda v: v.shape == shape) if self.chance(0.3) else None
        bias = self.fresh((n,)) if self.chance(0.4) and n not in (1, m) else None
        c = self.fresh((*batch, m, n)) if self.chance(0.2) else None
        attrs = {
            "trans_a": trans_a,
            "trans_b": trans_b,
            "act": self.of(list(ACTS)),
            "alpha": self.of([1.0, 0.25]),
        }
        self.add("gemm", x, w or self.fresh(shape), c, bias, **attrs)

    def _transpose(self) -> None:
        if x := self.pick(lambda v: v.ndim > 1):
            self.add("transpose", x, perm=tuple(self.rng.permutation(self.pool[x].v.ndim).tolist()))

    def _slice(self) -> None:
        if x := self.pick(lambda v: v.ndim > 0):
            taken = []
            for d in self.pool[x].v.shape:
                low, high = sorted(self.rng.integers(0, d + 1, 2).tolist()) if self.chance(0.6) else (0, d)
                taken.append(
                    (low, high if high > low or self.chance(0.1) else min(low + 1, d), self.of([1, 1, 2, 3]))
                )
            start, limit, step = zip(*taken)
            self.add("slice", x, start=start, limit=limit, step=step)

    def _reverse(self) -> None:
        if x := self.pick(lambda v: v.ndim > 0):
            rank = self.pool[x].v.ndim
            dims = sorted(self.rng.choice(rank, int(self.rng.integers(1, rank + 1)), replace=False).tolist())
            self.add("reverse", x, dims=tuple(dims))

    def _reshape(self) -> None:
        """Two axes as one, or one as two."""
        if x := self.pick(lambda v: v.ndim > 0):
            shape = list(self.pool[x].v.shape)
            at = int(self.rng.integers(len(shape)))
            if len(shape) > 1 and self.chance(0.5):
                at = min(at, len(shape) - 2)
                shape[at : at + 2] = [shape[at] * shape[at + 1]]
            else:
                factors = [f for f in range(1, shape[at] + 1) if shape[at] % f == 0] or [1]
                shape[at : at + 1] = [f := self.of(factors), shape[at] // f]
            self.add("reshape", x, shape=tuple(shape))

    def _pad(self) -> None:
        if x := self.pick(lambda v: v.ndim > 0):
            low, high, interior = (
                [int(n) for n in self.rng.choice([0, 0, 1, 2, -1][:most], self.pool[x].v.ndim)]
                for most in (5, 5, 3)
            )
            if all(d + lo + hi >= 2 for d, lo, hi in zip(self.pool[x].v.shape, low, high)):
                self.add(
                    "pad",
                    x,
                    value=self.of([0.0, 1.5]),
                    low=tuple(low),
                    high=tuple(high),
                    interior=tuple(interior),
                )

    def _concatenate(self) -> None:
        if x := self.pick(lambda v: v.ndim > 0):
            shape = self.pool[x].v.shape
            axis = int(self.rng.integers(len(shape)))
            rest = shape[:axis] + shape[axis + 1 :]
            like = [
                n
                for n, b in self.pool.items()
                if b.v.ndim == len(shape) and b.v.shape[:axis] + b.v.shape[axis + 1 :] == rest
            ]
            others = [
                self.pick(lambda v: any(v is self.pool[n].v for n in like)) or x
                for _ in range(int(self.rng.integers(1, 3)))
            ]
            self.add("concatenate", x, *others, axis=axis)

    def _gather(self) -> None:
        if x := self.pick(lambda v: v.ndim > 0 and v.size > 0):
            shape = self.pool[x].v.shape
            axis = int(self.rng.integers(len(shape)))
            indices = self.fresh(self.shape(1) if self.chance(0.8) else self.shape(2), I32, below=shape[axis])
            self.add("gather", x, indices, axis=axis)

    def _convert(self) -> None:
        """To another float and back: what a convert made is rounded, inside a kernel too."""
        x, to = self.pick(), self.of([F32, F16, BF16])
        if x and (y := self.add("convert", x, dtype=to.id)):
            self.add("convert", y, dtype=self.dtype.id)

    def _choose(self) -> None:
        """By inputs as they were given: an error must not become a jump."""
        if x := self.pick():
            shape = self.pool[x].v.shape
            c = self.add(self.of(["greater", "less_equal"]), self.fresh(shape), self.fresh(shape[-1:]))
            if c:
                self.add("select", c, x, self._beside(x) if self.chance(0.5) else -1.0)

    def _step(self) -> None:
        """A state written over, read before or after or both."""
        g = self.pick(lambda v: v.size > 0)
        if g is None or len(self.states) > 2:
            return
        s = self.fresh(self.pool[g].v.shape, F32, state=True)
        if self.dtype is F32 and self.chance(0.5):
            self.add("mul", s, g)
        if self.chance(0.5) or self.types[g] is not F32:
            self.add("add_gradient", s, g)
        else:
            momentum = self.fresh(self.pool[g].v.shape, F32, state=True)
            self.add("sgd_step", s, g, momentum, 0.5, 0.0, 0.0)
            self.gone.add(momentum)
        self.gone.add(s)


def known(kind: str) -> bool:
    try:
        return bool(schema_of(kind))
    except aicf.AicfError:
        return False


def _broadcasts(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(shape, other)
    except ValueError:
        return False
    return True


def drawn(seed: int, most: int = 12) -> Program:
    drawer = _Drawer(seed)
    return drawer.program(int(drawer.rng.integers(2, most + 1)))


# --- failures ---------------------------------------------------------------------------------------------------------


def wrong(found: np.ndarray, ball: Ball) -> str | None:
    """What is outside of its ball; infinities and NaN have to be where they are exactly."""
    got = found.astype(np.float64)
    if got.shape != ball.v.shape:
        return f"shape {got.shape}, expected {ball.v.shape}"
    plain = np.isfinite(ball.v) & np.isfinite(ball.e)
    with np.errstate(invalid="ignore"):
        bad = np.where(
            plain, ~(np.abs(got - ball.v) <= ball.e), ~((got == ball.v) | np.isnan(ball.v) & np.isnan(got))
        )
    bad &= plain | ~np.isfinite(ball.v)  # a bound that is infinite says nothing
    if not bad.any():
        return None
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} wrong; at {at} {got[at]!r}, expected {ball.v[at]!r} within {ball.e[at]:.3g}"


def shrunk(program: Program, fails: Callable[[Program], str | None]) -> Program:
    """The same failure with fewer outputs and steps."""
    changed = True
    while changed:
        changed = False
        fewer = [
            program.having(list(program.steps), [n for n in program.outputs if n != o])
            for o in program.outputs
        ]
        smaller = [program.without(s.name) for s in reversed(program.steps)]
        outputs = [
            program.having(list(program.steps), [o])
            for s in program.steps
            for o in s.operands
            if o in {t.name for t in program.steps}
        ]
        given = [program.given(s.name) for s in program.steps if s.kind not in IN_PLACE]
        for candidate in [*fewer, *smaller, *outputs, *given]:
            if (
                candidate
                and (len(candidate.steps), len(candidate.outputs))
                < (len(program.steps), len(program.outputs))
                and fails(candidate)
            ):
                program, changed = candidate, True
                break
    return program
