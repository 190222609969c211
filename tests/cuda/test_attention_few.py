"""Attention of few queries by mma.sync, on a model of a multiprocessor: see machines/mma_machine.py and test_gpu_attention_few.py. What a query has among
others and alone; which regions it takes, and where it is chosen."""

from __future__ import annotations

import itertools
from dataclasses import replace

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
    attention,
)
from test_attention_mma import on_machine
from test_decode_on_host import on_host

from aicf.device.spec import preset
from aicf.types import bf16, f16, f32

H200, A100 = preset("h200"), preset("a100")


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("F2", "A15", "C12")
@pytest.mark.parametrize("kernel", [FEW_ATTENTION, MMA_ATTENTION, TURING_ATTENTION, ATTENTION])
def test_a_query_has_equal_bits_among_others_and_alone_with_a_cache(request, kernel):
    """Of keys on both sides of a tile's end; keys and values behind a query are of any size."""
    draw = rng(request.node.nodeid)
    keys = int(draw.integers(130, 145))
    prompt = Prompt(18, keys, 1, int(draw.integers(1, 3)), int(draw.choice([0, 10])), 150)
    seed = int(draw.integers(2**32))

    sizes = iter((A100, replace(A100, sms=1)) if draw.integers(2) else (replace(A100, sms=1), A100))

    def run(case, operands):
        """Of few queries by blocks that are alone on a multiprocessor, and by those that are not."""
        device = next(sizes)
        return on_host(case, operands) if kernel == ATTENTION else on_machine(case, operands, seed, device)

    form = Form(f16, 16, 16, float(draw.choice([0.0, 3.0])))
    assert not differing_places(run, draw, form, prompt, (kernel, kernel), 2, 1e3)


@pytest.mark.spec("A15", "C12")
def test_a_class_of_attention_has_no_number_of_queries_or_keys(request):
    draw = rng(request.node.nodeid)
    for kernel in (FEW_ATTENTION, HOPPER_ATTENTION, MMA_ATTENTION, TURING_ATTENTION, ATTENTION):
        found = set()
        for _ in range(20):
            batch, heads, queries, keys = (int(draw.integers(1, n)) for n in (9, 9, 300, 2000))
            r = attention((batch, heads, queries, 64), (batch, heads, keys, 64), causal=True, dtype=f16)
            found.add(VARIANTS[kernel].numeric_class(invariant(r), H200))
        assert len(found) == 1, found
    few, hopper = (
        VARIANTS[kernel].numeric_class(invariant(r), H200) for kernel in (FEW_ATTENTION, HOPPER_ATTENTION)
    )
    assert few == hopper


@pytest.mark.spec("F2", "A7")
@pytest.mark.parametrize(
    "shapes, asked, reason",
    [
        (((2, 7, 64), (2, 90, 64)), {"dtype": f32}, "is f32, tensor cores multiply weights of f16 or bf16"),
        (((2, 7, 136), (2, 90, 136)), {}, "head size"),
        (((2, 7, 64), (2, 90, 64)), {"mask": (90,)}, "no mask from memory"),
        (((2, 7, 64), (2, 90, 64)), {"bias": (7, 90)}, "no bias from memory"),
        (((2, 7, 64), (2, 90, 64)), {"scale": 0.0}, "scale is 0.0, needs more than 0"),
        (((2, 7, 1), (2, 90, 1)), {}, "needs a multiple of 2"),
        (((2, 7, 64), (2, 90, 64)), {"alignment": 2}, "aligned to 2 bytes, needs 4"),
        (((2, 0, 64), (2, 90, 64)), {}, "least extent"),
        (((2, 7, 64), (2, 0, 64)), {}, "least extent"),
    ],
)
def test_what_it_does_not_take_is_told(shapes, asked, reason):
    reject = VARIANTS[FEW_ATTENTION].supported(attention(*shapes, **{"dtype": f16, **asked}), H200)
    assert reject is not None and reason in str(reject)


@pytest.mark.spec("F2")
@pytest.mark.parametrize("gpu", ["a100", "a10", "l4", "rtx4090", "h200", "b200"])
def test_it_fits_the_shared_memory_of_each_device(gpu):
    device = preset(gpu)
    for d, dv, queries in itertools.product((2, 16, 64, 72, 128), (2, 64, 128), (1, 70)):
        r = attention((2, queries, d), (2, 90, d), dv=dv, dtype=bf16)
        assert VARIANTS[FEW_ATTENTION].supported(r, device) is None
        (launch,) = VARIANTS[FEW_ATTENTION].build(r, device)
        assert launch.shared <= device.shared_per_block
        assert np.prod(launch.grid) == 2 * -(-queries // 16)
