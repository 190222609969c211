"""What share of op calls aicf takes of PyTorch's models, and which ops it leaves: docs/results/coverage.md is written by this.

    python tools/torch_coverage.py [--count 60] [--seed S] [--types f32,bf16,f16] [--only NAME] [--jobs N] [--write]

Models are drawn from all names of timm, torchvision and transformers (the extra `coverage`), with random weights and small sizes; the seed,
which is the date unless it is set, is printed and draws the same names again. Names that make no model that eager PyTorch runs here are
drawn again, and counted. Each model runs forward and backward on the CPU, in each type: its output, its gradients and all of its buffers
are compared with eager PyTorch's.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import logging
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

Numbers = dict[str, torch.Tensor | None]
ROOT = Path(__file__).resolve().parents[1]
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
BEGIN, END = "<!-- torch -->", "<!-- /torch -->"
GRADIENT = "gradient of "  # before the name of a parameter
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from torch_models import Made, Refused, drawn, make  # noqa: E402

from aicf.frontends.torch.report import FASTER, TOO_SMALL  # noqa: E402


@dataclass
class Measured:
    """Of a model: calls taken and left, parts, what is wrong with its numbers, seconds.

    alone  what is wrong where aicf computes all of it, also what PyTorch computes faster; None where it lacks something
    error  why it failed; then the rest means nothing
    refused  why the name was drawn again
    """

    name: str
    taken: int = 0
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    parts: int = 0
    wrong: str = ""
    alone: str | None = None
    error: str = ""
    refused: str = ""
    seconds: float = 0.0

    @property
    def calls(self) -> int:
        return self.taken + self.left.total()


def run(name: str, made: Made, dtype: torch.dtype) -> Measured:
    """Compare a model in a type. Refused if eager PyTorch does not run it in that type, or runs to other results each time."""
    from aicf.frontends.torch import graphs, reset

    model, args, named = made
    model, args, named = (
        copy.deepcopy(model).to(dtype),
        _typed(args, dtype),
        dict(zip(named, _typed(named.values(), dtype))),
    )
    model.train()
    try:
        twice = [numbers(m, m, args, named) for m in (copy.deepcopy(model), copy.deepcopy(model))]
    except Exception as error:
        raise Refused(f"eager PyTorch in {dtype}: {str(error).splitlines()[0][:120]}") from error
    if any(
        a is not None and not torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(*(t.values() for t in twice))
    ):
        raise Refused("eager PyTorch computes other numbers each time")
    if not twice[0]["output"].isfinite().all():
        raise Refused("eager PyTorch's output is not finite")
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


def _typed(args: Any, dtype: torch.dtype) -> list[Any]:
    return [a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]


def through_aicf(model: nn.Module, args: Any, named: Any, **options: str) -> Numbers:
    from aicf.frontends.torch import backend

    # An LSTM is traced as its cells' ops. On the CPU PyTorch would have oneDNN's own layer in it, which AOTAutograd can't train.
    recurrent = any(isinstance(m, nn.RNNBase) for m in model.modules())
    torch._dynamo.config.allow_rnn = recurrent
    torch._dynamo.reset()
    with torch.backends.mkldnn.flags(enabled=not recurrent):
        return numbers(torch.compile(model, backend=backend, options=options or None), model, args, named)


class Eager:
    """What eager PyTorch computes of a model in its type, in f64, and in its type of weights that are moved by an ulp: another order of
    sums does as much, and where a ReLU's argument is next to 0, it turns one on or off."""

    def __init__(self, model: nn.Module, args: Any, named: Any) -> None:
        self.model, self.args, self.named = model, args, named
        self.wanted = self._of(model)
        try:
            self.truth = self._of(model, torch.float64)
        except RuntimeError:  # it makes tensors of a type itself
            self.truth = self.wanted

    def _of(self, model: nn.Module, dtype: torch.dtype | None = None) -> Numbers:
        model, args, named = copy.deepcopy(model), self.args, self.named
        if dtype is not None:
            model, args = model.to(dtype), _typed(args, dtype)
            named = dict(zip(named, _typed(named.values(), dtype)))
        return numbers(model, model, args, named)

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
                    p.mul_(1 + to * torch.finfo(p.dtype).eps)
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
    """The output, all gradients of a weighted sum of it, and all buffers after it."""
    torch.manual_seed(1)
    out = first(call(*args, **named))
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    (out * weights.to(out.dtype)).sum().backward()
    return {
        "output": out.detach(),
        **{GRADIENT + name: p.grad for name, p in model.named_parameters()},
        **{name: b.detach().clone() for name, b in model.named_buffers()},
    }


def first(out: Any) -> torch.Tensor:
    """The first tensor of floats that a gradient flows to, wherever it is in the output."""
    found = [
        t for t in tree_leaves(dict(out) if hasattr(out, "keys") else out) if isinstance(t, torch.Tensor)
    ]
    return next(t for t in found if t.is_floating_point() and t.requires_grad and t.ndim)


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
        return "" if torch.equal(got, want) else f"{name} has other elements"
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
    bound = max(5e-4, 4 * torch.finfo(want.dtype).eps, 8 * own)
    return "" if error < bound else f"{name} is off by {error:.1e}, eager PyTorch by {own:.1e}"


