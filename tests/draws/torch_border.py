"""Functions of PyTorch's whose ops are in part taken and in part left: results, gradients, types, strides and shared memory, against eager PyTorch.

Rules may fail on purpose, by an exception or by a result of another type, so that PyTorch runs what aicf could take.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from aicf.frontends.torch import backend, part
from aicf.frontends.torch.rules import rules
from aicf.ir import Value
from aicf.types import DType

NAME = "torch_border"
LARGEST, STEPS = 300, 9
TAKEN = (
    "{x} * 2 + 1",
    "{x}.tanh()",
    "{x}.sin() * {x}",
    "{x} - {x}.sum(-1, keepdim=True)",
    "torch.relu({x}) - 0.5",
    "{x}.cumprod(-1)",
)
LEFT = (
    "torch.special.i0({x})", "torch.digamma({x} + 3)", "torch.logcumsumexp({x}, 0)", "torch.hypot({x}, {x} + 1)",
    "{x}.cummax(0).values",
)  # fmt: skip
PAIRS = "{x} + {y}", "{x} * {y}", "torch.hypot({x} + 1, {y})", "torch.maximum({x}, {y})"
EPSILON = {"float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}


@dataclass(frozen=True)
class BorderCase:
    """A function of some tensors.

    shapes, orders   of its arguments x0, x1, …: their axes from the slowest in memory
    lines, returned  its body, and the names in its return statement
    failing          rules that fail, and how: "raises" or "other type"
    """

    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    orders: tuple[tuple[int, ...], ...]
    lines: tuple[str, ...]
    returned: tuple[str, ...]
    grad: bool = False
    dynamic: bool = False
    failing: tuple[tuple[str, str], ...] = ()
    seed: int = 0

    @property
    def source(self) -> str:
        names = ", ".join(f"x{n}" for n in range(len(self.shapes)))
        return "\n    ".join([f"def f({names}):", *self.lines, f"return {', '.join(self.returned)},"])

    def function(self) -> Callable[..., Any]:
        scope = {"torch": torch}
        exec(compile(self.source, f"<{NAME} {self.seed}>", "exec"), scope)
        return scope["f"]

    def arguments(self) -> list[torch.Tensor]:
        draw, made = np.random.default_rng(self.seed), []
        for shape, order in zip(self.shapes, self.orders):
            values = torch.from_numpy(draw.standard_normal([shape[a] for a in order]) / 2)
            made.append(
                values.to(getattr(torch, self.dtype)).permute(
                    sorted(range(len(order)), key=order.__getitem__)
                )
            )
        return made

    def __str__(self) -> str:
        return f"{self.dtype} {self.shapes} in orders {self.orders}, {self.flags}, seed {self.seed}\n{self.source}"

    @property
    def flags(self) -> str:
        said = ["gradients"] * self.grad + ["sizes that change"] * self.dynamic
        return ", ".join([*said, *(f"{op} {how}" for op, how in self.failing)]) or "inference"


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw(rng: np.random.Generator, where: str = "cpu") -> BorderCase | None:
    """A case with ops of each kind between views."""
    shape = tuple(int(n) for n in rng.integers(1, 5, rng.integers(1, 4)))
    shapes = (shape,) * int(rng.integers(1, 3))
    orders = tuple(
        tuple(int(a) for a in rng.permutation(len(shape))) if rng.random() < 0.3 else tuple(range(len(shape)))
        for _ in shapes
    )
    case = BorderCase(str(rng.choice(list(EPSILON))), shapes, orders, (), (), bool(rng.random() < 0.5), bool(rng.random() < 0.15),
                      seed=int(rng.integers(2**31)))  # fmt: skip
    known = {f"x{n}": x.float() for n, x in enumerate(case.arguments())}
    lines: list[str] = []
    for n in range(int(rng.integers(4, STEPS))):
        line = _line(rng, known)
        made = eval(line, {"torch": torch}, known)
        if 0 < made.numel() <= LARGEST:
            known[f"v{n}"] = made
            lines.append(f"v{n} = {line}")
    made = [n for n, x in known.items() if n[0] == "v" and not (case.grad and _overlaps(x))]
    if not made:
        return None
    returned = dict.fromkeys([made[-1], *(str(rng.choice(made)) for _ in range(rng.integers(0, 3)))])
    return replace(case, lines=tuple(lines), returned=tuple(returned), failing=_failing(rng))


def _overlaps(x: torch.Tensor) -> bool:
    """Whether elements share memory, as an `unfold`'s. PyTorch's AOTAutograd takes wrong gradients of such results, whatever the backend."""
    places = torch.zeros((), dtype=torch.int64)
    for extent, stride in zip(x.shape, x.stride()):
        places = places.unsqueeze(-1) + torch.arange(extent) * stride
    return places.unique().numel() < x.numel()


def _line(rng: np.random.Generator, known: dict[str, torch.Tensor]) -> str:
    """An op on one of the latest values."""
    name = str(rng.choice(list(known)[-4:]))
    kind, x = rng.random(), known[name]
    if kind < 0.4:
        return str(rng.choice(_views(rng, x))).format(x=name)
    if kind < 0.9:
        return str(rng.choice(LEFT if kind < 0.65 else TAKEN)).format(x=name)
    return str(rng.choice(PAIRS)).format(
        x=name, y=rng.choice([n for n, y in known.items() if y.shape == x.shape])
    )


def _views(rng: np.random.Generator, x: torch.Tensor) -> list[str]:
    axis, order = int(rng.integers(x.dim())), [int(a) for a in rng.permutation(x.dim())]
    found = [f"{{x}}.permute({order})", "{x}.reshape({x}.shape[0], -1)", "{x}.flatten()"]
    if x.shape[axis] > 1:
        ahead = ":, " * axis
        found += [f"{{x}}.narrow({axis}, 1, {x.shape[axis] - 1})", f"{{x}}.chunk(2, {axis})[0]", f"{{x}}[{ahead}::2]",
                  f"{{x}}.split(1, {axis})[1]", f"{{x}}.unfold({axis}, 2, 1)"]  # fmt: skip
        found += [f"{{x}}.select({axis}, 1)", f"{{x}}.unbind({axis})[1]"] * (x.dim() > 1)
    if x.dim() < 4:
        shape = [*x.shape[:axis], 3, *x.shape[axis:]]
        found += [f"{{x}}.unsqueeze({axis})", f"{{x}}.unsqueeze({axis}).expand({shape})"]
    return found


def _failing(rng: np.random.Generator) -> tuple[tuple[str, str], ...]:
    if rng.random() < 0.6:
        return ()
    ops = [
        "mul.Tensor",
        "add.Tensor",
        "tanh.default",
        "sin.default",
        "sum.dim_IntList",
        "relu.default",
        "permute.default",
        "slice.Tensor",
    ]
    return tuple(
        (f"aten.{op}", str(rng.choice(["raises", "other type"]))) for op in rng.choice(ops, 3, replace=False)
    )


# --- checking ---------------------------------------------------------------------------------------------------------


def check(case: BorderCase, where: str = "cpu") -> str | None:
    """How the compiled function differs from eager PyTorch."""
    f, args = case.function(), [x.to(where) for x in case.arguments()]
    try:
        want, wanted = _run(f, args, case.grad)
    except NotImplementedError:  # PyTorch lacks an op of this type on the device
        return None
    exact, _ = _run(f, [x.double() for x in args], case.grad)
    with failing(dict(case.failing)):
        torch._dynamo.reset()
        call = torch.compile(f, backend=backend, dynamic=case.dynamic or None)
        got, shared = _run(call, args, case.grad)
    for name in want:
        strides = name.startswith("result")
        if said := differs(got[name], want[name], exact[name], 16 * EPSILON[case.dtype], strides):
            return f"{name}: {said}"
    return (
        None if case.grad or shared == wanted else f"other results share memory: {shared}, in eager {wanted}"
    )


def _run(
    call: Callable[..., Any], args: list[torch.Tensor], grad: bool
) -> tuple[dict[str, Any], list[list[bool]]]:
    """Results and gradients by name, and which results and arguments share memory."""
    args = [copy.deepcopy(x).requires_grad_(grad) for x in args]
    made = call(*args)
    memory = [t.untyped_storage().data_ptr() for t in (*made, *args)]
    found: dict[str, Any] = {f"result {n}": y.detach() for n, y in enumerate(made)}
    if grad and (read := [y for y in made if y.requires_grad]):
        loss = sum((_weights(y) * y.to(torch.float64)).sum() for y in read)
        grads = torch.autograd.grad(loss, args, allow_unused=True)
        found |= {
            f"gradient {n}": torch.zeros_like(x) if g is None else g
            for n, (g, x) in enumerate(zip(grads, args))
        }
    return found, [[a == b for a in memory] for b in memory]


def _weights(y: torch.Tensor) -> torch.Tensor:
    """Other ones for neighbours, each exact in every type: a gradient that is in another's place has another value."""
    return (torch.arange(y.numel(), dtype=torch.float64, device=y.device) % 7 + 1).reshape(y.shape)


