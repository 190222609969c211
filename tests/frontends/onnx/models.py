"""Small ONNX models for the tests."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def info(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes, inputs, outputs, weights=None, opset=17, functions=(), more_opsets=()):
    """inputs, outputs   (name, shape) of f32, (name, shape, element type), or value infos"""
    graph = helper.make_graph(
        nodes, "graph",
        [info(*x) if isinstance(x, tuple) else x for x in inputs],
        [info(*x) if isinstance(x, tuple) else x for x in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), *more_opsets]
    return helper.make_model(graph, opset_imports=opsets, functions=functions)


def mlp(seed=0, result="y"):
    """relu(x W + b) with a batch of any size, and its arrays."""
    rng = np.random.default_rng(seed)
    weights = {
        "fc.weight": rng.normal(size=(8, 4)).astype(np.float32),
        "fc.bias": rng.normal(size=4).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "fc.weight"], ["h"]),
        helper.make_node("Add", ["h", "fc.bias"], ["a"]),
        helper.make_node("Relu", ["a"], [result]),
    ]
    return model(nodes, [("x", ["batch", 8])], [(result, ["batch", 4])], weights), weights
