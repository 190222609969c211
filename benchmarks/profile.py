"""Where the time of a program goes: every step of its plan by itself, beside its prediction, and the whole.

    python -m benchmarks.profile gpt2                               one of gpts.py, trained
    python -m benchmarks.profile gpt2-decode                        a token with a KV cache: one of suites/decode.py
    python -m benchmarks.profile examples/mlp.py --mode train       the model of a file, as `aicf explain` takes it
    python -m benchmarks.profile gpt2 --device cpu --out p.json --steps

Steps are walked in the plan's order. Each is bound to copies of the tensors that it is about to run on, as many as keep the L2 cache
cold, and timed as the suites time kernels: by graphs of up to 20 launches on a GPU, by the clock on the host. Then it runs once where it
belongs, so that the next one finds what it reads. Kernels of several launches are taken apart by events between them, which hinder
launches from overlapping.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import aicf
from aicf.device.tensor import Tensor
from aicf.graph.run.executor import BoundPlan
from aicf.graph.run.plan import Step
from aicf.graph.run.program import Program
from aicf.ir import Role

from . import results, sides
from .gpts import GPTS
from .gpu import LAUNCHES
from .harness import Bench, NotHere
from .kernel_runs import Bound, KernelRuns
from .stats import Stats, wall
from .work import product_flops

HELD = 8 * 2**30  # bytes of copies after which memory is collected
SHOWN = 58  # letters of a region's ops


@dataclass(frozen=True)
class StepTime:
    """One step. `us` is None where it could not be timed, and `note` says why; `parts` are (launch, how often, us)."""

    number: int
    ops: str
    kernel: str
    predicted_us: float
    us: float | None
    spread: float
    nbytes: int  # that it moves at the least
    flops: float  # of products
    parts: tuple[tuple[str, int, float], ...] = ()
    note: str = ""


@dataclass
class Profile:
    """`whole_us`: a replay of all steps, without the copies of feeds and results; `call_us`: a call of the program."""

    steps: list[StepTime] = field(default_factory=list)
    whole_us: float = 0.0
    call_us: float = 0.0
    whole_note: str = ""


def profile(
    program: Program, feed: Mapping[str, Any], bench: Bench, rounds: int = 5, made: Profile | None = None
) -> Profile:
    """Time the steps of the plan for the model's own sizes. `feed` is of valid data, on the device. Training goes on by some steps.

    made  is filled, so that a caller has what there is of it if this raises
    """
    made = made if made is not None else Profile()
    program.replay(feed)  # the bound plan's inputs and arena are full
    bound, compiled = sides.bound_plan(program, dict(feed)), program.compiled()
    if bound.plan.key != compiled.plan.key:
        raise NotHere("the feed has other sizes than the model")
    sync = bench.lab.sync if bench.on_gpu else program.runtime.sync
    made.call_us = _median(wall(lambda: program(feed), 10, sync), rounds)
    try:
        launch, made.whole_note = (
            sides.captured(program, dict(feed))
            if bench.on_gpu
            else (sides.walked(program, dict(feed))[0], "walked")
        )
        sample = bench.lab.device_time(launch, 1, calls=10) if bench.on_gpu else wall(launch, 10)
        made.whole_us = _median(sample, rounds)
    except NotHere as reason:
        made.whole_note = str(reason)
    predicted = [r.selection.chosen.us for r, s in zip(compiled.regions, bound.plan.steps) if s.kernel_id]
    _walk(program, bound, KernelRuns(bench), predicted, rounds, made)
    return made


def _median(sample: Callable[[], float], rounds: int) -> float:
    sample()
    return median(sample() for _ in range(rounds)) * 1e6


def _walk(
    program: Program,
    bound: BoundPlan,
    runs: KernelRuns,
    predicted: Sequence[float],
    rounds: int,
    made: Profile,
) -> None:
    held = 0
    for n, ((step, call), us) in enumerate(zip(bound.calls, predicted, strict=True)):
        region = step.region
        told = {"number": n, "ops": region.signature, "kernel": step.kernel_id, "predicted_us": us, "nbytes": region.nbytes,
                "flops": product_flops(region)}  # fmt: skip
        try:
            made.steps.append(StepTime(**told, **_timed(program, bound, step, runs, rounds)))
        except Exception as error:  # the others are still timed
            made.steps.append(StepTime(**told, us=None, spread=0.0, note=f"{type(error).__name__}: {error}"))
        call()
        program.runtime.sync()
        held += region.nbytes * _copies(runs.bench, step)
        if held > HELD:
            gc.collect()
            held = 0
    for copy in bound.copies:
        copy()
    program.runtime.sync()


def _copies(bench: Bench, step: Step) -> int:
    """How many sets of its tensors keep the L2 cache cold."""
    return bench.lab.sets(max(step.region.nbytes, 1), LAUNCHES) if bench.on_gpu else 1


def _timed(program: Program, bound: BoundPlan, step: Step, runs: KernelRuns, rounds: int) -> dict[str, Any]:
    bench, region = runs.bench, step.region
    if all(t.numel == 0 for t in region.results):
        return {"us": 0.0, "spread": 0.0, "note": "nothing to compute"}
    sets = [_copied(bound, step) for _ in range(_copies(bench, step))]
    scratch = sides.workspace_of(program, step)
    calls = [sides.rebound(program, step, ins, outs, scratch) for ins, outs in sets]
    if refused := bound.refused.get(step.kernel_id):
        sample = bench.lab.device_time(calls[0], 1, calls=10)
    else:
        sample = runs.sample(Bound(calls, runs.once(calls[0])))
    sample()
    stats = Stats.of(sample() for _ in range(rounds))
    apart = _apart(bench, sides.launches(program, step, *sets[0], scratch), rounds) if bench.on_gpu else ()
    return {"us": stats.median * 1e6, "spread": stats.spread, "parts": apart, "note": refused or ""}


def _copied(bound: BoundPlan, step: Step) -> tuple[list[Tensor], list[Tensor]]:
    """The step's operands and results elsewhere, with what they hold now; those that share memory share it again."""
    memory: dict[int, Any] = {}
    ins, outs = ([bound.tensors[v] for v in vids] for vids in (step.in_vids, step.out_vids))
    for tensor in sorted((*ins, *outs), key=lambda t: -t.spec.nbytes):
        if tensor.ptr not in memory:
            memory[tensor.ptr] = tensor.runtime.allocate(max(tensor.spec.nbytes, 1))
            tensor.runtime.copy(memory[tensor.ptr].ptr, tensor.ptr, tensor.spec.nbytes)
    return tuple([t.runtime.view(memory[t.ptr], 0, t.spec) for t in ts] for ts in (ins, outs))  # type: ignore[return-value]


