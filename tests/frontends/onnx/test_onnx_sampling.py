"""Resizing, sampling, transforms and what is chosen by values, beside formulas written element by element, PyTorch's where it is installed, and refusals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx
import pytest
from onnx import helper

import aicf
from aicf.errors import AicfError, UnsupportedOpsError

from .models import model

RNG = np.random.default_rng(5)


def f32(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def run(op, feeds, outputs=1, opset=22, weights=None, domain="", **attrs):
    """The results of a model of one node; `weights` are operands that are known."""
    names = [name if name in feeds or name in (weights or {}) else "" for name in (*feeds, *(weights or {}))]
    made = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(op, names, made, domain=domain, **attrs)
    inputs = [(name, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for name, a in feeds.items()]
    more = [helper.make_opsetid(domain, 1)] if domain else []
    proto = model(
        [node], inputs, [onnx.ValueInfoProto(name=name) for name in made], weights, opset, more_opsets=more
    )
    if op == "NonMaxSuppression":  # what its inputs are fixes sizes
        return list(aicf.onnx_backend.prepare(proto).run(list(feeds.values())))
    got = aicf.from_onnx(proto, "cpu")(feeds)
    return [got[name].numpy() for name in made]


# --- Resize ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mode, aligned",
    [("linear", False), ("linear", True), ("cubic", False), ("cubic", True), ("nearest", False)],
)
@pytest.mark.parametrize("size", [(7, 9), (3, 2), (5, 12)])
def test_resizing_is_pytorch_s(mode, aligned, size):
    torch = pytest.importorskip("torch")
    x = f32(2, 3, 5, 6)
    way = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}[mode]
    more = {} if mode == "nearest" else {"align_corners": aligned}
    want = torch.nn.functional.interpolate(torch.tensor(x), size=size, mode=way, **more).numpy()
    attrs = {
        "coordinate_transformation_mode": "align_corners"
        if aligned
        else "asymmetric"
        if mode == "nearest"
        else "half_pixel"
    }
    known = {
        "roi": np.zeros(0, np.float32),
        "scales": np.zeros(0, np.float32),
        "sizes": np.array([2, 3, *size]),
    }
    (got,) = run("Resize", {"x": x}, weights=known, mode=mode, nearest_mode="floor", **attrs)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_linear_resize_by_hand_and_of_few_axes():
    x = np.array([[1.0, 3.0, 7.0]], np.float32)
    known = {"roi": np.zeros(0, np.float32), "scales": np.array([2.0], np.float32)}
    (got,) = run("Resize", {"x": x}, weights=known, mode="linear", axes=[1])
    np.testing.assert_allclose(got, [[1, 1.5, 2.5, 4, 6, 7]], rtol=1e-6)
    (got,) = run(
        "Resize",
        {"x": np.arange(4, dtype=np.int32)[None]},
        weights={**known, "scales": np.array([0.5], np.float32)},
        axes=[1],
    )
    assert got.tolist() == [[0, 2]]


@pytest.mark.parametrize("policy, shape", [("not_larger", (6, 8)), ("not_smaller", (9, 12))])
def test_sizes_that_keep_the_aspect_ratio(policy, shape):
    known = {"roi": np.zeros(0, np.float32), "scales": np.zeros(0, np.float32), "sizes": np.array([9, 8])}
    (got,) = run(
        "Resize", {"x": f32(1, 1, 3, 4)}, weights=known, axes=[2, 3], keep_aspect_ratio_policy=policy
    )
    assert got.shape == (1, 1, *shape)


# --- sampling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_sampling_at_a_grid_is_pytorch_s(mode, padding, aligned):
    torch = pytest.importorskip("torch")
    way = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}[mode]
    x, grid = f32(2, 3, 5, 6), RNG.uniform(-1.6, 1.6, (2, 4, 7, 2)).astype(np.float32)
    want = torch.nn.functional.grid_sample(
        torch.tensor(x), torch.tensor(grid), way, padding, bool(aligned)
    ).numpy()
    (got,) = run("GridSample", {"x": x, "grid": grid}, mode=mode, padding_mode=padding, align_corners=aligned)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_sampling_volumes_between_their_elements():
    x, grid = f32(1, 2, 3, 4, 5), RNG.uniform(-1, 1, (1, 2, 2, 2, 3)).astype(np.float32)
    (got,) = run("GridSample", {"x": x, "grid": grid}, mode="linear", align_corners=1)
    for at in np.ndindex(2, 2, 2):
        place = [(grid[(0, *at)][2 - a] + 1) * (n - 1) / 2 for a, n in enumerate((3, 4, 5))]
        want = np.zeros(2)
        for corner in itertools.product((0, 1), repeat=3):
            low = [min(math.floor(p), n - 2) for p, n in zip(place, (3, 4, 5))]
            weight = np.prod([p - i if c else 1 - (p - i) for p, i, c in zip(place, low, corner)])
            want += weight * x[0, :, low[0] + corner[0], low[1] + corner[1], low[2] + corner[2]]
        np.testing.assert_allclose(got[(0, slice(None), *at)], want, rtol=1e-4, atol=1e-5)


def test_columns_are_added_where_they_come_from():
    x = f32(2, 3 * 2 * 3, 2 * 4)
    known = {"image": np.array([4, 5]), "block": np.array([2, 3])}
    (got,) = run("Col2Im", {"x": x}, weights=known, strides=[2, 1], pads=[0, 1, 0, 0], dilations=[1, 1])
    want, cells = np.zeros((2, 3, 4, 6)), x.reshape(2, 3, 2, 3, 8)
    for i, j, k in itertools.product(range(2), range(3), range(8)):
        row, column = divmod(k, 4)
        want[:, :, row * 2 + i, column + j] += cells[:, :, i, j, k]
    np.testing.assert_allclose(got, want[..., 1:], rtol=1e-5, atol=1e-6)


# --- transforms ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [None, 5, 12])
def test_transforms_are_numpy_s(length):
    x = f32(2, 9, 3, 2)
    known = {} if length is None else {"length": np.array(length), "axis": np.array(1)}
    z = x[..., 0].astype(np.float64) + 1j * x[..., 1]
    if length is None:
        known, axis = {}, -1
    else:
        axis = 1
    (got,) = run("DFT", {"x": x}, weights=known)
    want = np.fft.fft(z, n=length, axis=axis)
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], want, rtol=1e-4, atol=1e-4)
    (got,) = run("DFT", {"x": x}, weights=known, inverse=1)
    np.testing.assert_allclose(
        got[..., 0] + 1j * got[..., 1], np.fft.ifft(z, n=length, axis=axis), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("size", [8, 9])
def test_half_of_a_transform_and_back(size):
    x = f32(3, size, 1)
    (half,) = run("DFT", {"x": x}, onesided=1)
    want = np.fft.rfft(x[..., 0].astype(np.float64))
    np.testing.assert_allclose(half[..., 0] + 1j * half[..., 1], want, rtol=1e-4, atol=1e-4)
    (back,) = run("DFT", {"x": half}, weights={"length": np.array(size)}, onesided=1, inverse=1)
    np.testing.assert_allclose(back, x, rtol=1e-4, atol=1e-5)


# --- what values choose --------------------------------------------------------------------------------------------------


def test_boxes_without_those_that_lie_over_a_better_one():
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11], [0, 10.9, 1, 11.9]]], np.float32)
    scores = np.array([[[0.9, 0.95, 0.5, 0.3]]], np.float32)
    known = {"most": np.array([3]), "overlap": np.array([0.5], np.float32)}
    (got,) = run("NonMaxSuppression", {"boxes": boxes, "scores": scores}, weights=known)
    assert got.tolist() == [[0, 0, 1], [0, 0, 2], [0, 0, 3]]
    (got,) = run(
        "NonMaxSuppression",
        {"boxes": boxes, "scores": scores},
        weights={**known, "least": np.array([0.4], np.float32)},
    )
    assert got.tolist() == [[0, 0, 1], [0, 0, 2]]


def test_places_of_the_greatest_elements_and_back():
    x = f32(2, 3, 6, 6)
    best, places = run("MaxPool", {"x": x}, 2, kernel_shape=[2, 2], strides=[2, 2])
    assert np.array_equal(x.reshape(-1)[places], best)
    (back,) = run("MaxUnpool", {"x": best, "places": places}, kernel_shape=[2, 2], strides=[2, 2])
    want = np.zeros(x.size, np.float32)
    want[places.reshape(-1)] = best.reshape(-1)
    assert np.array_equal(back.reshape(-1), want)


def test_whole_powers_wrap_and_vanish():
    a, b = np.array([2, -3, 0, 1, -1, 7, 2, 5], np.int32), np.array([10, 3, 0, -4, -3, 20, 40, -1], np.int32)
    (got,) = run("Pow", {"a": a, "b": b})
    assert got.tolist() == [1024, -27, 1, 1, -1, (7**20 + 2**31) % 2**32 - 2**31, 0, 0]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_determinants(size):
    x = f32(5, size, size)
    (got,) = run("Det", {"x": x})
    np.testing.assert_allclose(got, np.linalg.det(x.astype(np.float64)), rtol=1e-4, atol=1e-5)


def test_integers_are_convolved_exactly():
    x, w = (
        RNG.integers(0, 256, (1, 2, 5, 5)).astype(np.uint8),
        RNG.integers(0, 256, (3, 2, 3, 3)).astype(np.uint8),
    )
    (got,) = run(
        "ConvInteger",
        {"x": x, "w": w},
        weights={"zx": np.array(7, np.uint8), "zw": np.array([1, 2, 3], np.uint8)},
    )
    left, right = x.astype(np.int64) - 7, w.astype(np.int64) - np.array([1, 2, 3])[:, None, None, None]
    seen = np.lib.stride_tricks.sliding_window_view(left, (3, 3), (2, 3))
    assert np.array_equal(got, np.einsum("ncyxij,ocij->noyx", seen, right)) and got.dtype == np.int32


NO_SIZES = {"roi": np.zeros(0, np.float32)}
REFUSED = {
    "neither scales nor sizes": ("Resize", {"x": (1, 4)}, NO_SIZES, {}, "neither scales nor sizes"),
    "three scales": ("Resize", {"x": (1, 4)}, {**NO_SIZES, "scales": np.ones(3, np.float32)}, {}, "scales .* are not positive numbers for 2 axes"),
    "a scale of 0": ("Resize", {"x": (1, 4)}, {**NO_SIZES, "scales": np.zeros(2, np.float32)}, {}, "scales .* are not positive"),
    "a mode": ("Resize", {"x": (1, 4)}, {**NO_SIZES, "scales": np.ones(2, np.float32)}, {"mode": "area"}, "mode is 'area'"),
    "coordinates": (
        "Resize", {"x": (1, 4)}, {**NO_SIZES, "scales": np.ones(2, np.float32)}, {"coordinate_transformation_mode": "polar"}, "is 'polar'",
    ),
    "a grid of three": ("GridSample", {"x": (1, 1, 4, 4), "grid": (1, 2, 2, 3)}, {}, {}, "a grid .* does not fit"),
    "a padding": ("GridSample", {"x": (1, 1, 4, 4), "grid": (1, 2, 2, 2)}, {}, {"padding_mode": "wrap"}, "padding_mode 'wrap'"),
    "blocks": ("Col2Im", {"x": (1, 5, 4)}, {"image": np.array([3, 3]), "block": np.array([2, 2])}, {}, "blocks .* do not make"),
    "columns": ("Col2Im", {"x": (1, 4, 5)}, {"image": np.array([3, 3]), "block": np.array([2, 2])}, {}, "5 columns, where .* has 4"),
    "a large transform": ("DFT", {"x": (5000, 1)}, {}, {}, "a transform of 5000 elements"),
    "no signal": ("DFT", {"x": (4, 3)}, {}, {}, "is no signal"),
    "a large determinant": ("Det", {"x": (5, 5)}, {}, {}, "a determinant of 5 rows"),
    "no square": ("Det", {"x": (3, 4)}, {}, {}, "no square matrices"),
    "scores": ("NonMaxSuppression", {"boxes": (1, 3, 4), "scores": (1, 1, 2)}, {}, {}, "are not those of boxes"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_says_so(what):
    op, shapes, known, attrs, text = REFUSED[what]
    with pytest.raises((AicfError, UnsupportedOpsError), match=text):
        run(op, {name: f32(*shape) for name, shape in shapes.items()}, weights=known, **attrs)
