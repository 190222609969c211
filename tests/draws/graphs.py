"""Random whole programs: fused, strict and one kernel per op, against float64 with a bound on the error of each element."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import aicf
from aicf.errors import AicfError
from aicf.ops.schema import DISCONTINUOUS, ELEMENTWISE, OpSchema, schemas
from aicf.registry.variant import one_op
from aicf.types import DType, TensorSpec

from .attributes import changed_attributes
from .balls import ACTS, BINARY, ORACLES, UNARY, Ball
from .extents import renamed
from .programs import (
    BF16,
    F16,
    F32,
    I32,
    IN_PLACE,
    LARGEST,
    MOST_ELEMENTS,
    Fed,
    Program,
    Step,
    computed,
    program_script,
    simpler,
    wrong,
)

NAME, DEVICES = "graphs", ("cpu", "cuda")

# --- drawing ----------------------------------------------------------------------------------------------------------

LOOSE = {
    "cpu": 1.0,
    "cuda": 8.0,
}  # exponentials and quotients of a GPU are off by a few units more than the host's
RULES = {
    "unary": 6, "binary": 6, "number": 2, "ratio": 1, "broadcast": 1, "reduce": 4, "rows": 4, "gemm": 2, "transpose": 2, "slice": 2,
    "reverse": 1, "reshape": 2, "pad": 1, "concatenate": 1, "gather": 1, "convert": 1, "choose": 1, "step": 1, "registered": 5,
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
        rules, chances = list(RULES), np.array(list(RULES.values()), float)
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
            self.types.pop(step.name, None)
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
                sizes = {"low": tuple(low), "high": tuple(high), "interior": tuple(interior)}
                self.add("pad", x, value=self.of([0.0, 1.5]), **sizes)

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

    def _registered(self) -> None:
        """Any op of floats, with the attributes of a sample, or others, and extents that fit the value."""
        x = self.pick()
        if x is None:
            return
        schema, shape = self.of(registered()), self.pool[x].v.shape
        sample = self.of(schema.sample_specs)
        shapes, attrs = tuple(sample["shapes"]), dict(sample["attrs"])
        if ELEMENTWISE in schema.traits:
            operands: list[str | None] = [x, *(self._beside(x) for _ in shapes[1:])]
        else:
            if shapes[0] is None or len(shapes[0]) != len(shape):
                return
            shapes, attrs = renamed(shapes, attrs, dict(zip(shapes[0], shape)), self.chance(0.7))
            shapes = (shape, *shapes[1:])
            if not self._fits(schema, shapes, attrs):
                return
            operands = [x, *(None if s is None else self.fresh(s) for s in shapes[1:])]
        if self.chance(0.3):
            attrs = changed_attributes(schema, attrs, [self.pool[o].v.shape for o in operands if o], self.rng)
        self.add(schema.name, *operands, **attrs)

    def _fits(self, schema: OpSchema, shapes: Any, attrs: dict[str, Any]) -> bool:
        specs = [None if s is None else TensorSpec(s, self.dtype) for s in shapes]
        try:
            made = schema.infer(specs, schema.pack(schema.normalized(specs, attrs)))
        except AicfError:
            return False
        return math.prod(made[0].shape) <= MOST_ELEMENTS


def registered() -> list[OpSchema]:
    """Ops of floats that do not jump, write nothing in place, and have no oracle in balls.py: their references are it."""
    return [
        s for s in schemas()
        if s.name not in ORACLES and s.sample_specs and s.reference_fn and s.operands and not s.has_body
        and all(how != "must" for _, how in s.alias.values()) and DISCONTINUOUS not in s.traits and all({F32, F16, BF16} <= d.type.dtypes for d in s.operands)
    ]  # fmt: skip


def _broadcasts(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(shape, other)
    except ValueError:
        return False
    return True


def drawn(seed: int, most: int = 12) -> Program:
    """The program of a seed, of at most so many steps."""
    drawer = _Drawer(seed)
    return drawer.program(int(drawer.rng.integers(2, most + 1)))


def draw(rng: np.random.Generator, where: str = "cpu") -> Program:
    """A program of up to 30 steps."""
    return drawn(int(rng.integers(2**31)), 30)


# --- checking ---------------------------------------------------------------------------------------------------------


def unfused(device: str) -> aicf.KernelRegistry:
    """The real variants, each held to one op."""

    def alone(v: Any) -> Any:
        def accepts(region: Any) -> Any:
            yield one_op(region)
            yield from v.accepts(region)

        return replace(v, accepts=accepts, takes=tuple(t for t in v.takes if "+" not in t and t != "maps"))

    real = [v for v in aicf.default_registry() if v.device == device]
    return aicf.KernelRegistry(one for v in real if (one := alone(v)).takes or not v.takes)


def check(program: Program, where: str = "cpu") -> str | None:
    """The first thing that is wrong with a program, in any mode; None if nothing is."""
    modes: dict[str, dict[str, Any]] = {
        "fused": {}, "strict": {"numerics": "strict"}, "unfused": {"numerics": "strict", "registry": unfused(where)},
    }  # fmt: skip
    want, found = program.exact(), {}
    for mode, how in modes.items():
        try:
            found[mode] = program.run(device=where, **how)
        except Exception as error:
            return f"{mode}: {type(error).__name__}: {error}"
        for name, array in found[mode].items():
            if said := wrong(array, want[name], LOOSE[where]):
                return f"{mode}: {name}: {said}"
    for name, array in found["strict"].items():
        if array.tobytes() != found["unfused"][name].tobytes():
            return f"strict: {name} has not the bits of one kernel per op"
    return None


def smaller(program: Program) -> Iterator[Program]:
    """With fewer outputs or steps."""
    return simpler(program)


def script(program: Program, where: str = "cpu") -> str:
    """The program as a model, and what NumPy computes in float64."""
    return program_script(program, where)


def shrunk(program: Program, fails: Callable[[Program], str | None]) -> Program:
    """The same failure with fewer outputs and steps."""
    while other := next(filter(fails, simpler(program)), None):
        program = other
    return program