def _apart(
    bench: Bench, launches: Sequence[tuple[str, Callable[[], None]]], rounds: int
) -> tuple[tuple[str, int, float], ...]:
    """The launches of one kernel, in their order, with events between; those of one body together."""
    if len(launches) < 2:
        return ()
    torch, samples = bench.lab.torch, []
    for _ in range(rounds + 1):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(launches) + 1)]
        torch.cuda._sleep(100_000 + 20_000 * len(launches))  # the host gets ahead
        events[0].record()
        for (_, call), event in zip(launches, events[1:]):
            call()
            event.record()
        torch.cuda.synchronize()
        samples.append([a.elapsed_time(b) * 1e3 for a, b in pairwise(events)])
    found: dict[str, list[float]] = {}
    for (name, _), times in zip(launches, zip(*samples[1:], strict=True), strict=True):
        found.setdefault(name, []).append(median(times))
    return tuple((name, len(us), sum(us)) for name, us in found.items())


# --- what is said of it -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Steps of the same ops by the same kernel, together."""

    ops: str
    kernel: str
    count: int
    us: float
    predicted_us: float
    nbytes: int
    flops: float
    parts: tuple[tuple[str, int, float], ...] = ()


def grouped(
    steps: Iterable[StepTime], by: Callable[[StepTime], tuple[str, str]] = lambda s: (s.ops, s.kernel)
) -> list[Group]:
    """The slowest first. What could not be timed is no part of it."""
    found: dict[tuple[str, str], list[StepTime]] = {}
    for step in steps:
        if step.us is not None:
            found.setdefault(by(step), []).append(step)
    made = []
    for (ops, kernel), same in found.items():
        parts: dict[str, tuple[int, float]] = {}
        for name, count, us in (part for step in same for part in step.parts):
            known, so_far = parts.get(name, (0, 0.0))
            parts[name] = known + count, so_far + us
        sums = (
            sum(getattr(step, name) for step in same) for name in ("us", "predicted_us", "nbytes", "flops")
        )
        made.append(
            Group(ops, kernel, len(same), *sums, tuple((name, *told) for name, told in parts.items()))
        )
    return sorted(made, key=lambda g: -g.us)


def lines(made: Profile, top: int = 60, every_step: bool = False) -> list[str]:
    """The tables as text."""
    timed = [s for s in made.steps if s.us is not None]
    total = sum(s.us or 0.0 for s in timed)
    head = f"{'us':>10} {'share':>6} {'count':>5} {'each':>9} {'predicted':>10} {'of it':>6} {'GB/s':>6} {'TFLOP/s':>7}  "
    said = ["by kernel:", head + "kernel"]
    said += [_line(g, total, g.kernel) for g in grouped(timed, lambda s: ("", s.kernel))[:top]]
    said += ["", "by ops and kernel:", head + "ops · kernel"]
    for group in (groups := grouped(timed))[:top]:
        ops = group.ops if len(group.ops) <= SHOWN else group.ops[: SHOWN - 1] + "…"
        said.append(_line(group, total, f"{ops} · {group.kernel}"))
        said += [
            f"{us:>10.1f} {'':>6} {count:>5} {us / count:>9.2f}{'':>33}    apart: {name}"
            for name, count, us in group.parts
        ]
    if len(groups) > top:
        said.append(f"and {len(groups) - top} more of {sum(g.us for g in groups[top:]):.1f} us together")
    if every_step:
        said += ["", "every step, in order:", head + "ops · kernel"]
        said += [_line(grouped([s])[0], total, f"{s.number}: {s.ops[:SHOWN]} · {s.kernel}") for s in timed]
    said += [
        f"step {s.number} was not timed: {s.ops[:SHOWN]} by {s.kernel}: {s.note}"
        for s in made.steps
        if s.us is None
    ]
    said += [
        "",
        f"{len(timed)} steps take {total:.1f} us by themselves, {sum(s.predicted_us for s in timed):.1f} us predicted",
    ]
    said.append(
        f"all of them in order {made.whole_us:.1f} us ({made.whole_note}); a call of the program {made.call_us:.1f} us"
    )
    return said


