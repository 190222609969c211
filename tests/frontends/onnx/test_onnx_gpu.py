"""ONNX models on an NVIDIA GPU, beside NumPy in double precision. tools/onnx_coverage.py --device CUDA runs ONNX's own tests there."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import aicf

from .models import mlp, model

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_a_model_whose_batch_is_fed(batch):
    proto, weights = mlp()
    program = aicf.from_onnx(proto, device="cuda", sizes={"batch": 7})
    x = np.random.default_rng(batch).normal(size=(batch, 8)).astype(np.float32)
    want = np.maximum(x.astype(np.float64) @ weights["fc.weight"] + weights["fc.bias"], 0)
    for _ in range(3):  # captured, and replayed
        np.testing.assert_allclose(program({"x": x})["y"].numpy(), want, rtol=1e-5, atol=1e-5)


def test_a_block_of_a_transformer_in_half_precision():
    rng = np.random.default_rng(2)
    heads, d, t, wide = 2, 16, 33, 32
    weights = {
        "qkv": rng.normal(0, 0.2, (wide, 3 * wide)).astype(np.float16),
        "out": rng.normal(0, 0.2, (wide, wide)).astype(np.float16),
        "scale": np.ones(wide, np.float16),
        "bias": np.zeros(wide, np.float16),
    }
    shape = helper.make_tensor("shape", TensorProto.INT64, [4], [0, 0, heads, d])
    flat = helper.make_tensor("flat", TensorProto.INT64, [3], [0, 0, wide])
    root = helper.make_tensor("root", TensorProto.FLOAT16, [], np.array([d**-0.5], np.float16))
    nodes = [
        *(helper.make_node("Constant", [], [n.name], value=n) for n in (shape, flat, root)),
        helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "qkv"], ["m"]),
        helper.make_node("Split", ["m"], ["q0", "k0", "v0"], axis=2, num_outputs=3),
        *(helper.make_node("Reshape", [f"{n}0", "shape"], [f"{n}1"]) for n in "qkv"),
        *(helper.make_node("Transpose", [f"{n}1"], [n], perm=p) for n, p in zip("qkv", ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))),
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Mul", ["s", "root"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["o"]),
        helper.make_node("Transpose", ["o"], ["o1"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["o1", "flat"], ["o2"]),
        helper.make_node("MatMul", ["o2", "out"], ["o3"]),
        helper.make_node("Add", ["x", "o3"], ["y"]),
    ]  # fmt: skip
    half = TensorProto.FLOAT16
    proto = model(nodes, [("x", [3, t, wide], half)], [("y", [3, t, wide], half)], weights, opset=18)
    x = rng.normal(size=(3, t, wide)).astype(np.float16)
    got = aicf.from_onnx(proto, device="cuda")({"x": x})["y"].numpy()

    wide_x = x.astype(np.float64)
    n = (wide_x - wide_x.mean(-1, keepdims=True)) / np.sqrt(wide_x.var(-1, keepdims=True) + 1e-5)
    q, k, v = (
        y.reshape(3, t, heads, d).swapaxes(1, 2)
        for y in np.split(n @ weights["qkv"].astype(np.float64), 3, -1)
    )
    e = np.exp((s := q @ k.swapaxes(2, 3) * d**-0.5) - s.max(-1, keepdims=True))
    o = (e / e.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(3, t, wide)
    np.testing.assert_allclose(got, wide_x + o @ weights["out"].astype(np.float64), rtol=2e-2, atol=2e-2)


def test_it_trains():
    proto, _ = mlp(result="out")
    program = aicf.compile(
        aicf.frontends.onnx.load(proto, sizes={"batch": 32}), mode="train", device="cuda", loss=aicf.nn.MeanSquaredError(), optimizer=aicf.nn.Adam(lr=0.02)
    )  # fmt: skip
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(32, 8)).astype(np.float32), rng.uniform(0, 1, (32, 4)).astype(np.float32)
    losses = [float(program({"x": x, "y": y})["loss"].numpy()) for _ in range(200)]
    assert losses[-1] < 0.5 * losses[0]
