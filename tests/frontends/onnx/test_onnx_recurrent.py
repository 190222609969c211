"""LSTM, GRU, RNN, Scan, Loop and If: ONNX's own cases, and its reference evaluator on others."""

from importlib import import_module

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.test import runner
from onnx.backend.test.case import node
from onnx.reference import ReferenceEvaluator

import aicf
from aicf.errors import UnsupportedOpsError

from .models import info, model

SOME = {
    **dict.fromkeys(("gru_defaults", "gru_with_initial_bias", "gru_seq_length", "gru_batchwise", "gru_reverse", "gru_bidirectional"), "gru"),
    **dict.fromkeys(("lstm_defaults", "lstm_with_initial_bias", "lstm_with_peepholes", "lstm_batchwise", "lstm_reverse", "lstm_bidirectional"), "lstm"),
    **dict.fromkeys(("simple_rnn_defaults", "simple_rnn_with_initial_bias", "rnn_seq_length", "simple_rnn_batchwise", "simple_rnn_bidirectional"), "rnn"),
    **dict.fromkeys(("scan9_sum", "scan9_multi_state", "scan9_scalar"), "scan"), "loop11": "loop", "if": "if_",
}  # fmt: skip
RNG = np.random.default_rng(5)


def f32(*shape, scale=1.0):
    return (RNG.normal(size=shape) * scale).astype(np.float32)


@pytest.mark.sample(1, each="module")
@pytest.mark.parametrize("name, module", SOME.items())
def test_of_onnx_s_own(name, module):
    import_module(f"{node.__name__}.{module}")
    (case,) = (case for case in node._NodeTestCases if case.name == f"test_{name}")
    ready = aicf.onnx_backend.prepare(case.model)
    for inputs, wanted in case.data_sets:
        fed, expected = ([runner._normalize_tensor(x) for x in xs] for xs in (inputs, wanted))
        runner.Runner.assert_similar_outputs(expected, ready.run(fed), case.rtol, case.atol)


def beside_the_reference(proto, feeds, exact=1e-5):
    made = aicf.from_onnx(proto, "cpu")(feeds)
    for info_, want in zip(proto.graph.output, ReferenceEvaluator(proto).run(None, feeds)):
        got = made[info_.name].numpy()
        assert got.shape == np.shape(want)
        np.testing.assert_allclose(got, want, rtol=exact, atol=exact)
    return made


STEPS, BATCH, INPUTS, HIDDEN = 6, 3, 4, 5


@pytest.mark.parametrize("op, gates, outputs, how", [
    ("LSTM", 4, 3, {"direction": "bidirectional"}), ("LSTM", 4, 3, {"direction": "reverse"}), ("GRU", 3, 2, {"linear_before_reset": 1}),
    ("RNN", 1, 2, {"activations": ["Relu"]}), ("LSTM", 4, 3, {"clip": 0.3}),
])  # fmt: skip
def test_random_ones(op, gates, outputs, how):
    ways = 2 if how.get("direction") == "bidirectional" else 1
    weights = {
        "w": f32(ways, gates * HIDDEN, INPUTS, scale=0.5), "r": f32(ways, gates * HIDDEN, HIDDEN, scale=0.5), "b": f32(ways, 2 * gates * HIDDEN),
    }  # fmt: skip
    names, feeds = (
        ["x", "w", "r", "b", "", "h"],
        {"x": f32(STEPS, BATCH, INPUTS), "h": f32(ways, BATCH, HIDDEN)},
    )
    if op == "LSTM":
        names.append("c")
        feeds["c"] = f32(ways, BATCH, HIDDEN)
    results = ["y", "y_h", "y_c"][:outputs]
    made = helper.make_node(op, names, results, hidden_size=HIDDEN, **how)
    proto = model(
        [made],
        [(n, list(x.shape)) for n, x in feeds.items()],
        [onnx.ValueInfoProto(name=n) for n in results],
        weights,
        17,
    )
    ours = aicf.from_onnx(proto, "cpu")(feeds)
    want = oracle(op, feeds, weights, how)
    for name, array in zip(results, want):
        np.testing.assert_allclose(ours[name].numpy(), array, rtol=1e-5, atol=1e-5)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def oracle(op, feeds, weights, how):
    """By ONNX's equations, in double precision."""
    x, clip = feeds["x"].astype(np.float64), how.get("clip", np.inf)
    shown, ends = [], []
    for way in range(len(weights["w"])):
        w, r, (wb, rb) = (
            weights["w"][way],
            weights["r"][way],
            np.split(weights["b"][way].astype(np.float64), 2),
        )
        h, c = (
            feeds["h"][way].astype(np.float64),
            feeds["c"][way].astype(np.float64) if "c" in feeds else None,
        )
        rows = [None] * STEPS
        for t in range(STEPS)[:: -1 if way or how.get("direction") == "reverse" else 1]:
            a, s = x[t] @ w.T + wb, h @ r.T + rb
            if op == "LSTM":
                i, o, f, g = np.clip(np.split(a + s, 4, 1), -clip, clip)
                c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                h = sigmoid(o) * np.tanh(np.clip(c, -clip, clip))
            elif op == "GRU":
                (az, ar, ah), (sz, sr, sh) = np.split(a, 3, 1), np.split(s, 3, 1)
                z = sigmoid(az + sz)
                h = (1 - z) * np.tanh(ah + sigmoid(ar + sr) * sh) + z * h
            else:
                h = np.maximum(a + s, 0)
            rows[t] = h
        shown.append(np.stack(rows))
        ends.append((h, c))
    return [np.stack(shown, 1), *(np.stack([e[n] for e in ends]) for n in range(2 if op == "LSTM" else 1))]


