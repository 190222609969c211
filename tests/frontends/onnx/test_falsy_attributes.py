"""Attributes and inputs of ONNX that are 0, 0.0 or empty are values, not absent ones: drawn nodes, beside ONNX's own evaluator."""

import itertools

import numpy as np
import onnx
import pytest
from draws.seeds import rng as rng_of
from onnx import helper
from onnx.reference import ReferenceEvaluator

import aicf

from .models import model

NODES = 5  # of each run
I64 = np.int64

# an op, its version, inputs from x (3, 4), constant inputs that may be left out, attributes that may be left out
OPS = {
    "Attention": (23, lambda x: [x[None, None], x[None, None] + 1, x[None, None] * 2], [], {"scale": (0.0, 0.5), "softcap": (0.0,), "is_causal": (0,)}),
    "Gemm": (20, lambda x: [x, x, x[:, :3]], [], {"transB": (1,), "alpha": (0.0, 2.0), "beta": (0.0, 2.0)}),
    "LeakyRelu": (20, lambda x: [x], [], {"alpha": (0.0, 0.3)}),
    "Elu": (20, lambda x: [x], [], {"alpha": (0.0, 0.3)}),
    "Celu": (20, lambda x: [x], [], {"alpha": (0.5,)}),
    "Selu": (20, lambda x: [x], [], {"alpha": (0.0, 1.0), "gamma": (0.0, 1.0)}),
    "HardSigmoid": (20, lambda x: [x], [], {"alpha": (0.0, 0.3), "beta": (0.0, 0.3)}),
    "ThresholdedRelu": (20, lambda x: [x], [], {"alpha": (0.0, 0.3)}),
    "Shrink": (20, lambda x: [x], [], {"lambd": (0.0, 0.3), "bias": (0.0, 0.1)}),
    "Clip": (20, lambda x: [x], [(np.float32(0.0), np.float32(-1.0)), (np.float32(0.0), np.float32(0.5))], {}),
    "ReduceSum": (20, lambda x: [x], [(np.zeros(0, I64), np.array([0]))], {"keepdims": (0, 1), "noop_with_empty_axes": (0, 1)}),
    "ReduceMax": (20, lambda x: [x], [(np.zeros(0, I64), np.array([0]))], {"keepdims": (0, 1), "noop_with_empty_axes": (0, 1)}),
    "ReduceL2": (18, lambda x: [x], [(np.zeros(0, I64), np.array([1]))], {"keepdims": (0,), "noop_with_empty_axes": (0,)}),
    "ArgMax": (20, lambda x: [x], [], {"axis": (0, 1), "keepdims": (0, 1), "select_last_index": (0,)}),
    "Softmax": (20, lambda x: [x], [], {"axis": (0, 1)}),
    "Flatten": (20, lambda x: [x], [], {"axis": (0, 1)}),
    "Shape": (20, lambda x: [x], [], {"start": (0, 1), "end": (0, 2)}),
    "EyeLike": (20, lambda x: [x], [], {"k": (0, 1)}),
    "Trilu": (20, lambda x: [x], [(np.array(0), np.array(1))], {"upper": (0, 1)}),
    "Pad": (20, lambda x: [x], [(np.array([0, 0, 0, 0]), np.array([0, 1, 0, 0])), (np.float32(0), np.float32(2))], {"mode": ("constant",)}),
    "Slice": (20, lambda x: [x], [(np.array([0]), np.array([1])), (np.array([0]), np.array([2])), (np.array([0]), np.array([1]))], {}),
    "Squeeze": (20, lambda x: [x[None]], [(np.array([0]),)], {}),
    "TopK": (20, lambda x: [x], [(np.array([0]), np.array([2]))], {"axis": (0, 1), "largest": (0, 1)}),
    "CumSum": (20, lambda x: [x], [(np.array(0), np.array(1))], {"exclusive": (0, 1), "reverse": (0,)}),
    "LayerNormalization": (20, lambda x: [x, x[0]], [], {"axis": (-1, 1), "epsilon": (0.0, 0.1)}),
    "Concat": (20, lambda x: [x, x], [], {"axis": (0, 1)}),
    "Gather": (20, lambda x: [x, np.array([0, 2])], [], {"axis": (0, 1)}),
    "OneHot": (20, lambda x: [np.array([0, 2]), np.array(3), np.array([0.0, 2.0], np.float32)], [], {"axis": (0, 1)}),
    "Dropout": (20, lambda x: [x], [(np.float32(0.0),)], {"seed": (0,)}),
    "DFT": (20, lambda x: [x[:, :, None]], [(np.array(4), np.array(3)), (np.array(0), np.array(1))], {"onesided": (0, 1), "inverse": (0,)}),
}  # fmt: skip
REQUIRED = {"Gemm": {"transB"}, "Concat": {"axis"}, "Slice": 2, "TopK": 1, "Pad": 1, "CumSum": 1}


