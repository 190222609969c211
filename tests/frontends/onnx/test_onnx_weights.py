"""Weights of ONNX models: where they lie until a program has them, and how much memory that takes."""

import os
import pickle

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from peaks import TELLS_PEAKS, peak_beyond

import aicf
from aicf.errors import FrontendError, StateError
from aicf.frontends.onnx import load
from aicf.frontends.onnx.fold import STAYING
from aicf.frontends.onnx.wire import LEAST, without_weights
from examples import EVERYTHING

from .models import info, model

SIZE = 1024  # rows and columns of a weight: 4 MB


def deep(count, size=SIZE, rng=None):
    """x W0 W1 … with weights of their own."""
    rng = rng or np.random.default_rng()
    weights = {f"w{n}": rng.normal(0, size**-0.5, (size, size)).astype(np.float32) for n in range(count)}
    names = ["x", *(f"h{n}" for n in range(count - 1)), "y"]
    nodes = [helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]]) for n in range(count)]
    return model(nodes, [("x", [1, size])], [("y", [1, size])], weights), weights


def stored(proto, folder, form):
    """The model as a path, of which the weights lie in it, beside it, or each in a file."""
    path = folder / "m.onnx"
    if form == "in the file":
        onnx.save(proto, path)
    else:
        one = form == "in one file beside it"
        onnx.save(
            proto,
            path,
            save_as_external_data=True,
            all_tensors_to_one_file=one,
            location="w.bin" if one else None,
            size_threshold=0,
        )
    return path


FORMS = ["in the file", "in one file beside it", "each in a file"]


@pytest.mark.sample(1)
@TELLS_PEAKS
@pytest.mark.parametrize("form", FORMS)
def test_a_model_takes_its_weights_once(tmp_path, form):
    """Memory of the process at the most, while a file becomes a program: the program's weights, and no second time."""
    count = 40 if EVERYTHING else 12
    proto, weights = deep(count)
    path = stored(proto, tmp_path, form)
    del proto
    whole = sum(w.nbytes for w in weights.values())
    (tmp_path / "small").mkdir()
    aicf.from_onnx(stored(deep(2)[0], tmp_path / "small", form), "cpu")  # what stays for good
    programs = []
    beyond = peak_beyond(lambda: programs.append(aicf.from_onnx(path, "cpu")))
    assert beyond < whole + (12 << 20) < 1.7 * whole, beyond
    state = programs[0].state_dict()
    assert sorted(state) == sorted(weights)
    assert all(np.array_equal(state[name], w) for name, w in weights.items())


@pytest.mark.sample(1)
@TELLS_PEAKS
@pytest.mark.parametrize("form", FORMS)
def test_what_is_only_explained_is_not_read(tmp_path, form):
    path = stored(deep(10)[0], tmp_path, form)
    aicf.explain_for(load(path), "h200")  # what stays for good
    beyond = peak_beyond(lambda: aicf.explain_for(load(path), "h200"))
    assert beyond < 28 << 20, beyond  # pages beside those that the walk to the weights reads


def test_a_file_of_many_weights_is_open_once(tmp_path):
    """As the limit of open files is often 1024."""
    proto, weights = deep(300, size=8)
    path = stored(proto, tmp_path, "in one file beside it")
    before = len(os.listdir("/proc/self/fd"))
    imported = load(path)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    program = aicf.compile(imported, device="cpu")
    assert all(np.array_equal(program.get(name), w) for name, w in weights.items())


def test_bytes_that_were_given_may_change(tmp_path):
    """A program, and a model that is compiled later, have the weights that were there."""
    proto, weights = deep(3, size=64)
    data = bytearray(proto.SerializeToString())
    imported, named = load(data), load(proto)
    data[:] = bytes(len(data))
    for tensor in proto.graph.initializer:
        tensor.raw_data = bytes(len(tensor.raw_data))
    for source in (imported, named):
        program = aicf.compile(source, device="cpu")
        assert all(np.array_equal(program.get(name), w) for name, w in weights.items())


