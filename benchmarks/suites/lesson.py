"""Matrix products from one loop to Hopper's engines, step by step: what each step may reach, what it is predicted to take, and
what came out. docs/kernels/gemm.md explains them and has these tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

from aicf.device.spec import DeviceSpec
from aicf.registry.cost import machine

from .. import sides
from ..harness import Bench, Case, NotHere, Suite, WrongResult
from ..results import Row, failed, row
from .gemm import LIBRARIES, Operands, Problem, device_times

PEER = "cuBLAS"


@dataclass(frozen=True)
class Step:
    """A kernel, and what it changes.

    tile   rows and columns that read a and b from the L2 cache once: of a block, or of a cluster that shares them
    each   rows and columns that a thread, a warp or an instruction multiplies for what it reads of shared memory; 1 x 1 reads L1
    parts  that k is divided into
    unaligned  results are no TMA boxes: threads store them
    """

    kernel: str
    changes: str
    tile: tuple[int, int]
    each: tuple[int, int]
    parts: int = 1
    unaligned: bool = False
    version: int = 1

    @property
    def id(self) -> str:
        name, bracket, config = self.kernel.partition("[")
        return f"cuda.{name}.v{self.version}{bracket}{config}"

    def __str__(self) -> str:
        return self.kernel + ", threads' stores" * self.unaligned

    def bound(self, p: Problem, device: DeviceSpec) -> tuple[float, str]:
        """TFLOP/s that it can't exceed, and by what: the least of what a multiprocessor's parts and memory allow."""
        tensor_cores = "mma" in self.kernel
        peak = device.tflops[p.dtype if tensor_cores else "f32"]
        (m, n), (r, c), size = self.tile, self.each, p.region().operands[0].dtype.itemsize
        held = size if tensor_cores else 4  # operands of CUDA cores are widened in shared memory
        limits = {"tensor cores" if tensor_cores else "CUDA cores": peak}
        # it gives as many bytes in a cycle as there are lanes for f32, each of two flops
        limits["shared memory" if r > 1 else "L1"] = device.tflops["f32"] * r * c / ((r + c) * held)
        limits["L2"] = machine(device).l2_per_sm * device.sms * 2e-3 * m * n / ((m + n) * size)
        limits["memory"] = device.bandwidth * 1e-3 * p.flops / p.nbytes
        blocks = ceil(p.m / m) * ceil(p.n / n) * self.parts
        waves = ceil(blocks / device.sms) * device.sms * m * n / self.parts
        limits["whole tiles"] = peak * p.m * p.n / waves
        least = min(limits, key=limits.__getitem__)
        return limits[least], least


@dataclass(frozen=True)
class Story:
    """Steps for one problem. `rest`: kernels that take it and are not named here follow them."""

    name: str
    problem: Problem
    steps: tuple[Step, ...]
    rest: bool = False


def _tiles(changes: Sequence[str]) -> tuple[Step, ...]:
    """On CUDA cores; threads have a 16th of a tile each way."""
    sizes = (32, 64, 128)
    tiled = (
        Step(f"gemm_tiled[{s}x{s}]", what, (s, s), (s // 16, s // 16)) for s, what in zip(sizes, changes)
    )
    return (Step("gemm_naive", "one thread per element", (16, 16), (1, 1)), *tiled)


CUDA_CORES = _tiles(
    ("tiles in shared memory, 2 x 2 accumulators a thread", "4 x 4 accumulators", "8 x 8 accumulators")
)
HALVES = (
    *CUDA_CORES,
    Step("gemm_mma[32x32]", "mma.sync, 16 x 16 per warp", (32, 32), (16, 16)),
    Step("gemm_mma[64x64]", "32 x 32 per warp", (64, 64), (32, 32)),
    Step("gemm_mma[128x128]", "64 x 64 per warp", (128, 128), (64, 64)),
    Step("gemm_mma[128x256]", "eight warps, fewer bytes from L2", (128, 256), (64, 64)),
    Step("gemm_mma[128x256 deep]", "K-tiles twice as deep, half the barriers", (128, 256), (64, 64)),
    Step("gemm_wgmma[64x64]", "TMA and wgmma, both asynchronous", (64, 64), (64, 64)),
    Step("gemm_wgmma[64x128]", "instructions twice as wide", (64, 128), (64, 128)),
    Step("gemm_wgmma[128x128]", "two cooperative consumer warpgroups", (128, 128), (64, 128), unaligned=True),
    Step("gemm_wgmma[128x128]", "results leave by TMA", (128, 128), (64, 128)),
    Step("gemm_wgmma[128x256]", "the widest instruction", (128, 256), (64, 256)),
    Step("gemm_wgmma[128x256 cluster2]", "clusters of two, multicast of b", (256, 256), (64, 256)),
    Step("gemm_wgmma[128x128 pingpong]", "ping-pong consumer warpgroups", (128, 128), (64, 128), unaligned=True),
    Step("gemm_wgmma[128x128 pingpong]", "ping-pong, results leave by TMA", (128, 128), (64, 128)),
    Step("gemm_wgmma[128x128 pingpong cluster2]", "and multicast of b", (256, 128), (64, 128)),
)  # fmt: skip
WORDS = (
    *CUDA_CORES,
    Step(
        "gemm_fma[128x128]", "K-tiles by TMA, 16 x 8 accumulators, only FFMA in the loop", (128, 128), (16, 8)
    ),
    Step("gemm_fma[64x128 sliced4]", "sliced-K: warps share a tile and divide k", (64, 128), (16, 8)),
)
FLAT = (
    Step("gemm_wgmma[128x256]", "the best tile of large products", (128, 256), (64, 256)),
    Step("gemm_wgmma[128x128]", "twice the tiles", (128, 128), (64, 128)),
    Step("gemm_wgmma[128x64]", "and again", (128, 64), (64, 64)),
    Step("gemm_wgmma[64x64]", "and again", (64, 64), (64, 64)),
    Step(
        "gemm_wgmma[128x64 cluster split2]",
        "cluster split-K: two blocks share a tile",
        (128, 64),
        (64, 64),
        parts=2,
    ),
)
ROWS = (
    Step("gemm_tiled[32x32]", "a tile of 32 rows, of which one is used", (32, 32), (2, 2)),
    Step("gemm_mma[32x32]", "the same on tensor cores", (32, 32), (16, 16)),
    Step("gemv_simt", "no tile, 64 KB in flight per multiprocessor", (1, 32), (8, 8), version=2),
    Step("gemv_mma", "the same on tensor cores, with 8 columns", (1, 32), (64, 64)),
)
ODD = (
    Step("gemm_mma[64x64]", "16-bit loads through registers", (64, 64), (32, 32)),
    Step("gemm_wgmma[128x256 packed]", "operands copied to aligned rows first", (128, 256), (64, 256)),
)
STORIES = (
    Story("halves", Problem(4096, 4096, 4096), HALVES),
    Story("f32", Problem(4096, 4096, 4096, "f32"), WORDS, rest=True),
    Story("few tiles", Problem(128, 4096, 4096), FLAT),
    Story("one row", Problem(1, 4096, 4096), ROWS),
    Story("odd rows", Problem(4097, 4095, 4096, order="NN"), ODD),
)
TINY = Story("halves", Problem(256, 256, 256), HALVES[::5])


def case_name(p: Problem, step: Step | str) -> str:
    return f"lesson, {p} by {step}"


def cases(bench: Bench) -> list[Case]:
    stories = (TINY,) if bench.tiny else STORIES
    return [Case(f"lesson, {s.problem}", partial(_measure, s), 5.0, partial(_kernels, s)) for s in stories]


def _kernels(story: Story, device: DeviceSpec) -> list[sides.Kernel]:
    """Those of its steps that take the problem."""
    found = []
    for unaligned in (False, True):
        region = story.problem.region(unaligned)
        ids = {step.id for step in story.steps if step.unaligned == unaligned}
        found += [
            (i, region)
            for i, _ in sides.predicted(region, device)
            if i in ids or (story.rest and not unaligned)
        ]
    return found


def _measure(story: Story, bench: Bench) -> Iterator[Row]:
    """All steps and both libraries, alternately."""
    if not bench.on_gpu:
        raise NotHere("the kernels are for Hopper, and so is cuBLAS")
    lab, p = bench.lab, story.problem
    operands, unaligned = Operands(p, lab), Operands(p, lab, unaligned=True)
    predicted = {a: dict(sides.predicted(p.region(unaligned=a), lab.runtime.spec)) for a in (False, True)}
    steps, graphs = [], {}
    for step in (*story.steps, *_rest(story, predicted[False])):
        if step.id not in predicted[step.unaligned]:
            yield {"case": case_name(p, step), "why": "no such kernel takes it here"}
            continue
        try:
            graphs[str(step)] = (unaligned if step.unaligned else operands).ours(step.id)[0]
            steps.append(step)
        except WrongResult as error:
            yield failed(case_name(p, step), f"WrongResult: {error}")
    graphs |= {name: operands.theirs(name) for name in p.peers}
    times = device_times(bench, operands.launch_sets, p.flops, graphs)
    best = times[min(p.peers, key=lambda name: times[name].median)].rate(p.flops / 1e12)
    for step in steps:
        bound, limit = step.bound(p, lab.runtime.spec)
        us = predicted[step.unaligned][step.id]
        ours, hoped = times[str(step)].rate(p.flops / 1e12), p.flops / us / 1e6
        note = f"predicted {hoped:.4g}, at most {bound:.4g} by {limit}"
        numbers = {"predicted": float(f"{hoped:.4g}"), "bound": float(f"{bound:.4g}"), "limit": limit}
        yield {**row(case_name(p, step), "TFLOP/s", ours, PEER, best, note, [step.id]), **numbers}


def _rest(story: Story, predicted: Mapping[str, float]) -> list[Step]:
    """Kernels of this precision that the story does not name yet, the slowest first, as far as their names contain their tiles."""
    if not story.rest:
        return []
    named = {step.id for step in story.steps}
    found = [kernel_id for kernel_id in predicted if kernel_id not in named]
    return [_unnamed(i) for i in sorted(found, key=lambda i: -predicted[i])]


def _unnamed(kernel_id: str) -> Step:
    name = re.sub(r"\.v\d+", "", kernel_id.removeprefix("cuda."))
    size = next((tuple(map(int, w.split("x"))) for w in re.findall(r"\d+x\d+", name)), (128, 128))
    return Step(name, "", (size[0], size[1]), (16, 8))


# --- the lesson's tables ----------------------------------------------------------------------------------------------


def tables(rows: Sequence[Row]) -> dict[str, list[str]]:
    """A table for each story that has been measured, by its name."""
    known = {r["case"]: r for r in rows if "failed" not in r}
    found = {}
    for story in STORIES:
        prefix = case_name(story.problem, "")
        named = {case_name(story.problem, step): step.changes for step in story.steps}
        others = [case for case in known if case.startswith(prefix) and case not in named]
        if not any(case in known for case in (*named, *others)):
            continue
        lines = [
            "| kernel | what it changes | bound | limited by | predicted | measured | of bound | of cuBLAS |",
            "|---|---|--:|---|--:|--:|--:|--:|",
        ]
        for case in (*named, *others):
            lines.append(_line(case.removeprefix(prefix), named.get(case, ""), known.get(case)))
        best = max(r["peer"] for case, r in known.items() if case in named or case in others)
        lines.append(f"| {PEER} | | | | | {best:.4g} | | |")
        found[story.name] = lines
    return found


def _line(name: str, changes: str, r: Row | None) -> str:
    changes = f"{changes} ".lstrip()
    if r is None:
        return f"| {name} | {changes}| – | | – | not measured | – | – |"
    numbers = f"{r['bound']:.4g} | {r['limit']} | {r['predicted']:.4g} | {r['aicf']:.4g}"
    mark = " †" * bool(r.get("old"))
    return f"| {name}{mark} | {changes}| {numbers} | {r['aicf'] / r['bound']:.0%} | {r['aicf'] / r['peer']:.0%} |"


SUITE = Suite(
    "lesson", "products step by step, naive to wgmma: bounds, predictions and outcomes, beside " + " and ".join(LIBRARIES), 90,
    cases, tables=tables, compared=lambda row: False,
)  # fmt: skip
