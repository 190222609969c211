"""What share of op calls aicf takes of PyTorch's models, and which ops it leaves: docs/results/coverage.md is written by this.

    python tools/torch_coverage.py [--only NAME] [--jobs N] [--write]

Small configurations of transformers, timm and torchvision with random weights, and models of PyTorch's own layers, forward and
backward on the CPU. Each is compared with eager PyTorch.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

Numbers = dict[str, torch.Tensor | None]
ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- torch -->", "<!-- /torch -->"
GRADIENT = "gradient of "  # before the name of a parameter
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from torch_models import Made, everything  # noqa: E402

from aicf.frontends.torch.report import FASTER, TOO_SMALL  # noqa: E402


@dataclass
class Measured:
    """Of a model: calls taken and left, parts, what is wrong with its numbers, seconds.

    alone  what is wrong where aicf computes all of it, also what PyTorch computes faster; None where it lacks something
    error  why it failed; then the rest means nothing
    """

    name: str
    taken: int = 0
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    parts: int = 0
    wrong: str = ""
    alone: str | None = None
    error: str = ""
    seconds: float = 0.0

    @property
    def calls(self) -> int:
        return self.taken + self.left.total()


def run(name: str, made: Made) -> Measured:
    from aicf.frontends.torch import graphs, reset

    torch.set_num_threads(1)
    model, args, named = made
    model.train()
    compiled, alone, eager = copy.deepcopy(model), copy.deepcopy(model), Eager(model, args, named)
    reset()
    wrong = eager.beside(through_aicf(compiled, args, named))
    left = sum((g.left for g in graphs()), Counter[tuple[str, str]]())
    made_of = Measured(
        name, sum(g.taken.total() for g in graphs()), left, sum(g.parts for g in graphs()), wrong
    )
    if not left:
        made_of.alone = wrong
    elif {why for _, why in left} <= {FASTER, TOO_SMALL}:
        made_of.alone = eager.beside(through_aicf(alone, args, named, fallback="error"))
    return made_of


def through_aicf(model: nn.Module, args: Any, named: Any, **options: str) -> Numbers:
    from aicf.frontends.torch import backend

    # An LSTM is traced as its cells' ops. On the CPU PyTorch would have oneDNN's own layer in it, which AOTAutograd can't train.
    recurrent = any(isinstance(m, nn.RNNBase) for m in model.modules())
    torch._dynamo.config.allow_rnn = recurrent
    torch._dynamo.reset()
    with torch.backends.mkldnn.flags(enabled=not recurrent):
        return numbers(torch.compile(model, backend=backend, options=options or None), model, args, named)


class Eager:
    """What eager PyTorch makes of a model, in f32, in f64, and in f32 of weights that are moved by an ulp: another order of sums does
    as much, and where a ReLU's argument is next to 0, it turns one on or off."""

    def __init__(self, model: nn.Module, args: Any, named: Any) -> None:
        self.model, self.args, self.named = model, args, named
        self.wanted = self._of(model)
        try:
            self.truth = self._of(model, torch.float64)
        except RuntimeError:  # it makes tensors of f32 itself
            self.truth = self.wanted

    def _of(self, model: nn.Module, dtype: torch.dtype = torch.float32) -> Numbers:
        model = copy.deepcopy(model).to(dtype)
        args = [a.to(dtype) if a.is_floating_point() else a for a in self.args]
        return numbers(model, model, args, self.named)

    def beside(self, found: Numbers) -> str:
        """What is wrong with these numbers; "" if nothing is."""
        return self._far(found, [self.wanted]) and self._far(found, [self.wanted, *self._moved])

    @cached_property
    def _moved(self) -> list[Numbers]:
        found = []
        for seed in range(4):
            model, draw = copy.deepcopy(self.model), torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for p in model.parameters():
                    to = torch.randint(0, 2, p.shape, generator=draw) * 2.0 - 1.0
                    p.copy_(torch.nextafter(p, to * float("inf")))
            found.append(self._of(model))
        return found

    def _far(self, found: Numbers, eager: list[Numbers]) -> str:
        grads = [t for name, t in self.wanted.items() if name.startswith(GRADIENT) and t is not None]
        most = max((float(t.abs().max()) for t in grads), default=0.0)
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


def numbers(call: Any, model: nn.Module, args: Any, named: Any) -> Numbers:
    """The output, all gradients of a weighted sum of it, and what the forward pass wrote into buffers."""
    torch.manual_seed(1)
    out = first(call(*args, **named))
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    (out * weights.to(out.dtype)).sum().backward()
    return {
        "output": out.detach(),
        **{GRADIENT + name: p.grad for name, p in model.named_parameters()},
        **{name: b for name, b in model.named_buffers() if b.is_floating_point() and b.numel()},
    }


def first(out: Any) -> torch.Tensor:
    if isinstance(out, torch.Tensor):
        return out
    return (
        out[0]
        if isinstance(out, (tuple, list))
        else next(v for v in out.values() if isinstance(v, torch.Tensor) and v.ndim)
    )


