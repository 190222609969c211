"""Drawing tokens and marking them, run on the host: the tokens of the reference, which is held to frequencies in tests/ops."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import (
    VARIANTS,
    Case,
    cache_write,
    desc,
    mark_tokens,
    operands_for,
    reference,
    region,
    sample_tokens,
)
from machines.on_host import OnHost
from test_fused_maps import fresh_seed

from aicf.device.spec import preset
from aicf.types import bf16, f16, f32, i32, row_major

NAME = "cuda.sample_tokens.v1"


def on_host(case: Case, *many: list[np.ndarray]) -> list[list[np.ndarray]]:
    launches = [
        OnHost(launch, case.region) for launch in VARIANTS[case.variant].build(case.region, preset("h200"))
    ]
    made = []
    for operands in many:
        results = [np.full(t.shape, 77).astype(t.dtype.numpy) for t in case.region.results]
        for launch in launches:
            launch(operands, results, np.empty(0, np.uint8))
        made.append(results)
    return made


def numbers(temperature=1.0, top_k=0, top_p=1.0, penalty=1.0):
    return [np.array(x, np.float32) for x in (temperature, top_k, top_p, penalty)]


HOWS = [
    numbers(0.0), numbers(), numbers(0.7, 40), numbers(1.3, 0, 0.8), numbers(1.0, 9, 0.6, 1.3), numbers(1e-40), numbers(0.0, 3, 0.5, 2.0),
    numbers(1.0, 1), numbers(1.0, 0, 1e-9), numbers(5.0, 10**6, 0.999),
]  # fmt: skip


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
@pytest.mark.parametrize("words", [3, 700])
def test_draws_the_tokens_of_the_reference(dtype, words):
    case, rng = Case(NAME, sample_tokens(4, words, dtype)), np.random.default_rng(fresh_seed())
    many = []
    for how in [HOWS[n] for n in rng.permutation(len(HOWS))[:4]]:
        logits = (3 * rng.normal(size=(4, words))).astype(dtype.numpy)
        logits[1] = np.round(logits[1])  # equals
        logits[2, rng.random(words) < 0.5] = -np.inf
        logits[2, words // 2] = 0
        if len(many) % 4 == 3:
            logits[3, rng.integers(words)] = (np.nan, np.inf)[len(many) % 8 // 4]
        seeds, places = rng.integers(2**63, size=4), rng.integers(9999, size=4).astype(np.int32)
        many.append([logits, rng.random((4, words)) < 0.3, seeds, places, *how])
    off = 0
    for operands, (got,) in zip(many, on_host(case, *many)):
        (want,) = reference(case, operands)
        off += int((got != want).sum())
        assert got.dtype == np.int32 and (got >= -1).all() and (got < words).all()
    assert off <= 1, "exp may differ in its last place, and so may one draw of thousands"


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("case", [
    Case("cuda.mark_tokens.v1", mark_tokens(4, 300, 5)), Case("cuda.cache_write.v1", cache_write((3,), 2, 40, 3, 8, 5, bf16)),
], ids=str)  # fmt: skip
def test_writes_what_the_reference_does_in_place_and_not(case):
    operands = operands_for(case, fresh_seed())
    launches = VARIANTS[case.variant].build(case.region, preset("h200"))
    wants = reference(case, operands.arrays)
    in_place = [x.copy() for x in operands.memory]
    results = [x.reshape(t.shape) for x, t in zip(in_place, case.region.results)]
    apart = [np.zeros(t.shape, t.dtype.numpy) for t in case.region.results]
    for launch in [OnHost(x, case.region) for x in launches]:
        launch(operands.memory, apart, np.empty(0, np.uint8))
        launch(in_place, results, np.empty(0, np.uint8))
    for got, other, want in zip(apart, results, wants):
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
        np.testing.assert_array_equal(other.astype(np.float32), want.astype(np.float32))


@pytest.mark.sample(1)
@pytest.mark.spec("F2")
@pytest.mark.parametrize("batch", [(3,), (2, 2), ()])
def test_new_rows_are_read_where_a_projection_left_them(batch):
    """Heads of the keys and values of a projection: slices of its columns, transposed."""
    heads, places, rows, d = 2, 9, 3, 4
    each = 3 * heads * d
    strides = (*row_major((*batch, rows * each))[:-1], d, each, 1)
    cache, new = (desc((*batch, heads, n, d), bf16, s) for n, s in ((places, None), (rows, strides)))
    case = Case("cuda.cache_write.v1", region("cache_write", cache, cache, new, new, desc(batch, i32)))
    assert VARIANTS[case.variant].supported(case.region, preset("h200")) is None
    operands = operands_for(case, fresh_seed())
    apart = [np.zeros(t.shape, t.dtype.numpy) for t in case.region.results]
    for launch in VARIANTS[case.variant].build(case.region, preset("h200")):
        OnHost(launch, case.region)(operands.memory, apart, np.empty(0, np.uint8))
    for got, want in zip(apart, reference(case, operands.arrays)):
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


def test_batches_that_no_stride_walks_are_refused():
    new = desc((2, 2, 2, 3, 4), bf16, (1000, 24, 12, 4, 1))
    cache = desc((2, 2, 2, 9, 4), bf16)
    r = region("cache_write", cache, cache, new, new, desc((2, 2), i32))
    assert "apart by more than one stride" in str(
        VARIANTS["cuda.cache_write.v1"].supported(r, preset("h200"))
    )
