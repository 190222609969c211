"""aicf.save and aicf.load: arrays of every element type, whole files or none, and files that are not what they say."""

import json
import os
import tracemalloc

import numpy as np
import pytest
from peaks import TELLS_PEAKS, peak_beyond
from safetensors.numpy import load_file, save_file

import aicf
from aicf import weights
from aicf.errors import StateError
from aicf.types import DType
from examples import EVERYTHING

LARGE = pytest.mark.skipif(not EVERYTHING, reason="large: in make test-all")


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


# --- several files ----------------------------------------------------------------------------------------------------


def drawn(rng, count=7):
    """Arrays of every size and several types, by name."""
    types = [aicf.f32, aicf.bf16, aicf.i8, aicf.f64, aicf.bool_]
    return {
        f"w.{n}": rng.integers(0, 2, (n, 3 * n + 1)).astype(types[n % len(types)].numpy) for n in range(count)
    }


def same(found, arrays):
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes(), name


def index_of(folder, stem="m"):
    return folder / f"{stem}.safetensors.index.json"


@pytest.mark.spec("D16")
@pytest.mark.parametrize("most", [1, 40, 10**9, None])
def test_many_files_are_one_mapping(tmp_path, most):
    """By the name they were saved as, their index and their folder; and as other readers of the format have them."""
    arrays = drawn(np.random.default_rng())
    path = tmp_path / "m.safetensors"
    aicf.save(path, arrays, {"by": "us"}, max_shard_bytes=most)
    shards = sorted(p.name for p in tmp_path.glob("*.safetensors"))
    one = most in (10**9, None)
    assert len(shards) == {1: 7, 40: 5}.get(most, 1) and index_of(tmp_path).exists() is not one
    for place in (path, tmp_path, str(tmp_path), *([] if one else [index_of(tmp_path)])):
        same(aicf.load(place), arrays)
        assert weights.metadata(place) == {"by": "us"}
    theirs = {name: array for file in shards for name, array in load_file(tmp_path / file).items()}
    same(theirs, arrays)
    if not one:
        told = json.loads(index_of(tmp_path).read_text())
        assert {n: n in load_file(tmp_path / f) for n, f in told["weight_map"].items()} == dict.fromkeys(
            arrays, True
        )
        assert told["metadata"]["total_size"] == sum(a.nbytes for a in arrays.values())
        assert all(os.path.getsize(tmp_path / f) < 8 + 400 + max(most, 400) for f in shards)


def test_what_is_saved_anew_takes_the_place_of_all_that_was_there(tmp_path):
    """One file or several, before and after; only what the name stood for goes."""
    rng, path = np.random.default_rng(), tmp_path / "m.safetensors"
    (tmp_path / "m-notes.safetensors").write_bytes(b"of somebody else")
    for most in (60, 20, None, None, 30, 10**9, 1):
        arrays = drawn(rng)
        aicf.save(path, arrays, max_shard_bytes=most)
        same(aicf.load(path), arrays)
        there = {p.name for p in tmp_path.iterdir()} - {"m-notes.safetensors"}
        named = (
            set(json.loads(index_of(tmp_path).read_text())["weight_map"].values())
            if index_of(tmp_path).exists()
            else set()
        )
        assert there == ({*named, index_of(tmp_path).name} if named else {path.name})


def test_a_file_is_rewritten_from_itself(tmp_path):
    """What was loaded is still what it was, and can be saved in other pieces in the same place."""
    arrays, path = drawn(np.random.default_rng()), tmp_path / "m.safetensors"
    aicf.save(path, arrays, max_shard_bytes=50)
    loaded = aicf.load(path)
    aicf.save(path, loaded, max_shard_bytes=20)
    aicf.save(path, {name: np.zeros(3) for name in arrays})
    same(loaded, arrays)


