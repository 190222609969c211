"""Rows of the CPU's BLAS kernels: a row has equal bits whatever its index, the number of rows and the other rows (docs/determinism.md)."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from draws.seeds import rng

from aicf.cpu_kernels import blas
from aicf.device.spec import host
from aicf.registry.numerics import NumericClass
from aicf.registry.variant import Reject
from aicf.types import ActKind, f16, f32

from .regions import VARIANTS, Graph, normal

BLOCKS, ATTENTION = VARIANTS["gemm_blocks"], VARIANTS["attention_blas"]
holds = pytest.mark.skipif(bool(blas.blocks_differ()), reason=f"BLAS: {blas.blocks_differ()}")


def size(draw: np.random.Generator, most: int) -> int:
    """1, few, odd, or many."""
    return int(draw.choice([1, int(draw.integers(2, 40)), int(2 ** draw.uniform(0, np.log2(most)))]))


def others(draw: np.random.Generator, count: int) -> list[list[int]]:
    """Rows to compute: all in another order, one alone, some of them, some of them twice."""
    few = int(draw.integers(1, count + 1))
    return [
        draw.permutation(count).tolist(), [int(draw.integers(count))], draw.permutation(count)[:few].tolist(),
        draw.integers(0, count, few).tolist(),
    ]  # fmt: skip


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


@holds
@pytest.mark.spec("A15", "B14")
def test_rows_of_products_in_blocks_have_equal_bits(request):
    """150 drawn products: sizes, layouts, types, a bias and GELU after them; other rows become NaN and Inf."""
    draw = rng(request.node.nodeid)
    for _ in range(150):
        m, n, k = size(draw, 100), size(draw, 500), size(draw, 1500)
        trans_a, trans_b = (bool(draw.random() < 0.4) for _ in range(2))
        dtype = (f32, f16)[draw.random() < 0.2]
        rows, b = normal(m, k, dtype=dtype), normal(*((n, k) if trans_b else (k, n)), dtype=dtype)
        more = {"bias": normal(n, dtype=dtype)} if draw.random() < 0.3 else {}
        attrs = {"trans_a": trans_a, "trans_b": trans_b, "act": ActKind.gelu if more else ActKind.none}

        def run(rows, b=b, more=more, attrs=attrs):
            a = np.ascontiguousarray(rows.T) if attrs["trans_a"] else rows
            step = "gemm", "a b - bias" if more else "a b", "d", attrs
            return Graph({"a": a, "b": b, **more}, step).run("gemm_blocks")[0]

        whole = run(rows)
        for order in others(draw, m):
            assert same(run(rows[order]), whole[order]), (m, n, k, attrs, order)
        spoilt, row = rows.copy(), int(draw.integers(m))
        spoilt[np.arange(m) != row] = draw.choice([np.nan, np.inf, -np.inf], (m - 1, 1))
        assert same(run(spoilt)[row], whole[row]), (m, n, k, attrs, row)


@holds
@pytest.mark.spec("A15", "B14")
def test_rows_of_batched_products_have_equal_bits(request):
    """60 drawn batches, of one b and of a b for each: matrices in another order and alone, and rows of each of them."""
    draw = rng(request.node.nodeid)
    for _ in range(60):
        batch, m, n, k = int(draw.integers(1, 6)), size(draw, 40), size(draw, 60), size(draw, 200)
        each, across = draw.random() < 0.6, bool(draw.random() < 0.5)
        a, b = normal(batch, m, k), normal(*((batch,) if each else ()), *((n, k) if across else (k, n)))

        def run(a, b, across=across):
            return Graph({"a": a, "b": b}, ("gemm", "a b", "d", {"trans_b": across})).run("gemm_blocks")[0]

        whole = run(a, b)
        for at in others(draw, batch):
            assert same(run(a[at], b[at] if each else b), whole[at]), (batch, m, n, k, each, at)
        for order in others(draw, m):
            assert same(run(np.ascontiguousarray(a[:, order]), b), whole[:, order]), (
                batch,
                m,
                n,
                k,
                each,
                order,
            )


@pytest.mark.spec("A15", "B14")
def test_entries_of_a_batch_have_equal_bits_in_attention(request):
    """60 drawn batches: grouped heads, heads as a projection stores them, masks, biases and ragged lengths."""
    draw = rng(request.node.nodeid)
    for _ in range(60):
        batch, group, heads = int(draw.integers(2, 7)), int(draw.integers(1, 4)), int(draw.choice([1, 2, 12]))
        queries = int(draw.choice([1, 2, 5, 33, 70, 130]))
        keys, d = queries + int(draw.choice([0, 1, 7, 90])), int(draw.choice([1, 3, 16, 64]))
        dtype, apart = (f32, f16)[draw.integers(2)], draw.random(3) < 0.5
        shapes = [(heads * group, queries, d), (heads, keys, d), (heads, keys, d)]
        given = {name: normal(batch, *shape, dtype=dtype) for name, shape in zip("qkv", shapes)}
        which = int(draw.integers(4))
        if which == 1:
            given["mask"] = draw.random((batch, 1, 1, keys)) < 0.7
        if which == 2:
            given["lengths"] = draw.integers(0, keys + 1, batch).astype(np.int32)
        if which == 3:
            given["bias"] = normal(batch, heads * group, queries, keys)
        attrs = {"causal": bool(draw.random() < 0.5), "softcap": float(draw.choice([0.0, 3.0]))}

        def run(at, given=given, apart=apart, attrs=attrs):
            """The entries of these indexes; heads that lie apart are views of tensors with rows first."""
            taken = {name: np.ascontiguousarray(x[at]) for name, x in given.items()}
            for name, strided in zip("qkv", apart):
                if strided:
                    taken[name] = np.ascontiguousarray(taken[name].swapaxes(1, 2)).swapaxes(1, 2)
            ins = [name if name in taken else "-" for name in ("q", "k", "v", "mask", "lengths", "bias")]
            while ins[-1] == "-":
                ins.pop()
            return Graph(taken, ("attention", " ".join(ins), "o lse", attrs), keep="o lse").run(
                "attention_blas"
            )

        whole = run(list(range(batch)))
        for at in others(draw, batch):
            for part, of_all in zip(run(at), whole):
                assert same(part, of_all[at]), (
                    batch,
                    group,
                    heads,
                    queries,
                    keys,
                    d,
                    dtype,
                    apart,
                    which,
                    attrs,
                    at,
                )


# --- classes ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("A15", "B14")
def test_a_class_follows_from_the_length_of_a_row(request):
    """Of 40 drawn products and attentions: of any number of rows, and never free selection's choice where it costs more."""
    draw = rng(request.node.nodeid)
    for _ in range(40):
        n, k, d = size(draw, 500), size(draw, 500), int(draw.integers(1, 65))
        found, seen = set(), set()
        for m in (1, 2, 17, 300):
            region = Graph({"a": normal(m, k), "b": normal(k, n)}, ("gemm", "a b", "d", {})).region
            assert BLOCKS.cost(region, host()).us > VARIANTS["gemm_blas"].cost(region, host()).us
            found.add(BLOCKS.numeric_class(region, host()))
            tensors = {name: normal(m, 2, n, d) for name in "qkv"} if n < 40 else {}
            if tensors:
                seen.add(
                    ATTENTION.numeric_class(
                        Graph(tensors, ("attention", "q k v", "o l", {}), keep="o l").region, host()
                    )
                )
        assert len(found) == 1 and len(seen) < 2
        (one,) = found
        assert isinstance(one, Reject if blas.blocks_differ() else NumericClass), one
        assert isinstance(one, Reject) or one.length == k