def differs(
    got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor, tolerance: float, strides: bool = True
) -> str | None:
    """How a tensor differs from eager PyTorch's: in type, shape, strides of axes with several elements, and values beside those in f64."""
    if (got.dtype, got.shape, got.device) != (want.dtype, want.shape, want.device):
        return f"{got.dtype} {tuple(got.shape)} on {got.device}, in eager {want.dtype} {tuple(want.shape)} on {want.device}"
    steps = [(a, b) for n, a, b in zip(want.shape, got.stride(), want.stride()) if n > 1]
    if strides and any(a != b for a, b in steps):
        return f"strides {got.stride()}, in eager {want.stride()}"
    if not want.numel():
        return None
    finite = exact.isfinite() & want.isfinite()
    if not torch.equal(got.isfinite(), want.isfinite()):
        return "other elements are finite"
    scale = float(torch.where(finite, exact, 0).abs().max()) + 1
    error, own = (float(torch.where(finite, t.double() - exact, 0).abs().max()) for t in (got, want))
    return None if error <= 4 * own + tolerance * scale else f"off by {error:.2e}, eager PyTorch by {own:.2e}"


@contextmanager
def failing(how: dict[str, str]) -> Iterator[None]:
    """Rules that fail: by an exception, or by results of another type."""
    known = rules()
    before = {op: known[op] for op in how}
    part._target.cache_clear()  # what was tried before
    known.update({op: _failed(before[op], why) for op, why in how.items()})
    try:
        yield
    finally:
        known.update(before)
        part._target.cache_clear()


