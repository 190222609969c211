"""What eager PyTorch computes of a model, and whether other numbers are as good: torch_coverage.py compares by this."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

Numbers = dict[str, torch.Tensor | None]
GRADIENT = "gradient of "  # before the name of a parameter
MARGIN = 8  # times eager PyTorch's own error that another computation may be off by
LEAST = 2e-5  # of the greatest element: in f32 a sum of a few thousand terms in another order; in halves their epsilon is more


def typed(args: Any, dtype: torch.dtype) -> list[Any]:
    return [a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]


def training(call: Any, model: nn.Module, args: Any, named: Any) -> Numbers:
    """All outputs, all gradients of a weighted sum of them, and all buffers after it."""
    torch.manual_seed(1)
    found = outputs(call(*args, **named))
    draw = torch.Generator().manual_seed(2)
    terms = [
        (out * torch.randn(out.shape, generator=draw).to(out.dtype)).sum()
        for out in found.values()
        if out.requires_grad
    ]
    if not terms:
        raise ValueError("no output has a gradient")
    torch.stack([t.to(terms[0].dtype) for t in terms]).sum().backward()
    return {
        **{name: out.detach() for name, out in found.items()},
        **{GRADIENT + name: p.grad for name, p in model.named_parameters()},
        **{name: b.detach().clone() for name, b in model.named_buffers()},
    }


def inference(call: Any, model: nn.Module, args: Any, named: Any) -> Numbers:
    """All outputs, and all buffers after them."""
    torch.manual_seed(1)
    with torch.no_grad():
        found = outputs(call(*args, **named))
    return {**found, **{name: b.detach().clone() for name, b in model.named_buffers()}}


def outputs(out: Any) -> dict[str, torch.Tensor]:
    """All tensors of an output, by where they are in it."""
    leaves = tree_leaves(dict(out) if hasattr(out, "keys") else out)
    return {f"output {n}": t for n, t in enumerate(leaves) if isinstance(t, torch.Tensor)}


class Eager:
    """What eager PyTorch computes of a model in its type, in f64, and in its type of weights that are moved by an ulp: another order of
    sums does as much, and where a ReLU's argument is next to 0, it turns one on or off.

    numbers  what is computed of the model: `training` or `inference`
    """

    def __init__(self, numbers: Any, model: nn.Module, args: Any, named: Any) -> None:
        self.numbers, self.model, self.args, self.named = numbers, model, args, named
        self.wanted = self._of(model)
        try:
            self.truth = self._of(model, torch.float64)
        except RuntimeError:  # it makes tensors of a type itself
            self.truth = self.wanted

    def repeats(self) -> bool:
        """Whether it computes the same numbers again."""
        again = self._of(self.model)
        return all(
            a is None or b is None or torch.equal(a.nan_to_num(), b.nan_to_num())
            for a, b in zip(self.wanted.values(), again.values(), strict=True)
        )

    def finite(self) -> bool:
        return all(
            bool(t.isfinite().all())
            for name, t in self.wanted.items()
            if name.startswith("output") and t is not None
        )

    def difference(self, found: Numbers) -> str:
        """What is wrong with these numbers; "" if nothing is."""
        return self._far(found, [self.wanted]) and self._far(found, [self.wanted, *self._moved])

    def _of(self, model: nn.Module, dtype: torch.dtype | None = None) -> Numbers:
        model, args, named = copy.deepcopy(model), self.args, self.named
        if dtype is not None:
            model, args = model.to(dtype), typed(args, dtype)
            named = dict(zip(named, typed(named.values(), dtype), strict=True))
        return self.numbers(model, model, args, named)

    @cached_property
    def _moved(self) -> list[Numbers]:
        found = []
        for seed in range(4):
            model, draw = copy.deepcopy(self.model), torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for p in model.parameters():
                    to = torch.randint(0, 2, p.shape, generator=draw) * 2.0 - 1.0
                    p.mul_(1 + to * torch.finfo(p.dtype).eps)
            found.append(self._of(model))
        return found

    def _far(self, found: Numbers, eager: list[Numbers]) -> str:
        if found.keys() != self.wanted.keys():
            return f"other names: {', '.join(sorted(found.keys() ^ self.wanted.keys()))}"
        grads = [t for name, t in self.wanted.items() if name.startswith(GRADIENT) and t is not None]
        most = max((float(t.abs().max()) for t in grads if t.numel()), default=0.0)
        wrong = (
            far(
                name,
                found[name],
                [e[name] for e in eager],
                self.truth[name],
                most if name.startswith(GRADIENT) else 0.0,
            )
            for name in self.wanted
        )
        return "; ".join(filter(None, wrong))


def far(name: str, got: Any, eager: list[Any], truth: Any, most: float) -> str:
    """What is wrong with a tensor beside eager PyTorch's: more than its greatest element explains, or a thousandth of the greatest of
    all gradients, and more than eager PyTorch is off itself. A gradient of zeros may be none: results that no loss reads have such."""
    want = eager[0]
    if got is not None and want is not None and (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{name} is {got.dtype} {tuple(got.shape)}, in eager PyTorch {want.dtype} {tuple(want.shape)}"
    if all(t is None or not t.any() for t in (got, want)):
        return ""
    if got is None or want is None:
        return f"{name}: only one side has one"
    if not want.is_floating_point():
        same = torch.stack([got == e for e in eager]).any(
            0
        )  # an index that an ulp changes is as good as eager PyTorch's
        return "" if same.all() else f"{name} has {int((~same).sum())} other elements"
    if torch.equal(got.nan_to_num(), want.nan_to_num()):
        return ""
    if not torch.equal(got.isfinite(), want.isfinite()):
        return f"{name}: other elements are finite"
    finite = want.isfinite() & truth.isfinite()

    def greatest(t: torch.Tensor) -> float:
        return float(torch.where(finite, t.double(), 0.0).abs().max())

    scale = max(greatest(want), most / 1000)
    error = greatest(got.double() - truth) / scale
    own = max(greatest(t.double() - truth) for t in eager) / scale
    bound = max(LEAST, torch.finfo(want.dtype).eps, MARGIN * own)
    return "" if error < bound else f"{name} is off by {error:.1e}, eager PyTorch by {own:.1e}"
