"""Rules of ONNX ops at the edges of their definitions, beside NumPy in double precision."""

import gc

import numpy as np
import onnx
import pytest
from draws.seeds import rng
from onnx import helper

import aicf
from aicf.errors import UnsupportedOpsError

from .models import info, model

RNG = np.random.default_rng(8)


def _f32(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def _kind(array):
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def _one(op, feeds, opset, weights=None, **attrs):
    """A model of one node."""
    names = [*feeds, *(weights or {})]
    inputs = [(name, array.shape, _kind(array)) for name, array in feeds.items()]
    results = [onnx.ValueInfoProto(name="y")]
    return model([helper.make_node(op, names, ["y"], **attrs)], inputs, results, weights, opset)


def _run(op, feeds, opset=20, weights=None, **attrs):
    return aicf.from_onnx(_one(op, feeds, opset, weights, **attrs), "cpu")(feeds)["y"].numpy()


def _softmax_exact(x, axis):
    powers = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def test_calls_of_a_function_with_other_attributes_are_not_taken_for_each_other():
    """Their nodes are made for each call and freed after it: what is kept of constants must not go by where they lay."""
    inner = helper.make_node("Softmax", ["a"], ["b"])
    inner.attribute.append(
        onnx.AttributeProto(name="axis", type=onnx.AttributeProto.INT, ref_attr_name="axis")
    )
    function = helper.make_function(
        "mine", "Tr", ["a"], ["b"], [inner], [helper.make_opsetid("", 17)], ["axis"]
    )
    count, nodes = 12, []
    for i in range(count):
        nodes.append(helper.make_node("Tr", ["w"], [f"s{i}"], domain="mine", axis=i % 2))
        nodes.append(helper.make_node("Add", [f"s{i}", "x"], [f"y{i}"]))
    w, x = _f32(3, 3), _f32(3, 3)
    made = model(
        nodes, [("x", [3, 3])], [(f"y{i}", [3, 3]) for i in range(count)], {"w": w}, functions=[function],
        more_opsets=[helper.make_opsetid("mine", 1)],
    )  # fmt: skip
    gc.collect()
    got = aicf.from_onnx(made, "cpu")({"x": x})
    for i in range(count):
        np.testing.assert_allclose(got[f"y{i}"].numpy(), _softmax_exact(w, i % 2) + x, rtol=1e-5, atol=1e-6)


def test_branches_are_not_taken_for_each_other():
    nodes = []
    for i in range(12):
        axis = i % 2
        body = [helper.make_node("Softmax", ["w"], ["r"], axis=axis)]
        branch = helper.make_graph(body, f"g{i}", [], [info("r", [3, 3])])
        nodes.append(helper.make_node("If", ["c"], [f"s{i}"], then_branch=branch, else_branch=branch))
        nodes.append(helper.make_node("Add", [f"s{i}", "x"], [f"y{i}"]))
    w, x = _f32(3, 3), _f32(3, 3)
    results = [(f"y{i}", [3, 3]) for i in range(12)]
    got = aicf.from_onnx(model(nodes, [("x", [3, 3])], results, {"w": w, "c": np.array(True)}), "cpu")(
        {"x": x}
    )
    for i in range(12):
        np.testing.assert_allclose(got[f"y{i}"].numpy(), _softmax_exact(w, i % 2) + x, rtol=1e-5, atol=1e-6)


def _refused(match, op, feeds, opset=20, **attrs):
    with pytest.raises(UnsupportedOpsError, match=match):
        aicf.from_onnx(_one(op, feeds, opset, **attrs), "cpu")


@pytest.mark.parametrize("channels, size", [(3, 1_000_001), (3, 4), (5, 5), (1, 9)])
def test_a_response_that_is_wider_than_the_channels_is_of_all_of_them(channels, size):
    x = _f32(2, channels, 3)
    squares, total = x.astype(np.float64) ** 2, np.zeros(x.shape)
    for c in range(channels):
        total[:, c] = squares[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].sum(1)
    wanted = x / (1 + 0.1 / size * total) ** 0.75
    got = _run("LRN", {"x": x}, size=size, alpha=0.1, beta=0.75, bias=1.0)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rank", [1, 2])
def test_an_instance_without_axes_to_normalise_is_refused(rank):
    """A mean over no axes is not one over all of them."""
    x, one = _f32(*[2, 3][-rank:]), np.ones(3, np.float32)
    with pytest.raises(aicf.AicfError, match=f"rank {rank}, expected 3 or more"):
        _run("InstanceNormalization", {"x": x, "scale": one, "bias": one})


def test_windows_that_are_too_large_are_refused():
    x = {"x": np.zeros((1, 1, 300, 300), np.float32)}
    for op in ("MaxPool", "AveragePool", "LpPool"):
        _refused("a window of 90000", op, x, kernel_shape=[300, 300])
    _refused("a window of 3999", "LRN", {"x": np.zeros((1, 2000, 1), np.float32)}, size=10_000)


def test_a_norm_of_another_power_is_refused():
    x = _f32(2, 4)
    _refused("p is 3", "LpNormalization", {"x": x}, p=3)
    for p in (1, 2):
        wanted = x / np.linalg.norm(x.astype(np.float64), p, axis=1, keepdims=True)
        np.testing.assert_allclose(_run("LpNormalization", {"x": x}, p=p, axis=1), wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8])
