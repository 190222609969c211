"""Generation by a KV cache: the same tokens as from the whole window; ragged prompts; which models it can't serve, and why."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import AicfError, CacheError
from aicf.generation.decoding import Decode, words_of

WORDS, SIZE = 13, 16


class Speaker(nn.Layer):
    """places: an embedding of so many; what else is there is for the attention"""

    def __init__(self, places=None, depth=2, **how):
        self.embed = nn.Embedding(WORDS, SIZE)
        self.place = None if places is None else nn.Embedding(places, SIZE)
        self.blocks = [
            nn.TransformerBlock(SIZE, nn.MultiHeadAttention(SIZE, 4, **how), nn.SwiGLU(SIZE, 24), nn.RMSNorm)
            for _ in range(depth)
        ]
        self.norm, self.head = nn.LayerNorm(SIZE), nn.Linear(SIZE, WORDS)

    def emit(self, ctx, tokens):
        x = self.embed(tokens)
        if self.place is not None:
            x = x + self.place(ctx.positions(tokens.shape[-1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def speaker(layer, length=24, device="cpu", **how):
    tokens = {"x": aicf.TensorSpec(("batch", "length"), aicf.i32)}
    model = nn.Model(tokens, layer, batch=2, length=length, seed=int(np.random.default_rng().integers(99)))
    return aicf.compile(model, device=device, **how)


def alone(program, prompt, count):
    """Greedy, from a run of its own for each token; behind a token there is another's."""
    length, row = program.recipe.model.sizes["length"], list(prompt)
    for _ in range(count):
        window = np.array([[*row, *[5] * (length - len(row))]] * 2, np.int32)
        row.append(int(program({"x": window})["output"].numpy()[1, len(row) - 1].argmax()))
    return row


MODELS = {
    "places": lambda: Speaker(24),
    "rope": lambda: Speaker(rope=100.0),
    "grouped": lambda: Speaker(kv_heads=2, rope=nn.RoPE(4, interleaved=True), bias=False),
    "window": lambda: Speaker(window=3, kv_heads=1, rope=50.0),
    "both": lambda: Speaker(24, depth=1, rope=100.0, head_size=6, scale=0.3),
}
PROMPTS = [[1], [2, 3, 4, 5], [6, 5, 4, 3, 2, 1, 0], [7] * 19]


@pytest.mark.sample(2)
@pytest.mark.parametrize("model", MODELS)
def test_token_for_token_as_without_a_cache(model):
    program = speaker(MODELS[model]())
    said = aicf.generate(program, PROMPTS, 6, temperature=0, cache=True)
    for prompt, row in zip(PROMPTS, said):
        assert row.tolist() == alone(program, prompt, 6)
    again = aicf.generate(program, PROMPTS[::-1], 6, temperature=0, cache=True)  # over caches that are full
    assert [r.tolist() for r in again[::-1]] == [r.tolist() for r in said]
    whole = aicf.generate(program, PROMPTS, 6, temperature=0, cache=False)
    assert [r.tolist() for r in whole] == [r.tolist() for r in said]


def test_a_prompt_is_continued_as_it_is_alone():
    program = speaker(Speaker(rope=100.0))
    generator = aicf.Generator(program, batch=4)
    both = generator(PROMPTS, 5, seed=3)
    for n, prompt in enumerate(PROMPTS[:2]):  # a draw belongs to its place in the call
        others = [[9, 9, 9]] * n + [prompt]
        assert generator(others, 5, seed=3)[n].tolist() == both[n].tolist()
    assert generator([], 5) == []


