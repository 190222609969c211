"""ONNX files that lie: each is one FrontendError in words, with nothing allocated by what it claims and nothing read outside of its folder."""

import os
import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aicf
from aicf.errors import AicfError, FrontendError, UnsupportedOpsError
from aicf.frontends.onnx import load

from .models import info, mlp, model

X, Y = [("x", [2])], [("y", [2])]


def _refused(source, match, **how):
    tracemalloc.start()
    try:
        with pytest.raises(FrontendError, match=match) as told:
            aicf.from_onnx(source, "cpu", **how)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20, "it was believed"
    finally:
        tracemalloc.stop()
    return told.value


def _node(op="Relu", inputs=("x",), outputs=("y",), **attrs):
    return helper.make_node(op, inputs, outputs, **attrs)


@pytest.mark.parametrize("kept", [0, 1, 7, 40, 0.5, 0.9, 0.999])
def test_a_truncated_file(tmp_path, kept):
    data = mlp()[0].SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data[: kept if isinstance(kept, int) else int(len(data) * kept)])
    _refused(path, "damaged|has no|made by no node|no outputs")


@pytest.mark.parametrize("data", [b"not protobuf at all", b"\xff" * 100, b"PK\x03\x04" + b"\0" * 50, b""])
def test_what_is_no_protobuf(data):
    _refused(data, "damaged|has no")


def test_what_is_no_file(tmp_path):
    _refused(tmp_path, "no file")
    _refused(tmp_path / "absent.onnx", "No such file")
    _refused("a\0b.onnx", "can't be read")
    _refused(12, "int")
    os.mkfifo(tmp_path / "pipe.onnx")  # reading it would never end
    _refused(tmp_path / "pipe.onnx", "no file")


def test_random_damage_is_told_or_harmless():
    """One byte of a file changed, 150 times: it is read, or refused by aicf's own errors."""
    data, rng, refused = mlp()[0].SerializeToString(), np.random.default_rng(0), 0
    for _ in range(150):
        broken = bytearray(data)
        broken[rng.integers(len(data))] = rng.integers(256)
        try:
            load(bytes(broken))
        except AicfError:
            refused += 1
    assert refused > 20


# --- functions --------------------------------------------------------------------------------------------------------


def _function(name, body):
    nodes = [helper.make_node(f, [f"t{i}"], [f"t{i + 1}"], domain="d") for i, f in enumerate(body)]
    opsets = [helper.make_opsetid("d", 1), helper.make_opsetid("", 17)]
    return helper.make_function("d", name, ["t0"], [f"t{len(body)}"], nodes, opsets)


def _calling(functions, first):
    node = helper.make_node(first, ["x"], ["y"], domain="d")
    return model([node], X, Y, functions=functions, more_opsets=[helper.make_opsetid("d", 1)])


def test_functions_that_call_themselves():
    _refused(_calling([_function("F", ["F"])], "F"), "calls itself")
    _refused(_calling([_function("F", ["G"]), _function("G", ["F"])], "F"), "calls itself")