def _line(g: Group, total: float, name: str) -> str:
    share = g.us / total if total else 0.0
    of_it = g.predicted_us / g.us if g.us else 0.0
    gbs, tflops = (amount / g.us if g.us else 0.0 for amount in (g.nbytes * 1e-3, g.flops * 1e-6))
    return (
        f"{g.us:>10.1f} {share:>6.1%} {g.count:>5} {g.us / g.count:>9.2f} {g.predicted_us:>10.1f} {of_it:>6.0%} "
        f"{gbs:>6.0f} {tflops:>7.1f}  {name}"
    )


def as_json(made: Profile, name: str, device: str) -> dict[str, Any]:
    return {
        "meta": results.make_meta(device), "program": name, "whole_us": made.whole_us, "whole_note": made.whole_note,
        "call_us": made.call_us, "groups": [asdict(g) for g in grouped(made.steps)], "steps": [asdict(s) for s in made.steps],
    }  # fmt: skip


# --- the command ------------------------------------------------------------------------------------------------------


def random_feed(program: Program, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Valid for any model whose integers are tokens or classes: 0 and 1 are, of two or more."""
    feed = {}
    for slot in program.plan.externals(Role.input):
        dtype, shape = slot.spec.dtype, slot.spec.shape
        array = rng.normal(size=shape) if dtype.kind == "float" else rng.integers(0, 2, shape)
        feed[slot.name] = array.astype(dtype.numpy)
    return feed


def _made(args: argparse.Namespace, bench: Bench) -> tuple[Program, dict[str, Any]]:
    if args.program in GPTS:
        gpt = GPTS[args.program]
        return gpt.program(args.device), dict(zip("xy", gpt.batch_of(bench.rng)))
    from .suites.decode import DECODERS

    if args.program in DECODERS:
        return _decoding(DECODERS[args.program], args, bench), {}
    from aicf import model_file

    asked = model_file.load(args.program, args.mode, policy=args.policy)
    options = {
        k: getattr(asked, k) for k in ("loss", "optimizer", "accumulate", "precision", "numerics", "policy")
    }
    program = aicf.compile(asked.model, asked.mode, device=args.device, **options)
    return program, random_feed(program, bench.rng)


def _decoding(model: Any, args: argparse.Namespace, bench: Bench) -> Program:
    """A token of one sequence in the middle of its cache, or before it: each that is run here takes a place."""
    room = 64 + 32 * (args.rounds + 1)  # for some 20 a round
    if room >= model.length:
        raise SystemExit(f"--rounds {args.rounds} outgrows a cache of {model.length} places")
    generator = aicf.Generator(aicf.compile(model.model(), device=args.device), 1, model.length)
    count = min(model.length // 2, model.length - room)
    generator.start([bench.rng.integers(0, model.config.words, count)], temperature=0)
    return generator.decode


def main(argv: Sequence[str] | None = None) -> int:
    ask = argparse.ArgumentParser("python -m benchmarks.profile", description=__doc__.splitlines()[0])
    ask.add_argument(
        "program",
        help=f"{', '.join(GPTS)}, gpt2-decode, llama-1b-decode, or a Python file with a model: FILE or FILE:NAME",
    )
    ask.add_argument("--device", default="cuda", help="cuda (the default), cuda:N or cpu")
    ask.add_argument(
        "--mode", choices=("infer", "grad", "train"), help="of a file's model; by default its own"
    )
    ask.add_argument("--policy", choices=("f32", "bf16"), help="of a file's model; by default its own")
    ask.add_argument("--rounds", type=int, default=5, help="samples of each step; the median counts")
    ask.add_argument("--top", type=int, default=60, help="lines of each table")
    ask.add_argument("--steps", action="store_true", help="print every step too")
    ask.add_argument("--out", type=Path, metavar="FILE", help="write all of it as JSON")
    args = ask.parse_args(argv)
    bench, made = Bench(args.device), Profile()
    program, feed = _made(args, bench)
    if bench.on_gpu:
        feed = {name: bench.lab.torch.from_numpy(a).to(bench.lab.device) for name, a in feed.items()}
    failed = False
    try:
        profile(program, feed, bench, args.rounds, made)
    except Exception:  # what was measured before it is still said
        traceback.print_exc()
        failed = True
    print("\n".join(lines(made, args.top, args.steps)))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(
            json.dumps(as_json(made, args.program, args.device), indent=1) + "\n", encoding="utf-8"
        )
        print(f"written: {args.out}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
