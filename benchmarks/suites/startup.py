"""From the start of a process to the first result of the demo's network: with nothing compiled yet, and the second time."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aicf
from aicf import demo

from ..harness import Bench, Case, NotHere, Suite, WrongResult, verify
from ..mlps import DIGITS
from ..numpy_trainer import NumpyTrainer
from ..results import ROOT, Row, row
from ..stats import Stats
from . import first_step

SCRIPT = Path(first_step.__file__)
PROCESS, BEYOND = "the whole process", "beyond imports and opening the device"
TORCH, COMPILED, NP = "torch eager", "torch.compile", "NumPy"
TUNED = "torch.compile, max-autotune"
ENGINES = {"aicf": "aicf", TORCH: "torch", COMPILED: "torch.compile", TUNED: "max-autotune", NP: "numpy"}


def cases(bench: Bench) -> list[Case]:
    return [
        Case(
            "digits MLP, first step", _measure, seconds=5.0 if bench.tiny else 120.0 if bench.on_gpu else 10.0
        )
    ]


def _expected_loss() -> float:
    """Of aicf's first step, which starts from the model's own parameters on every device."""
    program = aicf.compile(
        demo.build_model(),
        "train",
        device="cpu",
        loss=aicf.nn.SoftmaxCrossEntropy(),
        optimizer=aicf.nn.AdamW(),
    )
    return NumpyTrainer(DIGITS.optimizer, DIGITS.rate, DIGITS.params(program)).step(*first_step.data())


def start(engine: str, device: str, folder: Path, name: str, net: str = first_step.DIGITS) -> dict[str, Any]:
    """Run a process of `first_step.py`; what it printed, and the `seconds` until it was gone. Compilers' caches are those of this name."""
    cache = folder / f"{ENGINES[engine]}-{name}"  # without spaces, which not every compiler takes in a path
    environment = {
        **os.environ,
        "AICF_CACHE_DIR": str(cache / "aicf"),
        "NUMBA_CACHE_DIR": str(cache / "numba"),
        "CUDA_CACHE_PATH": str(cache / "cuda"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
    }
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), ENGINES[engine], device, net],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["nothing"]
        why = next(
            (line for line in reversed(said) if re.match(r"[\w.]+(Error|Exception)\b", line)), said[-1]
        )
        raise NotHere(f"the process of {engine} ended with {done.returncode}: {why}")
    return {**json.loads(done.stdout.strip().splitlines()[-1]), "seconds": seconds}


Runs = Mapping[str, list[dict[str, Any]]]


def _measure(bench: Bench) -> Iterator[Row]:
    peers = (TORCH, COMPILED) if bench.on_gpu else (NP,)
    want = _expected_loss()

    def check(what: str, engine: str, loss: float) -> None:
        if engine == "aicf":
            verify(f"{what}: the loss", loss, want, 1e-4)
        else:
            near_chance(what, loss, 10)

    kernels = DIGITS.program(bench.device).plan.kernel_ids
    yield from starts(bench, "digits MLP, first step", first_step.DIGITS, peers, check, kernels)


def starts(
    bench: Bench, case: str, net: str, peers: Sequence[str], check: Callable[[str, str, float], None], kernels: Sequence[str] | None,
    cold_rounds: int = 3, warm_rounds: int = 7,
) -> Iterator[Row]:  # fmt: skip
    """Cold and warm starts of every engine, alternately; each cold start has fresh caches, each warm one those of the last.
    `check` receives the case, the engine, and the loss of the first step."""
    with tempfile.TemporaryDirectory() as folder:
        engines = []
        for engine in ("aicf", *peers):
            try:  # once for the operating system's cache of files, which is warm in every start that counts
                start(engine, bench.device, Path(folder), "once")
                engines.append(engine)
            except NotHere as reason:
                if engine == "aicf":
                    raise RuntimeError(reason) from None
                yield {"case": f"{case}, against {engine}", "why": str(reason)}
        cold: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
        warm: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
        for n in _while_there_is_time(
            bench, 1 if bench.tiny else cold_rounds, 2
        ):  # warm ones are to come, and shorter
            for engine in engines:
                cold[engine].append(start(engine, bench.device, Path(folder), str(n), net))
        for _ in _while_there_is_time(bench, 1 if bench.tiny else warm_rounds, 1):
            for engine in engines:
                last = str(len(cold[engine]) - 1)
                warm[engine].append(start(engine, bench.device, Path(folder), last, net))
    for name, runs in (("cold", cold), ("warm", warm)):
        for engine, results in runs.items():
            for result in results:
                check(f"{engine}, {name}", engine, result["loss"])
        yield from _rows(f"{case}, {name}", runs, kernels)


def _while_there_is_time(bench: Bench, limit: int, rounds: int) -> Iterator[int]:
    """Numbers of rounds: one, and more of them while there is time for so many as long as the last."""
    for n in range(limit):
        before = bench.left
        yield n
        if bench.left < rounds * (before - bench.left):
            return


def near_chance(what: str, loss: float, classes: int) -> None:
    """A first step from initial parameters of its own."""
    if not 0.5 * math.log(classes) < loss < 2 * math.log(classes):
        raise WrongResult(f"{what}: the loss is {loss}")


def _rows(case: str, runs: Runs, kernels: Sequence[str] | None) -> Iterator[Row]:
    numba = any(result["numba"] for result in runs["aicf"])
    note = "numba was imported" if numba else "numba was not imported"
    for stage in (PROCESS, BEYOND):
        times = {engine: Stats.of(map(_SECONDS[stage], results)) for engine, results in runs.items()}
        aicf_time = times.pop("aicf")
        for peer, seconds in times.items():
            yield row(f"{case}, {stage}", "s", aicf_time, peer, seconds, note, kernels)
        if not times:
            yield row(f"{case}, {stage}", "s", aicf_time, note=note, kernels=kernels)


_SECONDS = {PROCESS: lambda r: r["seconds"], BEYOND: lambda r: r["done"] - r["opened"]}

SUITE = Suite(
    "startup", "processes from their start to the first result, with nothing compiled yet and the second time", 300, cases,
    headlines=tuple(
        (f"digits MLP, first step, {caches}, {PROCESS}", COMPILED) for caches in ("cold", "warm")
    ),
)  # fmt: skip