def test_a_loop_of_ones_own_behind_start():
    generator = aicf.Generator(speaker(Speaker(rope=100.0)), batch=2)
    for how in ({"temperature": 0}, {"temperature": 2.0, "seed": 5}):
        want = [row[-6:].tolist() for row in generator(PROMPTS[:2], 6, **how)]
        for _ in range(2):  # from the beginning again
            generator.start(PROMPTS[:2], **how)
            made = [generator.decode({})["output"].numpy().copy() for _ in range(6)]
            assert np.transpose(made).tolist() == want
    with pytest.raises(CacheError, match="prompt 0 and what follows outgrow the cache"):
        generator.start([[1] * 25])
    with pytest.raises(CacheError, match="3 prompts are more"):
        generator.start([[1]] * 3)


def test_halves_and_weights_that_change():
    program = speaker(Speaker(rope=100.0), policy="bf16")
    generator = aicf.Generator(program, batch=1)
    caches = [t for name, t in generator.decode.variables._session.items() if ".keys." in name]
    assert len(caches) == 2 and all(v.tensor.dtype is aicf.bf16 for v in caches)
    state = program.state_dict()
    more = {name for name in generator.decode.state_dict() if name not in state}
    assert more == {f"sequences.{name}" for name in ("temperature", "top_k", "top_p", "repetition_penalty")}
    state["head.weight"] = np.zeros_like(state["head.weight"])
    state["head.bias"] = 5 * np.eye(WORDS, dtype=np.float32)[7]
    program.load_state_dict(state)
    assert generator([[1, 2]], 4, temperature=0)[0].tolist() == [1, 2, 7, 7, 7, 7]


def test_what_outgrows_the_cache_is_refused_and_the_window_slides():
    program = speaker(Speaker(rope=100.0), length=9)
    assert len(aicf.generate(program, [[1] * 4], 6, cache=True)[0]) == 10
    with pytest.raises(CacheError, match="prompt 1 and what follows outgrow the cache") as error:
        aicf.generate(program, [[1], [1] * 5], 6, cache=True)
    assert "at most 10 tokens" in str(error.value) and "5 and 6 more" in str(error.value)
    slid = aicf.generate(program, [[1] * 5], 9, temperature=0)[0].tolist()
    assert slid == aicf.generate(program, [[1] * 5], 9, temperature=0, cache=False)[0].tolist()
    assert len(aicf.generate(program, [[1] * 5], 9, length=20, cache=True)[0]) == 14
    with pytest.raises(CacheError, match="3 prompts are more than the generator takes"):
        aicf.Generator(program, 2)([[1]] * 3, 1)
    with pytest.raises(AicfError, match="batch can't be 0"):
        aicf.Generator(program, 0)


def test_generators_are_made_once_and_explain_both_plans():
    program = speaker(Speaker(rope=100.0))
    aicf.generate(program, [[1, 2]], 2)
    ((shape, generator),) = program._generators.waiting
    aicf.generate(program, [[3]], 4)
    assert program._generators.waiting == [(shape, generator)]
    for batch in (2, 3, 4, 5):  # each has caches of its own: the oldest goes
        aicf.generate(program, [[1]] * batch, 1)
    assert [key[0] for key, _ in program._generators.waiting] == [2, 3, 4, 5]
    text = str(generator.explain())
    assert "cache_write" in text and text.count("predicted") >= 2
    gemms = [str(plan.explain()).count("gemm_blas") for plan in (generator.prefill, generator.decode)]
    assert gemms[0] < gemms[1]  # prompts need no logits
    assert "Generator(1 prompts of up to 24 tokens" in repr(generator)


