"""ONNX models as programs: numbers beside NumPy in double precision, weights by their names, named dimensions, functions, external data."""

import pickle

import numpy as np
import onnx
import pytest
from draws.seeds import rng
from onnx import helper, numpy_helper

import aicf
from aicf import nn
from aicf.errors import DeviceError, FrontendError, OutOfBoundsError, UnsupportedOpsError
from aicf.frontends.onnx import load
from aicf.frontends.onnx.reading import TYPES, Source, array_of
from aicf.frontends.onnx.table import covered

from .models import info, mlp, model

RNG = np.random.default_rng(3)


def _f32(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def _mlp_exact(x, weights):
    exact = {name: array.astype(np.float64) for name, array in weights.items()}
    return np.maximum(x.astype(np.float64) @ exact["fc.weight"] + exact["fc.bias"], 0)


@pytest.mark.parametrize("form", ["path", "bytes", "proto"])
def test_a_model_is_read_from_a_path_bytes_or_a_proto(tmp_path, form):
    proto, weights = mlp()
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    source = {"path": path, "bytes": path.read_bytes(), "proto": proto}[form]
    program = aicf.from_onnx(source, "cpu")
    for batch in (1, 3, 0, 17):  # the size of a named dimension follows the feed
        x = _f32(batch, 8)
        np.testing.assert_allclose(
            program({"x": x})["y"].numpy(), _mlp_exact(x, weights), rtol=1e-5, atol=1e-6
        )


def test_weights_keep_their_names_and_can_be_loaded():
    proto, weights = mlp()
    program = aicf.from_onnx(proto, "cpu")
    state = program.state_dict()
    assert sorted(state) == sorted(weights)
    assert all(np.array_equal(state[name], array) for name, array in weights.items())
    _, others = mlp(seed=1)
    program.load_state_dict(others)
    x = _f32(5, 8)
    np.testing.assert_allclose(program({"x": x})["y"].numpy(), _mlp_exact(x, others), rtol=1e-5, atol=1e-6)


def test_an_onnx_model_can_be_trained():
    proto, weights = mlp(result="out")
    program = aicf.from_onnx(
        proto, "cpu", sizes={"batch": 16}, mode="train", loss=nn.MeanSquaredError(), optimizer=nn.SGD(lr=0.05)
    )
    x, wanted = _f32(16, 8), np.abs(_f32(16, 4))
    losses = [float(program({"x": x, "y": wanted})["loss"].numpy()) for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]
    assert not np.array_equal(program.state_dict()["fc.weight"], weights["fc.weight"])


def test_the_first_of_equals_of_a_global_maximum_has_the_gradient(request):
    """As PyTorch's adaptive pool, which is exported as this node, has it. The weights are drawn, with ties, and with NaN."""
    draw = rng(request.node.nodeid)
    shape = (1, 3, *(int(n) for n in draw.integers(2, 5, 2)))
    w = draw.integers(0, 2, shape).astype(np.float32)
    w[0, 0].flat[int(draw.integers(1, w[0, 0].size)) :] = np.nan
    nodes = [helper.make_node("Add", ["x", "w"], ["z"]), helper.make_node("GlobalMaxPool", ["z"], ["out"])]
    proto = model(nodes, [("x", shape)], [("out", (1, 3, 1, 1))], {"w": w})
    program = aicf.from_onnx(proto, "cpu", mode="train", loss=nn.MeanSquaredError(), optimizer=nn.SGD(lr=1.0))
    program({"x": np.zeros(shape, np.float32), "y": np.full((1, 3, 1, 1), 5, np.float32)})
    rows = w.astype(np.float64).reshape(3, -1)
    want, first = rows.copy(), (range(3), np.argmax(rows, 1))  # of which NaN is the greatest
    want[first] -= 2 / 3 * (rows[first] - 5)
    got = program.state_dict()["w"].reshape(3, -1)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_gpu_that_is_not_here_is_explained_and_not_run():
    proto, _ = mlp()
    imported = load(proto, sizes={"batch": 64})
    assert "gemm" in str(aicf.explain_for(imported, "l4"))
    with pytest.raises(DeviceError, match="explain_for"):
        aicf.from_onnx(proto, "t4")


def test_an_imported_model_can_be_pickled():
    proto, weights = mlp()
    program = aicf.compile(pickle.loads(pickle.dumps(load(proto))), device="cpu")
    x = _f32(2, 8)
    np.testing.assert_allclose(program({"x": x})["y"].numpy(), _mlp_exact(x, weights), rtol=1e-5, atol=1e-6)


def test_shapes_are_computed_as_the_graph_is_read():
    """What exporters write for x.view(x.shape[0], -1, 4) is one reshape, whatever the sizes."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["b"], axis=0),
        helper.make_node("Unsqueeze", ["b", "axes"], ["b1"]),
        helper.make_node("Concat", ["b1", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    arrays = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1, 4])}
    made = model(nodes, [("x", ["batch", "width"])], [("y", None)], arrays)
    program = aicf.from_onnx(made, "cpu", sizes={"width": 8})
    x = _f32(3, 12)
    assert np.array_equal(program({"x": x})["y"].numpy(), x.reshape(3, 3, 4))
    assert sum(len(region.spec.ops) for region in program.compiled().regions) <= 2  # and a copy of the input
    assert not program.state_dict()


def test_what_follows_from_constants_alone_is_computed_once():
    """A stored i8 weight is dequantised while the model is read: the plan has the product and no more."""
    weight = RNG.integers(-128, 127, (8, 4)).astype(np.int8)
    nodes = [
        helper.make_node("Cast", ["q"], ["f"], to=1),
        helper.make_node("Mul", ["f", "scale"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    arrays = {"q": weight, "scale": np.float32(0.02)}
    program = aicf.from_onnx(model(nodes, [("x", [3, 8])], [("y", [3, 4])], arrays), "cpu")
    x = _f32(3, 8)
    wanted = x.astype(np.float64) @ (weight * np.float64(np.float32(0.02)))
    np.testing.assert_allclose(program({"x": x})["y"].numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert len(program.compiled().regions) == 1 and not program.state_dict()


def test_a_constant_that_depends_on_a_size_is_another_for_each_size():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["n"], axis=0),
        helper.make_node("Range", ["zero", "n", "one"], ["places"]),
        helper.make_node("Cast", ["places"], ["f"], to=1),
        helper.make_node("Sub", ["f", "half"], ["shifted"]),
        helper.make_node("Add", ["x", "shifted"], ["y"]),
    ]
    arrays = {"one": np.array(1), "zero": np.array(0), "half": np.float32(0.5)}
    program = aicf.from_onnx(model(nodes, [("x", [2, "n"])], [("y", None)], arrays), "cpu", sizes={"n": 4})
    for n in (4, 7, 1, 0, 4):
        x = _f32(2, n)
        np.testing.assert_allclose(program({"x": x})["y"].numpy(), x + (np.arange(n) - 0.5), rtol=1e-6)


def test_functions_of_the_model_s_own_are_expanded_with_their_attributes():
    inner = helper.make_node("LeakyRelu", ["a"], ["b"])
    inner.attribute.append(
        onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    )
    leaky = helper.make_function(
        "mine", "Leaky", ["a"], ["b"], [inner], [helper.make_opsetid("", 17)], ["slope"]
    )
    nodes = [
        helper.make_node("Leaky", ["x"], ["t"], domain="mine", slope=0.25),
        helper.make_node("Leaky", ["t"], ["y"], domain="mine", slope=0.5),
    ]
    made = model(
        nodes, [("x", [5])], [("y", [5])], functions=[leaky], more_opsets=[helper.make_opsetid("mine", 1)]
    )
    x = np.array([-4, -0.0, 1, np.nan, -np.inf], np.float32)
    y = aicf.from_onnx(made, "cpu")({"x": x})["y"].numpy()
    np.testing.assert_array_equal(y, np.array([-0.5, 0, 1, np.nan, -np.inf], np.float32))


def test_a_branch_with_a_known_condition_is_taken():
    branches = {
        f"{name}_branch": helper.make_graph([helper.make_node(op, ["x"], ["r"])], name, [], [info("r", [3])])
        for name, op in (("then", "Neg"), ("else", "Abs"))
    }
    node = helper.make_node("If", ["c"], ["y"], **branches)
    x = np.array([-2, 0, 3], np.float32)
    for condition, wanted in ((True, -x), (False, abs(x))):
        made = model([node], [("x", [3])], [("y", [3])], {"c": np.array(condition)})
        assert np.array_equal(aicf.from_onnx(made, "cpu")({"x": x})["y"].numpy(), wanted)


def test_external_data_is_mapped_from_files_beside_the_model(tmp_path):
    proto, weights = mlp()
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert (tmp_path / "w.bin").stat().st_size >= sum(a.nbytes for a in weights.values())
    x = _f32(2, 8)
    for source, folder in ((tmp_path / "m.onnx", None), ((tmp_path / "m.onnx").read_bytes(), tmp_path)):
        y = aicf.from_onnx(source, "cpu", folder=folder)({"x": x})["y"].numpy()
        np.testing.assert_allclose(y, _mlp_exact(x, weights), rtol=1e-5, atol=1e-6)


def test_inputs_on_which_shapes_depend_are_named_and_can_be_fixed():
    reshape = helper.make_node("Reshape", ["x", "shape"], ["y"])
    made = model([reshape], [("x", [2, 6]), ("shape", [2], 7)], [("y", None)])
    with pytest.raises(UnsupportedOpsError, match=r"constants=.'shape'"):
        aicf.from_onnx(made, "cpu")
    x = _f32(2, 6)
    program = aicf.from_onnx(made, "cpu", constants={"shape": np.array([3, 4])})
    assert np.array_equal(program({"x": x})["y"].numpy(), x.reshape(3, 4))
    for wrong in ({"shape": np.array([3.0, 4.0])}, {"shape": np.array([3])}, {"shapes": np.array([3, 4])}):
        with pytest.raises(FrontendError):
            aicf.from_onnx(made, "cpu", constants=wrong)


def test_all_that_can_t_be_expressed_is_listed_at_once():
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("RandomUniformLike", ["b"], ["c"], name="second"),
        helper.make_node("RandomNormalLike", ["x"], ["y"], name="third"),
    ]
    with pytest.raises(UnsupportedOpsError) as told:
        aicf.from_onnx(model(nodes, [("x", [2, 2])], [("y", []), ("c", None, 7)]), "cpu")
    assert dict(told.value.ops) == {"RandomNormalLike": 2, "RandomUniformLike": 1}
    text = str(told.value)
    assert all(
        word in text
        for word in ("RandomNormalLike × 2", "'first'", "'third'", "RandomUniformLike × 1", "'second'")
    )
    assert "Relu" not in text


def test_results_that_are_inputs_or_weights_have_names_of_their_own():
    neg = helper.make_node("Neg", ["x"], ["loss"])
    results = [("x", [3]), ("w", [2]), ("loss", [3])]
    program = aicf.from_onnx(model([neg], [("x", [3])], results, {"w": np.array([1, 2], np.float32)}), "cpu")
    x = _f32(3)
    made = [tensor.numpy() for tensor in program({"x": x}).values()]
    assert all(np.array_equal(got, wanted) for got, wanted in zip(made, (x, [1, 2], -x), strict=True))


def test_known_indices_outside_of_their_axis_are_refused_while_reading():
    gather = helper.make_node("Gather", ["table", "at"], ["y"])
    arrays = {"table": _f32(4, 2), "at": np.array([1, 4])}
    with pytest.raises(FrontendError, match="outside"):
        aicf.from_onnx(model([gather], [], [("y", None)], arrays), "cpu")


@pytest.mark.parametrize("batch", [0, 1])
def test_an_index_outside_of_one_axis_is_no_element_of_another_row(batch):
    """(0, 4) of a 3 x 4 tensor is not (1, 0), though they are as far from the start."""
    gather = helper.make_node("GatherND", ["x", "at"], ["y"], batch_dims=batch)
    shape = [2, 3, 4] if batch else [3, 4]
    made = model([gather], [("x", shape), ("at", [*shape[:batch], 2, 2], 7)], [("y", None)])
    program, x = aicf.from_onnx(made, "cpu"), _f32(*shape)
    at = np.array([[0, 3], [-1, -4]])
    wanted = x[..., [0, 2], [3, 0]]
    assert np.array_equal(
        program({"x": x, "at": np.broadcast_to(at, (*shape[:batch], 2, 2)).copy()})["y"].numpy(), wanted
    )
    for wrong in ([0, 4], [3, 0], [-4, 0], [2, -5]):
        bad = np.broadcast_to(np.array([[0, 0], wrong]), (*shape[:batch], 2, 2)).copy()
        with pytest.raises(OutOfBoundsError):
            program({"x": x, "at": bad})["y"].numpy()


def test_scattered_updates_lie_where_their_indices_say():
    scatter = helper.make_node("ScatterND", ["x", "at", "u"], ["y"], reduction="add")
    made = model([scatter], [("x", [3, 4]), ("at", [3, 2], 7), ("u", [3])], [("y", None)], opset=18)
    x, u, at = _f32(3, 4), _f32(3), np.array([[0, 3], [-1, -4], [0, 3]])
    wanted = x.astype(np.float64)
    np.add.at(wanted, ([0, 2, 0], [3, 0, 3]), u.astype(np.float64))
    got = aicf.from_onnx(made, "cpu")({"x": x, "at": at, "u": u})["y"].numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_every_rule_is_of_an_op_that_onnx_has():
    known = {(s.domain, s.name) for s in onnx.defs.get_all_schemas()}
    assert len(covered()) > 90 and not set(covered()) - known


def test_tensors_are_read_as_onnx_itself_reads_them():
    """Every element type that aicf has, stored as bytes and as a list, beside onnx's own reader."""
    for number, dtype in TYPES.items():
        array = np.array([0, 1, 1, 0, 1], np.float32).astype(dtype.numpy).reshape(5, 1)
        raw = numpy_helper.from_array(array)
        assert raw.data_type == number
        listed = helper.make_tensor("t", number, (5, 1), array.astype(np.float32).ravel().tolist())
        for tensor in (raw, listed):
            read = array_of(tensor, Source(None, None, ""), "t")
            assert read.dtype == dtype.numpy and read.shape == (5, 1)
            assert read.tobytes() == numpy_helper.to_array(tensor).tobytes()
