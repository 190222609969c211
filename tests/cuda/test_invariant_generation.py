"""Generation with invariant rows (docs/determinism.md): a sequence has equal logits and tokens in every batch, next to prompts of any lengths, token by
token with a cache and in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from batched_models import WORDS, Make, Sizes, gpt2, llama
from draws.seeds import rng
from test_gpu_kernels import gpu, opened  # noqa: F401  (fixtures)

import aicf
from aicf import models, nn
from aicf.device.spec import preset
from aicf.generation import generator as generators
from aicf.generation.decoding import Decode, Prefill
from aicf.types import i32

ON_CPU, ON_GPU = Sizes(length=80), Sizes(length=300, size=512, heads=8, depth=2)
POLICIES = "f32", "bf16"


class Shown(Decode):
    """A decode plan that returns the logits as well."""

    def draw(self, ctx: Any, logits: Any, *more: Any) -> Any:
        self.logits = logits
        return super().draw(ctx, logits, *more)

    def emit(self, ctx: Any, inputs: Any) -> Any:
        return {"output": super().emit(ctx, inputs), "logits": ctx.copy(self.logits)}


@pytest.fixture
def shown(monkeypatch):
    """Generators whose `decode` returns logits."""
    monkeypatch.setattr(generators, "Decode", Shown)


def written(generator: Any, prompts: Sequence[np.ndarray], count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each prompt: itself with so many greedy tokens more, and the logits (count, words) that they follow from."""
    generator.start(prompts, temperature=0.0)
    tokens, logits = [], []
    for _ in range(count):
        step = generator.decode({})
        tokens.append(np.array(step["output"].numpy()))
        logits.append(np.array(step["logits"].numpy()))
    return [
        (np.concatenate([p, np.array(tokens)[:, n]]).astype(np.int32), np.array(logits)[:, n])
        for n, p in enumerate(prompts)
    ]


def drawn_prompts(draw: np.random.Generator, count: int, longest: int) -> list[np.ndarray]:
    """Of one token, of `longest`, and of drawn numbers of tokens."""
    lengths = [1, longest, *(int(2 ** draw.uniform(0, np.log2(longest))) for _ in range(count - 2))]
    return [draw.integers(0, WORDS, n) for n in lengths]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.tobytes() == np.ascontiguousarray(b).tobytes()


def differing_steps(
    make: Make, draw: np.random.Generator, device: str, sizes: Sizes, policy: str
) -> list[str]:
    """Where logits of steps differ from those in another batch, those of a forward pass, or those of a training step; and tokens from those
    without a cache."""
    found, count, most = [], 12, 4
    model, how = make(most, sizes), {"device": device, "policy": policy, "invariant": True}
    program = aicf.compile(model, **how)
    alone, together = (aicf.Generator(program, batch=n, length=sizes.length) for n in (1, most))
    prompts = drawn_prompts(draw, most, sizes.length - count)
    wanted = written(together, prompts, count)
    order = draw.permutation(most)[: most - 1]
    for n, (_, logits) in zip(order, written(together, [prompts[n] for n in order], count)):
        found += [f"prompt {n} in {order}"] * (not same(logits, wanted[n][1]))
    for n, prompt in enumerate(prompts):
        ((_, logits),) = written(alone, [prompt], count)
        found += [f"prompt {n} alone"] * (not same(logits, wanted[n][1]))
    for n, row in enumerate(aicf.generate(program, prompts, count, temperature=0.0, cache=False)):
        found += [f"prompt {n} without a cache"] * (row.tolist() != wanted[n][0].tolist())
    tokens = draw.integers(0, WORDS, (most, sizes.length)).astype(np.int32)
    for n, (row, _) in enumerate(wanted):
        tokens[n, : len(row)] = row  # what follows is no part of it: the model is causal
    step = aicf.compile(model, "train", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.1), **how)
    some = int(draw.integers(most))
    short = program({"tokens": wanted[some][0][None]})["output"]
    passes = {
        "a forward pass": np.asarray(program({"tokens": tokens})["output"]), "one over it alone": {some: np.asarray(short)[0]},
        "a training step": np.asarray(step({"tokens": tokens, "y": tokens.astype(np.int64)})["output"]),
    }  # fmt: skip
    for name, rows in passes.items():
        for n in rows if isinstance(rows, dict) else range(most):
            first = len(prompts[n]) - 1
            found += [f"prompt {n} in {name}"] * (not same(wanted[n][1], rows[n][first : first + count]))
    return [f"{make.__name__} on {device} in {policy}: {where}" for where in found]


@pytest.mark.parametrize("make", (gpt2, llama))
@pytest.mark.spec("A15", "C12")
def test_a_token_has_equal_logits_by_a_cache_and_in_a_forward_pass_on_the_cpu(make, shown, request):
    draw = rng(request.node.nodeid)
    assert not differing_steps(make, draw, "cpu", ON_CPU, str(draw.choice(POLICIES)))