def test_new_keys_and_values_are_written_from_where_the_projection_left_them():
    model = nn.Model({"x": aicf.TensorSpec((3, "length"), aicf.i32)}, Speaker(places=24, depth=1), length=24)
    plan = aicf.explain_for(Decode(model, 3, 24), "h200").plan
    (writes,) = [step.region for step in plan.steps if step.region.kind.name == "cache_write"]
    k, v = (writes.tensors[t] for t in writes.anchor.inputs[2:4])
    assert k.stride == v.stride and (k.stride[0], k.stride[1], k.stride[3]) == (3 * SIZE, SIZE // 4, 1)


class Joined(nn.Layer):
    def __init__(self, join):
        self.embed, self.join = nn.Embedding(WORDS, WORDS), join

    def emit(self, ctx, x):
        return self.join(ctx, self.embed(x))


JOINS = {
    "reduce_mean joins places": lambda ctx, x: x - x.mean(1, keepdims=True),
    "reduce_mean joins sequences": lambda ctx, x: x - x.mean(0, keepdims=True),
    "reverse reads other places": lambda ctx, x: x[:, ::-1],
    "add reads what differs from place to place": lambda ctx, x: (
        x + ctx.iota(shape=(x.shape[1], 1), axis=0, dtype=aicf.f32)
    ),
    "softmax reads other places|reduce_max joins places|softmax joins places": lambda ctx, x: ctx.softmax(
        x, axis=1
    ),
    "gemm joins places": lambda ctx, x: (x @ x.mT) @ x,
    "attention is over keys that no cache keeps": lambda ctx, x: ctx.attention(x, x, x, causal=True),
    "attention is over keys that no cache keep": lambda ctx, x: ctx.attention(
        x[:, None], x[:, None], x[:, None]
    ).reshape(x.shape),
    "reshape splits the places|the model gives no logits|joins places": lambda ctx, x: x.transpose(
        0, 2, 1
    ).reshape(x.shape),
}


@pytest.mark.parametrize("why", JOINS)
def test_models_that_no_cache_can_serve_say_why(why):
    program = speaker(Joined(JOINS[why]), length=6)
    with pytest.raises(CacheError, match=why):
        aicf.Generator(program, 1)
    with pytest.raises(CacheError, match=why):
        aicf.generate(program, [[1]], 2, cache=True)
    assert len(aicf.generate(program, [[1]], 2)[0]) == 3  # from the whole window


def test_masks_and_attention_to_what_follows():
    for how, why in (({"causal": False}, "of causal=False can't keep its keys"),):
        with pytest.raises(CacheError, match=why):
            aicf.Generator(speaker(Speaker(**how)), 1)

    class Masked(Speaker):
        def emit(self, ctx, tokens):
            x, rows = self.embed(tokens), tokens.shape[1]
            here = ctx.iota(shape=(rows,), axis=0, dtype=aicf.i32)
            return self.head(self.blocks[0](x, mask=here[None, :] <= here[:, None]))

    with pytest.raises(CacheError, match="under a mask can't keep its keys"):
        aicf.Generator(speaker(Masked()), 1)


def test_layers_that_take_places_one_by_one():
    class Plain(nn.Layer):
        def __init__(self):
            self.embed, self.gate = nn.Embedding(WORDS, 8), nn.Linear(8, 16)

        def emit(self, ctx, x):
            y = self.gate(self.embed(x))
            left, right = y[..., :8], y[..., 8:]
            turned = ctx.concatenate(-right, left, axis=2).transpose(0, 2, 1).transpose(0, 2, 1)
            mean = turned.mean(-1, keepdims=True)
            return ctx.softmax(left * (turned - mean)[..., :8]) @ ctx.param("w", (8, WORDS), nn.init.normal())

    program = speaker(Plain(), length=6)
    assert words_of(program.recipe.model, 6) == WORDS
    assert aicf.generate(program, [[1, 2]], 4, temperature=0, cache=True)[0].tolist() == alone(
        program, [1, 2], 4
    )


def test_a_token_that_is_no_word_is_told():
    generator = aicf.Generator(speaker(Speaker(rope=100.0)), 2)
    for prompt in ([99], [99, 1]):
        with pytest.raises(AicfError, match="index 99"):
            generator([[1, 2], prompt], 3)
    assert generator([[1, 2]], 3)[0].shape == (5,)


def test_what_is_asked_of_the_draw_changes_no_plan_and_reaches_the_device():
    program = speaker(Speaker(rope=100.0))
    generator = aicf.Generator(program, 2)
    greedy = [r.tolist() for r in generator([[1], [2, 3]], 8, temperature=0)]
    assert [r.tolist() for r in generator([[1], [2, 3]], 8, top_k=1)] == greedy
    assert [r.tolist() for r in generator([[1], [2, 3]], 8, temperature=3.0, top_p=1e-6)] == greedy
    free = [r.tolist() for r in generator([[1], [2, 3]], 8, temperature=9.0, seed=1)]
    assert free == [r.tolist() for r in generator([[1], [2, 3]], 8, temperature=9.0, seed=1)]
    assert free != [r.tolist() for r in generator([[1], [2, 3]], 8, temperature=9.0, seed=2)]
    assert len(generator.decode._plans) == len(generator.decode._frozen) == 1
    for cache in (
        True,
        False,
    ):  # everything that was there is held back until all words are: a prompt's, and what followed
        said = aicf.generate(
            program, [[3, 4, 5]], WORDS - 3, temperature=0, repetition_penalty=1e30, cache=cache
        )
        assert sorted(said[0].tolist()) == list(range(WORDS)) or (said[0] >= 0).all()


def at_once(*calls):
    """What each gives, called three times in a thread of its own."""
    with ThreadPoolExecutor(len(calls)) as pool:
        tasks = [pool.submit(lambda call=call: [call() for _ in range(3)]) for call in calls]
        return [task.result() for task in tasks]


@pytest.mark.sample(1)
@pytest.mark.parametrize("cache", [True, False])
def test_calls_at_once_and_from_a_stream_have_sequences_of_their_own(cache):
    program = speaker(Speaker(rope=100.0))

    def said(n, **how):
        rows = aicf.generate(program, [[n], [n + 1]], 8, temperature=4 * (n % 2), seed=n, cache=cache, **how)
        return [row.tolist() for row in rows]

    want = [said(n) for n in range(4)]
    assert at_once(*(lambda n=n: said(n) for n in range(4))) == [[rows] * 3 for rows in want]
    inner = []
    assert said(0, stream=lambda n, token: inner.append(said(1))) == want[0]
    assert inner == [want[1]] * 16


def test_a_generator_writes_for_one_call_at_a_time():
    generator = aicf.Generator(speaker(Speaker(rope=100.0)), 2)

    def said(n, **how):
        return [row.tolist() for row in generator([[n], [n + 1]], 8, temperature=0, **how)]

    want = [said(n) for n in range(3)]
    assert at_once(*(lambda n=n: said(n) for n in range(3))) == [[rows] * 3 for rows in want]
    with pytest.raises(AicfError, match="called while it writes") as error:
        said(0, stream=lambda n, token: said(1))
    assert "one call at a time" in str(error.value) and "a second aicf.Generator" in str(error.value)
    assert said(1) == want[1]


@pytest.mark.gpu
def test_on_a_gpu_one_captured_graph_serves_every_step():
    program = speaker(MODELS["grouped"](), device="cuda")
    generator = aicf.Generator(program, batch=4)
    said = generator(PROMPTS, 6, temperature=0)
    for prompt, row in zip(PROMPTS, said):
        assert row.tolist() == alone(program, prompt, 6)
    (frozen,) = generator.decode._frozen.values()
    assert frozen.report.captured == frozen.report.total and len(generator.decode._plans) == 1
    drawn = [r.tolist() for r in generator(PROMPTS, 6, temperature=1.3, top_k=9, top_p=0.9, seed=4)]
    assert drawn == [r.tolist() for r in generator(PROMPTS, 6, temperature=1.3, top_k=9, top_p=0.9, seed=4)]
    assert len(generator.decode._frozen) == 1
    whole = aicf.generate(program, PROMPTS, 6, temperature=1.3, top_k=9, top_p=0.9, seed=4, cache=False)
    assert np.mean([a == b.tolist() for a, b in zip(drawn, whole)]) >= 0.5  # a draw may lie at an edge
