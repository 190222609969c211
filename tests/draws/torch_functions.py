"""Random functions of PyTorch's, through torch.compile(backend="aicf"), against eager PyTorch: results, their types and strides, what was
written to arguments, gradients. Eager PyTorch in float64 says how much rounding makes of a difference."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from aicf.frontends.torch.rules import rules

from .functions import Drawer, Function, Given, compared, numbers, off, outcome, smaller

__all__ = ["NAME", "NAMES", "argument", "check", "draw", "script", "smaller"]

NAME, DEVICES = "torch", ("cpu", "cuda")
NAMES = {"torch": torch, "F": F}
TYPES = "float32", "float16", "bfloat16"
EXTENTS = 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 0
LARGEST = 4000


def argument(g: Given, dtype: str, seed: int) -> torch.Tensor:
    """An argument in its layout."""
    values = torch.from_numpy(np.asarray(numbers(g, seed)))
    if not values.is_floating_point():
        return values
    values = values.to(getattr(torch, dtype))
    if g.layout == "transposed" and values.ndim > 1:
        values = values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if g.layout == "stepped" and values.ndim:
        wide = torch.zeros(*values.shape[:-1], 2 * values.shape[-1], dtype=values.dtype)
        wide[..., ::2] = values
        values = wide[..., ::2]
    return values


# --- drawing ----------------------------------------------------------------------------------------------------------

LEFT_OUT = {  # random memory or numbers, ties in any order, no gradient
    "empty", "empty_like", "new_empty", "clone", "sort", "argsort", "topk", "bernoulli", "rand", "randn", "randint", "randperm", "dropout",
    "native_dropout", "multinomial", "normal", "uniform", "rand_like", "randn_like", "exponential", "detach", "item", "set_", "resize_",
}  # fmt: skip


def named() -> dict[str, str]:
    """ATen ops with a rule that are functions of torch or torch.nn.functional: name -> how it is written."""
    found = {}
    for full in sorted(rules()):
        name = full.split(".")[1].removesuffix("_")
        for space, text in ((torch, "torch"), (F, "F")):
            if name not in LEFT_OUT and not name.startswith("_") and hasattr(space, name):
                found.setdefault(name, f"{text}.{name}")
    return found


class _Drawer(Drawer):
    language = "torch_functions"

    def __init__(self, rng: np.random.Generator, dtype: str) -> None:
        super().__init__(rng, dtype, EXTENTS)
        self.names = list(named().values())

    def value(self, g: Given) -> torch.Tensor:
        return argument(g, self.dtype, self.seed)

    def shape(self, rank: int) -> tuple[int, ...]:
        return tuple(self.of([*self.extents, *self.extents, 1, 2, 3]) for _ in range(rank))

    def fresh(self, shape: Any, kind: str = "float", below: int = 0, layout: str = "") -> str:
        layouts = ["dense"] * 4 + ["transposed", "stepped"]
        return super().fresh(shape, kind, below, layout or (self.of(layouts) if kind == "float" else "dense"))

    def pick(self, least: int = 0, most: int = 5) -> str | None:
        found = [
            n for n, v in self.values.items()
            if v.is_floating_point() and str(v.dtype) == f"torch.{self.dtype}" and least <= v.ndim <= most and not self.is_index(n)
        ]  # fmt: skip
        return self.of(found[-4:] if self.rng.random() < 0.7 else found) if found else None

    def is_index(self, name: str) -> bool:
        return any(g.name == name and g.kind == "positive" for g in self.given)

    def add(self, text: str) -> None:
        """A statement, if eager PyTorch runs it and its numbers say something."""
        made: dict[str, Any] = {"torch": torch, "F": F, **{n: v.clone() for n, v in self.values.items()}}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = eval(text, made)
        except Exception:
            return
        if isinstance(value, (tuple, list)):
            if not value or not isinstance(value[0], torch.Tensor):
                return
            text, value = f"({text})[0]", value[0]
        if (
            not isinstance(value, torch.Tensor)
            or value.numel() > LARGEST
            or value.ndim > 6
            or value.is_complex()
        ):
            return
        if value.is_floating_point() and value.numel() and not float(value.abs().nan_to_num(1e9).max()) < 1e3:
            return
        self.record(text, value)

    def number(self) -> Any:
        return self.of([0, 1, -1, 2, 0.0, 0.5, -1.5, 3, 1e-3, True])

    def beside(self, x: str) -> str:
        """Something that broadcasts with x."""
        like = self.like(x)
        return like if self.rng.random() < 0.5 else self.broadcast(x)

    def step(self) -> None:
        x = self.pick()
        if x is None or self.rng.random() < 0.05:
            x = self.fresh(self.shape(int(self.rng.integers(0, 5))))
        getattr(self, self.of(["_named"] * 6 + [m for m in dir(self) if m.startswith("_rule")] * 2))(x)

    def _named(self, x: str) -> None:
        """Any function that has a rule, called with what it may take."""
        f = self.of(self.names)
        y = self.beside(x)
        more = self.of([
            f"{f}({x})", f"{f}({x}, {y})", f"{f}({x}, {self.number()})", f"{f}({x}, dim={self.axis(x)})", f"{f}({x}, {self.axis(x)})",
            f"{f}({x}, {y}, {self.beside(x)})", f"{f}({x}, {self.number()}, {self.number()})",
            f"{f}({x}, dim={self.axis(x)}, keepdim=True)", f"{f}({x}, ({self.axis(x)},))",
        ])  # fmt: skip
        self.add(more)

    def _rule_view(self, x: str) -> None:
        shape = list(self.values[x].shape)
        d = self.axis(x)
        n = shape[d] if shape else 1
        perm = self.rng.permutation(len(shape)).tolist()
        low = int(self.rng.integers(0, n + 1))
        texts = [
            f"{x}.reshape(-1)", f"{x}.permute({perm})", f"{x}.unsqueeze({d})", f"{x}.squeeze()", f"{x}.squeeze({d})",
            f"{x}.transpose({d}, {self.axis(x)})", f"{x}[..., ::2]", f"{x}[{low}:]", f"{x}.narrow({d}, {min(low, max(n - 1, 0))}, {max(n - low, 0)})",
            f"{x}.flip({d})", f"torch.roll({x}, {self.of([1, -2, 5])}, {d})", f"{x}.contiguous()", f"{x}.clone()", f"{x}[None]",
            f"{x}.select({d}, {-1})", f"{x}.expand(2, {', '.join(['-1'] * len(shape))})", f"{x}.chunk(2, {d})[-1]", f"{x}.flatten({self.of([0, 1])})",
            f"{x}.unfold({d}, {max(min(n, 2), 1)}, 1)", f"{x}.diagonal()", f"{x}.tril({self.of([-1, 0, 1])})", f"{x}.repeat({[self.of([1, 2])] + [1] * len(shape)})",
            f"F.pad({x}, ({self.of([0, 1, -1])}, {self.of([0, 2])}), value={self.of([0.0, 1.5])})", f"{x}.movedim({d}, 0)",
            f"{x}.unflatten({d}, (1, {n}))", f"{x}.swapaxes(0, {d}).reshape({[*shape[1:], *shape[:1]]})", f"{x}.as_strided({shape}, {list(self.values[x].stride())})",
        ]  # fmt: skip
        self.add(self.of(texts))

    def _rule_reduce(self, x: str) -> None:
        d, keep = self.axis(x), self.of([True, False])
        name = self.of([
            "sum", "mean", "amax", "amin", "logsumexp", "var", "std", "prod", "max", "min", "norm", "argmax", "cumsum", "softmax", "log_softmax",
        ])  # fmt: skip
        if name in ("cumsum", "softmax", "log_softmax"):
            self.add(f"{x}.{name}({d})")
        elif self.rng.random() < 0.2:
            self.add(f"{x}.{name}()")
        else:
            self.add(f"{x}.{name}(dim={d}, keepdim={keep})")

    def _rule_product(self, x: str) -> None:
        shape = self.values[x].shape
        if len(shape) < 2:
            return
        n = self.of(self.extents)
        if self.rng.random() < 0.5:
            w, b = self.fresh((n, shape[-1])), self.fresh((n,)) if self.rng.random() < 0.5 else None
            self.add(f"F.linear({x}, {w}{f', {b}' if b else ''})")
        else:
            w = self.fresh((*(shape[:-2] if self.rng.random() < 0.5 else ()), shape[-1], n))
            texts = [f"{x} @ {w}", f"torch.matmul({x}, {w})", f"torch.einsum('...ik,...kj->...ij', {x}, {w})"]
            self.add(self.of(texts))

    def _rule_norm(self, x: str) -> None:
        shape = self.values[x].shape
        if not shape:
            return
        w = self.fresh(shape[-1:])
        b = self.fresh(shape[-1:])
        eps = self.of([1e-5, 1e-2])
        texts = [
            f"F.layer_norm({x}, {tuple(shape[-1:])}, {w}, {b}, {eps})",
            f"F.rms_norm({x}, {tuple(shape[-1:])}, {w}, {eps})",
            f"F.normalize({x}, dim=-1)",
        ]
        if len(shape) > 1:
            c = shape[1]
            g = self.of([g for g in range(1, c + 1) if c % g == 0] or [1])
            texts += [f"F.group_norm({x}, {g})", f"F.instance_norm({x})"]
        self.add(self.of(texts))

    def _rule_batch_norm(self, x: str) -> None:
        shape = self.values[x].shape
        if len(shape) < 2 or len(self.body) > 6:
            return
        mean, var = self.fresh(shape[1:2]), self.fresh(shape[1:2], "positive")
        how = f"training={self.of([True, True, False])}, momentum={self.of([0.1, 0.5])}"
        self.add(f"F.batch_norm({x}, {mean}, {var}, {how})")

    def _rule_image(self, x: str) -> None:
        shape = self.values[x].shape
        rank = len(shape) - 2
        if rank not in (1, 2):
            return
        c, k = shape[1], self.of([1, 2, 3])
        groups = self.of([1, 1, max(c, 1)])
        s, p = self.of([1, 2]), self.of([0, 1])
        w = self.fresh((groups * self.of([1, 2]), max(c // groups, 1), *[k] * rank))
        self.add(self.of([
            f"F.conv{rank}d({x}, {w}, stride={s}, padding={p}, groups={groups})", f"F.max_pool{rank}d({x}, {k}, {s}, {min(p, k // 2)})",
            f"F.avg_pool{rank}d({x}, {k}, {s}, {min(p, k // 2)})", f"F.adaptive_avg_pool{rank}d({x}, {self.of([1, 2, 3])})",
            f"F.interpolate({x}, scale_factor={self.of([1, 2])}, mode='nearest')", f"F.adaptive_max_pool{rank}d({x}, {self.of([1, 2])})",
            f"F.conv{rank}d({x}, {w}, groups={groups})", f"F.conv_transpose{rank}d({x}, {self.fresh((max(c, 1), 2, *[k] * rank))}, stride={s})",
        ]))  # fmt: skip

    def _rule_attention(self, x: str) -> None:
        shape = self.values[x].shape
        if len(shape) not in (3, 4):
            return
        m = self.of(self.extents)
        k, v = self.fresh((*shape[:-2], m, shape[-1])), self.fresh((*shape[:-2], m, self.of(self.extents)))
        how = self.of(["", ", is_causal=True", ", scale=0.0", ", scale=0.5"])
        self.add(f"F.scaled_dot_product_attention({x}, {k}, {v}{how})")

    def _rule_index(self, x: str) -> None:
        shape = self.values[x].shape
        if not shape or 0 in shape:
            return
        d = self.axis(x)
        i = self.fresh((self.of([1, 2, 3, 5]),), "index", shape[d])
        full = self.fresh(shape, "index", shape[d])
        mask = self.fresh(shape, "mask")
        self.add(self.of([
            f"{x}.index_select({d}, {i})", f"{x}.gather({d}, {full})", f"{x}.masked_fill({mask}, {self.of([0.0, -1.5])})",
            f"torch.where({mask}, {x}, {self.of([0.0, 1.0, x])})", f"{x}.scatter_add({d}, {full}, {x})",
            f"F.embedding({i}, {x})", f"torch.take_along_dim({x}, {full}, {d})",
            f"{x}.index_add({d}, torch.arange({shape[d]}), {x})", f"F.one_hot({i}, {shape[d]}).to({x}.dtype)",
        ]))  # fmt: skip

    def _rule_written(self, x: str) -> None:
        """In place, on a copy or on an argument."""
        y = self.beside(x)
        self.add(self.of([
            f"{x}.clone().add_({self.number()})", f"{x}.clone().mul_({y})", f"{x}.clone().clamp_(-0.5, {self.number()})",
            f"{x}.relu().neg_()", f"{x}.clone().zero_()", f"{x}.clone().fill_({self.number()})", f"{x}.clone().copy_({y})",
        ]))  # fmt: skip

    def _rule_loss(self, x: str) -> None:
        shape = self.values[x].shape
        if len(shape) != 2 or 0 in shape:
            return
        i, y = self.fresh(shape[:1], "index", shape[1]), self.fresh(shape)
        self.add(self.of([
            f"F.cross_entropy({x}, {i}, label_smoothing={self.of([0.0, 0.1])})", f"F.nll_loss({x}, {i}, reduction='none')",
            f"F.mse_loss({x}, {y})", f"F.smooth_l1_loss({x}, {y})", f"F.binary_cross_entropy_with_logits({x}, {y}.sigmoid())",
            f"F.kl_div({x}, {y}, reduction='sum')", f"F.huber_loss({x}, {y}, delta={self.of([1.0, 0.5])})", f"F.cosine_similarity({x}, {y})",
        ]))  # fmt: skip


def draw(rng: np.random.Generator, where: str = "cpu") -> Function | None:
    """A function of up to 12 statements."""
    drawer, count = _Drawer(rng, str(rng.choice(TYPES, p=[0.6, 0.2, 0.2]))), int(rng.integers(1, 13))
    drawer.fresh(drawer.shape(int(rng.integers(1, 5))))
    drawer.steps(count)
    return drawer.function(gradient=0.6, whole=0.6, inner=0.4)


# --- checking ---------------------------------------------------------------------------------------------------------


def check(case: Function, where: str = "cpu") -> str | None:
    """What differs from eager PyTorch by more than ten times what eager PyTorch differs from float64."""
    import importlib

    from aicf.frontends.torch import backend, graphs, reset
    from aicf.frontends.torch.emit import RULE_FAILED

    partition = importlib.import_module("aicf.frontends.torch.partition")
    f = case.function()
    torch._dynamo.reset()
    reset()
    before = partition.WORTH, partition.SLOWER
    if case.whole:
        partition.WORTH, partition.SLOWER = 1, {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = torch.compile(f, backend=backend, dynamic=False)
            calls = (compiled, case.dtype), (f, case.dtype), (f, "float64")
            got, want, exact = (outcome(partial(results, call, case, where, dtype)) for call, dtype in calls)
    finally:
        partition.WORTH, partition.SLOWER = before
    failed = [why for graph in graphs() for _, why in graph.left if why.startswith(RULE_FAILED)]
    said = compared(got, want, exact, "in eager PyTorch", difference)
    if said or isinstance(want, str):
        return said
    return f"rule: {failed[0]}" if failed else None


def results(f: Any, case: Function, device: str, dtype: str) -> dict[str, Any]:
    """Results, arguments afterwards and gradients, by name."""
    args, leaves = [a.to(device) for a in case.arguments(dtype)], []
    if case.gradient:
        for g, a in zip(case.given, args):
            if g.kind == "float" and a.is_floating_point() and not written(case, g.name):
                leaves.append(a.requires_grad_())
    made = f(*args)
    found: dict[str, Any] = {f"result {n}": y for n, y in zip(case.returned, made)}
    found |= {f"argument {g.name} afterwards": a for g, a in zip(case.given, args)}
    read = [y for y in made if y.requires_grad and y.is_floating_point()]
    if leaves and read:
        weights = [
            torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype, device=y.device).reshape(y.shape) for y in read
        ]
        grads = torch.autograd.grad(read, leaves, weights, allow_unused=True)
        # a backward pass of AOTAutograd has the strides of the results, eager PyTorch's those of the weights
        found |= {f"gradient {n}": g if g is None else g.contiguous() for n, g in enumerate(grads)}
    return {name: copy.copy(x) for name, x in found.items()}


def written(case: Function, name: str) -> bool:
    """Whether a statement may write to an argument: running statistics."""
    return any(s.text.startswith("F.batch_norm") and name in s.reads[1:] for s in case.body)


def difference(got: Any, want: Any, exact: Any) -> str | None:
    """Of one tensor."""
    if got is None or want is None:
        other = got if want is None else want
        return (
            None
            if other is None or not other.any()
            else f"{'no gradient' if got is None else 'a gradient'} where eager has another"
        )
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype} {tuple(got.shape)}, expected {want.dtype} {tuple(want.shape)}"
    if got.stride() != want.stride() and want.numel() > 1 and not same_strides(got, want):
        return f"strides: {got.stride()}, expected {want.stride()} of {tuple(want.shape)}"
    a, b, e = (x.detach().cpu().double().numpy() for x in (got, want, exact))
    if not want.is_floating_point():
        return off(a, b, e, 0.0, 0.0)
    info = torch.finfo(want.dtype)
    return off(a, b, e, info.eps * (16 if want.dtype == torch.float32 else 8), info.smallest_normal)


def same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """But for axes of one element."""
    return all(s == t or n <= 1 for s, t, n in zip(a.stride(), b.stride(), a.shape))


def script(case: Function, where: str = "cpu") -> str:
    """The function, compiled and in eager PyTorch."""
    given = "".join(f"    {tensor_text(g, case)},\n" for g in case.given)
    leaves = (
        [n for n, g in enumerate(case.given) if g.kind == "float" and not written(case, g.name)]
        if case.gradient
        else []
    )
    everything = (
        "import importlib\n\npartition = importlib.import_module('aicf.frontends.torch.partition')\n"
        "partition.WORTH, partition.SLOWER = 1, {}  # take every op that has a rule\n\n" if case.whole else ""
    )  # fmt: skip
    return f"""import copy

import torch
import torch.nn.functional as F

import aicf

nan, inf = float("nan"), float("inf")
{everything}
{case.source()}

given = [
{given}]


def run(call):
    args = copy.deepcopy(given)
    for n in {leaves}:
        args[n].requires_grad_()
    made = call(*args)
    read = [y for y in made if y.requires_grad]
    weights = [torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype, device=y.device).reshape(y.shape) for y in read]
    grads = torch.autograd.grad(read, [args[n] for n in {leaves}], weights, allow_unused=True) if read else ()
    return made, args, grads


for a, b in zip(run(torch.compile(f, backend="aicf", dynamic=False)), run(f)):
    for got, want in zip(a, b):
        print("got", got, got is not None and got.stride(), "expected", want, want is not None and want.stride())
"""


def tensor_text(g: Given, case: Function) -> str:
    """A tensor as it is written."""
    x = argument(g, case.dtype, case.seed)
    text = f"torch.tensor({x.tolist()!r}, dtype={x.dtype}).reshape({list(x.shape)})"
    if not x.is_contiguous():
        text = f"torch.empty_strided({list(x.shape)}, {list(x.stride())}, dtype={x.dtype}).copy_({text})"
    return text
