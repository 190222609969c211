"""Definitions of ops before version 13, and models whose first plan does not fit sizes of 1: drawn, beside ONNX's own evaluator."""

import numpy as np
import onnx
import pytest
from draws.seeds import rng
from onnx import helper
from onnx.reference import ReferenceEvaluator

import aicf
from aicf.errors import FrontendError, UnsupportedOpsError

from .models import model

NODES = 5  # of each run
OPS = {  # (the least version of the ops, attributes to draw from)
    "ArgMax": (7, {"axis": (0, 1, 2), "keepdims": (0, 1)}),
    "Cast": (7, {"to": (onnx.TensorProto.INT32, onnx.TensorProto.DOUBLE)}),
    "Flatten": (7, {"axis": (0, 1, 2)}),
    "Max": (7, {}),
    "Mean": (7, {}),
    "Sum": (7, {}),
    "Pow": (7, {}),
    "PRelu": (7, {}),
    "ReduceL2": (7, {"axes": ([0], [1, 2], [2]), "keepdims": (0, 1)}),
    "ReduceLogSumExp": (7, {"axes": ([0], [1, 2]), "keepdims": (0, 1)}),
    "ReduceMax": (7, {"axes": ([0], [1, 2]), "keepdims": (0, 1)}),
    "ReduceSum": (7, {"axes": ([0], [1, 2]), "keepdims": (0, 1)}),
    "Pad": (7, {"pads": ([0, 1, 0, 0, 0, 2], [1, 0, 0, 0, 0, 0]), "value": (0.0, 1.5)}),
    "Slice": (7, {"starts": ([0, 1],), "ends": ([1, 9], [-1, 2]), "axes": ([0, 2], [1, 2])}),
    "TopK": (7, {"k": (1, 2), "axis": (1, 2)}),
    "Unsqueeze": (7, {"axes": ([0], [1, 3])}),
}
TWO = "Max", "Mean", "Sum", "Pow", "PRelu"
NEEDED = "to", "axes", "pads", "starts", "ends", "k"


@pytest.mark.parametrize("part", [0, 1])
def test_drawn_nodes_of_older_versions(part):
    draw = rng("older versions", part)
    for op in draw.choice(sorted(OPS), NODES // 2, replace=False):
        least, attrs = OPS[op]
        version = int(draw.integers(least, 13))
        x = np.abs(draw.normal(size=(2, 3, 4))).astype(np.float32)
        feeds = {"x": x, **({"z": np.float32(draw.integers(1, 4)) * np.ones_like(x)} if op in TWO else {})}
        given = {k: v[draw.integers(len(v))] for k, v in attrs.items() if k in NEEDED or draw.random() < 0.7}
        if op in ("Pad", "Slice", "TopK") and version > 9:
            version = 9
        node = helper.make_node(op, [*feeds], ["y", "i"] if op == "TopK" else ["y"], **given)
        result = onnx.ValueInfoProto(name="y")
        made = model([node], [(k, v.shape) for k, v in feeds.items()], [result], None, version)
        case = f"{op} of version {version} {given}"
        want = ReferenceEvaluator(made).run(["y"], feeds)[0]
        got = aicf.from_onnx(made, "cpu")(feeds)["y"].numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=case)


def test_statistics_of_each_element_are_refused():
    """BatchNormalization of version 7 with spatial=0; 1 is the default, of each channel."""
    x = np.ones((2, 3, 4), np.float32)
    for spatial, shape in ((1, (3,)), (0, (3, 4))):
        weights = {name: np.ones(shape, np.float32) for name in ("s", "b", "m", "v")}
        node = helper.make_node("BatchNormalization", ["x", *weights], ["y"], spatial=spatial)
        made = model([node], [("x", x.shape)], [("y", x.shape)], weights, 7)
        if spatial:
            np.testing.assert_allclose(aicf.from_onnx(made, "cpu")({"x": x})["y"].numpy(), x, rtol=1e-4)
        else:
            with pytest.raises(UnsupportedOpsError, match="of each element"):
                aicf.from_onnx(made, "cpu")


def test_a_version_may_be_named_twice():
    version = int(rng("versions").integers(13, 22))
    node, result = helper.make_node("Neg", ["x"], ["y"]), [("y", [2])]
    twice = model([node], [("x", [2])], result, None, version, more_opsets=[helper.make_opsetid("", version)])
    np.testing.assert_array_equal(
        aicf.from_onnx(twice, "cpu")({"x": np.ones(2, np.float32)})["y"].numpy(), -1
    )
    other = model(
        [node], [("x", [2])], result, None, version, more_opsets=[helper.make_opsetid("", version + 1)]
    )
    with pytest.raises(FrontendError, match="two versions"):
        aicf.from_onnx(other, "cpu")


def test_a_first_plan_fits_every_node():
    """A TopK of more elements than a named dimension has where it is 1."""
    draw = rng("first plans")
    k, rows = int(draw.integers(2, 20)), int(draw.integers(20, 40))
    node = helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=1)
    made = model([node], [("x", ["batch", "anchors"])], [("y", ["batch", k])], {"k": np.array([k])})
    x = draw.permutation(3 * rows).reshape(3, rows).astype(np.float32)
    program = aicf.from_onnx(made, "cpu")
    assert program.recipe.model.sizes["batch"] == 1 and program.recipe.model.sizes["anchors"] >= k
    np.testing.assert_array_equal(program({"x": x})["y"].numpy(), -np.sort(-x, 1)[:, :k])
    (small,) = aicf.onnx_backend.prepare(made).run([x])[:1]
    np.testing.assert_array_equal(small, -np.sort(-x, 1)[:, :k])
    never = model(
        [helper.make_node("Reshape", ["x", "s"], ["y"])],
        [("x", ["rows", 3])],
        [("y", [7])],
        {"s": np.array([7])},
    )
    with pytest.raises(UnsupportedOpsError) as refused:
        aicf.from_onnx(never, "cpu")
    assert "Reshape" in str(refused.value)
