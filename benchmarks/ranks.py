"""What each rank of the suite `distributed` runs: `aicf run --processes 2 benchmarks/ranks.py -- OUT DEVICE tiny|full`; rank 0 writes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import aicf
from aicf.device import collectives
from aicf.device.collectives import ALL_REDUCE, Exchanged
from aicf.distributed import DataParallel
from benchmarks.gpts import EXAMPLE, GPT2, SMALL, Gpt

MEGABYTES, TINY_MEGABYTES = (1, 4, 25, 128, 512), (1, 4)
TORCH, ALONE = "torch.distributed", "one rank alone"


def main(out: str, device: str, size: str) -> None:
    tiny, rows = size == "tiny", []
    parallel = DataParallel(timeout=120)
    runtime = aicf.runtime(parallel.place(device))
    parallel.join(runtime)
    for megabytes in TINY_MEGABYTES if tiny or device == "cpu" else MEGABYTES:
        rows.append(_all_reduce(parallel, runtime, megabytes, tiny))
    gpt = GPT2 if device != "cpu" and not tiny else SMALL if tiny else EXAMPLE
    rows += _step(parallel, runtime, gpt, 3 if tiny else 10)
    if parallel.rank == 0:
        Path(out).write_text(json.dumps(rows))


def _all_reduce(parallel: DataParallel, runtime: Any, megabytes: int, tiny: bool) -> dict[str, Any]:
    """Of f32, in place: aicf's call, and PyTorch's where there is a GPU."""
    count, found = megabytes * 2**18, collectives.joined(runtime.place, parallel.ranks)
    memory = runtime.allocate(4 * count)
    tensor = runtime.view(memory, 0, aicf.TensorSpec((count,), device=runtime.kind))
    runtime.write(tensor, np.zeros(count, np.float32))
    part = Exchanged(ALL_REDUCE, tensor.ptr, count, aicf.f32, mean=True, array=tensor.array)
    calls = 3 if tiny or runtime.kind == "cpu" else 20
    if runtime.kind == "cpu":
        sides = {"aicf": lambda: _by_clock(lambda: found.run([part]), calls)}
    else:
        import torch

        torch.cuda.set_device(runtime.ordinal)
        group = _torch_group(torch)
        other = torch.zeros(count, device="cuda")
        stream = torch.cuda.ExternalStream(int(found.apart()))

        def mine() -> None:
            found.run([part])

        def its() -> None:
            torch.distributed.all_reduce(other, torch.distributed.ReduceOp.AVG, group)

        sides = {
            "aicf": lambda: _by_events(torch, mine, calls, stream),
            TORCH: lambda: _by_events(torch, its, calls, torch.cuda.current_stream()),
        }
    times = _interleaved(parallel, sides, 3 if tiny else 11)
    return {"case": f"all-reduce, {megabytes} MB", "times": times, "peer": TORCH, "bytes": 4 * count}


def _step(parallel: DataParallel, runtime: Any, gpt: Gpt, rounds: int) -> list[dict[str, Any]]:
    """Training steps of all ranks together, and of each alone at the same time."""
    rng = np.random.default_rng(parallel.rank)
    feed = dict(zip("xy", gpt.batch_of(rng)))
    how = {"device": runtime.place, **gpt.training()}
    together = aicf.compile(gpt.model(), "train", parallel=parallel, **how)
    alone = aicf.compile(gpt.model(), "train", **how)
    if runtime.kind == "cuda":
        import torch

        feed = {
            name: torch.as_tensor(array, device=f"cuda:{runtime.ordinal}") for name, array in feed.items()
        }
    steps = 5 if runtime.kind == "cuda" else 1

    def run(program: Any) -> Callable[[], float]:
        def sample() -> float:
            start = time.perf_counter()
            for _ in range(steps):
                loss = program(feed)["loss"]
            float(loss)
            return (time.perf_counter() - start) / steps

        return sample

    for program in (together, alone):  # compiled, captured, warm
        for _ in range(3):
            float(program(feed)["loss"])
    times = _interleaved(parallel, {"aicf": run(together), ALONE: run(alone)}, rounds)
    predicted = together.explain().collectives
    captured = str(together.capture(feed)).splitlines()[0]
    return [
        {
            "case": f"{gpt.name}: train step of {parallel.ranks} ranks, {gpt.batch}x{gpt.length} each", "times": times, "peer": ALONE,
            "predicted": str(predicted), "captured": captured, "tokens": gpt.tokens,
        }
    ]  # fmt: skip


def _interleaved(
    parallel: DataParallel, sides: dict[str, Callable[[], float]], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each side, round by round; of each round that of the slowest rank."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for n in range(rounds + 1):
        for name, sample in sides.items():
            parallel.mesh.wait("a sample")
            slowest = max(parallel.mesh.all("seconds", sample()))
            if n:  # the first is a warm-up
                times[name].append(slowest)
    return times


def _by_clock(call: Callable[[], None], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def _by_events(torch: Any, call: Callable[[], None], calls: int, stream: Any) -> float:
    torch.cuda.synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record(stream)
    for _ in range(calls):
        call()
    last.record(stream)
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / calls * 1e-3


def _torch_group(torch: Any) -> Any:
    if not torch.distributed.is_initialized():
        if "TORCHELASTIC_RUN_ID" not in os.environ:  # aicf's ranks have met at this one
            os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 7)
        torch.distributed.init_process_group(
            "nccl", device_id=torch.device("cuda", torch.cuda.current_device())
        )
    return torch.distributed.group.WORLD


def summary(times: list[float]) -> tuple[float, float, int]:
    """Median, interquartile range, number."""
    if len(times) < 2:
        return times[0], 0.0, len(times)
    low, _, high = quantiles(times, n=4, method="inclusive")
    return median(times), high - low, len(times)


if __name__ == "__main__":
    main(*sys.argv[1:])
