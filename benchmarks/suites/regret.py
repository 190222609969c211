"""Which kernels for products earn their place: the time of each beside the best, on shapes that models in use have.

Cases are drawn by a fixed seed, in random order, so that those which a budget allows are a fair sample. Each takes a layer of a model, a
number of tokens, and a role: the forward product with what follows it, the gradient of its input, or that of its weight. A part of
them leaves Hopper's kernels out: how the others stand to each other is what Ampere and Ada will see.

A kernel is *best* where no other comes within 1 %. `summary` counts, for each kernel, where it was timed, taken and best.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import aicf
from aicf.device.spec import DeviceSpec
from aicf.graph.emit.builder import GraphEmitter
from aicf.registry.registry import KernelRegistry
from aicf.registry.select import Selection, select
from aicf.types import DType

from ..harness import Bench, Case, Suite
from ..instances import Instance
from ..kernel_runs import KernelRuns
from ..results import Row, row
from ..stats import Stats
from .selection import is_absurd, regret

SEED, NUMBER = 20261123, 900
# (in, out) of the layers of models, and the numbers of rows that go through them.
LAYERS: dict[str, tuple[tuple[int, int], ...]] = {
    "GPT-2": ((768, 2304), (768, 768), (768, 3072), (3072, 768), (768, 50304), (768, 50257)),
    "GPT-2 medium": ((1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024)),
    "GPT-2 XL": ((1600, 4800), (1600, 1600), (1600, 6400), (6400, 1600)),
    "Llama 8B": ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (4096, 128256)),
    "Llama 70B, a part of 8": ((8192, 1280), (1024, 8192), (8192, 7168), (3584, 8192)),
    "Qwen 0.5B": ((896, 1152), (896, 896), (896, 9728), (4864, 896)),
    "BERT": ((768, 768), (768, 3072), (3072, 768), (768, 30522)),
    "mixture of experts": ((2048, 1408), (1408, 2048), (4096, 1536)),
    "low-rank adapters": ((4096, 8), (8, 4096), (4096, 16), (16, 4096), (1024, 64), (64, 1024)),
    "recommendation": ((13, 512), (512, 256), (256, 64), (479, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)),
    "vision": ((768, 2304), (768, 3072), (3072, 768), (1024, 4096), (768, 1000), (2048, 1000), (147, 64), (576, 64), (1152, 128), (2304, 256), (4608, 512)),
    "digits": ((64, 128), (128, 64), (64, 10), (784, 256), (256, 10)),
}  # fmt: skip
TOKENS: dict[str, tuple[int, ...]] = {
    "mixture of experts": (8, 24, 64, 200, 512),
    "recommendation": (128, 512, 2048, 8192),
    "vision": (197, 8 * 197, 32 * 197, 49 * 64, 196 * 32, 784 * 16),
    "digits": (32, 64, 256, 1797),
}  # fmt: skip
TEXT = (1, 2, 4, 8, 16, 32, 64, 100, 128, 256, 500, 512, 1000, 1024, 2048, 4096, 8192, 16384)
HEADS = tuple(  # (batch, m, n, k) of attention by products: scores, values
    (b, t, *rest)
    for b, t, d in ((12, 1024, 64), (96, 1024, 64), (192, 197, 64), (16, 512, 80), (32, 2048, 128), (256, 128, 64))
    for rest in ((t, d), (d, t))
)  # fmt: skip
KINDS = ("bf16", "f16", "f32", "tf32", "tf32x3")
WEIGHTS = (8, 2, 3, 3, 1)
MOST_FLOPS = {
    "bf16": 8e11,
    "f16": 8e11,
    "f32": 5e10,
    "tf32": 4e11,
    "tf32x3": 2e11,
}  # take a millisecond or two
MOST_ELEMENTS = 2**28  # of a result
ABOVE = 1.01  # how many times the best's time another has to take for the best to be so alone


@dataclass(frozen=True)
class Product:
    batch: int
    m: int
    n: int
    k: int
    order: str  # N or T for each operand
    after: str
    kind: str

    def __str__(self) -> str:
        batch = f"{self.batch} of " if self.batch else ""
        after = f" {self.after}" if self.after else ""
        return f"{self.kind} {self.order} {batch}{self.m}x{self.n}x{self.k}{after}"

    @property
    def flops(self) -> float:
        return 2.0 * max(self.batch, 1) * self.m * self.n * self.k

    def emit(self, ctx: GraphEmitter) -> Any:
        dtype = DType.of(self.kind) if self.kind in ("bf16", "f16") else DType.f32
        lead = (self.batch,) if self.batch else ()
        (ta, tb), (m, n, k) = (c == "T" for c in self.order), (self.m, self.n, self.k)
        a = ctx.input("a", (*lead, *((k, m) if ta else (m, k))), dtype)
        b = ctx.input("b", (*lead, *((n, k) if tb else (k, n))), dtype)
        precision = aicf.Precision.__members__.get(self.kind, aicf.Precision.exact)
        y = ctx.gemm(a, b, trans_a=ta, trans_b=tb, precision=precision)
        if self.after == "gradient":
            return ctx.relu_grad(y, ctx.input("h", (m, n), dtype))
        if self.after:
            y = ctx.bias_add(y, ctx.input("bias", (n,), dtype))
        if self.after == "residual":
            return ctx.add(y, ctx.input("r", (m, n), dtype))
        return ctx.op(self.after, y) if self.after in ("relu", "gelu") else y


def products(number: int = NUMBER) -> list[Product]:
    """The first of them are always the same."""
    rng = random.Random(SEED)
    found: dict[Product, None] = {}
    while len(found) < number:
        kind = rng.choices(KINDS, WEIGHTS)[0]
        if rng.random() < 0.06:
            made = Product(*rng.choice(HEADS), rng.choice(("NN", "NT")), "", kind)
        else:
            model = rng.choice(sorted(LAYERS))
            (into, out), rows = rng.choice(LAYERS[model]), rng.choice(TOKENS.get(model, TEXT))
            role = rng.choice(("forward", "forward", "input's gradient", "weight's gradient"))
            if role == "forward":
                after = rng.choice(("", "bias", "relu", "gelu", "residual"))
                made = Product(0, rows, out, into, "NT", after, kind)
            elif role == "input's gradient":
                made = Product(0, rows, into, out, "NN", rng.choice(("", "gradient")), kind)
            else:
                made = Product(0, out, into, rows, "TN", "", kind)
        if made.flops <= MOST_FLOPS[kind] and max(made.batch, 1) * made.m * made.n <= MOST_ELEMENTS:
            found[made] = None
    return list(found)


def cases(bench: Bench) -> list[Case]:
    made = []
    for n, product in enumerate(products(16 if bench.tiny else NUMBER)):
        hopper = n % 3 != 2
        name = f"{product}{'' if hopper else ', without Hopper kernels'}"
        instance = Instance("products", name, product.emit)
        measure, kernels = partial(_measure, instance, hopper), partial(_kernels, instance, hopper)
        made.append(Case(name, measure, seconds=2.0, kernels=kernels))
    return made


@cache  # asked once to build all kernels ahead, once to measure
def _chosen(instance: Instance, hopper: bool, spec: DeviceSpec) -> Selection:
    registry = aicf.default_registry()
    if not hopper:
        registry = KernelRegistry(v for v in registry if not any("sm_90" in need for need in v.needs))
    return select(instance.region(spec.kind), spec, registry)


def _kernels(instance: Instance, hopper: bool, spec: DeviceSpec) -> list[tuple[str, Any]]:
    selection = _chosen(instance, hopper, spec)
    return [(c.variant.id, selection.region) for c in selection.ranked if not is_absurd(selection, c.us)]


def _measure(instance: Instance, hopper: bool, bench: Bench) -> Iterator[Row]:
    runs = KernelRuns(bench)
    found = regret(instance, _chosen(instance, hopper, runs.spec), runs)
    note = f"{found['chosen']} taken, {found['best']} best"
    made = row(
        instance.name, "%", Stats(100 * found["regret"]), note=note, kernels={found["chosen"], found["best"]}
    )
    del found["us"]  # the times again, as text
    yield {**made, "instances": [found]}


def alone(times: dict[str, float]) -> str | None:
    """The kernel that no other comes near, if there is one."""
    ordered = sorted(times, key=times.__getitem__)
    return ordered[0] if len(ordered) == 1 or times[ordered[1]] >= ABOVE * times[ordered[0]] else None


def summary(rows: Sequence[Row]) -> list[Row]:
    """The mean, and how often each kernel was best."""
    found = [i for r in rows for i in r.get("instances", ())]
    if not found:
        return []
    best = Counter(name for i in found if (name := alone(i["times"])) is not None)
    said = ", ".join(f"{name} {n}" for name, n in best.most_common())
    mean = sum(i["regret"] for i in found) / len(found)
    return [row("all products", "%", Stats(100 * mean, 0.0, len(found)), note=f"best: {said}", kernels=())]


SUITE = Suite(
    "regret", "each kernel for products beside the best one, on shapes of models in use", 500, cases,
    summary=summary, compared=lambda row: False, headlines=(("all products", None),),
)  # fmt: skip
