"""Equal runs have equal bits by default (docs/determinism.md): in other processes, in replays, while other threads compute."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from draws.digests import digests
from draws.seeds import rng
from nn.mlp import on_each_device
from registry.synthetic import kernel, region, registry_of

import aicf
from aicf import nn
from aicf.cpu_kernels import blas
from aicf.device.spec import preset
from aicf.errors import NoKernelError
from aicf.registry.select import Selector, select

TESTS = Path(__file__).parent


def in_a_process(seed: str, device: str, how: str) -> list[str]:
    """The digests that another process finds."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-m", "draws.digests", seed, device, how], capture_output=True, text=True, timeout=300, cwd=TESTS,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "4711"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


@pytest.mark.sample(1, pool="processes")
@on_each_device
@pytest.mark.spec("C12")
def test_a_drawn_run_has_the_bits_of_a_replay_and_of_another_process(device, request):
    seed = str(rng(request.node.nodeid).integers(2**32))
    over, stop = threading.Event(), rng("other work")

    def other_work() -> None:
        """Products of other sizes, which want other numbers of threads of BLAS."""
        while not over.is_set():
            m, n, k = stop.integers(1, 400, 3)
            blas.matmul(
                np.ones((m, k), np.float32),
                np.ones((k, n), np.float32),
                None,
                blas.threads_for(2 * m * n * k),
            )

    busy = threading.Thread(target=other_work)
    busy.start()
    try:
        runs = list(digests(seed, device, False))
    finally:
        over.set()
        busy.join()
    assert len(set(runs)) == len(runs) == 5
    assert list(digests(seed, device, True)) == runs, f"seed {seed}"
    assert in_a_process(seed, device, "replay") == runs, f"seed {seed}"


@pytest.mark.spec("C12", "B7")
def test_a_kernel_that_keeps_no_order_is_chosen_by_deterministic_false_alone(request):
    """Drawn registries: of each kernel a time, and whether its results repeat. The fastest that may be chosen is chosen, by every way in."""
    draw, loose_won = rng(request.node.nodeid), 0
    model = nn.Model({"x": aicf.TensorSpec((3, 5))}).add(nn.ReLU())
    relu, cpu = region("relu", (3, 5)), preset("cpu")
    for _ in range(25):
        count = int(draw.integers(1, 6))
        times, ordered = draw.permutation(count) + 1.0, draw.random(count) < 0.5
        variants = [kernel(f"cpu.k{n}.v1", us=times[n], deterministic=bool(ordered[n])) for n in range(count)]
        registry = registry_of(*variants)
        fastest = f"cpu.k{int(np.argmin(times))}.v1"
        kept = [n for n in range(count) if ordered[n]]
        free = aicf.compile(model, device="cpu", registry=registry, deterministic=False)
        explained = aicf.explain_for(model, "cpu", registry=registry, deterministic=False)
        assert list(free.plan.kernel_ids) == [fastest] == [r.kernel_id for r in explained.regions]
        if not kept:
            with pytest.raises(NoKernelError, match=r"deterministic=False accepts cpu\.k"):
                aicf.compile(model, device="cpu", registry=registry)
            continue
        wanted = f"cpu.k{min(kept, key=lambda n: times[n])}.v1"
        loose_won += wanted != fastest
        assert select(relu, cpu, registry).kernel_id == wanted == Selector(registry, cpu)(relu).kernel_id
        program = aicf.compile(model, device="cpu", registry=registry)
        assert list(program.plan.kernel_ids) == [wanted]
        explained = aicf.explain_for(model, "cpu", registry=registry)
        assert [r.kernel_id for r in explained.regions] == [wanted]
        if wanted != fastest:
            assert "is not deterministic, which is required" in str(explained.verbose())
            assert "deterministic=False" in str(explained.want(fastest))
    assert loose_won > 3