def test_sequences_of_their_own_lengths():
    """Beyond its length a sequence shows zeros, and its state stays: also backwards, from its own end."""
    weights = {"w": f32(2, 4 * HIDDEN, INPUTS, scale=0.5), "r": f32(2, 4 * HIDDEN, HIDDEN, scale=0.5)}
    made = helper.make_node(
        "LSTM", ["x", "w", "r", "", "n"], ["y", "h", "c"], hidden_size=HIDDEN, direction="bidirectional"
    )
    inputs = [("x", [STEPS, BATCH, INPUTS]), ("n", [BATCH], TensorProto.INT32)]
    proto = model([made], inputs, [onnx.ValueInfoProto(name=n) for n in "yhc"], weights, 17)
    x, lengths = f32(STEPS, BATCH, INPUTS), np.array([6, 2, 4], np.int32)
    ours = {n: t.numpy() for n, t in aicf.from_onnx(proto, "cpu")({"x": x, "n": lengths}).items()}
    alone = model([helper.make_node("LSTM", ["x", "w", "r"], ["y", "h", "c"], hidden_size=HIDDEN, direction="bidirectional")],
                  [("x", ["steps", 1, INPUTS])], [onnx.ValueInfoProto(name=n) for n in "yhc"], weights, 17)  # fmt: skip
    for row, length in enumerate(lengths):
        one = {
            n: t.numpy() for n, t in aicf.from_onnx(alone, "cpu")({"x": x[:length, row : row + 1]}).items()
        }
        np.testing.assert_allclose(ours["y"][:length, :, row], one["y"][:, :, 0], rtol=1e-5, atol=1e-6)
        assert not ours["y"][length:, :, row].any()
        for name in "hc":
            np.testing.assert_allclose(ours[name][:, row], one[name][:, 0], rtol=1e-5, atol=1e-6)


def body(nodes, inputs, outputs, name="body"):
    return helper.make_graph(nodes, name, [info(*x) for x in inputs], [info(*x) for x in outputs])


BOOL, I64 = TensorProto.BOOL, TensorProto.INT64


