"""GEMMs with weights of published models against cuBLAS: sampled anew by `--draw`, 1 to 16,384 rows, all four layouts, bf16.

Cases come in rounds with each number of rows once and each layout once or twice; four rounds have all 28 pairs. A run that its budget cuts off
is a fair sample.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from ..harness import Bench, Case, Suite
from ..results import Row, mean_ratios
from .gemm import Problem, against_cublas, chosen

# n and k of the weights: Llama 8B and 70B, Qwen 7B, Mixtral, GPT-2 and XL, ViT-H, BERT large
WEIGHTS = (
    (4096, 4096), (6144, 4096), (28672, 4096), (14336, 4096), (4096, 14336), (10240, 8192), (8192, 8192), (57344, 8192),
    (8192, 28672), (4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944), (2304, 768), (768, 768), (3072, 768), (768, 3072),
    (4800, 1600), (1600, 1600), (6400, 1600), (1600, 6400), (3840, 1280), (1280, 1280), (5120, 1280), (1280, 5120), (3072, 1024),
    (1024, 1024), (4096, 1024), (1024, 4096),
)  # fmt: skip
ROWS = (1, 8, 33, 256, 1500, 4096, 16384)
LAYOUTS = ("NN", "NT", "TN", "TT")
ROUNDS = 16
MAX_FLOPS = 4e12  # of a case: about 6 ms
GROUPS = tuple(f"GEMMs of published weights, {m}" for m in ("all", *(f"M = {m}" for m in ROWS)))


def sampled(seed: str) -> list[Problem]:
    """Different problems, round by round; a seed always gives the same ones."""
    rng, samples = random.Random(f"weights {seed}"), list[Problem]()
    layouts = rng.sample(LAYOUTS, len(LAYOUTS))
    for phase in range(ROUNDS):
        for at, m in rng.sample(list(enumerate(ROWS)), len(ROWS)):
            layout = layouts[(at + phase) % len(layouts)]
            problems = (Problem(m, n, k, order=layout) for n, k in WEIGHTS)
            samples.append(rng.choice([p for p in problems if p.flops <= MAX_FLOPS and p not in samples]))
    return samples


def cases(bench: Bench) -> list[Case]:
    problems = sampled(bench.draw)[: len(ROWS) if bench.tiny else None]
    return [
        Case(f"weights {p}", partial(against_cublas, p, "weights"), 1.0, partial(chosen, p)) for p in problems
    ]


def summary(rows: Sequence[Row]) -> list[Row]:
    """Of all cases, and of each number of rows."""
    compared = [r for r in rows if r["case"].startswith("weights ")]
    return mean_ratios(
        dict(zip(GROUPS, [compared, *([r for r in compared if f" {m}x" in r["case"]] for m in ROWS)]))
    )


SUITE = Suite(
    "weights", "GEMMs with weights of published models against cuBLAS, sampled anew: 1 to 16,384 rows, all layouts, bf16", 120, cases,
    headlines=((f"{GROUPS[0]}: geometric mean of ratios", None),), summary=summary,
)  # fmt: skip