def _failed(rule: Callable[..., Any], how: str) -> Callable[..., Any]:
    def fails(s: Any, *args: Any, **named: Any) -> Any:
        if how == "raises":
            raise ZeroDivisionError("on purpose")
        made = rule(s, *args, **named)
        several = made if isinstance(made, tuple) else (made,)
        others = tuple(s.ctx.convert(y, dtype=DType.f64) if _is_float(y) else y for y in several)
        return others if isinstance(made, tuple) else others[0]

    return fails


def _is_float(made: Any) -> bool:
    return isinstance(made, Value) and made.dtype.kind == "float"


# --- shrinking and showing --------------------------------------------------------------------------------------------


def smaller(case: BorderCase) -> Iterator[BorderCase]:
    """Cases without a flag, a rule that fails, a result or a line that nothing reads."""
    if case.failing:
        yield replace(case, failing=())
        yield from (replace(case, failing=(one,)) for one in case.failing if len(case.failing) > 1)
    yield from (replace(case, **{flag: False}) for flag in ("grad", "dynamic") if getattr(case, flag))
    if case.dtype != "float32":
        yield replace(case, dtype="float32")
    for name in case.returned:
        if len(case.returned) > 1:
            yield replace(case, returned=tuple(n for n in case.returned if n != name))
    for line in case.lines:
        name, rest = line.split(" = ")[0], tuple(other for other in case.lines if other != line)
        read = re.findall(r"\bv\d+", " ".join((*(r.partition(" = ")[2] for r in rest), *case.returned)))
        if name not in read:
            yield replace(case, lines=rest)
        elif case.returned == (name,) and (rest := case.lines[: case.lines.index(line)]):
            yield replace(case, lines=rest, returned=(rest[-1].split(" = ")[0],))


def script(case: BorderCase, where: str = "cpu") -> str:
    """A program that prints what differs; rules that fail on purpose are named, not written."""
    made = [
        f"x{n} = (torch.randn({[s[a] for a in o]}) / 2).to(torch.{case.dtype}).permute({sorted(range(len(o)), key=o.__getitem__)})"
        for n, (s, o) in enumerate(zip(case.shapes, case.orders))
    ]  # fmt: skip
    names = [f"x{n}" for n in range(len(case.shapes))]
    return "\n".join([
        f"# {case.flags}", "import torch", "import aicf", "", "torch.manual_seed(0)", case.source, "", *made,
        *(f"{n}.requires_grad_()" for n in names if case.grad),
        f'got = torch.compile(f, backend="aicf", dynamic={case.dynamic or None})({", ".join(names)})',
        f"for y, z in zip(got, f({', '.join(names)})):", "    print(y.dtype, z.dtype, y.stride(), z.stride(), (y - z).abs().max())", "",
    ])  # fmt: skip
