"""Training steps of GPT-2 124M against PyTorch eager, compiled, and compiled and captured: time, tokens, memory, and the first step.

Without a GPU, steps of the example's GPT against PyTorch on as many threads (OMP_NUM_THREADS).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from aicf.graph.run.program import Program

from .. import sides, torch_gpt
from ..gpts import EXAMPLE, GPT2, GPTS, PADDED, SMALL, SMALL_HALF, Gpt
from ..harness import Bench, Case, NotHere, Suite, WrongResult, verify
from ..results import Row, failed, row
from ..stats import Stats, enough, nothing, wall
from ..torch_trainer import COMPILED, COMPILED_GRAPH, COMPILING, EAGER
from . import startup

WAYS = (EAGER, COMPILED, COMPILED_GRAPH)
STEPS = 6  # whose losses are compared
BATCHES = 2  # that they take in turn, so that steps that are left out show
TOLERANCE = {"f32": 1e-4, "bf16": 1e-2}  # of a loss, relative
TO_COMPILE = 60.0  # seconds that a compiled peer takes at least
GIB = 2**30

Feed = tuple[Any, Any]
Step = Callable[[Any, Any], Any]


def cases(bench: Bench) -> list[Case]:
    if not bench.on_gpu:
        return [_case(SMALL if bench.tiny else EXAMPLE, 0.0 if bench.tiny else 10.0)]
    if bench.tiny:
        return [_case(SMALL_HALF, 0.0)]
    first = Case(f"{GPT2.name}: first step", partial(_first_step, GPT2), 150.0)
    return [_case(GPT2, 120.0), first, _case(PADDED, 120.0)]


def _case(gpt: Gpt, seconds: float) -> Case:
    return Case(f"{gpt.name}: train step", partial(_train_steps, gpt), seconds)


@dataclass
class Side:
    """A step of a batch that was checked, and the bytes of device memory that it needs, if there is an account of them."""

    step: Callable[[], Any]
    nbytes: int | None = None
    note: str = ""


def _train_steps(gpt: Gpt, bench: Bench) -> Iterator[Row]:
    torch = _torch(bench)
    place = bench.lab.device if bench.on_gpu else "cpu"
    batches = [gpt.batch_of(bench.rng) for _ in range(BATCHES)]
    feeds = _on(torch, batches, place) if bench.on_gpu else batches
    before = _free(bench)
    program = gpt.program(bench.device)
    program.capture(dict(zip("xy", feeds[0])))
    taken = before - _free(bench)
    start = {name: np.array(x) for name, x in gpt.params(program).items()}
    losses = _losses(torch, gpt, start, batches, place) if torch else None
    ours = _ours(gpt, program, feeds, losses, taken)
    found = {"aicf": ours}
    for how in (WAYS if bench.on_gpu else (EAGER,)) if torch else ():
        if how in COMPILING and bench.left < TO_COMPILE and not bench.tiny:
            yield {"case": f"{gpt.name}, against {how}", "why": f"the budget of {bench.budget:g} s was spent"}
            continue
        try:
            found[how] = _theirs(torch, gpt, bench, start, batches, place, how, losses)
        except WrongResult as error:
            yield failed(f"{gpt.name}, against {how}", f"the peer's: {error}")
        except Exception as error:  # its compiler is missing here, say; the others are still compared
            why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            yield {"case": f"{gpt.name}, against {how}", "why": f"this peer could not be made ready: {why}"}
    if not torch:
        yield {"case": f"{gpt.name}, against {EAGER}", "why": "PyTorch is not installed"}
    yield from _timed(gpt, bench, program, found, feeds[0])


def _torch(bench: Bench) -> Any:
    """PyTorch; None where it is not installed, and there is no GPU. On the host with as many threads as aicf's products."""
    if bench.on_gpu:
        return bench.lab.torch
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    return torch


def _on(torch: Any, batches: Sequence[Feed], place: str) -> list[Feed]:
    return [tuple(torch.from_numpy(a).to(place) for a in batch) for batch in batches]  # type: ignore[misc]


# --- the sides, checked -----------------------------------------------------------------------------------------------


def _some(step: Step, feeds: Sequence[Feed]) -> list[float]:
    return [float(step(*feeds[n % len(feeds)])) for n in range(STEPS)]


def _losses(
    torch: Any, gpt: Gpt, start: Mapping[str, np.ndarray], batches: Sequence[Feed], place: str
) -> list[float]:
    """Of some steps by PyTorch in f32, whatever the policy."""
    weights = {name: torch.from_numpy(x).to(place) for name, x in start.items()}
    made = _some(torch_gpt.trainer(torch, gpt, weights, EAGER, exact=True).train, _on(torch, batches, place))
    gc.collect()
    if place != "cpu":
        torch.cuda.empty_cache()
    return made


def _check(what: str, gpt: Gpt, got: Sequence[float], want: Sequence[float] | None) -> None:
    """A verified quotient of 1 may be off by twice the tolerance of one side."""
    if want is not None:
        verify(
            f"{what}: losses over those in f32",
            np.divide(got, want),
            np.ones(STEPS),
            TOLERANCE[gpt.policy] / 2,
        )
    last = STEPS - BATCHES  # with the first batch again
    if not np.isfinite(got).all() or not got[last] < got[0]:
        raise WrongResult(f"{what}: the losses of {STEPS} steps are {got}")