def test_functions_that_double_at_each_of_many_levels():
    chain = [_function(f"F{i}", [f"F{i + 1}"] * 2) for i in range(36)]
    last = helper.make_function(
        "d", "F36", ["a"], ["b"], [_node("Identity", ["a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    _refused(_calling([*chain, last], "F0"), "more than .* nodes")


def test_functions_that_call_each_other_too_deep():
    _refused(_calling([_function(f"F{i}", [f"F{i + 1}"]) for i in range(300)], "F0"), "deep")


def test_two_functions_of_a_name():
    _refused(_calling([_function("F", ["G"]), _function("F", ["G"])], "F"), "two functions")


# --- external data ----------------------------------------------------------------------------------------------------


def _external(tmp_path, **told):
    """A model whose weight of 32 floats is in a file, as it tells."""
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "outside.bin").write_bytes(b"\0" * 128)
    (tmp_path / "in" / "w.bin").write_bytes(b"\0" * 128)
    tensor = TensorProto(name="w", data_type=1, dims=[8, 4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", **told}.items():
        tensor.external_data.add(key=key, value=str(value))
    made = model([_node("MatMul", ["x", "w"])], [("x", [2, 8])], [("y", [2, 4])])
    made.graph.initializer.append(tensor)
    path = tmp_path / "in" / "m.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def test_external_data_in_the_folder_is_taken(tmp_path):
    program = aicf.from_onnx(_external(tmp_path, offset=0, length=128), "cpu")
    assert not program({"x": np.ones((2, 8), np.float32)})["y"].numpy().any()


OUTSIDE = [
    "../outside.bin",
    "a/../../outside.bin",
    "/etc/hostname",
    "",
    ".",
    "..",
    "w.bin\0",
    "..\\outside.bin",
    "no.bin",
]


@pytest.mark.parametrize("location", OUTSIDE)
def test_external_data_outside_of_the_folder(tmp_path, location):
    _refused(_external(tmp_path, location=location), "initializer 'w'")


def test_external_data_behind_a_link(tmp_path):
    path = _external(tmp_path, location="link.bin")
    (tmp_path / "in" / "link.bin").symlink_to(tmp_path / "outside.bin")
    _refused(path, "symbolic link")
    path = _external(tmp_path, location="linked/outside.bin")
    (tmp_path / "in" / "linked").symlink_to(tmp_path, target_is_directory=True)
    _refused(path, "symbolic link")


def test_external_data_that_is_no_regular_file(tmp_path):
    path = _external(tmp_path, location="pipe")
    os.mkfifo(tmp_path / "in" / "pipe")
    _refused(path, "no such file")


ELSEWHERE = [
    {"offset": 1}, {"offset": 2**62}, {"offset": -1}, {"offset": "x"}, {"offset": "9" * 30}, {"length": 127},
    {"length": 2**62}, {"length": "²"},
]  # fmt: skip


@pytest.mark.parametrize("told", ELSEWHERE, ids=str)
def test_external_data_that_is_not_there(tmp_path, told):
    _refused(_external(tmp_path, **told), "initializer 'w'")


def test_external_data_of_a_model_without_a_folder(tmp_path):
    _refused(_external(tmp_path).read_bytes(), "folder|of its own")


# --- tensors ----------------------------------------------------------------------------------------------------------

TENSORS = [
    (TensorProto(name="w", data_type=1, dims=[2**62], raw_data=b"\0" * 8), "bytes"),
    (TensorProto(name="w", data_type=1, dims=[2**40, 2**40], float_data=[1.0]), "elements"),
    (TensorProto(name="w", data_type=1, dims=[-2], float_data=[1.0, 2.0]), "negative"),
    (TensorProto(name="w", data_type=1, dims=[2], raw_data=b"\0" * 7), "bytes"),
    (TensorProto(name="w", data_type=7, dims=[2], float_data=[1.0, 2.0]), "elements"),
    (TensorProto(name="w", data_type=2, dims=[2], int32_data=[1, 300]), "u8"),
    (TensorProto(name="w", data_type=9, dims=[2], raw_data=b"\0\2"), "bool"),
    (TensorProto(name="w", data_type=8, dims=[2], string_data=[b"a", b"b"]), "STRING"),
    (TensorProto(name="w", data_type=14, dims=[2], raw_data=b"\0" * 16), "COMPLEX64"),
    (TensorProto(name="w", data_type=0, dims=[2]), "UNDEFINED"),
    (TensorProto(name="w", data_type=999, dims=[2]), "999"),
    (TensorProto(name="", data_type=1, dims=[], float_data=[1.0]), "no name"),
]


@pytest.mark.parametrize("tensor, match", TENSORS)
def test_a_tensor_that_is_not_what_it_says(tensor, match):
    made = model([_node("Add", ["x", "w"])], X, Y)
    made.graph.initializer.append(tensor)
    _refused(made, match)


HUGE = {
    "ConstantOfShape": (["s"], {"s": np.array([2**40, 2**20])}),
    "Expand": (["x", "s"], {"s": np.array([2**60, 1])}),
    "Range": (["a", "b", "c"], {"a": np.array(0), "b": np.array(2**62), "c": np.array(1)}),
    "Tile": (["x", "s"], {"s": np.array([2**61])}),
}


@pytest.mark.parametrize("op", HUGE)
def test_absurd_sizes_are_refused_and_not_allocated(op):
    names, arrays = HUGE[op]
    made = model([_node(op, names)], X, [("y", None, 7 if op == "Range" else 1)], arrays)
    _refused(made, "no machine holds|can't express")


def test_inputs_of_absurd_sizes_and_types():
    y = [("y", None)]
    _refused(model([_node()], [("x", [-3])], y), "negative")
    _refused(model([_node()], [("x", [2**40, 2**20])], y), "no machine holds")
    _refused(model([_node()], [info("x", ["n"], 8)], y), "STRING")
    _refused(model([_node()], [onnx.ValueInfoProto(name="x")], y), "no type")
    _refused(model([_node()], [info("x", None)], y), "rank")
    _refused(model([_node()], [helper.make_tensor_sequence_value_info("x", 1, [2])], y), "sequence")


# --- graphs -----------------------------------------------------------------------------------------------------------


def test_names_that_are_made_twice_or_never_and_cycles():
    _refused(model([_node(), _node("Neg")], X, Y), "made twice")
    _refused(model([_node("Relu", ["x"], ["x"])], X, X), "made twice")
    cycle = [_node("Add", ["x", "b"], ["a"]), _node("Neg", ["a"], ["b"])]
    _refused(model(cycle, X, [("a", [2])]), "before it is made")
    _refused(model([_node("Add", ["x", "absent"])], X, Y), "nothing makes")
    _refused(model([_node()], X, [("absent", [2])]), "made by no node")
    _refused(model([_node()], [*X, *X], Y), "two inputs")
    _refused(model([_node()], X, [*Y, *Y]), "two outputs")
    _refused(model([_node()], X, []), "no outputs")
    twice = model([_node("Add", ["x", "w"])], X, Y, {"w": np.ones(2, np.float32)})
    twice.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "w"))
    _refused(twice, "two initializers")
    both = model([_node("Add", ["x", "w"])], [*X, ("w", [3])], Y, {"w": np.ones(2, np.float32)})
    _refused(both, "an input and an initializer")


NODES = [
    (_node("Softmax", axis=7), "axis 7"),
    (_node("Softmax", axis="one"), "wrong type"),
    (_node("Softmax", speed=1), "no attribute 'speed'"),
    (_node("Concat"), "lacks the attribute 'axis'"),
    (_node("Relu", ["x", "x"]), "2 inputs"),
    (_node("Relu", []), "0 inputs"),
    (_node("Relu", [""]), "left out"),
    (_node("Add", ["x", ""]), "left out"),
    (_node("Transpose", perm=[0, 0]), "can't express"),
    (_node("NoSuchOp"), "can't express"),
    (_node("Relu", domain="no.such.domain"), "names no version"),
    (_node("Cast", to=99), "can't express"),
    (_node("Cast"), "lacks the attribute 'to'"),
]


@pytest.mark.parametrize("node, match", NODES)
def test_nodes_that_break_their_op_s_rules(node, match):
    _refused(model([node], [("x", [2, 3])], [("y", None)]), match)


def test_an_attribute_twice():
    node = _node("Softmax", axis=0)
    node.attribute.append(node.attribute[0])
    _refused(model([node], X, Y), "twice")


def test_a_declared_result_of_another_type():
    _refused(model([_node()], X, [info("y", [2], 7)]), "another element type")


@pytest.mark.parametrize("opset", [0, 6, 29, 2**40])
def test_versions_of_the_ops_that_aicf_does_not_know(opset):
    _refused(model([_node()], X, Y, opset=opset), "version")


def test_an_older_version_is_taken_where_the_op_is_the_same_and_refused_where_not():
    aicf.from_onnx(model([_node()], X, Y, opset=9), "cpu")
    older = model([_node("Upsample", scales=[1.0, 2.0])], [("x", [2, 3])], [("y", None)], opset=8)
    error = _refused(older, "can't express")
    assert isinstance(error, UnsupportedOpsError) and error.ops == {"Upsample": 1}


def test_two_versions_and_none():
    made = model([_node()], X, Y, more_opsets=[helper.make_opsetid("ai.onnx", 13)])
    _refused(made, "two versions")
    del made.opset_import[:]
    _refused(made.SerializeToString(), "version")


def test_branches_that_lie_in_each_other():
    graph = helper.make_graph([_node("Neg", ["x"], ["r"])], "leaf", [], [info("r", [2])])
    for _ in range(8):
        node = helper.make_node("If", ["c"], ["r"], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([node], "level", [], [info("r", [2])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)
    program = aicf.from_onnx(
        model([node], X, Y, {"c": np.array(True)}), "cpu"
    )  # 2^8 leaves, of which one is read
    assert np.array_equal(program({"x": np.array([1, -2], np.float32)})["y"].numpy(), [-1, 2])
