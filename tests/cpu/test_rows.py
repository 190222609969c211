"""Rows on the host (A12, A15): softmax, norms and the like, alone and with what stands around them, against float64."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from dispatch.layouts import LAYOUTS
from draws.seeds import rng

from aicf.cpu_kernels import rows as row_loops
from aicf.cpu_kernels.compiler.loops import FoldLoop, MapLoop
from aicf.device.spec import host
from aicf.ops.schema import schema_of
from aicf.registry.variant import structure
from aicf.types import bf16, f16, f32

from .regions import TOLERANCE, VARIANTS, Graph, normal, random_rows

ROWS = "rows_loop"
TYPES = [f32, f16, bf16]
SHAPES = [(4, 7), (3, 1), (1, 1), (1,), (37,), (2, 3, 5), (3, 1025), (0, 3), (3, 0), (2, 0, 3)]
SOFTMAXES = ["softmax", "log_softmax", "logsumexp"]
FULL = np.finfo(np.float32).max


def axes_of(shape):
    return range(len(shape))


def operands(shape, dtype, names):
    """x, dy, y and r have the shape, w and b are vectors, mean and rstd columns of f32."""
    shapes = {"w": shape[-1:], "b": shape[-1:], "mean": (*shape[:-1], 1), "rstd": (*shape[:-1], 1)}
    return {
        n: normal(*shapes.get(n, shape), dtype=f32 if n in ("mean", "rstd") else dtype) for n in names.split()
    }


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", [*SOFTMAXES, "softmax_grad", "log_softmax_grad"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the reference's, of a logarithm of no sum
def test_the_softmax_family(shape, kind, dtype):
    names = "dy y" if kind.endswith("grad") else "x"
    for axis in axes_of(shape):
        Graph(operands(shape, dtype, names), (kind, names, "out", {"axis": axis})).check(ROWS)


NORMS = {
    "layer_norm": ("x w b", "y mean rstd"),
    "rms_norm": ("x w", "y rstd"),
    "layer_norm_grad": ("dy x mean rstd w", "dx"),
    "rms_norm_grad": ("dy x rstd w", "dx"),
}


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the reference's, of a mean of nothing
def test_norms(shape, kind, dtype):
    names, results = NORMS[kind]
    attrs = {} if kind.endswith("grad") else {"eps": 0.1}
    near = 1e-5 if dtype is f32 else None
    Graph(operands(shape, dtype, names), (kind, names, results, attrs)).check(ROWS, near)


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_f32_weights_over_halves(kind, dtype):
    """What mixed precision keeps wide; the result has the type of x."""
    names, results = NORMS[kind]
    given = operands((5, 33), f32, names) | {"x": normal(5, 33, dtype=dtype)}
    graph = Graph(given, (kind, names, results, {}))
    assert [t.dtype for t in graph.region.results] == [dtype, *[f32] * (len(results.split()) - 1)]
    graph.check(ROWS, 2 * {f16: 1e-3, bf16: 8e-3}[dtype])
    names, results = NORMS[f"{kind}_grad"]
    given = operands((5, 33), f32, names) | {n: normal(5, 33, dtype=dtype) for n in ("x", "dy")}
    Graph(given, (f"{kind}_grad", names, results, {})).check(ROWS, 2 * {f16: 1e-3, bf16: 8e-3}[dtype])


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_l2_normalize(shape, dtype):
    for axis in axes_of(shape):
        given = operands(shape, dtype, "dy x")
        attrs = {"axis": axis, "eps": 0.5}
        graph = Graph(given, ("l2_normalize", "x", "y rnorm", attrs), keep="y rnorm")
        graph.check(ROWS, 1e-5 if dtype is f32 else None)
        given["rnorm"] = graph.wanted()[1].astype(np.float32)
        Graph(given, ("l2_normalize_grad", "dy x rnorm", "dx", attrs)).check(
            ROWS, 1e-5 if dtype is f32 else None
        )


@pytest.mark.spec("A12")
def test_a_row_of_zeros_is_not_divided_by():
    x = np.array([[0, 0, 0], [3e-13, 4e-13, 0], [3, 4, 0]], np.float32)
    y, rnorm = Graph({"x": x}, ("l2_normalize", "x", "y rnorm", {})).run(ROWS)
    np.testing.assert_allclose(y, [[0, 0, 0], [0.3, 0.4, 0], [0.6, 0.8, 0]], rtol=1e-6)
    dy = np.ones((3, 3), np.float32)
    (dx,) = Graph({"dy": dy, "x": x, "r": rnorm}, ("l2_normalize_grad", "dy x r", "dx", {})).run(ROWS)
    np.testing.assert_allclose(dx[:2], 1e12, rtol=1e-6)
    np.testing.assert_allclose(dx[2], (1 - np.array([0.6, 0.8, 0]) * 1.4) / 5, rtol=1e-5)


# --- cross entropy, against sums over targets that are written out ----------------------------------------------------


def entropy_of(logits, labels, ignored=-100, smoothing=0.0):
    """(loss, its gradient) of each row in float64, by a target for every class."""
    z = logits.astype(np.float64)
    classes = z.shape[-1]
    with np.errstate(all="ignore"):
        log_p = z - z.max(-1, keepdims=True, initial=-np.inf)
        log_p = log_p - np.log(np.exp(log_p).sum(-1, keepdims=True))
    target = np.full(z.shape, smoothing / max(classes, 1))
    wrong = np.zeros(labels.shape, bool)
    for at, label in np.ndenumerate(labels):
        if 0 <= label < classes:
            target[(*at, label)] += 1 - smoothing
        else:
            wrong[at] = True
    loss, slope = np.where(target > 0, -target * log_p, 0).sum(-1), np.exp(log_p) - target
    loss = np.array(loss)  # of one row a number
    loss[wrong], slope[wrong] = np.nan, np.nan
    loss[labels == ignored], slope[labels == ignored] = 0, 0
    return loss, slope


def entropy(logits, labels, ignored=-100, smoothing=0.0):
    """The same by the kernels: rows forward, a map backward."""
    asked = {"ignore_index": ignored, "label_smoothing": smoothing}
    loss, peak, rsum = Graph(
        {"x": logits, "l": labels}, ("cross_entropy", "x l", "loss peak rsum", asked)
    ).run(ROWS)
    given = {"x": logits, "l": labels, "d": np.ones(labels.shape, np.float32), "p": peak, "r": rsum}
    share = smoothing / max(logits.shape[-1], 1)
    asked = {"ignore_index": ignored, "label": 1 - smoothing + share, "other": share}
    (slope,) = Graph(given, ("cross_entropy_grad", "x l d p r", "dx", asked)).run("elementwise_loop")
    return loss, slope


@pytest.mark.sample(1)
@pytest.mark.spec("A12", "D13")
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(4, 7), (3, 1), (1, 1), (37,), (2, 3, 5), (3, 1025), (0, 3), (3, 0)], ids=str
)
def test_cross_entropy(shape, dtype, smoothing, index):
    logits = normal(*shape, dtype=dtype)
    labels = np.random.default_rng().integers(0, max(shape[-1], 1), shape[:-1]).astype(index)
    if labels.ndim:
        labels[1::3] = -7
    for got, want in zip(entropy(logits, labels, -7, smoothing), entropy_of(logits, labels, -7, smoothing)):
        near = 1e-6 if got.dtype == np.float32 else TOLERANCE[dtype]
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=2 * near, atol=4 * near)


@pytest.mark.spec("A12")
def test_cross_entropy_says_of_rows_that_are_ignored_what_it_says_of_others():
    """The greatest logit and 1 / sum(exp(logits - peak)); a NaN is for labels that are no class."""
    logits, labels = normal(3, 7, dtype=f32), np.array([2, -7, 7])
    asked = {"ignore_index": -7, "label_smoothing": 0.1}
    _, peak, rsum = Graph({"x": logits, "l": labels}, ("cross_entropy", "x l", "loss peak rsum", asked)).run(
        ROWS
    )
    greatest = logits.astype(np.float64).max(-1)
    want = 1 / np.exp(logits - greatest[:, None]).sum(-1)
    np.testing.assert_array_equal(peak, greatest.astype(np.float32))
    np.testing.assert_allclose(rsum, [want[0], want[1], np.nan], rtol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
def test_cross_entropy_of_logits_of_any_size(smoothing):
    rows = [
        [1e30, -1e30, 0],
        [1e30, 1e30, 0],
        [-1e30] * 3,
        [FULL, 1, -2],
        [1e4, 1e4 + 1, 1e4 - 1],
        [0, -np.inf, 0],
    ]
    logits = np.array(rows, np.float32)
    for label in range(3):
        labels = np.full(6, label)
        for got, want in zip(
            entropy(logits, labels, -100, smoothing), entropy_of(logits, labels, -100, smoothing)
        ):
            np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


@pytest.mark.spec("A12")
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_labels_that_are_no_class_and_rows_that_are_left_out(index):
    """Those that are left out may hold anything; another label is never wrapped."""
    labels = np.array([0, -1, 3, 2**31 - 1, -100, 2, -100], index)
    logits = normal(7, 3)
    logits[4], logits[6, 1] = np.nan, np.inf
    loss, slope = entropy(logits, labels)
    np.testing.assert_array_equal(np.isnan(loss), [False, True, True, True, False, False, False])
    np.testing.assert_array_equal(np.isnan(slope).all(1), np.isnan(loss))
    np.testing.assert_array_equal(loss[[4, 6]], 0)
    np.testing.assert_array_equal(slope[[4, 6]], 0)
    nothing = entropy(logits, np.full(7, 1, index), ignored=1)
    np.testing.assert_array_equal(nothing[0], np.zeros(7))
    np.testing.assert_array_equal(nothing[1], np.zeros((7, 3)))
    if index is np.int64:  # equal in their low halves to a class
        assert np.isnan(entropy(normal(2, 3), np.array([2**32, -(2**32) + 1]))[0]).all()


# --- blocks of rows ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=[1, 3])
def few_rows(request, monkeypatch):
    """Blocks of one row of 40 numbers in and out, or of three."""
    monkeypatch.setattr(row_loops, "BLOCK_BYTES", request.param * 2 * 4 * 40)
    return request.param


@pytest.mark.spec("A12")
@pytest.mark.parametrize("shape", [(7, 40), (3, 4, 40), (5, 40, 3)], ids=str)
def test_rows_go_block_by_block_through_all_passes(shape, few_rows):
    """Also where a block is not full, and where rows lie side by side."""
    axis = shape.index(40)
    for kind in ("softmax", "logsumexp"):
        Graph({"x": normal(*shape)}, (kind, "x", "y", {"axis": axis})).check(ROWS)
    given = {"x": normal(*shape), "r": normal(*(1 if n == 40 else n for n in shape))}
    Graph(given, *spelled(axis), ("mul", "p r", "q", {}), keep="m q t").check(ROWS, 2e-5)


@pytest.mark.spec("A12")
def test_all_loops_are_done_with_a_block_before_the_next(few_rows, monkeypatch):
    seen = []

    def recorded(bind):
        def bind_span(loop, *arrays):
            span = bind(loop, *arrays)

            def told(first, count):
                seen.append(first // count)
                span(first, count)

            return told

        return bind_span

    for kind in (MapLoop, FoldLoop):
        monkeypatch.setattr(kind, "bind_span", recorded(kind.bind_span))
    Graph({"x": normal(9, 40)}, ("softmax", "x", "y", {})).check(ROWS)
    blocks = 9 // few_rows
    assert seen == sorted(seen) and set(seen) == {*range(blocks)}
    assert len(seen) % blocks == 0 and len(seen) >= 3 * blocks


@pytest.mark.sample(2)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("seed", range(200))
def test_random_regions_by_blocks(seed, monkeypatch):
    monkeypatch.setattr(row_loops, "BLOCK_BYTES", 50)
    graph = random_rows(seed)
    if structure(graph.region) == "rows":
        graph.check(ROWS, 2e-5)


def over(axis):
    return {"axes": (axis,), "keepdims": True}


def spelled(axis):
    return [
        ("reduce_max", "x", "m", over(axis)), ("sub", "x m", "s", {}), ("exp", "s", "e", {}),
        ("reduce_sum", "e", "t", over(axis)), ("div", "e t", "p", {}),
    ]  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("keep", ["y", "x y", "t y"])
def test_a_softmax_spelled_out_with_what_stands_around_it(keep, axis, dtype):
    shape = (3, 5, 7)
    given = {"z": normal(*shape, dtype=dtype), "r": normal(*shape, dtype=dtype), "v": normal(7, dtype=dtype)}
    before = [("scale", "z", "h", {"factor": 0.5}), ("add", "h r", "x", {})]
    after = [("mul", "p v", "q", {}), ("add", "q z", "y", {})]
    Graph(given, *before, *spelled(axis), *after, keep=keep).check(ROWS, 2e-5 if dtype is f32 else None)


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_of_every_layout(layout):
    for axis in range(3):
        x = LAYOUTS[layout](normal(2, 3, 65))
        Graph({"x": x}, ("softmax", "x", "y", {"axis": axis})).check(ROWS)


@pytest.mark.spec("A12")
def test_statistics_are_wider_than_halves():
    """A mean of numbers near 1000 whose squares f16 can't hold, and whose sum it can't count."""
    x = (1000 + normal(4, 4096)).astype(f16.numpy)
    exact = x.astype(np.float64)
    y, mean, rstd = Graph(
        operands((4, 4096), f16, "w b") | {"x": x, "w": np.ones(4096, f16.numpy), "b": np.zeros(4096, f16.numpy)},
        ("layer_norm", "x w b", "y mean rstd", {}),
    ).run(ROWS)  # fmt: skip
    np.testing.assert_allclose(mean[:, 0], exact.mean(1), rtol=1e-6)
    np.testing.assert_allclose(rstd[:, 0], 1 / np.sqrt(exact.var(1) + 1e-5), rtol=1e-4)
    np.testing.assert_allclose(y.astype(float).std(1), 1, atol=1e-3)


@pytest.mark.sample(1)
@pytest.mark.spec("A12", "A15")
@pytest.mark.parametrize("seed", range(1000))
def test_random_regions(seed):
    """Fused, against float64."""
    graph = random_rows(seed)
    if structure(graph.region) != "rows":  # of rows of one element, which look like their sums
        pytest.skip(f"the region is {structure(graph.region)}")
    graph.check(ROWS, 2e-5)


# --- special values ---------------------------------------------------------------------------------------------------


def softmax(x, kind="softmax", axis=1):
    (got,) = Graph({"x": x}, (kind, "x", "y", {"axis": axis})).run(ROWS)
    return got


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("axis", [0, 1])
def test_numbers_of_any_size_neither_overflow_nor_vanish(axis):
    x = np.array(
        [[1e30, -1e30, 0.0], [-1e30, -1e30, -1e30], [1e30, 1e30, 0.0], [FULL, 1.0, -2.0]], np.float32
    )
    if axis == 0:
        x = np.ascontiguousarray(x.T)
    third, want = 1 / 3, np.array([[1, 0, 0], [1 / 3] * 3, [0.5, 0.5, 0], [1, 0, 0]])
    got = softmax(x, axis=axis)
    np.testing.assert_allclose(got if axis else got.T, want, rtol=1e-6)
    logs = softmax(x, "log_softmax", axis)
    logs = logs if axis else logs.T
    np.testing.assert_allclose(logs[1], np.log([third] * 3), rtol=1e-6)
    np.testing.assert_array_equal(logs[0], np.array([0, -2e30, -1e30], np.float32))
    sums = softmax(x, "logsumexp", axis).reshape(-1)
    np.testing.assert_allclose(sums, np.array([1e30, -1e30, 1e30, FULL]), rtol=1e-6)


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_softmax_does_not_change_when_its_rows_are_shifted(dtype):
    """By whole numbers, so that nothing is rounded on the way in."""
    x = np.rint(8 * normal(5, 33)).clip(-31, 31)
    shift = np.array([[64.0], [-64.0], [0.0], [32.0], [96.0]])
    first, second = (softmax(a.astype(dtype.numpy)) for a in (x, x + shift))
    assert first.tobytes() == second.tobytes()
    np.testing.assert_allclose(first.astype(float).sum(1), 1, rtol={f32: 1e-6, f16: 2e-3, bf16: 1e-2}[dtype])


@pytest.mark.spec("A12")
def test_a_mask_leaves_no_trace_and_a_row_that_is_all_mask_is_no_number():
    x = normal(4, 6)
    x[0, 2:] = -np.inf
    x[1] = -np.inf
    x[2, 3] = np.inf
    x[3, 5] = np.nan
    got = softmax(x)
    np.testing.assert_array_equal(got[0, 2:], 0)
    e = np.exp(x[0, :2].astype(float))
    np.testing.assert_allclose(got[0, :2], e / e.sum(), rtol=1e-6)
    assert np.isnan(got[1:]).all()  # of the others all: their sum is no number


@pytest.mark.spec("A12")
@pytest.mark.parametrize("axis", [0, 1])
def test_logsumexp_keeps_infinities(axis):
    """As PyTorch and JAX have it. A row that is -inf throughout, or holds inf, is its own case."""
    inf, nan = np.inf, np.nan
    x = np.array(
        [[-inf, -inf], [inf, 0], [inf, -inf], [nan, inf], [nan, -inf], [-inf, 2], [1, 2]], np.float32
    )
    want = [-inf, inf, inf, nan, nan, 2, np.log(np.exp(1) + np.exp(2))]
    got = softmax(np.ascontiguousarray(x if axis else x.T), "logsumexp", axis)
    np.testing.assert_allclose(got.reshape(-1), want, rtol=1e-6)


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("kind", [*SOFTMAXES, "layer_norm", "rms_norm"])
def test_what_is_no_number_stays_in_its_row(kind):
    x = normal(5, 9)
    x[1, 4], x[2, 3], x[3, 0] = np.nan, np.inf, -np.inf
    results = {"layer_norm": "y mean rstd", "rms_norm": "y rstd"}.get(kind, "y")
    graph = Graph({"x": x}, (kind, "x", results, {}), keep="y")
    with np.errstate(all="ignore"):
        (got,), (want,) = graph.run(ROWS), graph.wanted()
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)
    assert np.isfinite(got[[0, 4]]).all()


@pytest.mark.spec("A12")
def test_constant_rows_have_no_variance():
    x = np.full((3, 300), 0.1, np.float32)
    y, mean, rstd = Graph({"x": x}, ("layer_norm", "x", "y mean rstd", {})).run(ROWS)
    assert np.abs(y).max() < 1e-4
    np.testing.assert_allclose(mean, 0.1, rtol=1e-7)
    np.testing.assert_allclose(rstd, 1 / np.sqrt(1e-5), rtol=1e-6)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.spec("A15", "B8")
def test_strict_numbers_are_left_to_the_ops_apart():
    graph = Graph({"x": normal(3, 5)}, *spelled(1), strict=True)
    refused = VARIANTS[ROWS].supported(graph.region, host())
    assert refused.condition == "strict"
    one = Graph({"x": normal(3, 5)}, ("softmax", "x", "y", {}), strict=True)
    one.check(ROWS)


@pytest.mark.spec("E2")
@pytest.mark.parametrize(
    "kind",
    [
        *SOFTMAXES,
        *NORMS,
        "softmax_grad",
        "log_softmax_grad",
        "l2_normalize",
        "l2_normalize_grad",
        "cross_entropy",
    ],
)
def test_expansions_are_the_ops_themselves(kind):
    """The kernel runs the steps; the reference is written apart from them."""
    assert schema_of(kind).expand_fn is not None and schema_of(kind).reference_fn is not None


def test_rows_of_tensors_without_elements_do_nothing(request):
    """Along each axis, with none along another, the others drawn; in a process of its own, which a division by their number would end."""
    sizes = [int(n) for n in rng(request.node.nodeid).integers(2, 6, 3)]
    code = f"""
import numpy as np, aicf
from aicf.device.spec import host
from aicf.ops.schema import schema_of
from aicf.rows import RegionSpec
from aicf.types import TensorDesc, TensorSpec, f32
variant = aicf.default_registry().by_id("cpu.rows_loop.v1")
for axis, none in [(a, n) for a in range(3) for n in range(3) if a != n]:
    shape = tuple(0 if at == none else size for at, size in enumerate({sizes}))
    x, desc = np.zeros(shape, np.float32), TensorDesc.dense(TensorSpec(shape, f32))
    for name, operands in (("softmax", 1), ("log_softmax_grad", 2)):
        schema = schema_of(name)
        region = RegionSpec.single(schema.kind, schema.pack({{"axis": axis}}), [desc] * operands, [desc])
        assert variant.supported(region, host()) is None
        print(name, shape, axis, flush=True)
        variant.build(region, host()).function([x] * operands, [np.zeros_like(x)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("softmax") == 12, done.stdout + done.stderr[-2000:]