@pytest.mark.parametrize("form", FORMS)
def test_files_may_be_replaced_and_pickles_read_them_again(tmp_path, form):
    proto, weights = deep(2, size=64)
    path = stored(proto, tmp_path, form)
    imported = load(path)
    data = pickle.dumps(imported)
    assert len(data) < 20_000 < sum(w.nbytes for w in weights.values())
    for source in (imported, pickle.loads(data)):
        program = aicf.compile(source, device="cpu")
        assert all(np.array_equal(program.get(name), w) for name, w in weights.items())
    for file in list(tmp_path.iterdir()):  # another takes its place
        text = file.read_bytes()
        file.unlink()
        file.write_bytes(bytes(len(text) + 1))
    program = aicf.compile(load_again(imported), device="cpu")
    assert all(np.array_equal(program.get(name), w) for name, w in weights.items())
    with pytest.raises(StateError, match="is another file now"):
        pickle.loads(data)


def load_again(imported):
    """A copy that has no variables yet."""
    other = object.__new__(type(imported))
    other.__dict__.update({k: v for k, v in vars(imported).items() if k != "_variables"})
    return other


# --- the wire format --------------------------------------------------------------------------------------------------


def mixed(rng):
    """A model with large and small weights, of several types, stored as bytes and as lists, and what else a file may have."""
    weights = {
        "a": rng.normal(size=(40, 60)).astype(np.float32), "b": rng.normal(size=60).astype(np.float32),
        "c": rng.integers(-9, 9, (60, 100)).astype(np.int8), "d": rng.normal(size=(60, 40)).astype(np.float64),
    }  # fmt: skip
    nodes = [helper.make_node("Identity", [name], [f"{name}.out"], doc_string="é" * 300) for name in weights]
    made = model(nodes, [("x", [2])], [(f"{name}.out", None) for name in weights], weights)
    for output, array in zip(made.graph.output, weights.values()):
        output.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    listed = helper.make_tensor("e", 1, (50, 40), np.arange(2000.0))
    made.graph.initializer.insert(1, listed)
    made.metadata_props.add(key="k", value="v" * 5000)
    return made, weights | {"e": np.arange(2000, dtype=np.float32).reshape(50, 40)}


def test_what_is_left_out_is_the_bytes_of_large_weights_alone():
    """Beside protobuf's own reading: the rest of the message is the same, and the bytes lie where they are said to."""
    made, _ = mixed(np.random.default_rng())
    data = made.SerializeToString()
    rest, spans = without_weights(memoryview(data))
    initializers = list(made.graph.initializer)
    assert sorted(spans) == [n for n, t in enumerate(initializers) if len(t.raw_data) >= LEAST] != []
    for n, (first, end) in spans.items():
        assert data[first:end] == initializers[n].raw_data
        initializers[n].ClearField("raw_data")
    assert onnx.ModelProto.FromString(rest) == made and len(rest) < len(data) - LEAST


@pytest.mark.parametrize("form", ["bytes", "path", "proto"])
def test_every_weight_is_read_as_onnx_reads_it(tmp_path, form):
    made, weights = mixed(np.random.default_rng())
    onnx.save(made, tmp_path / "m.onnx")
    source = {"bytes": made.SerializeToString(), "path": tmp_path / "m.onnx", "proto": made}[form]
    results = aicf.from_onnx(source, "cpu")({"x": np.zeros(2, np.float32)})
    for tensor in made.graph.initializer:
        if f"{tensor.name}.out" in results:
            wanted = numpy_helper.to_array(tensor)
            got = results[f"{tensor.name}.out"].numpy()
            assert got.dtype == wanted.dtype and np.array_equal(got, wanted)
    assert np.array_equal(results["d.out"].numpy(), weights["d"])


def varint(value):
    made = b""
    while value > 127:
        made, value = made + bytes([value & 127 | 128]), value >> 7
    return made + bytes([value])


