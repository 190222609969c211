"""cpu.attention_tiles: a query has equal bits whatever the numbers of queries and of keys, in a prefill and with a cache (docs/determinism.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from draws.seeds import rng

from aicf.cpu_kernels import blas
from aicf.device.spec import host
from aicf.registry.numerics import NumericClass
from aicf.registry.variant import Reject
from aicf.types import bf16, f16, f32

from .regions import VARIANTS, Graph, normal
from .test_attention import close, formula, in_order

TILES, BLAS = VARIANTS["attention_tiles"], VARIANTS["attention_blas"]
holds = pytest.mark.skipif(bool(blas.blocks_differ()), reason=f"BLAS: {blas.blocks_differ()}")
Case = tuple[dict[str, np.ndarray], dict, object]


def drawn(draw: np.random.Generator, fewest: int = 1) -> Case:
    """Grouped heads, heads as a projection stores them, masks, biases and lengths: (operands, attributes, type). There are as many keys as queries."""
    batch, group, heads = int(draw.integers(1, 4)), int(draw.integers(1, 4)), int(draw.integers(1, 4))
    queries, d, dv = (
        int(draw.choice(sizes))
        for sizes in ([fewest, 2, 17, 63, 64, 65, 130, 200], [1, 3, 16, 40], [1, 4, 16])
    )
    queries, dtype = max(queries, fewest), (f32, f16, bf16)[draw.integers(3)]
    shapes = {"q": (heads * group, queries, d), "k": (heads, queries, d), "v": (heads, queries, dv)}
    given = {name: normal(batch, *shape, dtype=dtype) for name, shape in shapes.items()}
    for name in given:
        if draw.random() < 0.5:
            given[name] = np.ascontiguousarray(given[name].swapaxes(1, 2)).swapaxes(1, 2)
    if draw.random() < 0.3:
        given["mask"] = draw.random((batch, 1, queries, queries)) < 0.7
    if draw.random() < 0.3:
        given["bias"] = normal(heads * group, queries, queries)
    window = int(draw.choice([0, 0, 1, 20, 90]))
    attrs = {"causal": True, "softcap": float(draw.choice([0.0, 0.0, 3.0])), "window": window}
    return given, attrs, dtype


def run(given: dict[str, np.ndarray], attrs: dict) -> list[np.ndarray]:
    step = "attention", in_order(given), "out lse", attrs
    return Graph(given, step, keep="out lse").run("attention_tiles")


@pytest.mark.spec("A15")
def test_results_are_those_of_the_formula(request):
    """Of 40 drawn attentions, with and without causal masks, of queries that are fewer than the keys, and with lengths."""
    draw = rng(request.node.nodeid)
    for _ in range(40):
        given, attrs, dtype = drawn(draw)
        attrs["causal"], queries = bool(draw.random() < 0.7), given["q"].shape[-2]
        last = slice(queries - int(draw.integers(1, queries + 1)), None)
        given["q"] = given["q"][..., last, :]
        given |= {name: given[name][..., last, :] for name in ("mask", "bias") if name in given}
        if draw.random() < 0.3:
            given["lengths"] = draw.integers(0, queries + 2, len(given["q"])).astype(np.int32)
        want = formula(**given, **attrs)
        for got, of, dtype_of in zip(run(given, attrs), want, (dtype, f32)):
            close(got, of, dtype_of)


@holds
@pytest.mark.spec("A15", "B14")
def test_a_query_has_equal_bits_in_a_prefill_and_with_a_cache(request):
    """Of 40 drawn causal attentions: prompts of fewer tokens and padded ones, one query and several over a cache whose other keys are not
    read, and one head and one sequence by itself."""
    draw = rng(request.node.nodeid)
    for _ in range(40):
        given, attrs, _ = drawn(draw, fewest=2)
        every, length = run(given, attrs), given["q"].shape[-2]
        name = {n: (x.shape, x.dtype.name) for n, x in given.items()}, attrs
        for _ in range(3):
            first, last = sorted(draw.choice(length + 1, 2, replace=False).tolist())
            entry = int(draw.integers(len(given["q"])))
            one = {n: x[entry : entry + 1] if n != "bias" else x for n, x in given.items()}
            scores = {n: one[n][..., first:last, :] for n in ("mask", "bias") if n in one}
            fewer = (
                one | {n: one[n][..., :last, :] for n in "kv"} | {n: x[..., :last] for n, x in scores.items()}
            )
            fewer["q"] = one["q"][..., first:last, :]
            places = length + int(draw.integers(0, 150))
            cache = {
                n: np.full((1, one[n].shape[1], places, one[n].shape[-1]), np.nan, one[n].dtype) for n in "kv"
            }
            for n in "kv":
                cache[n][..., :last, :] = one[n][..., :last, :]
            wide = {
                n: np.concatenate([x, np.zeros((*x.shape[:-1], places - length), x.dtype)], -1)
                for n, x in scores.items()
            }
            cached = {**fewer, **cache, **wide, "lengths": np.array([last], np.int32)}
            for found in (run(fewer, attrs), run(cached, attrs)):
                for part, whole in zip(found, every):
                    rows = whole[entry : entry + 1, :, first:last]
                    assert part.tobytes() == np.ascontiguousarray(rows).tobytes(), (name, entry, first, last)


@pytest.mark.spec("B13", "B14")
def test_the_class_is_one_and_free_selection_has_the_faster_kernel(request):
    draw, found = rng(request.node.nodeid), set()
    for _ in range(30):
        given, attrs, _ = drawn(draw)
        region = Graph(given, ("attention", in_order(given), "out lse", attrs), keep="out lse").region
        found.add(TILES.numeric_class(replace(region, strict=True, invariant=True), host()))
        assert TILES.cost(region, host()).us > BLAS.cost(region, host()).us, region
    (one,) = found
    assert isinstance(one, Reject if blas.blocks_differ() else NumericClass), one


def test_a_blas_whose_blocks_differ_has_no_class(monkeypatch):
    given = {name: normal(1, 2, 5, 4) for name in "qkv"}
    region = Graph(given, ("attention", "q k v", "out lse", {}), keep="out lse").region
    monkeypatch.setattr(
        "aicf.cpu_kernels.attention_tiles.blocks_differ", lambda: "openblas for Nobody, 16 x 5 x 4"
    )
    answer = TILES.numeric_class(region, host())
    assert isinstance(answer, Reject) and "for Nobody, 16 x 5 x 4" in answer.reason


@pytest.mark.sample(1)
@pytest.mark.skipif(sys.platform == "darwin", reason="NumPy's Accelerate has no core types")
@pytest.mark.spec("A15", "B14")
@pytest.mark.parametrize("core", ["Haswell", "Prescott", "Sandybridge", "SkylakeX"])
def test_a_query_has_equal_bits_with_the_kernels_of_other_processors(core, request):
    """The drawn attentions above, by each of OpenBLAS' sets of kernels that this machine runs."""
    seed = f"{int(rng(request.node.nodeid).integers(2**31))}"
    env = {**os.environ, "OPENBLAS_CORETYPE": core, "AICF_TEST_SEED": seed}
    test = f"{__file__}::{test_a_query_has_equal_bits_in_a_prefill_and_with_a_cache.__name__}"
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", test]
    ran = subprocess.run(call, capture_output=True, text=True, env=env)
    if ran.returncode < 0:
        pytest.skip(f"this processor has no instructions for {core}: signal {-ran.returncode}")
    assert ran.returncode == 0, (seed, ran.stdout[-3000:], ran.stderr[-1000:])