def test_a_scan_along_other_axes_and_backwards():
    inner = body(
        [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Mul", ["t", "k"], ["y"])],
        [("s", [2]), ("x", [2])], [("t", [2]), ("y", [2])],
    )  # fmt: skip
    made = helper.make_node(
        "Scan", ["s0", "xs"], ["end", "ys"], num_scan_inputs=1, body=inner, scan_input_axes=[1], scan_input_directions=[1],
        scan_output_axes=[-1], scan_output_directions=[1],
    )  # fmt: skip
    proto = model([made], [("s0", [2]), ("xs", [2, 7])], [("end", [2]), ("ys", [2, 7])], {"k": f32(2)}, 17)
    s0, xs = f32(2), f32(2, 7)
    ours = aicf.from_onnx(proto, "cpu")({"s0": s0, "xs": xs})
    sums = s0[:, None] + np.cumsum(xs[:, ::-1], 1, dtype=np.float64)
    k = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    np.testing.assert_allclose(ours["end"].numpy(), sums[:, -1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours["ys"].numpy(), (sums * k[:, None])[:, ::-1], rtol=1e-5, atol=1e-6)


def loop(nodes, state=("v", [3]), shown=True, after=None):
    outputs = [("go", [], BOOL), ("w", after or state[1]), *([("row", state[1])] if shown else [])]
    inner = body(nodes, [("n", [], I64), ("c", [], BOOL), state], outputs)
    return helper.make_node("Loop", ["most", "", "v0"], ["end", *(["rows"] if shown else [])], body=inner)


def test_a_loop_whose_turns_are_counted_is_a_scan():
    nodes = [
        helper.make_node("Identity", ["c"], ["go"]), helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["v", "half"], ["m"]), helper.make_node("Add", ["m", "f"], ["w"]), helper.make_node("Neg", ["w"], ["row"]),
    ]  # fmt: skip
    weights = {"most": np.array(9), "half": np.array(0.5, np.float32)}
    proto = model([loop(nodes)], [("v0", [3])], [("end", [3]), ("rows", [9, 3])], weights, 17)
    imported = aicf.from_onnx(proto, "cpu")
    v, rows = f32(3), []
    w = v.astype(np.float64)
    for n in range(9):
        w = w * 0.5 + n
        rows.append(-w)
    made = imported({"v0": v})
    np.testing.assert_allclose(made["end"].numpy(), w, rtol=1e-6)
    np.testing.assert_allclose(made["rows"].numpy(), rows, rtol=1e-6)
    assert "scan" in [op.kind.name for step in imported.plan.steps for op in step.region.ops]


def test_a_loop_whose_state_grows_is_unrolled():
    nodes = [
        helper.make_node("Identity", ["c"], ["go"]),
        helper.make_node("Concat", ["v", "one"], ["w"], axis=0),
    ]
    made = loop(nodes, ("v", None), False)
    proto = model(
        [made],
        [("v0", [3])],
        [onnx.ValueInfoProto(name="end")],
        {"most": np.array(2), "one": np.ones(1, np.float32)},
        17,
    )
    v = f32(3)
    assert np.array_equal(aicf.from_onnx(proto, "cpu")({"v0": v})["end"].numpy(), [*v, 1, 1])


@pytest.mark.parametrize("most, turns", [(None, 5), (2**63 - 1, 5), (9, 5), (3, 3), (0, 0)])
@pytest.mark.parametrize("computed", [False, True])
def test_a_loop_ends_itself(most, turns, computed):
    """By the condition that a turn computes, or by its first operand, known while it is read or not."""
    nodes = [
        helper.make_node("Add", ["v", "v"], ["w"]),
        helper.make_node("ReduceMax", ["w"], ["top"], keepdims=0),
        helper.make_node("Less", ["top", "edge"], ["go"]),
    ]
    made, weights, inputs, feed = (
        loop(nodes, shown=False),
        {"edge": np.array(17.0, np.float32)},
        [("v0", [3])],
        {},
    )
    if most is None:
        made.input[0] = ""
    elif computed:
        inputs.append(("most", [], I64))
        feed = {"most": np.array(most)}
    else:
        weights["most"] = np.array(most)
    imported = aicf.from_onnx(model([made], inputs, [("end", [3])], weights, 17), "cpu")
    v = np.array([1.0, 0.5, -3.0], np.float32)
    assert np.array_equal(imported({"v0": v, **feed})["end"].numpy(), v * 2**turns)
    kinds = {op.kind.name for step in imported.plan.steps for op in step.region.ops}
    assert ("while_loop" in kinds) == (turns > 0 or computed)


def test_a_loop_that_ends_itself_shows_no_rows():
    nodes = [
        helper.make_node("Add", ["v", "v"], ["w"]),
        helper.make_node("ReduceMax", ["w"], ["top"], keepdims=0),
        helper.make_node("Less", ["top", "edge"], ["go"]),
        helper.make_node("Neg", ["w"], ["row"]),
    ]
    weights = {"most": np.array(9), "edge": np.array(5.0, np.float32)}
    proto = model([loop(nodes)], [("v0", [3])], [("end", [3]), ("rows", [None, 3])], weights, 17)
    with pytest.raises(UnsupportedOpsError, match="data decide how many turns it has, and so the shape"):
        aicf.from_onnx(proto, "cpu")


@pytest.mark.parametrize("flag", [True, False])
def test_an_if_whose_condition_is_computed_is_a_selection(flag):
    branches = {
        f"{name}_branch": helper.make_graph([helper.make_node(op, ["x"], ["y"])], name, [], [info("y", [4])])
        for name, op in (("then", "Neg"), ("else", "Exp"))
    }
    nodes = [helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0), helper.make_node("Greater", ["top", "edge"], ["c"]),
             helper.make_node("If", ["c"], ["z"], **branches)]  # fmt: skip
    proto = model(nodes, [("x", [4])], [("z", [4])], {"edge": np.array(0.0, np.float32)}, 17)
    x = np.array([-1, -2, -0.5, 3.0 if flag else -3.0], np.float32)
    np.testing.assert_allclose(
        aicf.from_onnx(proto, "cpu")({"x": x})["z"].numpy(), -x if flag else np.exp(x), rtol=1e-6
    )
