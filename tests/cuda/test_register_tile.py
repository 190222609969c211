"""Register tiles: which thread has what, each operation, and kernels made of them: on models of machines, and on a GPU."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_cases import desc
from machines.hopper_bodies import in_python
from machines.on_host import OnHost
from machines.wgmma_model import NUMPY, element_of, fragment
from ptx_support import PLACES, OnModel, code, computer, regions_of
from test_gpu_kernels import gpu, opened  # noqa: F401  (fixtures)
from tile_kernels import attention, everything, expected_of_everything, layer_norm, softmax

from aicf.cuda_kernels.tiles import register_tile
from aicf.cuda_kernels.tiles.layout import Layout, RowLayout
from aicf.registry.variant import In, Launch, Num, Out
from aicf.rows import RegionSpec
from aicf.types import bf16, f16, f32, i32

LAYOUTS = [
    Layout(16, 8), Layout(64, 64, 4), Layout(32, 24), Layout(128, 16, 4), Layout(64, 256, 4), Layout(16, 32, height=8),
    Layout(48, 32, 3, run=4), Layout(16, 8, run=1), Layout(64, 32, 4, run=1),
]  # fmt: skip


ROWS = [RowLayout(512, 8), RowLayout(256, 32, 2), RowLayout(1024, 128)]


# --- where numbers are --------------------------------------------------------------------------------------------------


def places_of(layout: Layout) -> np.ndarray:
    """(row, column) by (thread, number)."""
    of = layout.element()
    numbers = range(layout.count)
    return np.array([[of(i, t // 32, t % 32) for i in numbers] for t in range(32 * layout.warps)])


@pytest.mark.parametrize("layout", [*LAYOUTS, *ROWS], ids=str)
def test_every_number_is_held_once(layout):
    """And the lanes of a warp that shuffles reach, and no others, hold numbers of the same rows, or columns, in the same order."""
    places = places_of(layout)
    shape = places.max(axis=(0, 1)) + 1
    assert sorted(map(tuple, places.reshape(-1, 2))) == [*itertools.product(*map(range, shape))]
    assert layout.columns == shape[1] and getattr(layout, "rows", shape[0]) == shape[0]
    sides = (
        (layout.same_rows, layout.by_row, layout.own_rows),
        (layout.same_columns, layout.by_column, layout.own_columns),
    )
    for axis, (lanes, of, own) in enumerate(sides):
        np.testing.assert_array_equal(np.array(own)[list(of)], np.array(layout.offsets)[:, axis])
        first = places[:32, :, axis]
        alike = [lane for lane in range(32) if (first[lane] == first[0]).all()]
        assert alike == sorted({sum(some) for n in range(6) for some in itertools.combinations(lanes, n)})


@pytest.mark.parametrize("n", [8, 24, 64, 256])
def test_sums_of_wgmma_are_where_the_manual_says(n):
    np.testing.assert_array_equal(places_of(Layout(64, n, 4)), np.stack(element_of(n), -1))


@pytest.mark.parametrize("kind", ["f16", "tf32", "e4m3", "s8"])
def test_first_operands_of_wgmma_are_where_the_manual_says(kind):
    each = 4 // NUMPY[kind].itemsize
    layout = Layout(64, 8 * each, 4, run=each)
    matrix = np.random.default_rng().integers(-8, 8, (layout.rows, layout.columns)).astype(NUMPY[kind])
    places = places_of(layout)
    words = np.ascontiguousarray(matrix[places[..., 0], places[..., 1]]).view(np.uint32)
    np.testing.assert_array_equal(fragment(words, kind), matrix.astype(np.float64))


@pytest.mark.parametrize("height", [16, 8])
def test_matrices_are_read_as_operands_lie(height):
    """Matrix j is word j of the lanes."""
    layout = Layout(16, 16, height=height)
    begins, of = in_python(layout.matrix()), layout.element()
    assert [begins(lane) for lane in range(32)] == [of(2 * (lane // 8), 0, 0) for lane in range(32)]


# --- operations ---------------------------------------------------------------------------------------------------------


def region_of_everything(layout: Layout) -> RegionSpec:
    tile = desc((layout.rows, layout.columns), f32)
    return regions_of([tile], tile)


def region_of_softmax(dtype: Any, rows: int, n: int, k: int) -> RegionSpec:
    return regions_of([desc((rows, k), dtype), desc((n, k), dtype)], desc((rows, n), f32))


@pytest.fixture(params=PLACES)
def compute(request):
    return computer(request)


def on_host(launch: Any, r: RegionSpec, arrays: list[np.ndarray]) -> np.ndarray:
    out = np.full(r.results[0].nbytes, 0xFF, np.uint8).view(r.results[0].dtype.numpy)
    OnHost(launch, r)([x.reshape(-1) for x in arrays], [out], np.empty(0, np.uint8))
    return out.reshape(r.results[0].shape)


def check_everything(compute: Any, layout: Layout, shift: int) -> None:
    x = np.random.default_rng().normal(size=(layout.rows, layout.columns)).astype(np.float32)
    got = compute(everything(layout, shift), region_of_everything(layout), [x])
    want = expected_of_everything(layout, x.astype(np.float64), shift)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout.columns < 256], ids=str)
def test_every_operation(compute, layout):
    check_everything(compute, layout, random.randrange(-8, layout.columns))


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.parametrize(
    "layout", [Layout(16, 8), Layout(32, 24), Layout(16, 32, height=8), Layout(64, 16, 4)], ids=str
)
def test_every_operation_as_llvm(layout):
    check_everything(on_host, layout, 3)


def operands_of_softmax(dtype: Any, rows: int, n: int, k: int) -> list[np.ndarray]:
    rng = np.random.default_rng()
    return [rng.normal(size=(count, k)).astype(dtype.numpy) for count in (rows, n)]


def expected_softmax(s: np.ndarray, shift: int) -> np.ndarray:
    row, column = np.indices(s.shape)
    s = np.where(column <= row + shift, s, -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


SOFTMAXES = [(f16, 32, 24, 32, 3), (bf16, 16, 64, 16, 0), (f16, 64, 128, 64, 200)]


def check_softmax(compute: Any, dtype: Any, rows: int, n: int, k: int, shift: int) -> None:
    a, b = operands_of_softmax(dtype, rows, n, k)
    got = compute(softmax(dtype, rows, n, k, shift), region_of_softmax(dtype, rows, n, k), [a, b])
    want = expected_softmax(a.astype(np.float64) @ b.astype(np.float64).T, shift)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.spec("F2")
@pytest.mark.sample(1, pool="on the host")
@pytest.mark.parametrize("case", SOFTMAXES[:2], ids=str)
def test_softmax_of_a_product_as_llvm(case):
    """Sums of mma.sync, masked; its operands from memory, as each thread has them."""
    check_softmax(on_host, *case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", SOFTMAXES, ids=str)
def test_softmax_of_a_product(gpu, request, case):  # noqa: F811
    request.param = "gpu"
    check_softmax(computer(request), *case)


# --- whole rows ---------------------------------------------------------------------------------------------------------

# dtype, rows, columns, threads of a row
NORMS = [(f32, 5, 100, 16), (bf16, 3, 1000, 32), (f16, 2, 1500, 128), (f32, 3, 4096, 256)]


def region_of_norm(dtype: Any, rows: int, columns: int) -> RegionSpec:
    return regions_of(
        [desc((rows, columns), dtype), *[desc((columns,), f32)] * 2], desc((rows, columns), dtype)
    )


def check_norm(compute: Any, dtype: Any, rows: int, columns: int, threads: int) -> None:
    rng = np.random.default_rng()
    x = (rng.normal(size=(rows, columns)) * 3 + 100 * rng.normal(size=(rows, 1))).astype(dtype.numpy)
    gamma, beta = rng.normal(size=(2, columns)).astype(np.float32)
    got = compute(
        layer_norm(dtype, rows, columns, threads), region_of_norm(dtype, rows, columns), [x, gamma, beta]
    )
    x = x.astype(np.float64)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * gamma + beta
    error = {f32: 1e-5, f16: 2.0**-10, bf16: 2.0**-7}[dtype]
    np.testing.assert_allclose(
        got.astype(np.float64), want, rtol=error, atol=10 * error if dtype is f32 else error
    )


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.parametrize("case", NORMS, ids=str)
def test_norm_of_rows_as_llvm(case):
    """A row of part of a warp, of a warp, and of several; ends that are masked; rows that are not there."""
    check_norm(on_host, *case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", NORMS, ids=str)
def test_norm_of_rows(gpu, request, case):  # noqa: F811
    request.param = "gpu"
    check_norm(computer(request), *case)


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.parametrize("case", NORMS, ids=str)
def test_norm_of_rows_stays_in_registers(case):
    dtype, rows, columns, threads = case
    text = code(layer_norm(*case), region_of_norm(dtype, rows, columns), "sm_80")
    assert text.count("shfl.sync.bfly") == 2 * min(5, threads.bit_length() - 1) and ".f64" not in text


def test_the_example_of_the_docs():
    """docs/kernels/tiles.md: right, and the figures in it."""
    text = (Path(__file__).parents[2] / "docs" / "kernels" / "tiles.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "tiles"}
    exec(compile(example, "docs/kernels/tiles.md", "exec"), names)
    kernel, rows = names["softmax"], 6
    kernel.blocks_per_sm = 1
    launch = Launch(kernel, (2,), (128,), (In(0), Out(0), Num(rows, i32)))
    x = np.random.default_rng().normal(size=(rows, 1024)).astype(np.float32)
    r = regions_of([desc(x.shape, f32)], desc(x.shape, f32))
    np.testing.assert_allclose(
        on_host(launch, r, [x]), expected_softmax(x.astype(np.float64), 1024), rtol=1e-4
    )
    made = code(launch, r, "sm_80")
    counts = [made.count(text) for text in ("ld.global.v4", "st.global.v4", "shfl.sync.bfly")]
    assert counts == [8, 8, 10]


# --- attention ----------------------------------------------------------------------------------------------------------

# dtype, queries, keys, d, shift, q in registers
ATTENTION = [
    (f16, 64, 64, 64, 64, False), (bf16, 50, 130, 64, 0, True), (f16, 64, 128, 128, 70, True), (bf16, 130, 200, 128, 0, False),
]  # fmt: skip


def region_of_attention(dtype: Any, queries: int, keys: int, d: int) -> RegionSpec:
    return regions_of([desc((queries, d), dtype), *[desc((keys, d), dtype)] * 2], desc((queries, d), dtype))


@pytest.mark.sample(2)
@pytest.mark.spec("D10", "F2")
@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention(compute, case):
    """Against float64. Keys grow, so that each step's greatest score does. What is not a number stays in its row."""
    dtype, queries, keys, d, shift, _ = case
    rng = np.random.default_rng()
    q, k, v = (rng.normal(size=(count, d)) for count in (queries, keys, keys))
    k *= np.linspace(0.5, 2, keys)[:, None]
    q[7, 3] = np.nan
    q, k, v = (x.astype(dtype.numpy) for x in (q, k, v))
    got = compute(attention(*case), region_of_attention(dtype, queries, keys, d), [q, k, v])
    scores = q.astype(np.float64) @ k.astype(np.float64).T / np.sqrt(d)
    want = expected_softmax(scores, shift) @ v.astype(np.float64)
    eps = 2.0**-10 if dtype is f16 else 2.0**-7
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2 * eps, atol=2 * eps)


