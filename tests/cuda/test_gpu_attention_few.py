"""A token's attention has the same bits in a prompt, by Hopper's kernel, and alone with a cache of keys, by that of few queries: on a GPU.

Each test draws a form (type, head size, softcap), for which kernels are compiled, and several shapes, masks and strides of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cached_attention import Form, Prompt, differing_places, invariant
from draws.seeds import rng
from kernel_cases import (
    ATTENTION,
    FEW_ATTENTION,
    HOPPER_ATTENTION,
    MMA_ATTENTION,
    TURING_ATTENTION,
    VARIANTS,
    Case,
    attention,
    desc,
    operands_for,
    region,
    with_specials,
)
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401

from aicf.rows import RegionSpec
from aicf.types import bf16, f16

pytestmark = pytest.mark.gpu
FORMS = 8  # drawn, for each test


def drawn_form(draw: np.random.Generator, number: int) -> Form:
    """Head sizes at multiples of 8, as tensor maps need them; every fourth form has a softcap."""
    d = int(draw.choice([64, 128, 8 * draw.integers(2, 17)]))
    dv = int(draw.choice([d, d, 8 * draw.integers(2, 17)]))
    return Form((bf16, f16)[number % 2], d, dv, 5.0 if number % 4 == 3 else 0.0)


def drawn_region(draw: np.random.Generator, form: Form, queries: int, keys: int, **asked: Any) -> RegionSpec:
    """Of so many queries and keys, with drawn heads; half of them have rows of a wider matrix."""
    batch, heads, group = (int(draw.integers(1, n)) for n in (4, 4, 5))
    wider, sizes = (
        bool(draw.integers(2)),
        ((heads * group, queries, form.d), (heads, keys, form.d), (heads, keys, form.dv)),
    )

    def described(of: int, rows: int, d: int) -> Any:
        shape, several = (batch, of, rows, d), of + int(draw.integers(3))
        return desc(shape, form.dtype, (rows * several * d, d, several * d, 1) if wider else None)

    descs = [described(*size) for size in sizes]
    return invariant(region("attention", *descs, softcap=form.softcap, **asked))


def drawn_masks(draw: np.random.Generator) -> dict[str, Any]:
    return {"causal": bool(draw.integers(3)), "window": int(draw.choice([0, 0, draw.integers(1, 400)]))}


def same_bits(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b))


def bits_by_both(gpu: Any, r: RegionSpec, seed: int, specials: bool = False) -> bool:  # noqa: F811
    assert VARIANTS[FEW_ATTENTION].numeric_class(r, gpu.spec) == VARIANTS[HOPPER_ATTENTION].numeric_class(r, gpu.spec)  # fmt: skip
    few, hopper = (Case(v, r) for v in (FEW_ATTENTION, HOPPER_ATTENTION))
    operands = operands_for(few, seed)
    if specials:
        operands = with_specials(few, operands, seed)
    return same_bits(*(launch_case(gpu, case, operands.memory) for case in (few, hopper)))


@pytest.fixture
def hopper(gpu):  # noqa: F811
    if "sm_90a" not in gpu.spec.features:
        pytest.skip("needs sm_90a")
    return gpu


@pytest.mark.spec("F2", "A15")
@pytest.mark.parametrize("number", range(FORMS))
def test_few_queries_have_the_bits_of_hoppers_kernel(hopper, request, number):
    draw = rng(request.node.nodeid)
    form, differing = drawn_form(draw, number), []
    for _ in range(8):
        queries, keys = (
            int(draw.integers(1, 200)),
            int(draw.choice([draw.integers(1, 1500), 128 * draw.integers(1, 9)])),
        )
        r = drawn_region(draw, form, queries, keys, **drawn_masks(draw))
        if not bits_by_both(hopper, r, int(draw.integers(2**32))):
            differing.append(str(Case(FEW_ATTENTION, r)))
    assert not differing


@pytest.mark.spec("F2", "A15")
@pytest.mark.parametrize("number", range(2))
def test_numbers_that_are_none_have_the_bits_of_hoppers_kernel(hopper, request, number):
    """All queries see all keys: values of hidden keys must be finite."""
    draw = rng(request.node.nodeid)
    form = drawn_form(draw, number)
    for _ in range(4):
        r = drawn_region(draw, form, int(draw.integers(1, 200)), int(draw.integers(1, 700)))
        assert bits_by_both(hopper, r, int(draw.integers(2**32)), specials=True), str(Case(FEW_ATTENTION, r))


def drawn_prompt(draw: np.random.Generator) -> Prompt:
    """All queries of a sequence, or its last ones."""
    keys = int(draw.integers(130, 900))
    queries, window = (
        int(draw.choice([keys, draw.integers(2, keys)])),
        int(draw.choice([0, draw.integers(1, 300)])),
    )
    return Prompt(
        queries,
        keys,
        int(draw.integers(1, 4)),
        int(draw.integers(1, 9)),
        window,
        keys + int(draw.integers(1, 400)),
    )


def differing(
    on: Any, draw: np.random.Generator, form: Form, *kernels: str, hidden: float = 1.0
) -> list[str]:
    run = lambda case, operands: launch_case(on, case, operands)  # noqa: E731
    return differing_places(run, draw, form, drawn_prompt(draw), kernels, 8, hidden)


@pytest.mark.spec("F2", "A15", "C12")
@pytest.mark.parametrize("number", range(FORMS))
def test_a_token_of_a_prompt_has_the_bits_that_it_has_alone_with_a_cache(hopper, request, number):
    draw = rng(request.node.nodeid)
    form = drawn_form(draw, number)
    prompts = HOPPER_ATTENTION, HOPPER_ATTENTION, FEW_ATTENTION
    assert not [x for prompt in prompts for x in differing(hopper, draw, form, prompt, FEW_ATTENTION)]


@pytest.mark.spec("F2", "A15", "C12")
@pytest.mark.parametrize("kernel", [ATTENTION, MMA_ATTENTION, TURING_ATTENTION])
def test_other_kernels_give_a_token_the_bits_that_it_has_alone(gpu, request, kernel):  # noqa: F811
    draw = rng(request.node.nodeid)
    for number in (1, 3):
        form = replace(drawn_form(draw, number), d=64, dv=64)
        assert not [x for _ in range(3) for x in differing(gpu, draw, form, kernel, kernel)]


@pytest.mark.spec("F2", "A15", "C12")
@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("kernel", [HOPPER_ATTENTION, MMA_ATTENTION, ATTENTION])
def test_hidden_keys_of_any_size_change_no_bit(hopper, request, kernel, number):
    draw = rng(request.node.nodeid)
    form = replace(drawn_form(draw, number), d=64, dv=64)
    alone = FEW_ATTENTION if kernel == HOPPER_ATTENTION else kernel
    assert not [x for size in (3e2, 1e4) for x in differing(hopper, draw, form, kernel, alone, hidden=size)]


@pytest.mark.spec("F2")
@pytest.mark.parametrize("queries", [1, 20])
def test_no_key_behind_a_length_is_read(gpu, queries):  # noqa: F811
    """They are NaN; sequences of no keys at all have zeros."""
    r = attention((4, 4, queries, 64), (4, 2, 300, 64), ragged=True, dtype=f16)
    case, lengths = Case(FEW_ATTENTION, r), np.array([0, 300, 128, 131], np.int32)
    q, k, v, _ = (x.copy() for x in operands_for(case, 3).arrays)
    for n, length in enumerate(lengths):
        k[n, :, length:] = v[n, :, length:] = np.nan
    out, lse = (x.astype(np.float64) for x in launch_case(gpu, case, [q, k, v, lengths]))
    assert not out[0].any() and (lse[0] == -np.inf).all()
    for n, h in ((n, h) for n in (1, 2, 3) for h in range(4)):
        own, keys, values = q[n, h], k[n, h // 2, : lengths[n]], v[n, h // 2, : lengths[n]]
        s = own.astype(np.float64) @ keys.astype(np.float64).T / 8
        p = np.exp(s - s.max(-1, keepdims=True))
        want = p @ values.astype(np.float64) / p.sum(-1, keepdims=True)
        np.testing.assert_allclose(out[n, h], want, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(lse[n, h], s.max(-1) + np.log(p.sum(-1)), rtol=1e-3, atol=1e-3)


@pytest.mark.spec("F2")
def test_equal_launches_have_equal_bits_each_time(gpu):  # noqa: F811
    case = Case(FEW_ATTENTION, attention((24, 8, 3, 128), (24, 2, 1000, 128), causal=True, dtype=bf16))
    operands = operands_for(case)
    first, *others = ([x.tobytes() for x in launch_case(gpu, case, operands.memory)] for _ in range(5))
    assert all(first == other for other in others)
