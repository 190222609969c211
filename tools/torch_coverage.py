"""What share of op calls aicf takes of PyTorch's models, and which ops it leaves: docs/results/coverage.md is written by this.

    python tools/torch_coverage.py [--count 60] [--seed S] [--types f32,bf16,f16] [--each N] [--alone f32] [--only NAME] [--jobs N] [--write]

Models are drawn from all names of timm, torchvision and transformers (the extra `coverage`), with random weights and small sizes; the seed,
which is the date unless it is set, is printed and draws the same names again. Names that make no model that eager PyTorch runs here are
drawn again, and counted. Each model runs in inference, and forward and backward, on the CPU, in each type: its outputs, its gradients and
all of its buffers are compared with eager PyTorch's (torch_eager.py).

Each run that ends is a line of JSON in build/coverage/SEED.jsonl. What is there is not run again, so a run that was stopped goes on, and a
second one adds a type; with `--each 1` each model runs in one type, which is drawn. `--again` runs again what differed or failed.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import logging
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
TOGETHER = 16  # models to a process: what PyTorch keeps of each stays until the process ends
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from torch_eager import Eager, Numbers, inference, training, typed  # noqa: E402
from torch_models import Made, Refused, drawn, make  # noqa: E402
from torch_results import Measured, Results, page, write  # noqa: E402

from aicf.frontends.torch.report import FASTER, TOO_SMALL  # noqa: E402


class TooSlow(BaseException):
    """No Exception, as libraries go on after those."""


def run(name: str, made: Made, dtype: str, alone: bool) -> Measured:
    """Compare a model in a type. Refused if eager PyTorch does not run it in that type, or runs to other results each time."""
    from aicf.frontends.torch import graphs, reset

    model, args, named = made
    model, args = copy.deepcopy(model).to(TYPES[dtype]), typed(args, TYPES[dtype])
    named = dict(zip(named, typed(named.values(), TYPES[dtype]), strict=True))
    try:
        eager = {
            "": Eager(training, copy.deepcopy(model).train(), args, named),
            "inference: ": Eager(inference, copy.deepcopy(model).eval(), args, named),
        }
        repeats = eager[""].repeats()
    except Exception as error:
        raise Refused(f"eager PyTorch in {dtype}: {_line(error)[:140]}") from error
    if not repeats:
        raise Refused("eager PyTorch computes other numbers each time")
    if not eager[""].finite():
        raise Refused("eager PyTorch's output is not finite")
    if not eager["inference: "].finite():
        del eager["inference: "]
    reset()
    torch._dynamo.utils.counters.clear()
    wrong = [
        f"{mode}{different}" for mode, e in eager.items() if (different := e.difference(through_aicf(e)))
    ]
    left = sum((g.left for g in graphs()), Counter[tuple[str, str]]())
    breaks = Counter({_reason(why): n for why, n in torch._dynamo.utils.counters["graph_break"].items()})
    found = Measured(
        name, dtype, sum(g.taken.total() for g in graphs()), left, sum(g.parts for g in graphs()), breaks, "; ".join(wrong)
    )  # fmt: skip
    if not left:
        found.alone = found.wrong
    elif alone and {why for _, why in left} <= {FASTER, TOO_SMALL}:
        found.alone = eager[""].difference(through_aicf(eager[""], fallback="error"))
    return found


def through_aicf(eager: Eager, **options: str) -> Numbers:
    from aicf.frontends.torch import backend

    model = copy.deepcopy(eager.model)
    # An LSTM is traced as its cells' ops. On the CPU PyTorch would have oneDNN's own layer in it, which AOTAutograd can't train.
    recurrent = any(isinstance(m, nn.RNNBase) for m in model.modules())
    torch._dynamo.config.allow_rnn = recurrent
    torch._dynamo.reset()
    with torch.backends.mkldnn.flags(enabled=not recurrent):
        compiled = torch.compile(model, backend=backend, options=options or None)
        return eager.numbers(compiled, model, eager.args, eager.named)


def measured(
    name: str, types: tuple[str, ...], alone: tuple[str, ...], limit: int, layers: int
) -> list[Measured]:
    """A model in each type. What takes longer than the limit, in seconds of a processor, is slow."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, _too_slow)
    done: list[Measured] = []
    try:
        _limit(limit)
        made = make(name, layers)
    except (Exception, TooSlow) as error:
        _limit(0)
        return [Measured(name, refused=str(error) if isinstance(error, Refused) else _line(error))]
    for dtype in types:
        started = time.process_time()
        try:
            _limit(limit)
            found = run(name, made, dtype, dtype in alone)
        except Refused as error:
            found = Measured(name, dtype, refused=str(error))
        except TooSlow:
            found = Measured(name, dtype, slow=True)
        except Exception as error:
            error = getattr(error, "inner_exception", error)  # what a backend of torch.compile raised
            found = Measured(name, dtype, error=_line(error))
        _limit(0)
        found.seconds = time.process_time() - started
        done.append(found)
    return done


