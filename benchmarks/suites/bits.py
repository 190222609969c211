"""Rows in batches: whether a row has the bits that it has alone, by `invariant=True` and without it, and what invariance costs.

Models have published widths, two blocks and a small vocabulary; `--draw` seeds their types, lengths, tokens and batches. A batch is sampled from a few
sequences, which have their results alone as the reference: so each row of a batch is a draw of a model, a sequence, a batch and an index. One row with
other bits fails the case. Prompts of different lengths are continued greedily in shuffled batches: two answers to one prompt fail the case.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import aicf
from aicf import models, nn
from aicf.calibrate.published import example
from aicf.types import i32

from ..harness import Bench, Case, Suite, WrongResult
from ..results import Row, mean_ratios, row
from ..stats import enough, wall

FREE = "aicf, the fastest kernels"
BATCHES = (1, 2, 3, 17, 64, 257, 1024)
TIMES = 3  # that a batch of each size is sampled
SEQUENCES, WORDS = 8, 1000
LENGTHS = 16, 24, 33
POLICIES = ("bf16", "f16")
PROMPTS, PROMPT, TOKENS, CALLS, AT_ONCE = (
    8,
    40,
    24,
    32,
    32,
)  # prompts and their longest, tokens of an answer, batches, prompts of the largest one
LAYERS = {
    "GPT-2 124M": lambda **sizes: models.GPT2(models.GPT2Config(size=768, heads=12, depth=2, **sizes)),
    "Llama 1B": lambda **sizes: models.Llama(
        models.LlamaConfig(
            size=2048, hidden=8192, heads=32, kv_heads=8, head_size=64, depth=2, tied=True, **sizes
        )
    ),
}
SMALL = {
    "small GPT-2": lambda **sizes: models.GPT2(models.GPT2Config(size=64, heads=4, depth=2, **sizes)),
    "small Llama": lambda **sizes: models.Llama(
        models.LlamaConfig(size=64, hidden=128, heads=4, kv_heads=2, depth=2, tied=True, **sizes)
    ),
}
TINY_BATCHES = (1, 2, 17)
MANY = 64  # rows of a product, from which on there is a mean of its own
GROUPS = (
    *(f"invariant models, {what} than {MANY} rows" for what in ("fewer", "not fewer")),
    "invariant generation",
)


def _model(name: str, length: int, small: bool = False) -> nn.Model:
    if name.endswith("BERT"):
        sizes = {"width": 64, "heads": 4} if small else {}
        return example("bert").build(words=WORDS, batch=1, length=length, depth=2, **sizes)
    layer = (SMALL if small else LAYERS)[name](words=WORDS, places=length)
    return nn.Model({"tokens": aicf.TensorSpec(("batch", "seq"), i32)}, layer, batch=1, seq=length)


def cases(bench: Bench) -> list[Case]:
    """Each model in a drawn type; on the CPU in f32."""
    small = bench.tiny or not bench.on_gpu
    names = [*(SMALL if small else LAYERS), "small BERT" if small else "BERT"]
    names = names[:1] if bench.tiny else names
    found = []
    for name in names:
        rng = np.random.default_rng(zlib.crc32(f"bits {bench.draw} {name}".encode()))
        policy, length = str(rng.choice(POLICIES)) if bench.on_gpu else "f32", int(rng.choice(LENGTHS))
        measure = partial(_measure, name, policy, length, small, rng)
        found.append(Case(f"{name}, {policy}, {length} tokens", measure, 20.0 if bench.on_gpu else 0.0))
        if not name.endswith("BERT"):
            generate = partial(_generation, name, policy, small, rng)
            found.append(Case(f"{name}, {policy}, generation", generate, 20.0 if bench.on_gpu else 0.0))
    return found


def _measure(
    name: str, policy: str, length: int, small: bool, rng: np.random.Generator, bench: Bench
) -> Iterator[Row]:
    model = _model(name, length, small)
    invariant, free = (
        aicf.compile(model, device=bench.device, policy=policy, invariant=one) for one in (True, False)
    )
    sequences = {feed: _sampled(feed, length, rng) for feed in model.inputs}
    one = [{feed: x[n : n + 1] for feed, x in sequences.items()} for n in range(SEQUENCES)]
    alone = {how: [_bits(p, feed)[0] for feed in one] for how, p in (("", invariant), ("free", free))}
    for size in TINY_BATCHES if bench.tiny else BATCHES:
        changed = 0
        for _ in range(TIMES):
            which = rng.integers(0, SEQUENCES, size)
            batch = {feed: x[which] for feed, x in sequences.items()}
            if other := _differing(invariant, batch, which, alone[""]):
                raise WrongResult(
                    f"batch {size}: {len(other)} rows have other bits than alone, first index {other[0]} with sequence {which[other[0]]}"
                )
            changed += len(_differing(free, batch, which, alone["free"]))
        case = f"{name}, {policy}, {size} x {length} tokens"
        yield _row(case, bench, invariant, free, batch, changed)


def _enlarge(program: aicf.Program) -> None:
    """Larger weights of the blocks than a model begins with. With those it repeats a token by a wide margin; then the last bits of halves decide which token
    is the greatest, and so all that follow."""
    state = {name: np.asarray(x) for name, x in program.state_dict().items()}
    matrices = {name: 6 * x for name, x in state.items() if "blocks" in name and x.ndim == 2}
    program.load_state_dict(state | matrices)


def _generation(name: str, policy: str, small: bool, rng: np.random.Generator, bench: Bench) -> Iterator[Row]:
    """Prompts of drawn lengths, in shuffled batches of drawn sizes; what each is answered, greedily."""
    model = _model(name, PROMPT + TOKENS, small)
    prompts = [rng.integers(0, WORDS, int(rng.integers(1, PROMPT + 1))) for _ in range(PROMPTS)]
    count, calls = (4, 3) if bench.tiny else (AT_ONCE, CALLS)
    generators = []
    for one in (True, False):
        program = aicf.compile(model, device=bench.device, policy=policy, invariant=one)
        if one:
            _enlarge(program)  # of both: programs of a model share its parameters
        generators.append({size: aicf.Generator(program, size, PROMPT + TOKENS) for size in (1, count)})
    answers: list[list[set[bytes]]] = [[set() for _ in prompts] for _ in generators]
    for call in range(calls):
        size = 1 if call == 0 else int(rng.integers(2, count + 1))
        batches = [[n] for n in range(PROMPTS)] if size == 1 else [rng.integers(0, PROMPTS, size).tolist()]
        for found, sized in zip(answers, generators):
            for which in batches:
                got = sized[1 if size == 1 else count]([prompts[n] for n in which], TOKENS, temperature=0.0)
                for n, sequence in zip(which, got):
                    found[n].add(np.asarray(sequence).tobytes())
    ours, free = ([len(found) for found in each] for each in answers)
    if max(ours) > 1:
        raise WrongResult(
            f"prompts have up to {max(ours)} answers; {sum(n > 1 for n in ours)} of {PROMPTS} have several"
        )
    batch = [prompts[n % PROMPTS] for n in range(count)]
    sides = {
        side: wall(partial(sized[count], batch, TOKENS, temperature=0.0), 1, lambda: None)
        for side, sized in zip(("aicf", FREE), generators)
    }
    times = bench.compare(sides, 9)
    took = [times[side].per(1e-3) for side in ("aicf", FREE)]
    note = f"1 answer to each of {PROMPTS} prompts in {calls} batches; with the fastest kernels up to {max(free)}"
    executed = generators[0][count].decode.executed
    yield row(
        f"{name}, {policy}, {count} x {TOKENS} generated tokens", "ms", took[0], FREE, took[1], note, executed
    )


def _sampled(feed: str, length: int, rng: np.random.Generator) -> np.ndarray:
    """Of SEQUENCES: tokens; for BERT also segments, and masks of different lengths."""
    if feed == "mask":
        return np.arange(length) < rng.integers(1, length + 1, (SEQUENCES, 1))
    return rng.integers(0, WORDS if feed == "tokens" else 2, (SEQUENCES, length)).astype(np.int32)


def _differing(
    program: Any, batch: Mapping[str, np.ndarray], which: np.ndarray, alone: list[bytes]
) -> list[int]:
    """Indices of rows with other bits than their sequence has alone: run, and replayed."""
    found = [_bits(program, batch), _bits(program, batch, replay=True)]
    return [n for n, sequence in enumerate(which) if any(bits[n] != alone[sequence] for bits in found)]


def _bits(program: Any, feed: Mapping[str, np.ndarray], replay: bool = False) -> list[bytes]:
    """Of each row of the first result."""
    results = (program.replay if replay else program.run)(feed)
    return [np.ascontiguousarray(x).tobytes() for x in next(iter(results.values())).numpy()]


def _row(
    name: str, bench: Bench, invariant: Any, free: Any, batch: Mapping[str, np.ndarray], changed: int
) -> Row:
    sync = bench.lab.sync if bench.on_gpu else lambda: None
    calls = {"aicf": partial(invariant.replay, batch), FREE: partial(free.replay, batch)}
    times = bench.compare({side: wall(call, enough(call, 0.01), sync) for side, call in calls.items()}, 9)
    ours, theirs = (times[side].per(1e-3) for side in ("aicf", FREE))
    size = TIMES * len(next(iter(batch.values())))
    note = f"{size} rows with the bits that they have alone; {changed} have others with the fastest kernels"
    return row(name, "ms", ours, FREE, theirs, note, invariant.executed)


def summary(rows: Sequence[Row]) -> list[Row]:
    """The price: geometric means of ratios to the fastest kernels, by the number of rows of products."""
    compared = [r for r in rows if r.get("ratio")]
    generated = [r for r in compared if "generated" in r["case"]]
    batches = [(_tokens(r["case"]), r) for r in compared if r not in generated]
    groups = [[r for n, r in batches if n < MANY], [r for n, r in batches if n >= MANY], generated]
    return mean_ratios(dict(zip(GROUPS, groups)))


def _tokens(case: str) -> int:
    """Of a batch: `…, 17 x 24 tokens`."""
    size, length = case.removesuffix(" tokens").split(", ")[2].split(" x ")
    return int(size) * int(length)


SUITE = Suite(
    "bits", "rows in batches of 1 to 1,024 have the bits that they have alone, and what that costs against the fastest kernels", 150, cases,
    compared=lambda row: False, headlines=tuple((f"{name}: geometric mean of ratios", None) for name in GROUPS[:2]), summary=summary,
)  # fmt: skip
