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
from kernel_cases import VARIANTS, Case, Operands, attention
from row_places import classes
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)
from test_numeric_class import TINY, Host

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.generation import generator as generators
from aicf.generation.decoding import Decode, Prefill
from aicf.types import DType, f16, f32

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
    for n, one in zip(order, written(together, [prompts[n] for n in order], count)):
        found += [f"prompt {n} in {order}"] * (not same(one[1], wanted[n][1]))
    for n, prompt in enumerate(prompts):
        (one,) = written(alone, [prompt], count)
        found += [f"prompt {n} alone"] * (not same(one[1], wanted[n][1]))
    tokens = draw.integers(0, WORDS, (most, sizes.length)).astype(
        np.int32
    )  # others follow: the model is causal
    for n, (row, _) in enumerate(wanted):
        tokens[n, : len(row)] = row
    for n, row in enumerate(aicf.generate(program, prompts, count, temperature=0.0, cache=False)):
        found += [f"prompt {n} without a cache"] * (row.tolist() != wanted[n][0].tolist())
    step = aicf.compile(model, "train", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.1), **how)
    one = int(draw.integers(most))
    row = wanted[one][0][None]
    passes = {
        "a forward pass": program({"tokens": tokens}), "a forward pass over it alone": program({"tokens": row}),
        "a training step": step({"tokens": tokens, "y": tokens.astype(np.int64)}),
    }  # fmt: skip
    for name, results in passes.items():
        logits = np.asarray(results["output"])
        for n in range(most) if len(logits) > 1 else [one]:
            first = len(prompts[n]) - 1
            part = logits[n if len(logits) > 1 else 0, first : first + count]
            found += [f"prompt {n} in {name}"] * (not same(wanted[n][1], part))
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


def answers(
    program: Any,
    prompts: Sequence[np.ndarray],
    draw: np.random.Generator,
    batches: Sequence[int],
    rounds: int,
    length: int,
) -> list[int]:
    """How many different greedy answers each prompt has, of one in each round: all prompts are shuffled, and divided into batches of drawn sizes."""
    loops = {n: aicf.Generator(program, batch=n, length=length) for n in batches}
    said: list[set[bytes]] = [set() for _ in prompts]
    for _ in range(rounds):
        order = draw.permutation(len(prompts)).tolist()
        while order:
            batch = int(draw.choice(batches))
            some, order = order[:batch], order[batch:]
            count = length + 1 - max(map(len, prompts))
            for n, row in zip(some, loops[batch]([prompts[n] for n in some], count, temperature=0.0)):
                said[n].add(row.tobytes())
    return [len(one) for one in said]


@pytest.mark.spec("A15", "C12")
def test_greedy_answers_are_one_in_shuffled_batches_on_the_cpu(request):
    """60 answers, of 6 prompts."""
    draw = rng(request.node.nodeid)
    program = aicf.compile(llama(4, ON_CPU), device="cpu", invariant=True)
    found = answers(program, drawn_prompts(draw, 6, 68), draw, (1, 4), 10, ON_CPU.length)
    assert found == [1] * 6


@pytest.mark.gpu
@pytest.mark.spec("A15", "C12")
def test_a_thousand_greedy_answers_are_one_for_each_prompt(gpu, request):  # noqa: F811
    """40 prompts, 25 times each, by a model of GPT-2's width: with invariant rows one answer each. Without them their numbers are printed."""
    draw, sizes = rng(request.node.nodeid), Sizes(length=200, size=768, heads=12, depth=4)
    prompts = drawn_prompts(draw, 40, 150)
    found = {}
    for invariant in (True, False):
        program = aicf.compile(gpt2(1, sizes), device="cuda", policy="bf16", invariant=invariant)
        found[invariant] = answers(program, prompts, draw, (1, 6, 40), 25, sizes.length)
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


@pytest.mark.parametrize("make", (gpt2, llama))
@pytest.mark.spec("A15", "B13", "C12")
def test_prompts_steps_and_forward_passes_have_one_class_of_attention(make, request):
    """Of a drawn batch and a batch of one, drawn caches and lengths of prompts, on a drawn device."""
    draw, found = rng(request.node.nodeid), set()
    device, policy, heads = (
        str(draw.choice(["h200", "a100", "l4"])),
        str(draw.choice(POLICIES)),
        2 * int(draw.integers(1, 7)),
    )
    sizes = Sizes(2048, heads * int(draw.choice([16, 64, 128])), heads, 1)
    for batch, length in (int(draw.integers(2, 100)), int(draw.integers(2, 2048))), (1, 16):
        model, shorter = make(batch, sizes), make(batch, replace(sizes, length=length))
        for plan in Decode(model, batch, length), Prefill(model, batch, 2048, WORDS, length), shorter:
            found |= classes_of(plan, device, policy, "attention")
    assert len(found) == 1, (device, policy, sizes, found)


