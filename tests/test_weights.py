"""aicf.save and aicf.load: arrays of every element type, whole files or none, and files that are not what they say."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import aicf
from aicf import weights
from aicf.errors import StateError
from aicf.types import DType


def test_every_element_type_comes_back(tmp_path):
    rng = np.random.default_rng()
    arrays = {t.name: rng.integers(0, 2, (3, 5)).astype(t.numpy) for t in DType}
    arrays |= {
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(7, np.int64),
        "T": rng.normal(size=(4, 3)).T,
    }
    aicf.save(tmp_path / "a.safetensors", arrays, {"made": "here"})
    found = aicf.load(tmp_path / "a.safetensors")
    assert set(found) == set(arrays) and weights.metadata(tmp_path / "a.safetensors") == {"made": "here"}
    for name, array in arrays.items():
        assert (
            found[name].dtype == array.dtype
            and found[name].shape == array.shape
            and not found[name].flags.writeable
        )
        assert (found[name] == array).all(), name


def test_it_is_the_format_of_others(tmp_path):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    aicf.save(tmp_path / "ours", {"x": x})
    save_file({"x": x}, tmp_path / "theirs")
    assert (load_file(tmp_path / "ours")["x"] == x).all() and (aicf.load(tmp_path / "theirs")["x"] == x).all()


def hostile(head, data=b"\0" * 8):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + data


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
FILES = {
    "empty": b"",
    "short": b"abc",
    "header beyond the end": (2**40).to_bytes(8, "little") + b"{}",
    "no JSON": hostile(b"{nothing"),
    "offsets beyond the end": hostile({"x": F32 | {"data_offsets": [0, 800], "shape": [200]}}),
    "offsets that are not the shape's": hostile({"x": F32 | {"shape": [2**40]}}),
    "negative": hostile({"x": F32 | {"data_offsets": [-8, 8]}}),
    "two in one place": hostile({"x": F32, "y": F32}),
    "shape that overflows": hostile({"x": F32 | {"shape": [2**33, 2**33]}}),
    "unknown type": hostile({"x": F32 | {"dtype": "F33"}}),
    "more data than named": hostile({"x": F32}, b"\0" * 80),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_not_good_is_refused(tmp_path, what):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(FILES[what])
    with pytest.raises(StateError, match="is damaged, or no safetensors file"):
        aicf.load(path)


def test_a_type_that_only_others_have(tmp_path):
    path = tmp_path / "c.safetensors"
    path.write_bytes(hostile({"x": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}}))
    with pytest.raises(StateError, match=r"x in .* has elements of C64"):
        aicf.load(path)
    with pytest.raises(StateError, match="z has elements of complex64"):
        aicf.save(path, {"z": np.zeros(2, np.complex64)})


def test_what_can_t_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    aicf.save(path, {"x": np.ones(3)})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights, "save_file", full)
    with pytest.raises(StateError, match="No space left"):
        aicf.save(path, {"x": np.zeros(3)})
    assert (aicf.load(path)["x"] == 1).all() and os.listdir(tmp_path) == ["w.safetensors"]
    with pytest.raises(StateError, match="can't be written"):
        aicf.save(tmp_path / "no" / "folder", {})
    with pytest.raises(StateError, match="there is no file"):
        aicf.load(tmp_path / "none")


def test_a_program_s_state(tmp_path):
    model = aicf.nn.Model({"x": ("batch", 4)}, batch=2).add(aicf.nn.Linear(4, 3))
    program = aicf.compile(model, device="cpu")
    aicf.save(tmp_path / "m", program.state_dict())
    weight = program.get("0.weight")
    program.load_state_dict({k: np.zeros_like(v) for k, v in program.state_dict().items()})
    program.load_state_dict(aicf.load(tmp_path / "m"))
    assert (program.get("0.weight") == weight).all()


def test_arrays_are_read_when_they_are_asked_for(tmp_path):
    """Views where the file aligns them, else a copy of each."""
    x, y = np.arange(6, dtype=np.float32), np.arange(3, dtype=np.float64)
    head = {
        "b": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [1, 25]},
        "y": {"dtype": "F64", "shape": [3], "data_offsets": [25, 49]},
    }
    path = tmp_path / "odd.safetensors"
    path.write_bytes(hostile(head, b"\7" + x.tobytes() + y.tobytes()))
    found = weights.Mapped(path)
    assert set(found) == {"b", "x", "y"} and len(found) == 3 and "x" in found and "z" not in found
    assert found.spec("x") == aicf.TensorSpec((2, 3), aicf.f32) and found["b"] == 7
    assert (found["x"] == x.reshape(2, 3)).all() and (found["y"] == y).all()
    assert found["x"].flags.aligned and found["x"] is not found["x"]
    with pytest.raises(KeyError):
        found["z"]
