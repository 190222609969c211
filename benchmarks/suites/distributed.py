"""Two ranks, each with a GPU: all-reduce against PyTorch's, and GPT-2's training step against one rank alone on the same GPU at the same time.

Without GPUs two processes of the CPU device.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from aicf.distributed.launch import launch

from ..harness import Bench, Case, NotHere, Suite
from ..ranks import ALONE, TORCH, summary
from ..results import Row, row
from ..stats import Stats

RANKS = 2


def cases(bench: Bench) -> list[Case]:
    return [Case(f"{RANKS} ranks", partial(_measured, RANKS), 0.0 if bench.tiny else 60.0)]


def _measured(ranks: int, bench: Bench) -> Iterator[Row]:
    if bench.on_gpu and (there := _gpus()) < ranks:
        raise NotHere(f"{ranks} GPUs; {there} here")
    device = "cuda" if bench.on_gpu else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        worker = str(Path(__file__).parents[1] / "ranks.py")
        status = launch([sys.executable, worker, str(out), device, "tiny" if bench.tiny else "full"], ranks)
        if status or not out.exists():
            raise RuntimeError(f"a rank ended with status {status}")
        found = json.loads(out.read_text())
    for one in found:
        yield _row(one, ranks)


def _row(one: dict, ranks: int) -> Row:
    scale, unit = (1e-3, "ms") if "tokens" in one else (1e-6, "us")
    stats = {name: Stats(*summary(times)).per(scale) for name, times in one["times"].items()}
    peer = one["peer"] if one["peer"] in stats else None
    if "tokens" in one:
        seconds = summary(one["times"]["aicf"])[0]
        note = f"{ranks * one['tokens'] / seconds:,.0f} tokens/s; {one['captured']}; {one['predicted']}"
    else:
        rate = one["bytes"] * 2 * (ranks - 1) / ranks / summary(one["times"]["aicf"])[0] * 1e-9
        note = f"{rate:.1f} GB/s over each link"
    return row(one["case"], unit, stats["aicf"], peer, stats[peer] if peer else None, note)


def _gpus() -> int:
    from cuda.core import system

    return int(system.get_num_devices()) if hasattr(system, "get_num_devices") else int(system.num_devices)


SUITE = Suite(
    "distributed", "several ranks: all-reduce, and training steps beside one rank alone", 300.0, cases,
    compared=lambda found: found.get("peer_name") == TORCH,
)  # fmt: skip
__all__ = ["ALONE", "SUITE"]