@pytest.mark.parametrize("written", range(4))
def test_what_is_written_by_half_is_not_taken_for_whole(tmp_path, monkeypatch, written):
    """The disk is full after so many files, of three and an index: what was there is as it was, and of the new nothing is left."""
    arrays, path = {f"w{n}": np.full(4, n, np.float32) for n in range(3)}, tmp_path / "m.safetensors"
    other = {name: array + 1 for name, array in arrays.items()}
    replace, count = os.replace, iter(range(9))

    def full(source, target):
        if next(count) == written:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(weights.os, "replace", full)
    with pytest.raises(StateError, match="No space left"):
        aicf.save(path, arrays, max_shard_bytes=16)
    assert os.listdir(tmp_path) == []
    with pytest.raises(StateError, match="there is no file"):
        aicf.load(path)
    monkeypatch.undo()
    aicf.save(path, other, max_shard_bytes=16)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    count = iter(range(9))
    monkeypatch.setattr(weights.os, "replace", full)
    with pytest.raises(StateError, match="No space left"):
        aicf.save(path, arrays, max_shard_bytes=16)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    same(aicf.load(path), other)


def test_killed_before_the_index(tmp_path):
    """Shards without an index are nothing; with an older one they are what that says."""
    aicf.save(tmp_path / "m.safetensors", {"a": np.ones(4), "b": np.ones(4)}, max_shard_bytes=32)
    index = index_of(tmp_path)
    text = index.read_text()
    index.unlink()
    for place, said in (
        (tmp_path / "m.safetensors", "there is no file"),
        (tmp_path, "several files of weights"),
    ):
        with pytest.raises(StateError, match=said):
            aicf.load(place)
    index.write_text(text)
    save_file({"a": np.zeros(4)}, tmp_path / "m-0123abcd-00001-of-00002.safetensors")
    assert (aicf.load(tmp_path)["a"] == 1).all()


# --- files that are not what they say ---------------------------------------------------------------------------------