def _node(rng, op):
    """(a model of one node, its feeds), with each optional input and attribute absent or drawn."""
    opset, make, constants, attrs = OPS[op]
    inputs = make(rng.normal(size=(3, 4)).astype(np.float32))
    needed = REQUIRED.get(op, 0)
    names, feeds, weights = [], {}, {}
    for n, array in enumerate(inputs):
        names.append(f"x{n}")
        (feeds if array.dtype == np.float32 and n < 3 and op != "OneHot" else weights)[f"x{n}"] = array
    for n, values in enumerate(constants):
        if n >= (needed if isinstance(needed, int) else 0) and rng.random() < 0.3:
            names.append("")
            continue
        names.append(f"c{n}")
        weights[f"c{n}"] = np.asarray(values[rng.integers(len(values))])
    must = needed if isinstance(needed, set) else set()
    given = {k: v[rng.integers(len(v))] for k, v in attrs.items() if k in must or rng.random() < 0.8}
    while names and not names[-1]:
        names.pop()
    results = ["y", "i"] if op == "TopK" else ["y"]
    made = helper.make_node(op, names, results, **given)
    given_types = [(k, v.shape, helper.np_dtype_to_tensor_dtype(v.dtype)) for k, v in feeds.items()]
    outputs = [helper.make_value_info("y", helper.make_tensor_type_proto(0, None))]
    outputs[0].ClearField("type")
    return (
        model([made], given_types, outputs, weights, opset),
        feeds,
        (op, names, given, {k: v.tolist() for k, v in weights.items()}),
    )


def check(rng, op):
    """That a drawn node computes what ONNX's evaluator does."""
    made, feeds, case = _node(rng, op)
    print(case)
    want = ReferenceEvaluator(made).run(["y"], feeds)[0]
    got = aicf.from_onnx(made, "cpu")(feeds)["y"].numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=str(case))


def test_drawn_nodes_with_falsy_attributes():
    rng = rng_of("falsy attributes")
    for op in ["Attention", *rng.choice(sorted(OPS), NODES - 1, replace=False)]:
        check(rng, op)


X, ONE = np.zeros((3, 4), np.float32), np.array(1, I64)
# an op and its inputs; those named are one integer or number each
NUMBERS = {
    "CumSum": ({"x": X, "axis": ONE}, ["axis"]),
    "TopK": ({"x": X, "k": ONE}, ["k"]),
    "Trilu": ({"x": X, "k": ONE}, ["k"]),
    "OneHot": ({"x": np.array([0, 2]), "depth": np.array(3), "values": np.array([0, 1], np.float32)}, ["depth"]),
    "DFT": ({"x": X[:, :, None], "length": np.array(4), "axis": ONE}, ["length", "axis"]),
    "Range": ({"start": ONE, "limit": ONE, "delta": ONE}, ["start", "limit", "delta"]),
    "STFT": ({"x": X[:, :, None], "step": ONE, "window": X[0], "length": np.array(4)}, ["step", "length"]),
}  # fmt: skip


@pytest.mark.parametrize("op", NUMBERS)
def test_one_number_is_one_element(op):
    """An empty constant is not the default, and of several none is chosen."""
    inputs, numbers = NUMBERS[op]
    for name, size in itertools.product([None, *numbers], (0, 2)):
        weights = {n: np.resize(v, size) if n == name else v for n, v in inputs.items() if n != "x"}
        feeds = (
            [("x", inputs["x"].shape, helper.np_dtype_to_tensor_dtype(inputs["x"].dtype))]
            if "x" in inputs
            else []
        )
        output = onnx.ValueInfoProto(name="y")
        made = model(
            [helper.make_node(op, list(inputs), ["i", "y"] if op == "TopK" else ["y"])],
            feeds,
            [output],
            weights,
            20,
        )
        if name is None:
            aicf.from_onnx(made, "cpu")
            continue
        with pytest.raises(aicf.AicfError) as refused:
            aicf.from_onnx(made, "cpu")
        assert f"{size} elements" in str(refused.value) or f"[{size}]" in str(refused.value), refused.value