def part(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def test_messages_that_are_said_twice_are_left_to_protobuf():
    """It merges two graphs, and takes the last of two weights of one tensor; so must whoever walks the bytes."""
    made, _ = mixed(np.random.default_rng())
    data = made.SerializeToString()
    again = onnx.ModelProto()
    again.graph.doc_string = "said again"
    twice = data + again.SerializeToString()
    assert without_weights(memoryview(twice)) is None
    tensor = numpy_helper.from_array(np.ones((40, 40), np.float32), "z").SerializeToString()
    tensor += part(9, np.zeros((40, 40), np.float32).tobytes())
    relu = helper.make_node("Identity", ["z"], ["y"]).SerializeToString()
    out = helper.make_tensor_value_info("y", 1, [40, 40]).SerializeToString()
    graph = part(5, tensor) + part(1, relu) + part(12, out)
    whole = model([], [], []).SerializeToString()
    bare = onnx.ModelProto.FromString(whole)
    bare.ClearField("graph")
    data = bare.SerializeToString() + part(7, graph)
    assert onnx.ModelProto.FromString(data).graph.initializer[0].raw_data == bytes(6400)
    assert not aicf.from_onnx(data, "cpu")({})["y"].numpy().any()


def test_damage_is_seen_the_same_with_and_without_the_walk():
    """A byte changed or the end cut off, many times: what the walk leaves is what protobuf makes of the whole."""
    made, _ = mixed(np.random.default_rng(1))
    data, rng, agreed = made.SerializeToString(), np.random.default_rng(), 0
    for _ in range(400):
        broken = bytearray(data)
        if rng.random() < 0.3:
            del broken[rng.integers(len(data)) :]
        else:
            broken[rng.integers(200) if rng.random() < 0.5 else rng.integers(len(data))] = rng.integers(256)
        stripped = without_weights(memoryview(broken))
        if stripped is None:
            continue
        rest, spans = stripped
        try:
            wanted = onnx.ModelProto.FromString(bytes(broken))
        except Exception:
            with pytest.raises(Exception):  # noqa: B017
                onnx.ModelProto.FromString(rest)
            continue
        for n, (first, end) in spans.items():
            assert broken[first:end] == wanted.graph.initializer[n].raw_data
            wanted.graph.initializer[n].ClearField("raw_data")
        assert onnx.ModelProto.FromString(rest) == wanted
        agreed += 1
    assert agreed > 50


def test_a_weight_whose_bytes_do_not_fit_is_refused_before_any_is_read(tmp_path):
    proto, _ = deep(2, size=64)
    proto.graph.initializer[1].dims[0] = 65
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(FrontendError, match="'w1' has not as many bytes"):
        load(tmp_path / "m.onnx")


# --- weights that a model rearranges ----------------------------------------------------------------------------------

K, N = 160, 192


def rearranging(rng):
    """Products with weights that are scaled, transposed, converted and sliced, large ones; dequantised; and small."""
    arrays = {
        "turned": rng.normal(size=(N, K)).astype(np.float32), "gain": rng.uniform(0.5, 1, (N, K)).astype(np.float32),
        "q": rng.integers(-128, 128, (K, 512)).astype(np.int8), "scale": rng.uniform(0.01, 0.02, 512).astype(np.float32),
        "zero": rng.integers(-9, 9, 512).astype(np.int8), "half": rng.normal(size=(2, K, N)).astype(np.float16),
        "at": np.array([1]), "to": np.array([2]), "axis": np.array([0]), "shape": np.array([K, N]),
        "small": rng.normal(size=(1, N)).astype(np.float32),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Mul", ["turned", "gain"], ["m"]), node("Transpose", ["m"], ["mt"], perm=[1, 0]), node("MatMul", ["x", "mt"], ["a"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["d"], axis=1), node("MatMul", ["x", "d"], ["b"]),
        node("Cast", ["half"], ["wide"], to=1), node("Slice", ["wide", "at", "to", "axis"], ["one"]),
        node("Reshape", ["one", "shape"], ["flat"]), node("MatMul", ["x", "flat"], ["c0"]),
        node("Neg", ["small"], ["minus"]), node("Add", ["c0", "minus"], ["c"]),
    ]  # fmt: skip
    outputs = [("a", ["batch", N]), ("b", ["batch", 512]), ("c", ["batch", N])]
    return model(nodes, [("x", ["batch", K])], outputs, arrays), arrays


def exact(x, w):
    """The three products in double precision."""
    w = {name: array.astype(np.float64) for name, array in w.items()}
    return (
        x @ (w["turned"] * w["gain"]).T,
        x @ ((w["q"] - w["zero"]) * w["scale"]),
        x @ w["half"][1] - w["small"],
    )


@pytest.mark.parametrize("hoist", [True, False])
def test_large_weights_stay_in_the_state_dict_and_are_rearranged_once(hoist):
    """They are loaded by their names, and what is derived of them follows."""
    rng = np.random.default_rng()
    made, arrays = rearranging(rng)
    program = aicf.from_onnx(made, "cpu", hoist=hoist)
    assert sorted(program.state_dict()) == ["gain", "half", "turned"]  # not what is small, nor integers
    kinds = [op.kind.name for region in program.compiled().regions for op in region.spec.ops]
    assert ({"transpose", "mul", "convert", "slice"} & set(kinds) == set()) is hoist
    for rows in (2, 1, 5):
        x = rng.normal(size=(rows, K)).astype(np.float32)
        got = program({"x": x})
        for name, wanted in zip("abc", exact(x, arrays)):
            np.testing.assert_allclose(got[name].numpy(), wanted, rtol=1e-4, atol=1e-3)
        for name in ("gain", "half", "turned"):
            arrays[name] = rng.uniform(0.5, 1, arrays[name].shape).astype(arrays[name].dtype)
        program.load_state_dict({name: arrays[name] for name in program.state_dict()})


def test_weights_are_trained_through_how_they_are_rearranged():
    """A step of SGD beside the gradient in double precision: of the weight as it is stored."""
    rng = np.random.default_rng()
    w = rng.normal(size=(N, K)).astype(np.float32)
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["out"]),
    ]
    made = model(nodes, [("x", [4, K])], [("out", [4, N])], {"w": w})
    program = aicf.from_onnx(
        made, "cpu", mode="train", loss=aicf.nn.MeanSquaredError(), optimizer=aicf.nn.SGD(0.5)
    )
    infer = program.in_mode("infer")
    x, y = rng.normal(size=(4, K)).astype(np.float32), rng.normal(size=(4, N)).astype(np.float32)
    program({"x": x, "y": y})
    error = x.astype(np.float64) @ w.T - y
    trained = w - 0.5 * (2 / error.size) * error.T @ x
    np.testing.assert_allclose(program.get("w"), trained, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(infer({"x": x, "y": y})["out"].numpy(), x @ trained.T, rtol=1e-4, atol=1e-4)


FLOATS = {"f32": 1, "f16": 10, "bf16": 16}


ROWS = 500  # of a weight that is large in each type


def staying(op, dtype):
    """A node of each kind on a large weight `w`, what else it reads, and what it does in NumPy."""
    ints = {
        "shape": np.array([K, ROWS]),
        "start": np.array([3]),
        "end": np.array([ROWS - 2]),
        "one": np.array([1]),
        "at": np.array([0]),
    }
    attrs, more, exactly = {
        "Transpose": ({"perm": [1, 0]}, [], lambda a: a.T),
        "Reshape": ({}, ["shape"], lambda a: a.reshape(K, ROWS)),
        "Flatten": ({"axis": 0}, [], lambda a: a.reshape(1, -1)),
        "Unsqueeze": ({}, ["at"], lambda a: a[None]),
        "Squeeze": ({}, [], lambda a: a),
        "Cast": ({"to": _kind(op, dtype)}, [], lambda a: a.astype(np.float16 if dtype == "f32" else np.float32)),
        "Add": ({}, ["w"], lambda a: a + a), "Sub": ({}, ["row"], lambda a: a - a[:1]), "Mul": ({}, ["row"], lambda a: a * a[:1]),
        "Div": ({}, ["row"], lambda a: a / a[:1]), "Neg": ({}, [], lambda a: -a),
        "Slice": ({}, ["start", "end", "at"], lambda a: a[3 : ROWS - 2]),
        "Concat": ({"axis": 0}, ["w"], lambda a: np.concatenate([a, a])),
    }[op]  # fmt: skip
    return helper.make_node(op, ["w", *more], ["y"], **attrs), ints, exactly


def _kind(op, dtype):
    return FLOATS[dtype] if op != "Cast" else 10 if dtype == "f32" else 1


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", sorted(STAYING))
def test_every_device_has_kernels_for_what_stays_in_the_graph(op, dtype):
    """And they make what NumPy does."""
    node, ints, exactly = staying(op, dtype)
    w = np.random.default_rng().uniform(0.5, 1, (ROWS, K)).astype(aicf.DType.of(dtype).numpy)
    made = model([node], [("x", [1])], [info("y", None, _kind(op, dtype))], {"w": w, "row": w[:1], **ints})
    for device in ("h200", "t4"):
        aicf.explain_for(load(made), device)
    program = aicf.from_onnx(made, "cpu")
    got, wanted = program({"x": np.zeros(1, np.float32)})["y"].numpy(), exactly(w)
    assert "w" in program.state_dict() and got.dtype == wanted.dtype and got.shape == wanted.shape
    near = {"f32": 1e-6, "f16": 2e-3, "bf16": 2e-2}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=near, atol=near)


