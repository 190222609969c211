"""aicf.generate: which token is drawn, how often, and from what; prompts of any lengths; what can't be."""

import numpy as np
import pytest
from draws.seeds import rng

import aicf
from aicf import nn
from aicf.errors import AicfError, FeedError

WORDS = 7
NEXT = np.array([3, 0, 5, 6, 2, 1, 4])  # one cycle


def chain(logits, length=5):
    """A model that sees the last token alone: row w of the table are the logits behind w."""
    model = nn.Model({"x": aicf.TensorSpec(("batch", "length"), aicf.i32)}, batch=2, length=length)
    program = aicf.compile(model.add(nn.Embedding(WORDS, WORDS)), device="cpu")
    program.load_state_dict({"0.weight": np.asarray(logits, np.float32)})
    return program


def test_greedy_follows_the_greatest_behind_prompts_of_any_length():
    program, streamed = chain(5 * np.eye(WORDS)[NEXT]), []
    prompts = [[0], np.array([1, 1, 4], np.uint8), [2] * 9]  # the last is longer than the window
    said = aicf.generate(
        program, prompts, 8, temperature=0, stream=lambda n, token: streamed.append((n, token))
    )
    for prompt, row in zip(prompts, said):
        want = list(prompt)
        for _ in range(8):
            want.append(NEXT[want[-1]])
        assert row.tolist() == want and row.dtype == np.int32
    assert streamed == [(n, int(said[n][len(prompts[n]) + k])) for k in range(8) for n in range(3)]
    assert [r.tolist() for r in aicf.generate(program, prompts, 0)] == [list(p) for p in prompts]
    assert aicf.generate(program, [], 5) == []


def test_a_stop_ends_its_sequence_and_no_other():
    program = chain(5 * np.eye(WORDS)[NEXT])
    said = aicf.generate(program, [[0], [1]], 6, temperature=0, stop=6)
    assert said[0].tolist() == [0, 3, 6] and said[1].tolist() == [1, 0, 3, 6]
    assert aicf.generate(program, [[0]], 6, temperature=0, stop=(4, 2))[0].tolist() == [0, 3, 6, 4]
    for stop in (np.array(6), np.int8(6), np.array([6, 2]), [np.array(6)], {6}):
        assert aicf.generate(program, [[0]], 6, temperature=0, stop=stop)[0].tolist() == [0, 3, 6]


def test_a_sequence_is_the_same_whatever_is_beside_it():
    program = chain(np.random.default_rng().normal(size=(WORDS, WORDS)))
    both = aicf.generate(program, [[1], [2, 3]], 12, seed=5)
    assert aicf.generate(program, [[1], [6, 6, 6]], 12, seed=5)[0].tolist() == both[0].tolist()
    assert any((a != b).any() for a, b in zip(aicf.generate(program, [[1], [2, 3]], 12, seed=6), both))


@pytest.mark.spec("A15")
def test_a_prompt_with_a_seed_of_its_own_draws_alike_at_any_index(request):
    """Of 10 drawn batches, as it does alone with its seed; with and without a cache, and by a loop behind `start`."""
    draw = rng(request.node.nodeid)
    program = chain(draw.normal(size=(WORDS, WORDS)), length=24)
    prompts = [draw.integers(0, WORDS, int(draw.integers(1, 9))) for _ in range(6)]
    seeds = draw.integers(0, 2**62, 6)
    want = [aicf.generate(program, [p], 8, seed=int(s))[0].tolist() for p, s in zip(prompts, seeds)]
    generator = aicf.Generator(program, batch=6)
    for _ in range(10):
        order = draw.permutation(6)[: int(draw.integers(1, 7))]
        batch, own = [prompts[n] for n in order], seeds[order]
        said = aicf.generate(program, batch, 8, seed=own, cache=bool(draw.random() < 0.5))
        assert [r.tolist() for r in said] == [want[n] for n in order]
    generator.start(prompts, seed=tuple(seeds.tolist()))
    drawn = np.array([generator.decode({})["output"].numpy() for _ in range(8)]).T
    assert drawn.tolist() == [row[-8:] for row in want]


def test_a_causal_model_sees_what_stands_before_and_nothing_behind():
    class Tiny(nn.Layer):
        def __init__(self):
            self.embed = nn.Embedding(WORDS, 8)
            self.block = nn.TransformerBlock(8, nn.MultiHeadAttention(8, 2, rope=100.0), nn.MLP(8))
            self.head = nn.Linear(8, WORDS)

        def emit(self, ctx, tokens):
            return self.head(self.block(self.embed(tokens)))

    model = nn.Model({"x": aicf.TensorSpec(("batch", "length"), aicf.i32)}, Tiny(), batch=1, length=6)
    program = aicf.compile(model, device="cpu")
    prompts = [[1], [2, 3, 4, 5], [6, 5, 4, 3, 2, 1, 0]]
    said = aicf.generate(program, prompts, 5, temperature=0)
    for prompt, row in zip(prompts, said):
        want = list(prompt)
        for _ in range(5):  # of exactly the tokens that there are, in a run of its own
            want.append(
                int(program({"x": np.array([want[-6:]], np.int32)})["output"].numpy()[0, -1].argmax())
            )
        assert row.tolist() == want
    assert [r.tolist() for r in aicf.generate(program, prompts[:1], 3, temperature=0, length=9)] == [
        said[0][:4].tolist()
    ]