def _limit(seconds: int) -> None:
    """Of a processor's time, or ten times as many on the clock, where it waits for something; 0: no limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(10 * seconds)


def _too_slow(*_: Any) -> None:
    raise TooSlow("it takes too long")


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {_reason(str(error))[:200]}"


def _reason(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def all_measured(asked: argparse.Namespace, results: Results) -> Iterator[Measured]:
    """Drawn models until enough were compared in a type, those of the file first."""
    types, alone = tuple(asked.types.split(",")), tuple(asked.alone.split(","))
    listed = [name for name in drawn(asked.seed) if asked.only in name]
    ran, each = 0, TOGETHER * asked.jobs
    while listed and ran < asked.count:
        chunk, listed = listed[:each], listed[each:]
        missing = {
            name: results.missing(name, _turn(types, f"{asked.seed} {name}"), asked.each) for name in chunk
        }
        fresh = _in_processes(
            {name: partial(measured, name, those, alone, asked.limit, asked.layers) for name, those in missing.items() if those},
            asked.jobs, results.add,
        )  # fmt: skip
        for name in chunk:
            old = results.of(name, types)
            runs = [*old, *next(fresh)] if missing[name] else old
            yield from runs
            ran += any(not m.refused and not m.slow for m in runs)
            if ran >= asked.count:
                fresh.close()
                return


def _turn(types: tuple[str, ...], seed: str) -> tuple[str, ...]:
    """In a drawn order."""
    return tuple(random.Random(seed).sample(types, len(types)))


def _in_processes(
    calls: dict[str, Any], jobs: int, record: Callable[[Measured], None]
) -> Iterator[list[Measured]]:
    """The results in order, each recorded when it is there. Where a process dies, each call that is left has one of its own, and one
    that dies there failed. (max_tasks_per_child would end processes, but Python 3.11's pools of it wait for ever.)"""
    if not calls:
        return
    ended: dict[str, list[Measured]] = {}
    context = get_context("forkserver")  # which imports once what all need
    context.set_forkserver_preload(["torch._dynamo", "timm", "torchvision", "transformers", "torch_models"])

    def end(name: str, future: Future[list[Measured]]) -> None:
        if not future.cancelled() and future.exception() is None:
            ended[name] = future.result()
            for m in ended[name]:
                record(m)

    with ProcessPoolExecutor(jobs, context) as workers:
        futures = {name: workers.submit(call) for name, call in calls.items()}
        for name, future in futures.items():
            future.add_done_callback(partial(end, name))
        try:
            for name, future in futures.items():
                yield future.result()
                del calls[name]
        except BrokenProcessPool:
            pass
        finally:
            workers.shutdown(cancel_futures=True)
    for name, call in calls.items():
        if name not in ended:
            with ProcessPoolExecutor(1, context) as worker:
                try:
                    ended[name] = worker.submit(call).result()
                except BrokenProcessPool:
                    ended[name] = [Measured(name, t, error="its process ended") for t in call.args[1]]
            for m in ended[name]:
                record(m)
        yield ended[name]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--count", type=int, default=60, help="how many models; 0: those in the file of finished runs"
    )
    parser.add_argument(
        "--seed", default=datetime.date.today().isoformat(), help="what the draw follows from"
    )
    parser.add_argument("--types", default=",".join(TYPES), help="the types of parameters")
    parser.add_argument(
        "--each", type=int, default=len(TYPES), help="how many of the types for a model, drawn"
    )
    parser.add_argument("--alone", default="f32", help="the types in which aicf computes all of it, too")
    parser.add_argument("--only", default="", help="models whose name has this in it, such as timm")
    parser.add_argument("--limit", type=int, default=200, help="seconds of a processor for a model in a type")
    parser.add_argument(
        "--layers", type=int, default=300, help="of a model, at most, where like ones in a row are one"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many models at once")
    parser.add_argument("--results", type=Path, help="the file of finished runs: build/coverage/SEED.jsonl")
    parser.add_argument("--again", action="store_true", help="run again what differed, failed or was slow")
    parser.add_argument("--write", action="store_true", help="write docs/results/coverage.md")
    asked = parser.parse_args()
    print(
        f"seed {asked.seed}: python tools/torch_coverage.py --seed {asked.seed} draws these again", flush=True
    )
    results = Results(asked.results or ROOT / f"build/coverage/{asked.seed}.jsonl", asked.again)
    done: list[Measured] = []
    for m in all_measured(asked, results) if asked.count else results.runs.values():
        done.append(m)
        show(m)
        if asked.write and asked.count:  # after each, as many take long
            write(page(done, asked.seed))
    if asked.write:
        write(page(done, asked.seed))
    compared = [m for m in done if not m.refused and not m.slow]
    bad = [m.title for m in compared if m.differs]
    print(
        f"{len({m.name for m in compared})} models, {len(compared)} runs, {len(bad)} with differences: {', '.join(bad)}; "
        f"{sum(bool(m.refused) for m in done)} refused, {sum(m.slow for m in done)} slow"
    )
    return int(bool(bad))


def show(m: Measured) -> None:
    if m.refused or m.slow or m.error:
        print(
            f"{m.title}: {'slow' if m.slow else f'refused: {m.refused}' if m.refused else f'FAILED {m.error}'}",
            flush=True,
        )
        return
    alone = "" if m.alone is None else f"; alone: {m.alone or 'same'}"
    left = ", ".join(f"{op.removeprefix('aten.')} {n} ({why})" for (op, why), n in m.left.most_common())
    print(
        f"{m.title}: {m.taken} of {m.calls}, {m.parts} parts, {m.breaks.total()} breaks, {m.seconds:.0f} s {m.wrong or 'same'}{alone}; left: {left}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
