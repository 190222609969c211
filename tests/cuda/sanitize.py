"""Every CUDA kernel under compute-sanitizer, on small problems, its results held to NumPy's in double precision.

    python tests/cuda/sanitize.py                                   # memcheck, racecheck and synccheck, all kernels
    python tests/cuda/sanitize.py racecheck --only wgmma --part 1/2 # one tool; kernels with that in their id; every second of them

Kernels are compiled first, without a tool, by several processes; AICF_CACHE_DIR names a folder where they stay. Memory is
allocated to the byte and there are no guard bands, so that the tool sees what is read or written beyond it. A tool is given a
kernel with a fault first, which it has to find. The exit code is 1 if a tool finds anything else or does not get to the end, if a
result is wrong, or if a tool is not there.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for `machines`, where this is run as a script

import fused_gemm_cases as fused_gemm
import int8_cases
import numpy as np
import test_gpu_kernels as on_gpu
import wgmma_cases as hopper
from convolution_cases import SHAPES, biased
from gradient_cases import hopper_cases
from kernel_cases import (
    CONVOLUTIONS,
    FIRST,
    GRADIENTS,
    HALVES,
    MORE,
    VARIANTS,
    Case,
    assert_close,
    desc,
    gemm,
    operands_for,
    reference,
)
from ptx_support import regions_of

from aicf.cuda_kernels import ptx
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.dsl import cuda, int32
from aicf.device.spec import DeviceSpec, preset
from aicf.dispatch.loader import _build_anew
from aicf.registry.variant import In, Launch, Out
from aicf.rows import RegionSpec
from aicf.types import ActKind, Precision, bf16, f16, f32, i32

TOOLS = ("memcheck", "racecheck", "synccheck")
TOOLKIT = "/usr/local/cuda"
FOUND = 9  # exit code of a tool that found something
OTHERS = 4  # times as many cases of kernels that are no products: they are small, and do many things
KEPT = {"act": ActKind.relu, "save_preact": True}

# more of them than multiprocessors, each a part of a tile
MANY = fused_gemm.Product(24, 40, 136, bf16, batch=(140,))
# Products in the order in which a variant may take them: alignments, epilogues, types. Two tiles and edges both ways.
PRODUCTS: tuple[tuple[RegionSpec, float], ...] = (
    (hopper.product(136, 264, 200, dtype=bf16, tb=True), HALVES[bf16]),
    (hopper.residual(132, 136, 200, dtype=f16), HALVES[f16]),
    (replace(hopper.residual(132, 136, 200, dtype=bf16), strict=True, invariant=True), HALVES[bf16]),
    (hopper.activated(136, 144, 136, dtype=bf16, tb=True), HALVES[bf16]),
    (hopper.backward(260, 136, 72, dtype=f16, tb=True), HALVES[f16]),
    (hopper.stashed(132, 133, 72, dtype=bf16, tb=True), HALVES[bf16]),
    (hopper.batches(136, 136, 72, bf16)["heads of one b"], HALVES[bf16]),
    (hopper.product(16, 136, 1032, dtype=f16, ta=True), HALVES[f16]),
    (hopper.other(136, 136, 104, hopper.OTHERS[0]), 2e-3),
    (hopper.other(136, 136, 200, hopper.OTHERS[1]), HALVES[f16]),
    (hopper.product(136, 264, 200, dtype=f32, precision=Precision.tf32), 2e-3),
    (hopper.residual(136, 132, 200, dtype=f32, ta=True, tb=True, precision=Precision.tf32), 2e-3),
    (hopper.product(264, 136, 200, dtype=f32, ta=True, precision=Precision.tf32), 2e-3),
    (hopper.activated(1104, 2056, 136, dtype=bf16, tb=True), HALVES[bf16]),  # tiles of two widths
    (hopper.product(131, 137, 73, dtype=bf16), HALVES[bf16]),
    (hopper.product(61, 133, 2001, dtype=bf16, tb=True), HALVES[bf16]),
    (hopper.product(136, 136, 200, dtype=f32, tb=True), 2e-5),
    (hopper.backward(136, 136, 200, dtype=f32, ta=True, tb=True), 2e-5),
    (hopper.stashed(132, 133, 72, dtype=f32, tb=True), 2e-5),
    (gemm(37, 53, 29, c=True, bias=37, **KEPT), 2e-5),
    (gemm(130, 72, 200, c=True, bias=72, beta=0.5), 2e-5),
    (gemm(132, 72, 200, precision=Precision.tf32x3, bias=72), 2e-5),
    (gemm(3, 40, 3000, trans_b=True, dtype=f16, bias=40), HALVES[f16]),
    (gemm(12, 200, 72, dtype=f16, bias=200, **KEPT), HALVES[f16]),
    (MANY.then({}), HALVES[bf16]),
    (fused_gemm.two_biases(MANY), HALVES[bf16]),
    (int8_cases.scaled(132, 136, 200), HALVES[bf16]),
    (int8_cases.whole(136, 264, 200, int8_cases.SIGNS[1]), 0.0),
    (int8_cases.whole(136, 144, 200, tb=False), 0.0),
    (int8_cases.residual(132, 133, 72, tb=False), HALVES[f16]),
)  # fmt: skip


def cases(device: DeviceSpec, each: int = 2) -> list[Case]:
    """Up to `each` for every product kernel, of those that it takes the least used; of others from their tests' lists."""
    made: list[Case] = []
    used: Counter[int] = Counter()
    for kernel_id, variant in VARIANTS.items():
        if variant.kinds == ("gemm",):
            taken = [n for n, (r, _) in enumerate(PRODUCTS) if variant.supported(r, device) is None]
            chosen = sorted(taken, key=lambda n: used[n])[:each]
            used.update(chosen)
            made += [Case(kernel_id, *PRODUCTS[n]) for n in chosen]
        if kernel_id in CONVOLUTIONS:
            shapes = list(SHAPES.values())
            windows = [shapes[(len(made) + n) % len(shapes)] for n in range(each)]
            made += [Case(kernel_id, biased(x, w, **attrs), HALVES[f16]) for x, w, attrs in windows]
        if kernel_id in GRADIENTS:
            made += hopper_cases(kernel_id, len(made))[:each]
        if not made or made[-1].variant != kernel_id:
            listed = [c for c in (*FIRST, *MORE) if c.variant == kernel_id and _does_something(c)]
            made += listed[:: -(-len(listed) // (OTHERS * each)) or 1]
    return made


def _does_something(case: Case) -> bool:
    return all(t.numel for t in case.region.tensors)


def part(made: list[Case], only: str, which: tuple[int, int]) -> list[Case]:
    return [c for c in made if only in c.variant][which[0] - 1 :: which[1]]


# --- in the process that a tool watches -------------------------------------------------------------------------------


class Exact(on_gpu.Gpu):
    """Each buffer is as long as what lies in it, and starts as NaN or -1."""

    def allocate(self, nbytes: int) -> int:
        from cuda.bindings import driver

        status, pointer = driver.cuMemAlloc(max(nbytes, 1))
        assert status == driver.CUresult.CUDA_SUCCESS, str(status)
        self.buffers.append(pointer)
        self.upload(int(pointer), np.full(nbytes, on_gpu.POISON, np.uint8))
        return int(pointer)

    def free(self) -> None:
        from cuda.bindings import driver

        for pointer in self.buffers:
            driver.cuMemFree(pointer)
        self.buffers.clear()


def run(made: list[Case]) -> int:
    """All of them; 1 if a result is wrong."""
    on_gpu.GUARD = 0
    opened = on_gpu.open_gpu()
    gpu, wrong = Exact(opened.device, opened.stream, opened.spec), 0
    for n, case in enumerate(made):
        start = time.monotonic()
        operands = operands_for(case, n)
        try:
            got = on_gpu.launch_case(gpu, case, operands.memory)
            assert_close(case, got, reference(case, operands.arrays))
            outcome = "ok"
        except AssertionError as error:
            outcome, wrong = f"WRONG: {error}", 1
        gpu.free()
        print(f"{n + 1}/{len(made)} {case}: {outcome}, {time.monotonic() - start:.1f} s", flush=True)
    return wrong


# --- kernels with a fault, which a tool has to find -------------------------------------------------------------------

THREADS = 128


def beyond(x, y):
    y[cuda.grid(1) + 1] = x[cuda.grid(1)]


def unordered(x, y):
    """Warps read what others may not have written yet."""
    shared = cuda.shared.array(THREADS, int32)
    shared[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    y[cuda.threadIdx.x] = shared[THREADS - 1 - cuda.threadIdx.x]


def torn() -> Callable[..., None]:
    """A barrier for whole warps, that every second thread comes to."""
    meet = ptx.sync_threads(2, THREADS // 2)

    def kernel(x, y):
        if cuda.threadIdx.x % 2 == 0:
            meet()
        y[cuda.threadIdx.x] = x[cuda.threadIdx.x]

    return kernel


FAULTS: dict[str, Callable[[], Callable[..., None]]] = {
    "memcheck": lambda: beyond, "racecheck": lambda: unordered, "synccheck": torn,
}  # fmt: skip


def fail(tool: str) -> int:
    opened = on_gpu.open_gpu()
    gpu, r = (
        Exact(opened.device, opened.stream, opened.spec),
        regions_of([desc((THREADS,), i32)], desc((THREADS,), i32)),
    )
    start = engine.prepare(Launch(FAULTS[tool](), (1,), (THREADS,), (In(0), Out(0))), r)
    x, y = (gpu.allocate(4 * THREADS) for _ in range(2))
    engine.bind(start, gpu.stream, [x], [y])()
    gpu.stream.sync()
    return 0


# --- in the process that a tool watches, first without it -------------------------------------------------------------


def compile_all(made: list[Case], device: DeviceSpec) -> None:
    jobs = [(c.variant, c.region, VARIANTS[c.variant].build(c.region, device)) for c in made]
    engine.precompile(jobs, device.target, functools.partial(_build_anew, device))


# --- the process that starts tools ------------------------------------------------------------------------------------


def sanitizer() -> str | None:
    """compute-sanitizer: of the path, or of a toolkit."""
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), TOOLKIT)
    places = [Path(home) / "bin" / "compute-sanitizer" for home in homes if home]
    return shutil.which("compute-sanitizer") or next((str(p) for p in places if p.exists()), None)


def watched(tool: str, arguments: list[str], seconds: float | None, loud: bool = True) -> list[str]:
    """What is wrong by what a tool said, a line each; and that it did not get to the end."""
    found = sanitizer()
    if found is None:
        return ["compute-sanitizer is not here: it comes with the CUDA toolkit"]
    # cuda-core asks for a context where there is none yet; errors of calls are Python's to raise
    quiet = ["--report-api-errors", "no"] if tool == "memcheck" else []
    options = ["--tool", tool, *quiet, "--error-exitcode", str(FOUND), "--print-limit", "20"]
    command = [found, *options, *ourselves(arguments)]
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    late = threading.Timer(seconds or 1e9, lambda: os.killpg(started.pid, signal.SIGKILL))
    late.daemon = True
    late.start()
    said, case = [], ""
    for line in started.stdout or ():
        text = line.strip("=\n ")
        if re.search("SUMMARY: (?!0 (errors|hazards))|WRONG", line):
            said.append(text)
        if not line.startswith("="):
            case = text
        elif loud and text and "Host Frame" not in line and "host backtrace" not in line:
            print(f"  {text}" + (f"   (after {case})" if case else ""), flush=True)
            case = ""
    code = started.wait()
    late.cancel()
    if code == -signal.SIGKILL:
        said.append(f"not done after {seconds:g} s, at {case}")
    return said or ([f"exit code {code}"] if code else [])


def blind(tool: str) -> list[str]:
    """That a tool does not find the fault that it has to."""
    found = watched(tool, ["--fault", tool], 60, loud=False) if tool in FAULTS else ["SUMMARY"]
    return [] if any("SUMMARY" in line for line in found) else [f"does not see a fault: {found}"]


def ourselves(arguments: list[str]) -> list[str]:
    return [sys.executable, __file__, "--watched", *arguments]


def _part(text: str) -> tuple[int, int]:
    first, count = map(int, text.split("/"))
    return first, count


def main() -> int:
    made = argparse.ArgumentParser(
        "python tests/cuda/sanitize.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("tools", nargs="*", default=list(TOOLS), metavar="TOOL", help=", ".join(TOOLS))
    made.add_argument("--only", default="", metavar="TEXT", help="kernels with TEXT in their id")
    made.add_argument("--each", type=int, default=2, metavar="N", help="problems for each kernel")
    made.add_argument(
        "--part", type=_part, default=(1, 1), metavar="I/N", help="every N-th case, from the I-th"
    )
    made.add_argument("--seconds", type=float, help="that a tool may take")
    made.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--fault", choices=FAULTS, help=argparse.SUPPRESS)
    args = made.parse_args()
    if unknown := set(args.tools) - set(TOOLS):
        made.error(f"no tool is called {unknown.pop()!r}; there are {', '.join(TOOLS)}")
    if args.fault:
        return fail(args.fault)
    if args.watched:
        return run(part(cases(preset("h200"), args.each), args.only, args.part))
    with tempfile.TemporaryDirectory(prefix="aicf-sanitize-") as folder:
        os.environ["AICF_CACHE"] = "on"
        os.environ.setdefault("AICF_CACHE_DIR", folder)
        device = on_gpu.open_gpu().spec
        start, todo = time.monotonic(), part(cases(device, args.each), args.only, args.part)
        compile_all(todo, device)
        print(f"{len(todo)} cases compiled, {time.monotonic() - start:.0f} s", flush=True)
        same = ["--only", args.only, "--each", str(args.each), "--part", "{}/{}".format(*args.part)]
        plain = subprocess.run(ourselves(same), stdout=subprocess.PIPE, text=True)
        print(plain.stdout if plain.returncode else "all right without a tool", flush=True)
        wrong = {"without a tool": ["failed"] if plain.returncode else []}
        for tool in args.tools:
            start = time.monotonic()
            wrong[tool] = blind(tool) + watched(tool, same, args.seconds)
            print(f"{tool}: {time.monotonic() - start:.0f} s, {wrong[tool] or 'nothing found'}", flush=True)
    for what, lines in wrong.items():
        print(f"{what}: " + ("clean" if not lines else "; ".join(lines)))
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