@pytest.mark.parametrize(
    "how, what",
    [
        ({"temperature": -1}, "temperature can't be -1"),
        ({"temperature": np.nan}, "temperature can't be nan"),
        ({"top_k": 0}, "top_k can't be 0"),
        ({"top_k": 1.5}, r"top_k can't be 1\.5"),
        ({"top_p": 0}, "top_p can't be 0"),
        ({"top_p": 1.1}, r"top_p can't be 1\.1"),
        ({"repetition_penalty": 0}, "repetition_penalty can't be 0"),
        ({"count": -1}, "count can't be -1"),
        ({"length": 0}, "length can't be 0"),
        ({"prompts": [[]]}, "prompt 0 is no sequence of tokens"),
        ({"prompts": [[1], [1.5]]}, "prompt 1 is no sequence of tokens"),
        ({"prompts": "text"}, "prompt 0 is no sequence of tokens"),
        ({"prompts": [[99]]}, "index 99"),
        ({"prompts": [[2**40]]}, "prompt 0 has a token that is no id"),
        ({"prompts": [[-1]]}, "prompt 0 has a token that is no id"),
        ({"prompts": [[[1], [2, 3]]]}, "prompt 0 is no sequence of tokens"),
        ({"seed": -1}, "seed can't be -1"),
        ({"seed": [-1]}, r"seed can't be \[-1\]"),
        ({"seed": [1.5]}, r"seed can't be \[1\.5\]"),
        ({"seed": "a"}, "seed can't be 'a'"),
        ({"seed": [1, 2]}, "2 seeds for 1 prompts"),
        ({"stop": [2.7]}, r"stop can't be \[2\.7\]"),
        ({"stop": 2.7}, r"stop can't be 2\.7"),
        ({"stop": "a"}, "stop can't be 'a'"),
        ({"stop": [3, True]}, r"stop can't be \[3, True\]"),
        ({"stop": np.array([[3]])}, "stop can't be array"),
        ({"repetition_penalty": 1e-46}, "repetition_penalty can't be 1e-46"),
        ({"repetition_penalty": 1e39}, "repetition_penalty can't be 1e"),
        ({"top_p": 1e-46}, "top_p can't be 1e-46"),
        ({"temperature": 1e39}, "temperature can't be 1e"),
        ({"temperature": 10**400}, "temperature can't be 1000"),
    ],
)
def test_what_can_t_be(how, what):
    with pytest.raises(AicfError, match=what):
        aicf.generate(**{"program": chain(np.eye(WORDS)), "prompts": [[1]], "count": 3, **how})


def test_ids_are_of_i32_whatever_a_model_is_fed():
    model = nn.Model({"x": aicf.TensorSpec(("batch", "length"), aicf.i64)}, batch=1, length=5)
    program = aicf.compile(model.add(nn.Embedding(WORDS, WORDS)), device="cpu")
    for token in (2**31, 2**40, 2**63):
        with pytest.raises(FeedError, match="prompt 1 has a token that is no id") as error:
            aicf.generate(program, [[1], [token]], 2)
        assert f"0 to {2**31 - 1}" in str(error.value)
    assert aicf.generate(program, [np.array([1, 2], np.uint64)], 2)[0].dtype == np.int64


class Mean(nn.Layer):
    def emit(self, ctx, x):
        return x.mean(1)


def test_the_smallest_temperatures_are_greedy():
    program = chain(5 * np.eye(WORDS)[NEXT])
    for temperature in (1e-309, 1e-30):
        assert aicf.generate(program, [[0]], 3, temperature=temperature)[0].tolist() == [0, 3, 6, 4]


def test_programs_that_write_nothing():
    model = nn.Model({"x": ("batch", 4)}, batch=2).add(nn.Linear(4, 2))
    with pytest.raises(AicfError, match="no token ids"):
        aicf.generate(aicf.compile(model, device="cpu"), [[1]], 3)
    grad = aicf.compile(model, "grad", device="cpu", loss=nn.MeanSquaredError())
    with pytest.raises(AicfError, match="this can't generate"):
        aicf.generate(grad, [[1]], 3)
    with pytest.raises(AicfError, match="this can't generate"):
        aicf.generate(model, [[1]], 3)
    last = nn.Model({"x": aicf.TensorSpec(("batch", 5), aicf.i32)}, batch=1).add(nn.Embedding(WORDS, WORDS))
    with pytest.raises(AicfError, match="no logits for each token"):
        aicf.generate(aicf.compile(last.add(Mean()), device="cpu"), [[1]], 3)
    nan = chain(np.full((WORDS, WORDS), np.nan))
    with pytest.raises(AicfError, match="logits of prompt 0 behind 1 tokens have NaN"):
        aicf.generate(nan, [[1]], 3)
    assert issubclass(FeedError, AicfError)