def test_integers_shrink_by_a_fraction(dtype):
    x = np.array([-3, -1, 0, 1, 2, 3], dtype)
    got = _run("Shrink", {"x": x}, bias=1.5, lambd=1.5)
    assert got.dtype == dtype and got.tolist() == [-1, 0, 0, 0, 0, 1]


def test_a_power_of_a_half_is_no_root():
    x = np.array([-np.inf, -0.0, 0, 4, np.inf, np.nan, -1, 2], np.float32)
    got = _run("Pow", {"x": x}, weights={"e": np.float32(0.5)})
    wanted = np.array([np.inf, 0, 0, 2, np.inf, np.nan, np.nan, 2**0.5])
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert not np.signbit(got[1])


@pytest.mark.parametrize("exponent", [0.5, 2.5, -1.0, 2.0])
def test_an_integer_to_a_fraction_is_cut_off(exponent):
    x = np.array([1, 2, 4, 9, 10_000], np.int32)
    wanted = np.trunc(x.astype(np.float64) ** exponent)
    fit = wanted < 2**31
    for known in (True, False):
        e = np.full(1, exponent, np.float32)
        got = _run("Pow", {"x": x}, weights={"e": e}) if known else _run("Pow", {"x": x, "e": e})
        assert got.dtype == x.dtype and np.array_equal(got[fit], wanted[fit])


def test_a_transposed_convolution_whose_kernel_is_smaller_than_its_stride_is_refused():
    x, w = _f32(1, 1, 4), _f32(1, 1, 2)
    for mode in ("SAME_UPPER", "SAME_LOWER"):
        _refused("smaller than its stride", "ConvTranspose", {"x": x, "w": w}, strides=[3], auto_pad=mode)


def test_a_transposed_convolution_beyond_its_windows_is_refused_but_for_one_at_the_end():
    x, w = _f32(1, 1, 3), _f32(1, 1, 3)
    wanted = np.append(np.outer(x, w).reshape(-1), 0)
    got = _run("ConvTranspose", {"x": x, "w": w}, strides=[3], output_shape=[10])
    np.testing.assert_allclose(got.reshape(-1), wanted, rtol=1e-6)
    for size, mode in ((11, "NOTSET"), (14, "SAME_LOWER"), (10, "SAME_UPPER")):
        feeds = {"x": x, "w": w}
        _refused(
            "beyond all windows", "ConvTranspose", feeds, strides=[3], output_shape=[size], auto_pad=mode
        )


@pytest.mark.parametrize(
    "mode, pads", [("wrap", [2, -1]), ("wrap", [-1, 2]), ("reflect", [-1, 2]), ("reflect", [-1, -1])]
)
def test_padding_that_cuts_off_is_refused_where_onnx_leaves_it_open(mode, pads):
    proto = _one("Pad", {"x": _f32(5)}, 20, {"pads": np.array(pads)}, mode=mode)
    with pytest.raises(UnsupportedOpsError, match=f"{mode} of pads"):
        aicf.from_onnx(proto, "cpu")


OLDER = {
    "softmax": ("Softmax", 11, _f32(2, 3, 4), {"axis": 1}),
    "softmax by default": ("Softmax", 7, _f32(2, 3, 4), {}),
    "log_softmax": ("LogSoftmax", 12, _f32(3, 2, 2), {"axis": 0}),
    "hardmax": ("Hardmax", 11, _f32(2, 3, 4), {"axis": -2}),
    "clip": ("Clip", 10, np.array([-9, -1, 0.5, 3, np.inf], np.float32), {"min": -2.0, "max": 2.0}),
    "clip below": ("Clip", 7, np.array([-9, -1, 0.5, 3, 1e30], np.float32), {"min": 0.0}),
    "clip halves": ("Clip", 7, np.array([-9, -1, 0.5, 3, 6e4], np.float16), {"max": 1.0}),
}


