"""Files of the code cache that are not what their names say, or that another user may have written: compiled again, never run."""

from __future__ import annotations

import itertools
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from draws.seeds import rng

import aicf
from aicf import doctor, nn
from aicf.cli import main
from aicf.code_cache import disk, ledger, trust
from aicf.cpu_kernels.compiler import code

POSIX = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes and owners are POSIX's")
ROOT = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="chown needs root")
SUFFIXES = disk.KERNEL, disk.LOOP, disk.FUNCTION, disk.MADE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, on and empty; memory is empty too."""
    base = tmp_path / "cache"
    monkeypatch.setenv("AICF_CACHE", "on")
    monkeypatch.setenv("AICF_CACHE_DIR", str(base))
    for once in (disk._warn_once, disk._warn_untrusted, disk._trim_once, code.code_of):
        once.cache_clear()
    yield base / "kernels"
    code.code_of.cache_clear()


# --- swaps ------------------------------------------------------------------------------------------------------------


def test_an_entry_under_another_name_is_a_miss(folder, caplog):
    """Drawn entries of all kinds, each copied over others: none is read for another, and each is itself again once stored."""
    draw = rng(__name__)
    keys = [draw.bytes(16).hex() for _ in range(8)]
    entries = {
        (key, suffix): (draw.bytes(int(draw.integers(0, 300))), {"symbol": f"f{n}"})
        for n, (key, suffix) in enumerate(itertools.product(keys, SUFFIXES))
    }
    for (key, suffix), (content, facts) in entries.items():
        disk.store(key, suffix, content, facts)
    path = {entry: disk.folder(entry[1]) / "".join(entry) for entry in entries}
    names = list(entries)
    for _ in range(200):
        one, other = (names[int(i)] for i in draw.choice(len(names), 2, replace=False))
        shutil.copy(path[one], path[other])
        caplog.clear()
        assert disk.load(*other, lambda content, **facts: content) is None, f"{one} as {other}"
        assert len(caplog.records) == 1 and "".join(one) in caplog.text, f"{one} as {other}"
        disk.store(*other, *entries[other])
        found = disk.load(*other, lambda content, **facts: (content, facts))
        assert found == entries[other]


LAYERS = {
    "relu": (nn.ReLU, lambda x: np.maximum(x, 0)), "tanh": (nn.Tanh, np.tanh),
    "sigmoid": (nn.Sigmoid, lambda x: 1 / (1 + np.exp(-x))),
}  # fmt: skip


class Sums(nn.Layer):
    def emit(self, ctx, x):
        return ctx.reduce_sum(x, axes=(1,))


class Doubles(nn.Layer):
    def emit(self, ctx, x):
        return ctx.convert(ctx.add(x, x), dtype=aicf.f16)


CASES = {**LAYERS, "sums": (Sums, lambda x: x.sum(1)), "doubles": (Doubles, lambda x: 2 * x)}
SHAPES = [(2, 3), (7, 5), (1, 9)]


def test_a_loop_under_another_loop_s_name_is_compiled_again(folder, monkeypatch, caplog):
    """Drawn swaps of real loops: the numbers are those of the op, and the loop is compiled again, which the log says once."""
    compiled: dict[object, tuple[bytes, list[str]]] = {}
    again: list[str] = []
    true = code._compiled

    def once(spec):
        again.append(code._name(spec))
        key = code.loop_key(spec)
        if key not in compiled:
            compiled[key] = true(spec)
        return compiled[key]

    monkeypatch.setattr(code, "_compiled", once)
    draw = rng(__name__)

    def run(name: str) -> None:
        layer, want = CASES[name]
        x = draw.standard_normal(SHAPES[int(draw.integers(len(SHAPES)))])
        code.code_of.cache_clear()
        model = nn.Model({"x": aicf.TensorSpec(x.shape)}).add(layer())
        got = aicf.compile(model, device="cpu")({"x": x.astype(np.float32)})["output"].numpy()
        np.testing.assert_allclose(got, want(x), rtol=2e-3, atol=1e-5, err_msg=f"{name}")

    file: dict[str, Path] = {}
    for name in CASES:
        before = set(folder.glob("*.loop"))
        run(name)
        (file[name],) = set(folder.glob("*.loop")) - before
    assert len(again) == len(CASES)
    for _ in range(40):
        one, other = (str(n) for n in draw.choice(list(CASES), 2, replace=False))
        shutil.copy(file[one], file[other])
        again.clear(), caplog.clear()
        run(other)
        assert len(again) == 1 and [r.event for r in caplog.records] == ["damaged"]
        run(other)
        assert len(again) == 1, f"{other} was not stored again"


def test_a_ledger_s_file_under_another_name_is_no_reason(folder):
    ledger.remember("ab" * 16, {"numba": "1"})
    ledger.remember("cd" * 16, {"numba": "2"})
    place = disk.folder(disk.MADE)
    shutil.copy(place / ("ab" * 16 + disk.MADE), place / ("cd" * 16 + disk.MADE))
    assert ledger.why_again("cd" * 16, {"numba": "2"}) == ledger.NEW


# --- other users ------------------------------------------------------------------------------------------------------

KEY = "0" * 32


def stored(folder: Path) -> Path:
    disk.store(KEY, disk.LOOP, b"code", {})
    return folder / (KEY + disk.LOOP)


def found() -> bytes | None:
    return disk.load(KEY, disk.LOOP, lambda content: content)


def said(capsys) -> str:
    assert main(["cache"]) == 0
    return capsys.readouterr().out


def test_a_process_lists_the_folder_once_and_removes_what_a_killed_one_left(folder, monkeypatch, request):
    """However many entries there are and are stored; a file whose writer is alive stays."""
    draw, listed = rng(request.node.nodeid), []
    keys = [draw.bytes(16).hex() for _ in range(int(draw.integers(3, 40)))]
    disk.store(keys[0], disk.LOOP, b"code", {})
    left = [
        folder / f".{key}.loop.{pid}.01234567.tmp"
        for key, pid in zip(keys, (2**22 + 1, os.getpid(), 2**22 + 2))
    ]
    for path in left:
        path.touch()
    disk._trim_once.cache_clear()  # as in another process
    for name in ("listdir", "scandir"):
        monkeypatch.setattr(
            os, name, partial(lambda true, *at: listed.append(at) or true(*at), getattr(os, name))
        )
    for key in keys:
        disk.store(key, disk.LOOP, draw.bytes(9), {})
    assert len(listed) <= 2, "for orphans, and for the sizes"
    assert [path.exists() for path in left] == [False, True, False]
    assert all(disk.load(key, disk.LOOP, lambda code: code) for key in keys)


@POSIX
def test_what_is_stored_may_be_written_by_this_user_alone_whatever_the_umask(folder):
    before = os.umask(0)
    try:
        path = stored(folder)
    finally:
        os.umask(before)
    assert found() == b"code"
    for each in (path, folder, folder.parent):
        assert not each.stat().st_mode & trust.WRITABLE, each


@POSIX
@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666, 0o777])
def test_an_entry_that_others_may_write_is_not_read(folder, mode, caplog, capsys):
    path = stored(folder)
    path.chmod(mode)
    assert found() is None and found() is None
    assert [r.event for r in caplog.records] == ["untrusted"] and f"mode {mode:o}" in caplog.text
    assert "1 files are not read: other users may write it" in said(capsys)
    check = doctor._check_cache()
    assert check.status == "warn" and check.fix == "aicf cache --clear"
    assert main(check.fix.split()[1:]) == 0  # as it says
    assert doctor._check_cache().status == "ok"
    stored(folder)
    assert found() == b"code"


@POSIX
@pytest.mark.parametrize("which", ["kernels", "base"])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o2775])
def test_a_folder_that_others_may_write_is_not_used(folder, which, mode, caplog, capsys):
    path = stored(folder)
    place = folder if which == "kernels" else folder.parent
    place.chmod(mode)
    assert found() is None and found() is None
    disk.store("1" * 32, disk.LOOP, b"more", {})
    assert list(folder.iterdir()) == [path]
    assert len(caplog.records) == 1 and f"mode {mode:o}" in caplog.text
    assert "nothing is read" in said(capsys)
    fix = doctor._check_cache().fix
    assert fix == f"chmod go-w {place}" and fix in caplog.text
    os.system(fix)
    assert found() == b"code" and doctor._check_cache().status == "ok"


@POSIX
def test_a_sticky_folder_is_used_as_tmp_is(folder):
    path = stored(folder)
    folder.parent.chmod(0o1777)
    folder.chmod(0o1777)
    assert found() == b"code"
    path.chmod(0o666)
    assert found() is None


@ROOT
def test_what_another_user_owns_is_not_read(folder, caplog, capsys, monkeypatch):
    path = stored(folder)
    os.chown(path, 12345, 12345)
    assert found() is None
    assert "uid 12345" in caplog.text and "1 files are not read" in said(capsys)
    stored(folder)  # replaces it
    assert found() == b"code"
    os.chown(folder.parent, 12345, 12345)
    assert found() is None
    assert "nothing is read" in said(capsys)
    assert doctor._check_cache().fix.startswith("export AICF_CACHE_DIR=")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)  # to its owner, root's files are as good as that user's
    assert found() == b"code"


@POSIX
def test_the_owner_is_who_runs(folder, monkeypatch):
    """Without root: the same file, seen by another user."""
    stored(folder)
    owner = (folder / (KEY + disk.LOOP)).stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert (found() is None) == (owner != 0)
