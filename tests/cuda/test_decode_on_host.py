"""Attention of few queries over many keys, run on the host: shares of keys, rows of several heads, lengths, windows; what lies behind a
length is never read."""

from __future__ import annotations

import re

import numpy as np
import pytest
from kernel_cases import (
    DECODE,
    VARIANTS,
    Case,
    assert_close,
    attention,
    desc,
    operands_for,
    reference,
    region,
)
from machines.on_host import OnHost
from test_fused_maps import fresh_seed

from aicf.device.spec import preset
from aicf.types import bf16, f16, f32

H200 = preset("h200")
TOLERANCE = {f32: 2e-5, f16: 2e-3, bf16: 2e-2}
CASES = [
    Case(DECODE, attention(q, k, dtype=t, **asked), TOLERANCE[t])
    for n, (q, k, asked) in enumerate((
        ((2, 4, 1, 64), (2, 4, 150, 64), {"ragged": True, "causal": True}),
        ((1, 6, 1, 80), (1, 2, 90, 80), {"causal": True}),
        ((3, 2, 3, 32), (3, 1, 70, 32), {"ragged": True, "causal": True, "window": 20, "softcap": 3.0}),
        ((8, 2, 256), (1, 40, 256), {"scale": 0.1}),
        ((2, 2, 16, 8), (2, 2, 33, 8), {"ragged": True, "causal": True}),
        ((2, 1, 128), (2, 300, 128), {"causal": True, "window": 100}),
    ))
    for t in [(f32, f16, bf16)[n % 3], (f16, bf16, f32)[n % 3]]
]  # fmt: skip


def on_host(case: Case, operands: list[np.ndarray], device=H200) -> list[np.ndarray]:
    variant = VARIANTS[case.variant]
    assert (reject := variant.supported(case.region, device)) is None, reject
    results = [np.full(t.shape, 77).astype(t.dtype.numpy) for t in case.region.results]
    workspace = np.full(variant.query_workspace(case.region, device), 255, np.uint8)
    for launch in variant.build(case.region, device):
        OnHost(launch, case.region)(operands, results, workspace)
    return results


@pytest.mark.sample(3, pool="on the host")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_reference(case):
    operands = operands_for(case, fresh_seed())
    want = reference(case, operands.arrays)
    if len(operands.arrays) == 4:  # NaN where no key exists
        _, k, v, lengths = operands.arrays
        for n, length in enumerate(lengths):
            k[n, :, length:] = v[n, :, length:] = np.nan
    assert_close(case, on_host(case, operands.arrays), want)


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("F2")
def test_what_is_no_number_and_what_sees_nothing():
    case = Case(DECODE, attention((3, 2, 2, 32), (3, 2, 70, 32), ragged=True, causal=True))
    q, k, v, _ = operands_for(case, fresh_seed()).arrays
    k[0, 0, 65, 3], k[1, 1, 3, 0], lengths = np.nan, np.inf, np.array([70, 70, 1], np.int32)
    out, lse = on_host(case, [q, k, v, lengths])
    assert np.isnan(out[0, 0]).all() and np.isfinite(out[0, 1]).all() and np.isfinite(out[1, 0]).all()
    assert not out[2, :, 0].any() and (lse[2, :, 0] == -np.inf).all()
    np.testing.assert_allclose(out[2, :, 1], v[2, :, 0], rtol=1e-6)


@pytest.mark.spec("F2")
def test_says_what_it_does_not_take():
    variant = VARIANTS[DECODE]
    for given, why in (
        (attention((2, 17, 64), (2, 90, 64)), "1 to 16 queries of a head, these are 17"),
        (attention((2, 0, 64), (2, 90, 64)), "these are 0"),
        (attention((2, 1, 64), (2, 90, 64), dv=32), "of one length, of whole 16 bytes; these are 64 and 32"),
        (attention((2, 1, 6), (2, 90, 6), dtype=f16), "these are 6 and 6"),
        (attention((2, 1, 512), (2, 90, 512)), "d"),
        (attention((2, 1, 64), (2, 90, 64), mask=(90,)), "no mask from memory"),
        (attention((2, 1, 64), (2, 90, 64), bias=(90,)), "no bias from memory"),
        (attention((2, 1, 64), (2, 90, 64), alignment=4), "16 bytes at once"),
        (region("attention", *3 * [desc((2, 1, 64), stride=(256, 128, 1))]), "needs row-major"),
    ):
        reject = variant.supported(given, H200)
        assert reject is not None and re.search(why, str(reject)), reject


@pytest.mark.spec("F2")
def test_is_chosen_where_queries_are_few_and_keys_many():
    plain = VARIANTS["cuda.attention_plain.v1"]
    for heads, keys in ((8, 1000), (64, 4096)):
        few = attention((1, heads, 1, 128), (1, heads // 4, keys, 128), dtype=bf16, ragged=True, causal=True)
        assert VARIANTS[DECODE].cost(few, H200).us < plain.cost(few, H200).us
    longer = [
        VARIANTS[DECODE].cost(attention((32, 32, 1, 128), (32, 8, n, 128), dtype=bf16), H200).us
        for n in (4096, 8192)
    ]
    assert 1.7 < longer[1] / longer[0] < 2.2  # bandwidth
