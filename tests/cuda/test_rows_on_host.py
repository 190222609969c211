"""Kernels over rows, run on the host: rows that begin anywhere, blocks that share a row, rows that are read again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_cases import (
    CLUSTER,
    HELD,
    ROW_TOLERANCE,
    ROWS,
    SERIAL,
    STREAMED,
    VARIANTS,
    Case,
    assert_close,
    desc,
    layer_norm,
    layer_norm_grad,
    logsumexp,
    operands_for,
    reference,
    region,
    repeated_rows,
    rms_norm,
    softmax,
    softmax_grad,
    with_specials,
)
from machines.on_host import OnHost
from test_fused_maps import fresh_seed

from aicf.device.spec import preset
from aicf.types import bf16, f16, f32

H200 = preset("h200")
MAKES = (softmax, softmax_grad, layer_norm, layer_norm_grad, rms_norm, logsumexp)
GUARD = 64  # elements before and behind each operand and result


def run(case: Case, *many: object) -> list[list[np.ndarray]]:
    """Results for each set of operands; what lies around operands is NaN, and what lies around results stays as it is."""
    variant, made = VARIANTS[case.variant], []
    assert (reject := variant.supported(case.region, H200)) is None, reject
    launches = [OnHost(launch, case.region) for launch in variant.build(case.region, H200)]
    for operands in many:
        given = []
        for x in operands.memory:
            memory = (
                np.full(x.size + 2 * GUARD, 255, x.dtype)
                if x.dtype.kind in "iu"
                else np.full(x.size + 2 * GUARD, np.nan, x.dtype)
            )
            memory[GUARD : GUARD + x.size] = x.reshape(-1)
            given.append(memory[GUARD : GUARD + x.size])
        results = [np.full(t.nbytes + 2 * GUARD, 201, np.uint8) for t in case.region.results]
        inside = [
            m[GUARD : m.size - GUARD].view(t.dtype.numpy).reshape(t.shape)
            for m, t in zip(results, case.region.results)
        ]
        for launch in launches:
            launch(given, inside, np.empty(0, np.uint8))
        for memory in results:
            assert (memory[:GUARD] == 201).all() and (memory[-GUARD:] == 201).all(), "written outside"
        made.append(inside)
    return made


def check(case: Case) -> None:
    given = operands_for(case, fresh_seed()), with_specials(case, operands_for(case))
    for operands, results in zip(given, run(case, *given)):
        with np.errstate(all="ignore"):
            assert_close(case, results, reference(case, operands.arrays))


SIZES = [(3, 17), (5, 33), (2, 519), (3, 1024), (2, 1029), (1, 3001)]
CASES = [
    Case(v, make(shape, t), ROW_TOLERANCE[t])
    for k, shape in enumerate(SIZES)
    for n, make in enumerate(MAKES)
    for t in [(f32, f16, bf16)[(k + n) % 3]]
    for v in [(HELD, CLUSTER, STREAMED)[(k + n // 3) % 3]]
]
CASES += [Case(v, layer_norm((3, 519), bf16, f32), ROW_TOLERANCE[bf16]) for v in (HELD, CLUSTER, STREAMED)]
CASES += [
    Case(v, region("softmax", desc((3, 301), f16, (311, 1))), ROW_TOLERANCE[f16])
    for v in (HELD, CLUSTER, STREAMED)
]
CASES += [Case(v, softmax((3, 5, 7), bf16), ROW_TOLERANCE[bf16]) for v in ROWS]
CASES += [Case(SERIAL, r, ROW_TOLERANCE[f16]) for r in repeated_rows()]
CASES += [  # invariant rows: odd ones, vectors, and rows with gaps, which are loaded element by element
    Case(
        v,
        replace(region(kind, desc((3, length), t, (length + gap, 1))), strict=True, invariant=True),
        ROW_TOLERANCE[t],
    )
    for n, v in enumerate((HELD, CLUSTER, STREAMED))
    for kind, length, gap, t in (
        ("softmax", 519, 0, f32),
        ("logsumexp", 1024, 0, bf16),
        ("softmax", 304, 5 + n, f16),
    )
]


@pytest.mark.sample(4, pool="on the host")
@pytest.mark.spec("A12", "F2")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_run_on_the_host_agree_with_numpy(case):
    check(case)