def saved(folder):
    """Two files with an index, in a folder of their own."""
    folder.mkdir()
    aicf.save(
        folder / "m.safetensors",
        {"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)},
        max_shard_bytes=8,
    )
    return folder


def edited(change):
    def edit(folder):
        told = json.loads(index_of(folder).read_text())
        change(told)
        index_of(folder).write_text(json.dumps(told))

    return edit


def mapped(name, file):
    return edited(lambda told: told["weight_map"].update({name: file}))


FIRST, SECOND = "m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"


def linked(folder):
    (folder / SECOND).rename(folder.parent / "outside.safetensors")
    (folder / SECOND).symlink_to("../outside.safetensors")


def twice(folder):
    save_file({"a": np.zeros(2, np.float32), "b": np.ones(2, np.float32)}, folder / SECOND)


def piped(folder):
    (folder / SECOND).unlink()
    os.mkfifo(folder / SECOND)


def headed(raw):
    return lambda folder: (folder / SECOND).write_bytes(raw)


INDICES = {
    "above": (mapped("b", "../outside.safetensors"), "names a file elsewhere"),
    "absolute": (mapped("b", "/etc/passwd"), "names a file elsewhere"),
    "of Windows": (mapped("b", "..\\outside.safetensors"), "names a file elsewhere"),
    "below": (mapped("b", "sub/x.safetensors"), "names a file elsewhere"),
    "no text": (mapped("b", "\ud800.safetensors"), "names a file elsewhere"),
    "a NUL": (mapped("b", "a\0b"), "names a file elsewhere"),
    "the folder": (mapped("b", ".."), "names a file elsewhere"),
    "itself": (mapped("b", "m.safetensors.index.json"), "damaged, or no safetensors file"),
    "no name": (mapped("b", ""), "names a file elsewhere"),
    "no string": (mapped("b", 7), "has no weight_map"),
    "behind a link": (linked, "names a file that is a link elsewhere"),
    "missing": (lambda folder: (folder / SECOND).unlink(), "there is no file"),
    "a pipe": (piped, "it is no file"),
    "a folder": (lambda folder: ((folder / SECOND).unlink(), (folder / SECOND).mkdir()), "damaged, or no"),
    "lacks what it lists": (mapped("c", FIRST), "1 tensors are not in the files that it names"),
    "in two files": (twice, "a is in two of its files"),
    "in the other file": (mapped("a", SECOND), "1 tensors are not in the files that it names"),
    "no map": (edited(lambda told: told.pop("weight_map")), "has no weight_map"),
    "a list": (lambda folder: index_of(folder).write_text("[]"), "has no weight_map"),
    "no JSON": (lambda folder: index_of(folder).write_text("{"), "can't be read"),
    "no UTF-8": (lambda folder: index_of(folder).write_bytes(b'{"a": "\xff"}'), "can't be read"),
    "said twice": (
        lambda folder: index_of(folder).write_text(f'{{"weight_map": {{"a": "{FIRST}", "a": "{SECOND}"}}}}'), "'a' is there twice",
    ),
    "nested": (lambda folder: index_of(folder).write_text("[" * 10**6), "can't be read"),
    "larger than an index": (lambda folder: os.truncate(index_of(folder), 2**40), "and an index"),
    "a header that is damaged": (headed(FILES["no JSON"]), "damaged, or no safetensors file"),
    "a header of terabytes": (headed((2**42).to_bytes(8, "little") + b"{}"), "damaged, or no safetensors file"),
    "a tensor of terabytes": (headed(FILES["offsets that are not the shape's"]), "damaged, or no safetensors file"),
    "a type that only others have": (
        headed(hostile({"b": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}})), "b in .* has elements of C64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", INDICES)
def test_an_index_that_lies_is_refused(tmp_path, what):
    edit, said = INDICES[what]
    folder = saved(tmp_path / "in")
    assert set(aicf.load(folder)) == {"a", "b"}
    save_file({"b": np.ones(2, np.float32)}, tmp_path / "outside.safetensors")
    edit(folder)
    tracemalloc.start()
    try:
        with pytest.raises(StateError, match=said):
            aicf.load(folder)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20, "it was believed"
    finally:
        tracemalloc.stop()


def test_paths_that_are_none(tmp_path):
    (tmp_path / "text.txt").write_text("hello")
    for path, said in (
        (tmp_path, "has no weights"), (tmp_path / "none.safetensors", "there is no file"), (tmp_path / "none.json", "there is no file"),
        ("a\0b", "can't be read|damaged"), (7, "can't be loaded from 7"), (None, "can't be loaded from None"),
    ):  # fmt: skip
        with pytest.raises(StateError, match=said):
            aicf.load(path)
    for path, how, said in (
        ("m.safetensors", {"max_shard_bytes": 0}, "max_shard_bytes=0"),
        ("m.safetensors", {"max_shard_bytes": True}, "max_shard_bytes=True"),
        ("m.safetensors.index.json", {}, "no name of a file of arrays"),
        ("", {}, "no name of a file of arrays"),
        ("none/m.safetensors", {"max_shard_bytes": 1}, "can't be written"),
    ):
        with pytest.raises(StateError, match=said):
            aicf.save(tmp_path / path, {"x": np.ones(3), "y": np.ones(3)}, **how)
    assert os.listdir(tmp_path) == ["text.txt"]


# --- memory -----------------------------------------------------------------------------------------------------------


def zeros(path, names, nbytes):
    """A file of f32 arrays of zeros, that takes no disk."""
    told = {"dtype": "F32", "shape": [nbytes // 4096, 1024]}
    head = {name: {**told, "data_offsets": [n * nbytes, (n + 1) * nbytes]} for n, name in enumerate(names)}
    path.write_bytes(hostile(head, b""))
    os.truncate(path, path.stat().st_size + len(names) * nbytes)


class Weights:
    """Params and nothing else."""

    def __init__(self, count, nbytes):
        self.count, self.rows = count, nbytes // 4096

    def emit(self, ctx, x):
        for n in range(self.count):
            w = ctx.param(f"{n}.w", (self.rows, 1024), lambda shape, rng: np.zeros(shape, np.float32))
            x = x + ctx.reduce_sum(w, axes=(0, 1))
        return x


@pytest.mark.sample(1, each="megabytes")
@pytest.mark.spec("D16")
@TELLS_PEAKS
@pytest.mark.parametrize("kind", ["one file", "several"])
@pytest.mark.parametrize("megabytes", [pytest.param(300, marks=LARGE), 40])
def test_a_state_dict_is_loaded_one_tensor_at_a_time(tmp_path, megabytes, kind):
    """Beside the program's own memory, which is there, the host has one tensor more, be it of its own or of the file."""
    count, nbytes = megabytes // 4, 4 << 20
    names = [f"m.{n}.w" for n in range(count)]
    if kind == "one file":
        zeros(tmp_path / "m.safetensors", names, nbytes)
    else:
        for n in range(4):
            zeros(tmp_path / f"p{n}.safetensors", names[n::4], nbytes)
        places = {name: f"p{n % 4}.safetensors" for n, name in enumerate(names)}
        index_of(tmp_path, "model").write_text(json.dumps({"weight_map": places}))
    program = aicf.compile(aicf.nn.Model({"x": (1,)}).add(Weights(count, nbytes), "m"), device="cpu")
    found = aicf.load(tmp_path)
    for name in program.variables.names():
        program.variables[name].array[...] = 1  # it is there
    tracemalloc.start()
    beyond = peak_beyond(lambda: program.load_state_dict(found))
    own = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(beyond, own) < 4 * nbytes < megabytes << 19, (beyond, own)
    assert not any(array.any() for array in program.state_dict().values())
    kept = dict(found)  # all at once: views
    assert peak_beyond(lambda: [kept[name][0, 0] for name in kept]) < megabytes << 18


def test_one_file_is_open_once(tmp_path):
    """However many arrays of it are there at once."""
    arrays = {f"w{n}": np.full(3000, n, np.float32) for n in range(1500)}
    aicf.save(tmp_path / "m.safetensors", arrays)
    before = len(os.listdir("/proc/self/fd"))
    kept = dict(aicf.load(tmp_path / "m.safetensors"))
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    same(kept, arrays)


def test_nothing_is_written_where_one_array_does_not_fit(tmp_path):
    model = aicf.nn.Model({"x": ("batch", 4)}, batch=2).add(aicf.nn.Linear(4, 3)).add(aicf.nn.Linear(3, 2))
    program = aicf.compile(model, device="cpu")
    before = program.state_dict()
    wrong = {
        "missing": ({k: v for k, v in before.items() if k != "1.bias"}, "missing: 1.bias"),
        "extra": ({**before, "2.bias": np.ones(2)}, "extra: 2.bias"),
        "shape": ({**before, "1.weight": np.ones((3, 2), np.float32)}, "1.weight does not fit"),
        "type": ({**before, "1.weight": np.ones((2, 3))}, r"1.weight does not fit(.|\n)*next: .*float32"),
    }
    for what, (arrays, said) in wrong.items():
        aicf.save(tmp_path / f"{what}.safetensors", {n: a + 1 for n, a in arrays.items()}, max_shard_bytes=10)
        with pytest.raises(StateError, match=said):
            program.load_state_dict(aicf.load(tmp_path / f"{what}.safetensors"))
        for name, array in program.state_dict().items():
            assert (array == before[name]).all()
    ones = {name: np.ones_like(array) for name, array in before.items()}
    aicf.save(tmp_path / "m.safetensors", ones | {"more": np.ones(3)}, max_shard_bytes=10)
    assert program.load_state_dict(aicf.load(tmp_path / "m.safetensors"), strict=False) == []
    assert all((array == 1).all() for array in program.state_dict().values())


def test_a_training_run_s_checkpoint_is_loaded_from_several_files(tmp_path):
    """Counters and meta-parameters are looked at before anything is written."""
    model = aicf.nn.Model({"x": ("batch", 4)}, batch=2).add(aicf.nn.Linear(4, 3))
    train = aicf.compile(
        model, "train", device="cpu", loss=aicf.nn.MeanSquaredError(), optimizer=aicf.nn.AdamW(0.1)
    )
    feed = {"x": np.ones((2, 4), np.float32), "y": np.zeros((2, 3), np.float32)}
    train(feed)
    path = tmp_path / "m.safetensors"
    aicf.save(path, train.state_dict(), max_shard_bytes=16)
    wanted = train(feed)["loss"].numpy(), train.state_dict()
    train.load_state_dict(aicf.load(path))
    assert train.runs == 1 and (train(feed)["loss"].numpy() == wanted[0]).all()
    same(train.state_dict(), wanted[1])
    aicf.save(path, {**dict(aicf.load(path)), "optimizer.lr": np.float32(-1)}, max_shard_bytes=16)
    before = train.state_dict()
    with pytest.raises(StateError, match=r"optimizer\.lr can't be loaded"):
        train.load_state_dict(aicf.load(path))
    same(train.state_dict(), before)
