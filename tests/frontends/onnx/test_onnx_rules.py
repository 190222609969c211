"""Rules of ONNX ops at the edges of their definitions, beside NumPy in double precision or what ONNX's own reference computes."""

import gc

import numpy as np
import onnx
from onnx import helper

import aicf

from .models import info, model

RNG = np.random.default_rng(8)


def _f32(*shape):
    return RNG.normal(size=shape).astype(np.float32)


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
