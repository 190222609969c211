"""Texts with a few characters changed: each is accepted, or refused by one of two errors, at once."""

import os
import random
import time

from aicf.errors import TypeInferenceError
from aicf.frontends.stablehlo import infer_op

from .instances import instances
from .mlir_worker import Instance

COUNT = 40_000 if os.environ.get("AICF_TEST_ALL") else 4_000
MARKS = '<>()[]{},:;=x?0123456789 #!@%^"-.abfiu\\\n\x00é'
WORDS = ["1", "2", "i64", "f32", "tensor", "dense", "array", " ", ", ", ": "]
OTHERS = ["", "1", "-1", "i1", "9" * 30, "x", '"', "dense<", "tensor<"]


def scratched(rng: random.Random, text: str) -> str:
    """A text with a part left out, doubled, added or replaced."""
    if not text:
        return text
    way, a, b = rng.randrange(7), *sorted((rng.randrange(len(text)), rng.randrange(len(text))))
    if way == 0:
        return text[:a] + text[a + 1 :]
    if way == 1:
        return text[:a] + rng.choice(MARKS) + text[a:]
    if way == 2:
        return text[:a] + rng.choice(MARKS) + text[a + 1 :]
    if way == 3:
        return text[:a] + text[b:]
    if way == 4:
        return text[:b] + text[a:b] + text[b:]
    if way == 5:
        return text[:a]
    return text.replace(rng.choice(WORDS), rng.choice(OTHERS), 1)


def changed(rng: random.Random, given: Instance) -> Instance:
    made = Instance(
        given.name,
        list(given.operands),
        dict(given.attributes),
        given.results and list(given.results),
        given.bodies and list(given.bodies),
    )
    places = [
        (each, key)
        for each in (made.operands, made.results or [], made.bodies or [])
        for key in range(len(each))
    ]
    places += [(made.attributes, key) for key in made.attributes]
    for _ in range(rng.choice([1, 1, 2, 3]) if places else 0):
        where, key = rng.choice(places)
        where[key] = scratched(rng, where[key])
    return made


def test_whatever_the_text_says_there_are_two_errors():
    rng, longest = random.Random(7), 0.0
    kinds = {"accepted": 0, "refused": 0, "lacking": 0}
    for each in instances(COUNT, seed=7):
        given = changed(rng, each)
        began = time.process_time()
        try:
            infer_op(given.name, given.operands, given.attributes, given.results, given.bodies)
            kinds["accepted"] += 1
        except TypeInferenceError as refused:
            assert refused.message and len(str(refused)) < 8000
            kinds["refused"] += 1
        except NotImplementedError as lacking:
            assert str(lacking)
            kinds["lacking"] += 1
        longest = max(longest, time.process_time() - began)
    assert longest < 0.5
    assert kinds["accepted"] > COUNT / 50 and kinds["refused"] > COUNT / 2