@pytest.mark.gpu
@pytest.mark.parametrize("make", (gpt2, llama))
@pytest.mark.spec("A15", "C12")
def test_a_token_has_equal_logits_by_a_cache_and_in_a_forward_pass(gpu, make, shown, request):  # noqa: F811
    draw = rng(request.node.nodeid)
    assert not differing_steps(make, draw, "cuda", ON_GPU, "bf16")


# --- many generations -----------------------------------------------------------------------------------------------------


def writer(device: str, words: int, size: int, depth: int, length: int, invariant: bool) -> Any:
    """A GPT-2 with larger weights than those that it begins with, which have it repeat a token by a wide margin: here the last bits of bf16 decide which token
    is the greatest, and so all that follow."""
    config = models.GPT2Config(words=words, places=length, size=size, depth=depth, heads=size // 64)
    tokens = {"tokens": aicf.TensorSpec(("batch", "seq"), i32)}
    model = nn.Model(tokens, models.GPT2(config), batch=1, seq=length)
    program = aicf.compile(model, device=device, policy="bf16", invariant=invariant)
    state = {name: np.asarray(x) for name, x in program.state_dict().items()}
    matrices = {name: 6 * x for name, x in state.items() if "blocks" in name and x.ndim == 2}
    program.load_state_dict(state | matrices)
    return program


def answers(
    program: Any, prompts: Sequence[np.ndarray], draw: np.random.Generator, batches: Sequence[int], rounds: int, length: int,
    temperature: float = 0.0,
) -> list[int]:  # fmt: skip
    """How many different answers each prompt has, of one in each round: all prompts in another order, each with a seed of its own, in calls of drawn numbers
    of prompts, each by the least generator that has room."""
    loops = {n: aicf.Generator(program, batch=n, length=length) for n in sorted(batches)}
    said: list[set[bytes]] = [set() for _ in prompts]
    count = length + 1 - max(map(len, prompts))
    for _ in range(rounds):
        order = draw.permutation(len(prompts)).tolist()
        while order:
            most = int(draw.choice(batches))
            size = int(draw.integers(most // 2 + 1, most + 1))
            some, order = order[:size], order[size:]
            generator = next(loop for n, loop in loops.items() if n >= len(some))
            for n, row in zip(
                some, generator([prompts[n] for n in some], count, temperature=temperature, seed=some)
            ):
                said[n].add(row.tobytes())
    return [len(one) for one in said]


@pytest.mark.spec("A15", "C12")
def test_answers_are_one_in_shuffled_batches_on_the_cpu(request):
    """18 greedy answers, and 18 of drawn tokens, of 6 prompts."""
    draw = rng(request.node.nodeid)
    program, prompts = writer("cpu", 1024, 64, 2, 80, True), drawn_prompts(draw, 6, 50)
    for temperature in (0.0, 2.0):
        assert answers(program, prompts, draw, (1, 4), 3, 80, temperature) == [1] * 6


@pytest.mark.gpu
@pytest.mark.spec("A15", "C12")
def test_a_thousand_greedy_answers_are_one_for_each_prompt(gpu, request):  # noqa: F811
    """40 prompts, 25 times each, by a model of GPT-2's width: with invariant rows one answer each. Without them their numbers are printed."""
    draw, found = rng(request.node.nodeid), {}
    prompts = drawn_prompts(draw, 40, 60)
    for invariant in (True, False):
        program = writer("cuda", 8192, 768, 4, 100, invariant)
        found[invariant] = answers(program, prompts, draw, (1, 6, 40), 25, 100)
    print(f"different answers of 25, prompt by prompt: invariant {found[True]}, free {found[False]}")
    assert found[True] == [1] * 40


# --- classes --------------------------------------------------------------------------------------------------------------


def classes_of(model: Any, device: str, policy: str, kind: str = "") -> set[str]:
    """Of sums of a plan, or of one op's."""
    made = aicf.explain_for(model, device, policy=policy, invariant=True)
    found = {
        str(r.selection.chosen.variant.numeric_class(r.spec, preset(device)))
        for r in made.regions
        if not kind or kind in [op.kind.name for op in r.spec.ops]
    }
    assert not any("no class" in name for name in found)
    return found


@pytest.mark.spec("A15", "B13", "C12")
def test_prompts_steps_and_forward_passes_have_one_class_of_attention(request):
    """Of a drawn batch and a batch of one, drawn caches and lengths of prompts, on a drawn device."""
    draw, found = rng(request.node.nodeid), set()
    device, policy, heads = (
        str(draw.choice(["h200", "a100", "l4"])),
        str(draw.choice(POLICIES)),
        2 * int(draw.integers(1, 7)),
    )
    make, sizes = (
        (gpt2, llama)[draw.integers(2)],
        Sizes(2048, heads * int(draw.choice([16, 64, 128])), heads, 1),
    )
    for batch, length in (int(draw.integers(2, 100)), int(draw.integers(2, 2048))), (1, 16):
        model, shorter = make(batch, sizes), make(batch, replace(sizes, length=length))
        for plan in Decode(model, batch, length), Prefill(model, batch, 2048, WORDS, length), shorter:
            found |= classes_of(plan, device, policy, "attention")
    assert len(found) == 1, (device, policy, sizes, found)
