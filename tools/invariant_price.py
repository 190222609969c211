"""What invariant rows are predicted to cost: published models with two blocks, by the number of rows, as a table in Markdown.

python tools/invariant_price.py --device h200 --policy bf16
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence

import aicf
from aicf.calibrate.published import ModelStep
from aicf.generation.decoding import Decode
from aicf.registry.invariant import percent

MODELS = "GPT-2", "Llama 3.2 1B", "BERT base"
ROWS = 1, 3, 17, 64, 257, 1024, 4096
MANY = 64  # rows from which on there is a mean of its own
CACHE = 1024  # places of a cache
LENGTH = 128  # tokens of a sequence, where there are as many


def explained(model: str, rows: int, device: str, policy: str) -> aicf.Explanation:
    """The plan with so many rows: sequences of LENGTH tokens, or of as many as there are."""
    length = min(rows, LENGTH)
    layers, _, _ = ModelStep(model, "infer", policy, max(1, rows // length), length)._built()
    return aicf.explain_for(layers, device, policy=policy, invariant=True)


def step_ratio(model: str, rows: int, device: str, policy: str) -> float:
    """Of the plan that computes the next token of so many sequences, with a cache."""
    layers, _, _ = ModelStep(model, "infer", policy, rows, CACHE)._built()
    made = aicf.explain_for(Decode(layers, rows, CACHE), device, policy=policy, invariant=True)
    assert made.price is not None
    return made.price.ratio


def ratios(model: str, rows: int, device: str, policy: str) -> tuple[float, list[float]]:
    """(of the plan, of each product in it)."""
    made = explained(model, rows, device, policy)
    assert made.price is not None
    products = [r for r in made.regions if r.spec.ops[0].kind.name == "gemm"]
    return made.price.ratio, [r.selection.free.ratio for r in products if r.selection.free is not None]


def mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def table(device: str, policy: str) -> Iterator[str]:
    few = [n for n, rows in enumerate(ROWS) if rows < MANY]
    yield (
        f"| {policy} on {device} | "
        + " | ".join(f"{rows:,}" for rows in ROWS)
        + f" | below {MANY} | from {MANY} on |"
    )
    yield "|---" * (len(ROWS) + 3) + "|"
    products: list[list[float]] = [[] for _ in ROWS]
    plans: list[list[float]] = [[] for _ in ROWS]
    for model in MODELS:
        for n, rows in enumerate(ROWS):
            plan, each = ratios(model, rows, device, policy)
            plans[n].append(plan)
            products[n] += each
        yield _line(model, [column[-1:] for column in plans], few)
    yield _line("all plans, geometric mean", plans, few)
    yield _line("all products, geometric mean", products, few)
    for model in MODELS[:2]:
        yield _line(f"{model}, tokens", [[step_ratio(model, rows, device, policy)] for rows in ROWS], few)


def _line(name: str, columns: Sequence[Sequence[float]], few: Sequence[int]) -> str:
    """Means of each number of rows, and over those below MANY and the others."""
    each = [percent(mean(column)) for column in columns]
    halves = [
        [x for n, column in enumerate(columns) if (n in few) is low for x in column] for low in (True, False)
    ]
    return (
        f"| {name} | " + " | ".join(each) + " | " + " | ".join(percent(mean(half)) for half in halves) + " |"
    )


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--device", default="h200", help="a preset")
    ask.add_argument("--policy", default="bf16", help="bf16, f16 or f32")
    args = ask.parse_args()
    for line in table(args.device, args.policy):
        print(line, flush=True)


if __name__ == "__main__":
    main()