@pytest.mark.parametrize("op", sorted(STAYING))
def test_what_stays_in_the_graph_is_known_where_a_shape_depends_on_it(op):
    node, ints, exactly = staying(op, "f32")
    w = np.full((ROWS, K), 6, np.float32)
    w[0] = 2  # the row that it is scaled by
    nodes = [node, helper.make_node("ReduceMax", ["y"], ["most"], keepdims=0), helper.make_node("Abs", ["most"], ["size"]),
             helper.make_node("Cast", ["size"], ["count"], to=7), helper.make_node("Unsqueeze", ["count", "at"], ["sizes"]),
             helper.make_node("Expand", ["x", "sizes"], ["z"])]  # fmt: skip
    program = aicf.from_onnx(model(nodes, [("x", [1])], [("z", None)], {"w": w, "row": w[:1], **ints}), "cpu")
    got = program({"x": np.ones(1, np.float32)})["z"].numpy()
    assert got.shape == (abs(int(exactly(w).max())),) and (got == 1).all()


def test_integers_are_dequantised_while_a_model_is_read():
    """No GPU has kernels for 8 bits that become floats: what is in the plan is the product, and the weight is no more there."""
    rng = np.random.default_rng()
    q = rng.integers(-128, 128, (K, 512)).astype(np.int8)
    scale = rng.uniform(0.01, 0.02, 512).astype(np.float32)
    node = helper.make_node
    nodes = [node("DequantizeLinear", ["q", "scale"], ["d"], axis=1), node("Transpose", ["d"], ["t"], perm=[1, 0]),
             node("Transpose", ["t"], ["w"], perm=[1, 0]), node("MatMul", ["x", "w"], ["y"])]  # fmt: skip
    made = model(nodes, [("x", [2, K])], [("y", [2, 512])], {"q": q, "scale": scale})
    for device in ("h200", "l4"):
        assert [op.kind.name for r in aicf.explain_for(load(made), device).regions for op in r.spec.ops] == [
            "gemm"
        ]
    program = aicf.from_onnx(made, "cpu")
    x = rng.normal(size=(2, K)).astype(np.float32)
    wanted = x @ (q.astype(np.float64) * scale)
    np.testing.assert_allclose(program({"x": x})["y"].numpy(), wanted, rtol=1e-4, atol=1e-3)
    assert not program.state_dict()


def test_what_is_quantised_behind_a_transpose_is_known_there():
    """As models are that were trained for 8 bits: a weight is rounded to them and back. Integers are in no kernel."""
    rng = np.random.default_rng()
    w, scale = rng.uniform(-1, 1, (N, K)).astype(np.float32), np.float32(1 / 127)
    node = helper.make_node
    nodes = [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("QuantizeLinear", ["t", "scale", "zero"], ["q"]),
             node("DequantizeLinear", ["q", "scale", "zero"], ["d"]), node("MatMul", ["x", "d"], ["y"])]  # fmt: skip
    made = model(nodes, [("x", [2, K])], [("y", [2, N])], {"w": w, "scale": scale, "zero": np.int8(0)})
    aicf.explain_for(load(made), "h200")
    x = rng.normal(size=(2, K)).astype(np.float32)
    wanted = x @ (np.clip(np.rint(w.T / scale), -128, 127) * np.float64(scale))
    for program in (aicf.from_onnx(made, "cpu"), aicf.compile(load(made), device="cpu", hoist=False)):
        np.testing.assert_allclose(program({"x": x})["y"].numpy(), wanted, rtol=1e-4, atol=1e-3)
