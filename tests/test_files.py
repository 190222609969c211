"""Files that replace others, when their writers are killed or many; JSON that is too deep. What happens when is drawn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from graph.tuning_support import RELU, spoiled, tuned
from registry.synthetic import registry_of

import aicf
from aicf.errors import AicfError, TuningError
from aicf.files import DEPTH, TEMPORARY, parse_json, replacing
from aicf.registry import tuning_file
from aicf.training.checkpoints import Checkpoints, Progress

HELD = """
import sys, time; from pathlib import Path; from aicf.files import replacing
with replacing(Path(sys.argv[1]), folder=sys.argv[2] == "folder") as fresh:
    if sys.argv[2] == "folder": (fresh / "part").write_text("half")
    else: fresh.write_text("half")
    print("written", flush=True); time.sleep(60)
"""


def writer(target: Path, kind: str = "file") -> subprocess.Popen:
    """A process in the middle of a save."""
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, str(target), kind], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "written\n"
    return process


def temporaries(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if TEMPORARY.fullmatch(name))


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks of this kind")
def test_the_next_save_removes_what_a_killed_one_left(tmp_path):
    """Of checkpoints, whose names differ by numbers; a save that goes on is left alone, and so are files of other names."""
    checkpoints = Checkpoints(tmp_path, 1)
    dead, alive = (writer(checkpoints.path(step)) for step in (10, 20))
    kill(dead)
    others = [
        tmp_path / name
        for name in (f".other.{dead.pid}.01234567.tmp", f".step-1.txt.{dead.pid}.01234567.tmp", "step-1.tmp")
    ]
    for other in others:
        other.touch()
    assert len(temporaries(tmp_path)) == 4
    checkpoints.save({"w": np.ones(3, np.float32)}, Progress(step=30))
    left = temporaries(tmp_path)
    assert (
        len(left) == 3 and any(f".{alive.pid}." in name for name in left) and all(o.exists() for o in others)
    ), left
    kill(alive)
    checkpoints.save({"w": np.ones(3, np.float32)}, Progress(step=40))
    assert len(temporaries(tmp_path)) == 2
    np.testing.assert_array_equal(aicf.load(checkpoints.path(40))["w"], np.ones(3))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks of this kind")
def test_folders_too(tmp_path):
    process = writer(tmp_path / "model", "folder")
    kill(process)
    assert len(temporaries(tmp_path)) == 1
    with replacing(tmp_path / "model", folder=True) as fresh:
        (fresh / "part").write_text("all of it")
    assert os.listdir(tmp_path) == ["model"] and (tmp_path / "model" / "part").read_text() == "all of it"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks of this kind")
def test_a_writer_of_another_machine_has_the_lock(tmp_path):
    """Its number is no process here; while it writes nobody takes its file, and afterwards the next save does."""
    import fcntl

    there = tmp_path / f".a.npz.{2**22 + 1}.01234567.tmp"  # no process has such a number
    with open(there, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with replacing(tmp_path / "a.npz") as fresh:
            fresh.write_text("mine")
        assert there.exists()
    with replacing(tmp_path / "a.npz") as fresh:
        fresh.write_text("mine")
    assert os.listdir(tmp_path) == ["a.npz"]


MANY = """
import sys; from pathlib import Path; from aicf.files import replacing
for n in range(150):
    with replacing(Path(sys.argv[1]) / f"step-{n % 5}") as fresh: fresh.write_text(sys.argv[2] * 100)
"""


@pytest.mark.sample(1, pool="processes")
def test_savers_at_once_do_not_take_each_others_files(tmp_path):
    processes = [subprocess.Popen([sys.executable, "-c", MANY, str(tmp_path), text]) for text in "ab"]
    failed: list[Exception] = []

    def save(text: str) -> None:
        try:
            for n in range(100):
                with replacing(tmp_path / f"step-{n % 5}") as fresh:
                    fresh.write_text(text * 100)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=save, args=(text,)) for text in "cde"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [process.wait(60) for process in processes] == [0, 0] and not failed, failed
    assert sorted(os.listdir(tmp_path)) == [f"step-{n}" for n in range(5)]
    assert all(len(set((tmp_path / f"step-{n}").read_text())) == 1 for n in range(5))


# --- depth --------------------------------------------------------------------------------------------------------------


def nested(depth: int, rng: np.random.Generator) -> str:
    """Lists and objects in each other."""
    pairs = [[("[", "]"), ('{"a":', "}")][n] for n in rng.integers(0, 2, depth)]
    return "".join(a for a, _ in pairs) + "1" + "".join(b for _, b in reversed(pairs))


def somewhere(text: str, data, rng):
    """The data as JSON, with that text in the place of a value that is drawn."""
    places: list[tuple] = []

    def walk(value):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            places.append((value, key))
            if isinstance(inner, (dict, list)):
                walk(inner)

    walk(data)
    value, key = places[rng.integers(len(places))]
    value[key] = "@deep@"
    return json.dumps(data).replace('"@deep@"', text)


@pytest.fixture(scope="module")
def tuned_text():
    registry = registry_of(spoiled("cpu.right.v1", lambda operands, results: None))
    return tuning_file.text_of(tuned(registry, RELU, seconds=0.2).tuning)


@pytest.mark.parametrize("seed", range(12))
def test_deep_json_is_refused_in_words(tuned_text, tmp_path, seed):
    rng = np.random.default_rng(seed)
    deep = nested(int(rng.choice([DEPTH + 1, 150, 300, 900, 5000, 100_000])), rng)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(deep)
    path = tmp_path / "deep.json"
    path.write_text(somewhere(deep, json.loads(tuned_text), rng))
    with pytest.raises(TuningError) as refused:
        aicf.Tuning.load(path)
    assert str(path) in str(refused.value), seed
    where = tmp_path / "step-00000001.safetensors"
    aicf.save(where, {"w": np.ones(2, np.float32)}, {"aicf.training": deep})
    with pytest.raises(AicfError, match="no checkpoint of a training run"):
        Checkpoints(tmp_path, 1).load()


@pytest.mark.parametrize("seed", range(3))
def test_json_of_any_depth_that_files_have_is_read(seed):
    rng = np.random.default_rng(seed)
    text = nested(int(rng.integers(1, DEPTH)), rng)
    assert parse_json(text) == json.loads(text)
