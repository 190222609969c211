"""Blocks of transformers as exporters write them: attention in a dozen nodes is one op, forward and in training, and the numbers stay."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import aicf  # noqa: E402
from aicf.frontends.onnx import load  # noqa: E402
from aicf.graph.fuse.price import Pricer  # noqa: E402

B, T, H, D = 2, 6, 4, 8
SIZE = H * D
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def whatever_it_costs(monkeypatch):
    """Small sizes do not pay on the CPU; what is recognised is computed all the same."""
    monkeypatch.setattr(Pricer, "__call__", lambda *_: 0.0)


WEIGHTS = {
    n: (RNG.normal(size=(SIZE, SIZE)) * SIZE**-0.5).astype(np.float32) for n in ("wq", "wk", "wv", "wo")
}


def block(mask):
    """x -> y: a layer of attention as PyTorch's exporters spell it. mask: "causal", "added", "where", or none."""
    nodes, tables = [], dict(WEIGHTS)

    def node(op, *inputs, out=None, **attrs):
        out = out or f"{op.lower()}.{len(nodes)}"
        nodes.append(helper.make_node(op, list(inputs), [out], **attrs))
        return out

    def table(array):
        name = f"table.{len(tables)}"
        tables[name] = np.asarray(array)
        return name

    def split(weight, turned):
        y = node("MatMul", "x", weight)
        y = node("Reshape", y, table(np.array([0, 0, H, D])))
        return node("Transpose", y, perm=[0, 2, 3, 1] if turned else [0, 2, 1, 3])

    scores = node("Div", node("MatMul", split("wq", False), split("wk", True)), table(np.float32(D**0.5)))
    if mask == "causal":
        lower = np.tril(np.ones((1, 1, T, T), bool))
        scores = node("Where", table(lower), scores, table(np.float32(np.finfo(np.float32).min)))
    elif mask == "added":
        hidden = node("Sub", table(np.float32(1)), node("Cast", "mask", to=TensorProto.FLOAT))
        scores = node("Add", scores, node("Mul", hidden, table(np.float32(np.finfo(np.float32).min))))
    elif mask == "where":
        scores = node("Where", "mask", scores, table(np.float32(-np.inf)))
    weights = node("Softmax", scores, axis=-1)
    if mask == "where":  # as newer exporters guard rows without keys
        weights = node("Where", node("IsNaN", weights), table(np.float32(0)), weights)
    y = node("Transpose", node("MatMul", weights, split("wv", False)), perm=[0, 2, 1, 3])
    node("MatMul", node("Reshape", y, table(np.array([0, 0, SIZE]))), "wo", out="out")
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [B, T, SIZE])]
    if mask in ("added", "where"):
        inputs.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, [B, 1, 1, T]))
    graph = helper.make_graph(
        nodes, "block", inputs, [helper.make_tensor_value_info("out", TensorProto.FLOAT, [B, T, SIZE])],
        [numpy_helper.from_array(a, n) for n, a in tables.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def computed(x, mask, kind):
    """The block in double precision."""
    q, k, v = (
        (x @ WEIGHTS[n].astype(np.float64)).reshape(B, T, H, D).transpose(0, 2, 1, 3)
        for n in ("wq", "wk", "wv")
    )
    scores = q @ k.swapaxes(-1, -2) / D**0.5
    if kind == "causal":
        scores = np.where(np.tril(np.ones((T, T), bool)), scores, -1e300)
    elif kind is not None:
        scores = np.where(mask, scores, -1e300)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    y = (e / e.sum(-1, keepdims=True)) @ v
    if kind == "where":
        y = np.where(mask.any(-1, keepdims=True), y, 0)
    return y.transpose(0, 2, 1, 3).reshape(B, T, SIZE) @ WEIGHTS["wo"]


KINDS = {None: "", "causal": "causal, ", "added": "mask, ", "where": "mask, "}


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_of_attention(kind):
    program = aicf.from_onnx(block(kind).SerializeToString(), device="cpu")
    (note,) = (n for n in program.explain().recognised if n.what == "attention")
    assert note.told == f"{KINDS[kind]}scale {D**-0.5:.4g}" and note.ops > 5
    x = RNG.normal(size=(B, T, SIZE))
    mask = RNG.random((B, 1, 1, T)) < 0.6
    mask[0], mask[1, ..., 0] = False, True
    feed = {"x": x.astype(np.float32)} | ({"mask": mask} if kind in ("added", "where") else {})
    got = program(feed)["out"].numpy()
    np.testing.assert_allclose(got, computed(x, mask, kind), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [None, "causal", "added"])
def test_training_goes_on_as_it_did(kind):
    """Gradients are the op's own; a graph that is kept as it is has those of its dozen ops."""
    feed = {
        "x": RNG.normal(size=(B, T, SIZE)).astype(np.float32),
        "y": RNG.normal(size=(B, T, SIZE)).astype(np.float32),
    }
    if kind == "added":
        feed["mask"] = np.arange(T) < np.array([3, 0])[:, None, None, None]
    losses = {}
    for numerics in ("fused", "strict"):
        model = load(block(kind).SerializeToString())
        program = aicf.compile(
            model, "train", device="cpu", loss=aicf.nn.MeanSquaredError(), optimizer=aicf.nn.Adam(lr=1e-2), numerics=numerics
        )  # fmt: skip
        (note,) = (n for n in program.explain().recognised if n.what == "attention")
        assert bool(note.ops) is (numerics == "fused" and kind != "added")
        if kind == "added" and numerics == "fused":
            assert note.told == "a mask is added, which lets gradients of a query without keys through"
        losses[numerics] = [float(program(feed)["loss"].numpy()) for _ in range(20)]
    np.testing.assert_allclose(losses["fused"], losses["strict"], rtol=2e-4)
    assert losses["fused"][-1] < 0.9 * losses["fused"][0]
