"""Whole programs as data, run as kernels; graphs.py draws them.

A program is data: inputs, states and steps, each value with a name, so that a step is dropped by its name. Its oracle is in
balls.py; a step whose bound would say next to nothing is not drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import aicf
from aicf.errors import AicfError
from aicf.ops.schema import schema_of
from aicf.types import DType, TensorSpec

from .balls import ORACLES, ROUNDING, Ball
from .seeds import seeded

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

    def exact(
        self, types: dict[str, DType] | None = None, given: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, Ball]:
        """Every value by name; what a state is at the end under its own name. Their element types go into `types`; `given` replaces
        numbers of inputs."""
        pool = {f.name: Ball.of(f.array(self.seed).astype(np.float64)) for f in (*self.fed, *self.states)}
        pool |= {name: Ball.of(array) for name, array in (given or {}).items()}
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
        compiled = aicf.compile(
            replace(self), **{"device": "cpu", **how}
        )  # a model of its own: no other's states
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
    if step.kind not in ORACLES:
        return _by_reference(step, given, own, types)
    types[step.name] = DType.from_id(attrs["dtype"]) if step.kind == "convert" else own
    if step.kind in ("greater", "less_equal"):
        types[step.name] = DType.bool
    if step.kind in ("add_gradient", "sgd_step"):
        types[step.name] = F32
    return ORACLES[step.kind](*given, **attrs).stored(types[step.name])


def _by_reference(step: Step, given: list[Ball | None], own: DType, types: dict[str, DType]) -> Ball:
    """A registered op by its reference in float64. How far the operands' errors and arithmetic in f32 carry is found by moving the
    operands at random; ValueError where the op refuses them."""
    schema = schema_of(step.kind)
    specs = [None if b is None else TensorSpec(b.v.shape, own) for b in given]
    types.pop(step.name, None)
    try:
        pack = schema.pack(schema.normalized(specs, dict(step.attrs)))
        types[step.name] = schema.infer(specs, pack)[0].dtype
        exact = schema.call_reference([None if b is None else b.v for b in given], pack)[0]
    except AicfError as error:
        raise ValueError(str(error)) from error
    if types[step.name].kind != "float":
        raise ValueError("no float")
    rng, e = seeded(step.name, step.kind), np.zeros(exact.shape)
    for _ in range(4):
        near = [
            None
            if b is None
            else b.v + rng.choice([-1.0, 1.0], b.v.shape) * (b.e + 4 * ROUNDING * np.abs(b.v))
            for b in given
        ]
        off = np.abs(schema.call_reference(near, pack)[0] - exact)
        e = np.fmax(e, np.where(np.isnan(off) & np.isfinite(exact), np.inf, off))
    e = np.where(np.isnan(e), 0.0, e)
    return Ball(exact, 8 * e + 8 * ROUNDING * np.where(np.isfinite(exact), np.abs(exact), 0.0)).stored(
        types[step.name]
    )


# --- failures ---------------------------------------------------------------------------------------------------------


def wrong(found: np.ndarray, ball: Ball, loose: float = 1.0) -> str | None:
    """What is outside of its ball, its bound so many times as wide; infinities and NaN have to be where they are exactly."""
    ball = Ball(ball.v, ball.e * loose)
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


def simpler(program: Program) -> Iterator[Program]:
    """Programs with fewer outputs or steps: without an output, without a step, an inner value as the one output, an input in the place
    of a step."""
    steps, size = list(program.steps), (len(program.steps), len(program.outputs))
    names = {s.name for s in steps}
    fewer = (program.having(steps, [n for n in program.outputs if n != o]) for o in program.outputs)
    shorter = (program.without(s.name) for s in reversed(steps))
    inner = (program.having(steps, [o]) for s in steps for o in s.operands if o in names)
    replaced = (program.given(s.name) for s in steps if s.kind not in IN_PLACE)
    for other in itertools.chain(fewer, shorter, inner, replaced):
        if other and (len(other.steps), len(other.outputs)) < size:
            yield other


def program_script(program: Program, device: str) -> str:
    """The program as a model of its own, with what NumPy computes for it."""
    inputs = "".join(f"    {f.name!r}: {_array_text(f, program.seed)},\n" for f in program.fed)
    states = "".join(f"    {f.name!r}: {_array_text(f, program.seed)},\n" for f in program.states)
    body = "".join(f"        {line}\n" for line in _emission(program))
    wanted = "".join(
        f"    {n!r}: np.array({ball.v.tolist()!r}).reshape({ball.v.shape}),\n"
        for n, ball in program.exact().items()
        if n in program.outputs
    )
    return f"""import ml_dtypes
import numpy as np

import aicf

nan, inf = np.nan, np.inf
inputs = {{
{inputs}}}
states = {{
{states}}}
exact = {{
{wanted}}}


class Model:
    seed, sizes = 0, {{}}
    inputs = {{n: aicf.TensorSpec(x.shape, aicf.DType.of(x.dtype)) for n, x in inputs.items()}}

    def emit(self, ctx, fed):
        s = {{n: ctx.state(n, x.shape, lambda shape, rng, x=x: x, aicf.DType.of(x.dtype)) for n, x in states.items()}}
{body}

for numerics in ("fused", "strict"):
    made = aicf.compile(Model(), device={device!r}, numerics=numerics).run(inputs)
    for name, want in exact.items():
        got = made["output" if name == {program.outputs[0]!r} else name].numpy()
        print(numerics, name, "got", got.tolist(), "expected", want.tolist())
"""


def _array_text(fed: Fed, seed: int) -> str:
    array = fed.array(seed)
    name = array.dtype.name
    kind = f"ml_dtypes.{name}" if not hasattr(np, name) else f"np.{name}"
    return f"np.array({array.tolist()!r}, {kind}).reshape({array.shape})"


def _emission(program: Program) -> Iterator[str]:
    """The lines of `emit`."""
    of_states = {f.name for f in program.states}
    yield from (f"{f.name} = fed[{f.name!r}]" for f in program.fed)
    yield from (f"{name} = s[{name!r}]" for name in sorted(of_states))
    for step in program.steps:
        yield f"{step}"
        if schema_of(step.kind).many or len(schema_of(step.kind).results) > 1:
            yield f"{step.name} = {step.name} if isinstance({step.name}, tuple) else ({step.name},)"
            if step.kind in IN_PLACE:
                for result, (operand, _) in schema_of(step.kind).alias.items():
                    yield f"ctx.update({step.operands[operand]}, {step.name}[{result}])"
            yield f"{step.name} = {step.name}[0]"
        elif step.kind in IN_PLACE:
            yield f"ctx.update({step.operands[0]}, {step.name})"
    yield from (f"ctx.builder.output({name!r}, {name})" for name in program.outputs[1:])
    yield f"return {program.outputs[0]}"