def test_a_blas_whose_blocks_differ_has_no_class(monkeypatch):
    """As a b, rows are columns of BLAS: here Haswell's kernel has three orders for them, and the check finds a BLAS that does so."""
    region = Graph({"a": normal(3, 4), "b": normal(4, 5)}, ("gemm", "a b", "d", {})).region
    monkeypatch.setattr("aicf.cpu_kernels.gemm.blocks_differ", lambda: "openblas for Nobody, 16 x 5 x 4")
    answer = BLOCKS.numeric_class(region, host())
    assert isinstance(answer, Reject) and "for Nobody, 16 x 5 x 4" in answer.reason

    def uneven(a, b, out):
        np.einsum("...ij,...jk->...ik", a, b, out=out)
        out[..., -1] = np.nextafter(out[..., -1], np.float32(9))

    monkeypatch.setattr(np, "matmul", uneven)
    assert blas.blocks_differ.__wrapped__(16).endswith("16 x 1 x 1")


CORES = """
import sys
import numpy as np
from aicf.cpu_kernels.blas import blocks_differ, matmul_in_blocks, threads_for
draw, wrong = np.random.default_rng(int(sys.argv[1])), []
for _ in range(60):
    m, n, k = (int(2 ** draw.uniform(0, most)) for most in (6, 9, 10))
    a, b = draw.standard_normal((m, k), np.float32), draw.standard_normal((k, n), np.float32)
    b = np.ascontiguousarray(b.T).T if draw.random() < 0.5 else b
    run = lambda a: matmul_in_blocks(a, b, None, threads_for(32 * n * k))
    order = draw.integers(0, m, int(draw.integers(1, 40)))
    if run(a)[order].tobytes() != run(a[order]).tobytes():
        wrong.append((m, n, k))
print(repr(blocks_differ()), wrong)
assert blocks_differ() or not wrong
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="NumPy's Accelerate has no core types")
@pytest.mark.sample(2)
@pytest.mark.spec("A15", "B14")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("core", ["Haswell", "Prescott", "Sandybridge", "SkylakeX"])
def test_rows_have_equal_bits_with_the_kernels_of_other_processors(core, threads, request):
    """60 drawn products by each of OpenBLAS' sets of kernels that this machine runs, or the check says that blocks differ."""
    seed = int(rng(request.node.nodeid).integers(2**31))
    env = {
        **os.environ,
        "OPENBLAS_CORETYPE": core,
        "OPENBLAS_NUM_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
    }
    ran = subprocess.run([sys.executable, "-c", CORES, str(seed)], capture_output=True, text=True, env=env)
    if ran.returncode < 0:
        pytest.skip(f"this processor has no instructions for {core}: signal {-ran.returncode}")
    assert ran.returncode == 0, (seed, ran.stdout, ran.stderr)