def _older_exact(op, x, attrs):
    if op == "Clip":
        return np.clip(x, attrs.get("min"), attrs.get("max"))
    axis = attrs.get("axis", 1) % x.ndim
    rows = x.reshape(*x.shape[:axis], -1)
    if op == "Hardmax":
        y = np.arange(rows.shape[axis]) == rows.argmax(axis)[..., None]
    else:
        y = _softmax_exact(rows, axis)
    return (np.log(y) if op == "LogSoftmax" else y).reshape(x.shape)


@pytest.mark.parametrize("case", OLDER)
def test_older_definitions(case):
    op, opset, x, attrs = OLDER[case]
    got = _run(op, {"x": x}, opset, **attrs)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, _older_exact(op, x, attrs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_mean_of_integers_is_cut_off(dtype):
    x = np.array([[-3, -2, 0], [1, 2, 5], [7, 7, 8]], dtype)
    for axes, keep in (((0,), 1), ((1,), 0), ((0, 1), 1)):
        got = _run("ReduceMean", {"x": x}, weights={"axes": np.array(axes)}, keepdims=keep)
        wanted = np.trunc(x.sum(axes, keepdims=bool(keep)) / np.prod([3 for _ in axes]))
        assert got.dtype == dtype and np.array_equal(got, wanted)


@pytest.mark.parametrize("how", ["none", "add", "max"])
@pytest.mark.parametrize("axis", [0, 1])
def test_updates_that_are_fewer_than_the_rows_beside_them(how, axis):
    x, updates = _f32(3, 4), _f32(2, 2)
    x[2, 3] = np.nan
    at = np.array([[0, 2], [-1, 1]])
    wanted = x.copy()
    for (i, j), place in np.ndenumerate(at):
        to = (place, j) if axis == 0 else (i, place)
        old, new = wanted[to], updates[i, j]
        wanted[to] = new if how == "none" else old + new if how == "add" else max(old, new)
    got = _run("ScatterElements", {"x": x, "at": at, "u": updates}, axis=axis, reduction=how)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_a_rule_for_newer_definitions_alone_is_named():
    x = _f32(1, 1, 2, 4)
    with pytest.raises(UnsupportedOpsError, match=r"definition of version 7, but for those from version 9"):
        aicf.from_onnx(_one("Upsample", {"x": x}, 8, scales=[1.0, 1.0, 2.0, 2.0]), "cpu")


@pytest.mark.parametrize("zeros", [(), ("a",), ("a", "b"), ("rows", "columns")], ids=str)
def test_long_products_of_integers_are_exact(zeros):
    """Sums that f32 has not: of 5,000 terms, with zero points of a tensor, or of each row and column."""
    a = RNG.integers(0, 256, (3, 5000)).astype(np.uint8)
    b = RNG.integers(-128, 128, (5000, 4)).astype(np.int8)
    b[:, 0] = -128
    za, zb = np.zeros((), np.uint8), np.zeros((), np.int8)
    if zeros:
        za = np.array(131, np.uint8) if "rows" not in zeros else RNG.integers(0, 256, 3).astype(np.uint8)
    if len(zeros) == 2:
        zb = np.array(-7, np.int8) if "rows" not in zeros else RNG.integers(-128, 128, 4).astype(np.int8)
    feeds = {"a": a, "b": b, **({"za": za} if zeros else {}), **({"zb": zb} if len(zeros) == 2 else {})}
    left = a.astype(np.int64) - (za[:, None] if za.ndim else za).astype(np.int64)
    got = _run("MatMulInteger", feeds)
    assert got.dtype == np.int32 and np.array_equal(got, left @ (b.astype(np.int64) - zb.astype(np.int64)))


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_a_range_too_long_for_a_constant_has_the_same_elements(dtype, request):
    """Drawn bounds and steps, in quarters where they are floats, which f32 has exactly."""
    draw, unit = rng(request.node.nodeid), 4 if dtype == np.float32 else 1
    start, count = int(draw.integers(-99, 99)), int(draw.integers(70_000, 90_000))
    delta = int(draw.choice([-3, -2, 2, 3, 5]))
    bounds = {"start": start, "limit": start + count * delta, "delta": delta}
    x = draw.integers(-9, 9, 1).astype(dtype)
    nodes = [helper.make_node("Range", list(bounds), ["r"]), helper.make_node("Add", ["r", "x"], ["y"])]
    arrays = {name: np.array(value / unit if unit > 1 else value, dtype) for name, value in bounds.items()}
    made = model(nodes, [("x", (1,), _kind(x))], [onnx.ValueInfoProto(name="y")], arrays, 20)
    got = aicf.from_onnx(made, "cpu")({"x": x})["y"].numpy()
    want = (start + delta * np.arange(count)) / unit + x
    assert got.dtype == dtype and np.array_equal(got, want.astype(dtype))