def far(name: str, got: Any, eager: list[Any], truth: Any, most: float) -> str:
    """What is wrong with a tensor beside eager PyTorch's: more than its greatest element explains, or a thousandth of the greatest of
    all gradients, and more than eager PyTorch is off itself. A gradient of zeros may be none: results that no loss reads have such."""
    zeros = [t is None or not t.any() for t in (got, eager[0])]
    if all(zeros):
        return ""
    if got is None or eager[0] is None:
        return f"{name}: only one side has one"
    scale = max(float(eager[0].abs().max()), most / 1000)
    error = float((got - truth).abs().max()) / scale
    own = max(float((t - truth).abs().max()) for t in eager) / scale
    return "" if error < max(5e-4, 8 * own) else f"{name} is off by {error:.1e}, eager PyTorch by {own:.1e}"


def measured(name: str) -> Measured:
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    started = time.perf_counter()
    try:
        found = run(name, everything()[name]())
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return Measured(name, error=f"{type(error).__name__}: {lines[0][:200]}")
    found.seconds = time.perf_counter() - started
    return found


def all_measured(names: list[str], jobs: int) -> Iterator[Measured]:
    """A few models to a process: what PyTorch keeps of each stays until the process ends.
    (max_tasks_per_child would say that, but Python 3.11's pools of it wait for ever.)"""
    each = 8 * jobs
    for first in range(0, len(names), each):
        some = names[first : first + each]
        with ProcessPoolExecutor(jobs, get_context("spawn")) as workers:
            yield from workers.map(measured, some)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="models whose name has this in it")
    parser.add_argument("--jobs", type=int, default=1, help="how many models at once")
    parser.add_argument("--write", action="store_true", help="write docs/results/coverage.md")
    asked = parser.parse_args()
    done: list[Measured] = []
    for m in all_measured([name for name in everything() if asked.only in name], asked.jobs):
        done.append(m)
        if m.error:
            print(f"FAILED {m.name}: {m.error}", flush=True)
        else:
            alone = "" if m.alone is None else f"; alone: {m.alone or 'same'}"
            print(
                f"{m.name}: {m.taken} of {m.calls}, {m.parts} parts, {m.seconds:.0f} s {m.wrong}{alone}; left: "
                + ", ".join(
                    f"{op.removeprefix('aten.')} {n} ({why})" for (op, why), n in m.left.most_common()
                ),
                flush=True,
            )
        if asked.write:  # after each, as many take long
            write(page(done))
    return int(any(m.error or m.wrong or m.alone for m in done))


def write(section: str) -> None:
    """Into the page, in the place of the section that was there; what other scripts wrote stays."""
    path = ROOT / "docs/results/coverage.md"
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    path.write_text(
        f"{before.rstrip()}\n\n{BEGIN}\n{section.rstrip()}\n{END}\n{rest.partition(END)[2].lstrip()}"
    )


def page(done: list[Measured]) -> str:
    ran, failed = [m for m in done if not m.error], [m for m in done if m.error]
    left, models = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for m in ran:
        left.update(m.left)
        models.update(m.left.keys())
    taken, total = sum(m.taken for m in ran), sum(m.calls for m in ran)

    def share(n: int) -> str:
        return f"{n:,} ({n / max(total, 1):.1%})"

    faster, small = (
        sum(n for (_, why), n in left.items() if why == reason) for reason in (FASTER, TOO_SMALL)
    )
    whole, alone = sum(not m.left for m in ran), [m for m in ran if m.alone is not None]
    lines = [
        "## PyTorch's models",
        "",
        f"Written by `python tools/torch_coverage.py --write`, with PyTorch {torch.__version__.partition('+')[0]} on the CPU: small "
        "configurations with random weights, forward and backward",
        'through `torch.compile(model, backend="aicf")`: outputs, gradients and buffers beside eager PyTorch\'s. Ops that aicf lacks run in PyTorch,',
        "between parts that aicf computes. Views are not counted.",
        "",
        f"- Of {len(done)} models {len(ran)} ran, {sum(not m.wrong for m in ran)} of them with eager PyTorch's numbers.",
        f"- aicf took {taken:,} of {total:,} op calls ({taken / max(total, 1):.1%}); of {whole} models all.",
        f"- Of those left PyTorch computes {share(faster)} faster, and {share(small)} are cheap and alone among PyTorch's. "
        f"{share(total - taken - small - faster)} are random numbers, or aicf lacks them.",
        f'- With `fallback="error"`, where PyTorch computes nothing, {len(alone)} models ran ({len(alone) / max(len(done), 1):.0%}), '
        f"{sum(not m.alone for m in alone)} of them with eager PyTorch's numbers.",
        "",
        "### What was left, by calls",
        "",
        "| op | why | calls | models |",
        "|---|---|---|---|",
        *(f"| `{op}` | {why} | {count} | {models[op, why]} |" for (op, why), count in left.most_common()),
        "",
        "### Models",
        "",
        "| model | taken | op calls | share | parts | beside eager | without PyTorch |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {m.name} | {m.taken} | {m.calls} | {m.taken / max(m.calls, 1):.0%} | {m.parts} | {m.wrong or 'same'} | "
            f"{'' if m.alone is None else m.alone or 'same'} |"
            for m in sorted(ran, key=lambda m: (-m.taken / max(m.calls, 1), m.name))
        ),
    ]
    if failed:
        lines += ["", "### Failed", "", *(f"- {m.name}: {m.error}" for m in failed)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