@pytest.mark.sample(1, pool="mistakes")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("broken", ["join_rows", "mask", "zip_rows", "put_words"])
def test_the_model_notices(monkeypatch, broken):
    """Each part of it counts: without it results are others."""
    import tile_kernels

    if broken == "join_rows":
        monkeypatch.setattr(
            tile_kernels, "join_rows", lambda layout, fn: register_tile.device(lambda vector: vector)
        )
    elif broken == "mask":
        monkeypatch.setattr(
            tile_kernels,
            "mask",
            lambda layout, keep, fill: register_tile.device(lambda tile, first, env: tile),
        )
    elif broken == "zip_rows":
        monkeypatch.setattr(
            tile_kernels,
            "zip_rows",
            lambda layout, fn: register_tile.zip_rows(Layout(64, layout.columns, 4, 8), fn),
        )
    else:
        monkeypatch.setattr(register_tile, "ATOM", 32)
    with pytest.raises(AssertionError):
        test_attention(OnModel(), ATTENTION[1])


# --- machine code -------------------------------------------------------------------------------------------------------


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("case", ATTENTION[1:], ids=str)
def test_attention_stays_in_registers(case):
    """0 spills, 0 stack, no product waits for another; a maximum, a power and a pair of halves are an instruction each."""
    dtype, queries, keys, d, *_ = case
    text = code(attention(*case), region_of_attention(dtype, queries, keys, d))
    softmaxes = 2 if keys > 64 else 1  # in the code: of the first step, and of each other
    assert text.count("ex2.approx.ftz.f32") == softmaxes * (32 + 2)
    assert text.count("max.NaN.f32") == softmaxes * (30 + 4 + 2)
    assert text.count(f"cvt.rn.{dtype}x2.f32") == softmaxes * 16 + d // 4
    assert text.count("shfl.sync.bfly") == softmaxes * 4 + 4 and ".f64" not in text


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.parametrize("layout", LAYOUTS[:4], ids=str)
def test_every_operation_stays_in_registers(layout):
    text = code(everything(layout, 1), region_of_everything(layout), "sm_80")
    assert text.count("shfl.sync.bfly") == 2 * len(layout.own_rows) + 3 * len(layout.own_columns)


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.parametrize("case", SOFTMAXES, ids=str)
def test_softmax_stays_in_registers(case):
    dtype, rows, n, k, _ = case
    text = code(softmax(*case), region_of_softmax(dtype, rows, n, k), "sm_80")
    assert text.count("mma.sync") == n // 8 * k // 16 and ".f64" not in text


@pytest.mark.parametrize("layout", [(24, 8), (16, 12), (64, 8, 3), (16, 8, 1, 16, 4)], ids=str)
def test_layouts_that_no_instruction_has_are_refused(layout):
    with pytest.raises(AssertionError):
        Layout(*layout)
    with pytest.raises(AssertionError):
        register_tile.send_tile(Layout(64, 32, 4), 1)