# --- kernels --------------------------------------------------------------------------------------------------------------


def drawn_attention(draw: np.random.Generator, dtype: DType) -> tuple[dict[str, Any], list[np.ndarray]]:
    """A causal attention over as many keys as queries: its attributes; q, k and v, of heads that share keys or do not."""
    heads, group, length = int(draw.integers(1, 4)), int(draw.integers(1, 5)), int(draw.integers(2, 600))
    d, window = int(draw.choice([16, 64, 80, 128])), int(draw.choice([0, 0, 50, 300]))
    shapes = (1, heads * group, length, d), (1, heads, length, d), (1, heads, length, d)
    attrs = {"causal": True, "window": window, "softcap": float(draw.choice([0.0, 0.0, 5.0]))}
    return attrs, [draw.standard_normal(shape).astype(dtype.numpy) for shape in shapes]


def differing_queries(
    attrs: dict[str, Any],
    dtype: DType,
    arrays: list[np.ndarray],
    device: Any,
    run: Any,
    draw: np.random.Generator,
    count: int = 3,
    names: Any = None,
) -> list[str]:
    """Kernels whose queries differ, in a bit, from those of the first kernel of their class over the whole sequence: over the sequence, over its
    beginning, and over a cache of more keys than exist."""
    q, k, v = arrays
    length, wanted, found = q.shape[-2], {}, []
    drawn = [sorted(draw.choice(length + 1, 2, replace=False).tolist()) for _ in range(count - 1)]
    cuts = [(0, length), *drawn, *((at, at + 1) for at in draw.integers(0, length, count).tolist())]
    for first, last in cuts:
        for places in (last, length + int(draw.integers(0, length))):
            cached = places > last or last - first == 1
            caches = [np.full((*x.shape[:2], places, x.shape[-1]), 9, x.dtype) for x in (k, v)]
            for cache, x in zip(caches, (k, v)):
                cache[..., :last, :] = x[..., :last, :]
            given = [
                np.ascontiguousarray(q[..., first:last, :]),
                *caches,
                *([np.array([last], np.int32)] * cached),
            ]
            made = attention(given[0].shape, caches[0].shape, dtype=dtype, ragged=cached, **attrs)
            made = replace(made, strict=True, invariant=True)
            for id, numeric in classes(made, device).items():
                if names is not None and id not in names:
                    continue
                got = run(Case(id, made), Operands(given, [x.reshape(-1) for x in given]))
                if (first, last, cached) == (0, length, False):
                    wanted.setdefault(numeric, got)
                if any(
                    a.tobytes() != np.ascontiguousarray(b[:, :, first:last]).tobytes()
                    for a, b in zip(got, wanted[numeric])
                ):
                    found.append(f"{id}: queries {first} to {last} of {places} keys, {attrs}, {q.shape}")
    return found


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A15", "B14")
def test_a_query_has_equal_bits_over_any_number_of_keys_on_the_host(request):
    """By the kernel of CUDA cores, and the LLVM that a GPU gets."""
    draw = rng(request.node.nodeid)
    attrs, (q, k, v) = drawn_attention(draw, f32)
    some = [x[:, :1, :90, :16].copy() for x in (q, k, v)]
    names = [id for id in VARIANTS if id.startswith("cuda.attention_plain.")]
    assert names and not differing_queries(attrs, f32, some, TINY, Host(), draw, 1, names)


@pytest.mark.gpu
@pytest.mark.spec("A15", "B14")
def test_attention_of_one_class_gives_a_query_equal_bits_over_any_number_of_keys(gpu, request):  # noqa: F811
    """6 drawn attentions, by every kernel that has a class."""
    draw = rng(request.node.nodeid)
    run = lambda case, operands: launch_case(gpu, case, operands.memory)  # noqa: E731
    for n in range(6):
        dtype = (f16, f16, f32)[n % 3]
        attrs, arrays = drawn_attention(draw, dtype)
        assert not differing_queries(attrs, dtype, arrays, gpu.spec, run, draw)