def _ours(
    gpt: Gpt, program: Program, feeds: Sequence[Feed], losses: Sequence[float] | None, taken: int
) -> Side:
    """Replayed and eager. Of device memory the plan's own account; the note has the device's."""

    def step(x: Any, y: Any, run: Any = program.replay) -> Any:
        return run({"x": x, "y": y})["loss"]

    saved = program.state_dict()
    replayed = _some(step, feeds)
    _check("aicf replay", gpt, replayed, losses)
    program.load_state_dict(saved)
    eager = _some(partial(step, run=program.run), feeds)
    verify("aicf eager: losses over those of replays", np.divide(eager, replayed), np.ones(STEPS), 1e-6)
    program.load_state_dict(saved)
    account = sides.plan_bytes(program.plan)
    note = " + ".join(f"{nbytes / GIB:.3g} {what}" for what, nbytes in account.items())
    if taken:
        note += f"; the device has {taken / GIB:.3g} GiB less"
    return Side(partial(step, *feeds[0]), sum(account.values()), note)


def _theirs(
    torch: Any, gpt: Gpt, bench: Bench, start: Mapping[str, np.ndarray], batches: Sequence[Feed], place: str, how: str,
    losses: Sequence[float] | None,
) -> Side:  # fmt: skip
    """One of PyTorch's ways, and the most memory that it had at once, from its weights on."""
    weights, given = {n: torch.from_numpy(x).to(place) for n, x in start.items()}, _on(torch, batches, place)
    held = 0
    if bench.on_gpu:
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    trainer = torch_gpt.trainer(torch, gpt, weights, how)
    step = trainer.prepare(*given[0])
    _check(how, gpt, _some(step, given), losses)
    peak = torch.cuda.max_memory_allocated() - held if bench.on_gpu else None
    return Side(partial(step, *given[0]), peak)


def _free(bench: Bench) -> int:
    """Bytes that the device has left; 0 on the host."""
    return bench.lab.torch.cuda.mem_get_info()[0] if bench.on_gpu else 0


# --- the rows ---------------------------------------------------------------------------------------------------------


def _timed(gpt: Gpt, bench: Bench, program: Program, found: Mapping[str, Side], feed: Feed) -> Iterator[Row]:
    """Steps of all sides alternately, then the captured graph alone."""
    sync = bench.lab.sync if bench.on_gpu else nothing
    steps = {name: side.step for name, side in found.items()}
    if bench.on_gpu:
        bench.lab.warm(gpt.flops, list(steps.values()))
    long = 0.002 if bench.tiny else 0.2
    calls = {name: enough(step, long, 50, sync) for name, step in steps.items()}
    times = bench.compare({name: wall(step, calls[name], sync) for name, step in steps.items()})
    kernels = program.plan.kernel_ids
    step_ms = {name: t.per(1e-3) for name, t in times.items()}
    speed = {name: t.rate(gpt.tokens) for name, t in times.items()}
    reached = f"{gpt.flops / times['aicf'].median / 1e12:.4g} TFLOP/s of the model"
    yield from _compared(f"{gpt.name}: train step", "ms", step_ms, reached, kernels)
    yield from _compared(f"{gpt.name}: tokens", "tokens/s", speed, "", kernels)
    if not bench.on_gpu:
        return
    memory = {name: Stats(side.nbytes / GIB) for name, side in found.items() if side.nbytes is not None}
    yield from _compared(f"{gpt.name}: peak memory", "GiB", memory, found["aicf"].note, kernels)
    try:
        launch, note = sides.captured(program, dict(zip("xy", feed)))
    except NotHere as reason:
        yield {"case": f"{gpt.name}: graph alone", "why": str(reason)}
        return
    alone = bench.compare({"aicf": bench.lab.device_time(launch, 1, calls=calls["aicf"])})
    yield row(f"{gpt.name}: graph alone", "ms", alone["aicf"].per(1e-3), note=note, kernels=kernels)


def _compared(
    case: str, unit: str, values: Mapping[str, Stats], note: str, kernels: Sequence[str]
) -> Iterator[Row]:
    """A row for each peer; one without, where there is none."""
    peers = [name for name in values if name != "aicf"]
    for peer in peers:
        yield row(case, unit, values["aicf"], peer, values[peer], note, kernels)
    if not peers:
        yield row(case, unit, values["aicf"], note=note, kernels=kernels)


def _first_step(gpt: Gpt, bench: Bench) -> Iterator[Row]:
    """Processes from their start to the first loss, with nothing compiled yet and the second time."""

    def check(what: str, engine: str, loss: float) -> None:
        startup.near_chance(what, loss, gpt.words)

    (net,) = (name for name, known in GPTS.items() if known is gpt)
    kernels = gpt.program(bench.device).plan.kernel_ids
    peers = (startup.TORCH, startup.COMPILED)
    yield from startup.starts(bench, f"{gpt.name}: first step", net, peers, check, kernels, 1, 2)


SUITE = Suite(
    "gpt", "training steps of GPT-2 124M against PyTorch eager, compiled and captured: time, memory, first step", 540, cases,
    headlines=tuple(
        (f"{GPT2.name}: {what}", COMPILED_GRAPH) for what in ("train step", "peak memory")
    ),
)  # fmt: skip