def measured(name: str, types: tuple[str, ...], limit: int) -> list[Measured]:
    """A model in each type. One that takes longer than the limit, in seconds, is refused."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    signal.signal(signal.SIGALRM, _too_slow)
    done: list[Measured] = []
    try:
        signal.alarm(limit)
        made = make(name)
    except Exception as error:
        return [Measured(name, refused=_line(error))]
    for dtype in types:
        titled, started = f"{name} {dtype}", time.perf_counter()
        try:
            signal.alarm(limit)
            found = run(titled, made, TYPES[dtype])
        except Refused as error:
            found = Measured(titled, refused=str(error))
        except Exception as error:
            slow = isinstance(error.__cause__ or error, TimeoutError)
            found = Measured(titled, **{"refused" if slow else "error": _line(error)})
        found.seconds = time.perf_counter() - started
        done.append(found)
    signal.alarm(0)
    return done


def _too_slow(*_: Any) -> None:
    raise TimeoutError("it takes too long")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


def all_measured(asked: argparse.Namespace) -> Iterator[list[Measured]]:
    """Drawn models until there are enough that ran. A few to a process: what PyTorch keeps of each stays until the process ends.
    (max_tasks_per_child would say that, but Python 3.11's pools of it wait for ever.)"""
    listed = [name for name in drawn(asked.seed) if asked.only in name]
    ran, each = 0, 8 * asked.jobs
    call = partial(measured, types=tuple(asked.types.split(",")), limit=asked.limit)
    for first in range(0, len(listed), each):
        with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as workers:
            for found in workers.map(call, listed[first : first + each]):
                yield found
                ran += any(not m.refused for m in found)
                if ran >= asked.count:
                    workers.shutdown(cancel_futures=True)
                    return


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=60, help="how many models")
    parser.add_argument(
        "--seed", default=datetime.date.today().isoformat(), help="what the draw follows from"
    )
    parser.add_argument("--types", default=",".join(TYPES), help="the types of parameters")
    parser.add_argument("--only", default="", help="models whose name has this in it, such as timm")
    parser.add_argument("--limit", type=int, default=300, help="seconds for a model in a type")
    parser.add_argument("--jobs", type=int, default=1, help="how many models at once")
    parser.add_argument("--write", action="store_true", help="write docs/results/coverage.md")
    asked = parser.parse_args()
    print(
        f"seed {asked.seed}: python tools/torch_coverage.py --seed {asked.seed} draws these again", flush=True
    )
    done: list[Measured] = []
    refused = Counter[str]()
    for m in (m for found in all_measured(asked) for m in found):
        if m.refused:
            refused[m.refused.partition(":")[0]] += 1
            print(f"drawn again: {m.name}: {m.refused}", flush=True)
            continue
        done.append(m)
        show(m)
        if asked.write:  # after each, as many take long
            write(page(done, asked.seed))
    models = {m.name.rpartition(" ")[0] for m in done}
    bad = [m.name for m in done if m.error or m.wrong or m.alone]
    print(
        f"{len(models)} models, {len(done)} runs, {len(bad)} with differences: {', '.join(bad)}; {refused.total()} draws refused"
    )
    return int(bool(bad))


def show(m: Measured) -> None:
    if m.error:
        print(f"FAILED {m.name}: {m.error}", flush=True)
        return
    alone = "" if m.alone is None else f"; alone: {m.alone or 'same'}"
    left = ", ".join(f"{op.removeprefix('aten.')} {n} ({why})" for (op, why), n in m.left.most_common())
    print(
        f"{m.name}: {m.taken} of {m.calls}, {m.parts} parts, {m.seconds:.0f} s {m.wrong}{alone}; left: {left}",
        flush=True,
    )


def write(section: str) -> None:
    """Into the page, in the place of the section that was there; what other scripts wrote stays."""
    path = ROOT / "docs/results/coverage.md"
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    path.write_text(
        f"{before.rstrip()}\n\n{BEGIN}\n{section.rstrip()}\n{END}\n{rest.partition(END)[2].lstrip()}"
    )


def page(done: list[Measured], seed: str) -> str:
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
        f"Written by `python tools/torch_coverage.py --write --seed {seed}`, with PyTorch {torch.__version__.partition('+')[0]} on the CPU: models that "
        "are drawn from all of timm, torchvision and transformers, small, with random weights, in f32, bf16 and f16, forward and backward",
        'through `torch.compile(model, backend="aicf")`: outputs, gradients and buffers beside eager PyTorch\'s. Ops that aicf lacks run in PyTorch,',
        "between parts that aicf computes. Views are not counted.",
        "",
        f"- Of {len(done)} runs {len(ran)} ended, {sum(not m.wrong for m in ran)} of them with eager PyTorch's numbers.",
        f"- aicf took {taken:,} of {total:,} op calls ({taken / max(total, 1):.1%}); in {whole} runs all.",
        f"- Of those left PyTorch computes {share(faster)} faster, and {share(small)} are cheap and alone among PyTorch's. "
        f"{share(total - taken - small - faster)} are random numbers, or aicf lacks them.",
        f'- With `fallback="error"`, where PyTorch computes nothing, {len(alone)} ended ({len(alone) / max(len(done), 1):.0%}), '
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
