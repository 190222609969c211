"""Tuning files (A7): read as they were written, or refused whole, by name, with the field that is wrong."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aicf import default_registry
from aicf.device.spec import preset
from aicf.errors import TuningError
from aicf.registry import tuning as tuning_module
from aicf.registry.measured import Header, Measured, Timing, kernels_hash
from aicf.registry.text_digest import op_digest, variant_digest
from aicf.registry.tuning import Tuning, tuning_of
from aicf.registry.tuning_file import _checksum, parse, text_of
from examples import examples

from .synthetic import region
from .tuning_cases import CPU, HEADER, PATIENT, REGIONS, one_of, tunings

# --- files --------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("A7")
@settings(PATIENT)
@given(tunings())
def test_what_is_written_is_read_again(tuning):
    text = text_of(tuning)
    assert parse(text, "a file") == tuning
    assert text_of(parse(text, "a file")) == text
    assert all(len(line) < 10_000 for line in text.splitlines())


def test_a_file_is_the_same_whatever_the_order_of_its_entries():
    a, b = one_of("cpu.a.v1"), one_of("cpu.b.v1", r=REGIONS[2])
    assert text_of(a.merge(b)) == text_of(b.merge(a))


TEXT = text_of(
    one_of("cpu.a.v1", "cpu.b.v1").merge(
        Tuning(HEADER, [Measured(REGIONS[2], {"cpu.a.v1": Timing(5.0)}, {"cpu.c.v2": "no"})])
    )
)


@pytest.mark.spec("A7")
@settings(PATIENT, max_examples=examples(300).max_examples)
@given(st.data())
def test_a_file_with_a_byte_changed_is_refused_or_says_the_same(data):
    whole = bytearray(TEXT.encode())
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        text = bytes(whole).decode()
    except UnicodeDecodeError:
        return
    try:
        got = parse(text, "some.json")
    except TuningError as error:
        assert "some.json" in str(error)
    else:
        assert got == parse(TEXT, "some.json")


@pytest.mark.spec("A7")
@settings(PATIENT)
@given(st.integers(0, len(TEXT.rstrip()) - 1))
def test_a_file_that_is_cut_short_is_refused(length):
    with pytest.raises(TuningError, match=r"some\.json"):
        parse(TEXT[:length], "some.json")


def edited(change) -> str:
    """The text with its data changed, and a checksum to match: only what was changed is wrong."""
    data = json.loads(TEXT)
    change(data)
    data["checksum"] = _checksum(data)
    return json.dumps(data)


def at(*path, to):
    def change(data):
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = to

    return change


R, M = ("regions", 0, "region"), ("regions", 0, "measured", 0)
GEMM = ("regions", 1, "region") if "gemm" in json.loads(TEXT)["regions"][1]["region"]["ops"][0]["kind"] else R
WRONG = {
    "no object": (lambda d: d.clear(), "no tuning file"),
    "other format": (at("format", to="gcc"), "no tuning file"),
    "next version": (at("version", to=3), "another version"),
    "version is true": (at("version", to=True), "another version"),
    "no header": (lambda d: d.pop("header"), "header is wrong"),
    "header is a list": (at("header", to=[]), "header is wrong"),
    "sms": (at("header", "sms", to="4"), r"header\.sms is wrong"),
    "more in the header": (at("header", "extra", to=1), r"header\.extra is wrong"),
    "regions": (at("regions", to={}), "regions is wrong"),
    "time is 0": (at(*M, "us", to=0), r"regions\[0\]\.measured\[0\]\.us is wrong"),
    "time is negative": (at(*M, "us", to=-2.5), r"measured\[0\]\.us is wrong"),
    "time is text": (at(*M, "us", to="2"), r"measured\[0\]\.us is wrong"),
    "time is true": (at(*M, "us", to=True), r"measured\[0\]\.us is wrong"),
    "spread": (at(*M, "spread", to=-0.1), r"measured\[0\]\.spread is wrong"),
    "runs": (at(*M, "runs", to=0), r"measured\[0\]\.runs is wrong"),
    "not verified": (at(*M, "verified", to=False), r"measured\[0\]\.verified is wrong"),
    "no kernel": (lambda d: d["regions"][0]["measured"][0].pop("kernel"), r"measured\[0\]\.kernel is wrong"),
    "a kernel twice": (lambda d: d["regions"][0]["measured"].append(d["regions"][0]["measured"][0]), "each kernel once"),
    "timed and refused": (
        lambda d: d["regions"][0].update(refused=[{"kernel": d["regions"][0]["measured"][0]["kernel"], "why": "x"}]),
        "each kernel once",
    ),
    "a region twice": (lambda d: d["regions"].append(d["regions"][0]), "each region once"),
    "no ops": (at(*R, "ops", to=[]), "one op at least"),
    "unknown op": (at(*R, "ops", 0, "kind", to="frobnicate"), r"regions\[0\]\.region is wrong"),
    "bad attributes": (at(*R, "ops", 0, "attrs", to="00"), r"regions\[0\]\.region is wrong"),
    "odd hex": (at(*R, "ops", 0, "attrs", to="0"), r"regions\[0\]\.region is wrong"),
    "operand out of range": (at(*R, "inputs", to=[99]), "indices of the"),
    "operand not there": (at(*R, "inputs", to=[]), "given or made before"),
    "result is an operand": (at(*R, "ops", 0, "out", to=[0]), "ops"),
    "dtype": (at(*R, "tensors", 0, "dtype", to="f8"), r"tensors\[0\]\.dtype is wrong"),
    "shape": (at(*R, "tensors", 0, "shape", to=[4, -7]), r"tensors\[0\]\.shape\[1\] is wrong"),
    "rank": (at(*R, "tensors", 0, "stride", to=[1]), r"tensors\[0\]\.stride is wrong"),
    "alignment": (at(*R, "tensors", 0, "alignment", to=3), r"tensors\[0\]\.alignment is wrong"),
    "strict": (at(*R, "strict", to=False), r"region\.strict is wrong"),
    "shapes that don't fit": (at(*GEMM, "tensors", 0, "shape", to=[4, 8]), "region"),
}  # fmt: skip


@pytest.mark.spec("A7")
@pytest.mark.parametrize("change, message", WRONG.values(), ids=WRONG)
def test_a_file_with_a_wrong_field_is_refused_by_its_name_and_the_fields(change, message):
    with pytest.raises(TuningError, match=message) as error:
        parse(edited(change), "some.json")
    assert "some.json" in str(error.value)


def test_the_checksum_is_of_the_content():
    parse(edited(at(*M, "us", to=123.0)), "some.json")
    data = json.loads(TEXT)
    data["regions"][0]["measured"][0]["us"] = 123.0
    with pytest.raises(TuningError, match="checksum is wrong"):
        parse(json.dumps(data), "some.json")


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "not JSON"), ("[]", "no tuning file"), ("null", "no tuning file"), ("[" * 100_000, "not JSON"),
        (TEXT.replace('"us": 2.0', '"us": NaN', 1), "NaN is no JSON number"),
        (TEXT.replace('"us": 2.0', '"us": Infinity', 1), "Infinity is no JSON number"),
        (TEXT.replace('"us": 2.0', '"us": 1e999', 1), "us is wrong"),
        (TEXT.replace('"us": 2.0', '"us": 1.0, "us": 2.0', 1), "'us' is there twice"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_ours_is_refused(text, message):
    with pytest.raises(TuningError, match=message):
        parse(text, "some.json")


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "tuning.json"


def test_a_file_that_can_t_be_read_or_written_is_named(file, tmp_path):
    with pytest.raises(TuningError, match=r"tuning\.json can't be read: No such file"):
        Tuning.load(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(TuningError, match=r"tuning\.json is not a tuning file: it is not UTF-8"):
        Tuning.load(file)
    with pytest.raises(TuningError, match="can't be read"):
        Tuning.load(tmp_path)
    with pytest.raises(TuningError, match="can't be written"):
        one_of("cpu.a.v1").save(tmp_path / "nowhere" / "tuning.json")


@pytest.mark.spec("A7", "B13")
def test_times_of_another_device_are_refused(file):
    one_of("cpu.a.v1").save(file)
    with pytest.raises(TuningError, match=r"tuning\.json is of another device") as error:
        Tuning.load(file, preset("h200"))
    assert "h200 (sm_90a, 132 multiprocessors)" in str(error.value) and "cpu (host" in str(error.value)
    with pytest.raises(TuningError, match="another device"):
        Tuning.load(file, replace(CPU, sms=8))
    with pytest.raises(TuningError, match="another device"):
        tuning_of(one_of("cpu.a.v1"), preset("h200"), default_registry())
    assert Tuning.load(file, CPU) == one_of("cpu.a.v1")


@pytest.mark.spec("A7")
def test_times_of_kernels_that_have_changed_or_gone_are_stale(file):
    one_of("cpu.gone.v1").save(file)
    with pytest.raises(TuningError, match=r"stale: it has times of kernels that are not registered") as error:
        Tuning.load(file, CPU, default_registry())
    assert "cpu.gone.v1" in str(error.value) and "--update" in str(error.value)


REFERENCE = default_registry().by_id("cpu.reference.v1")
OTHERS = {"cpu.reference.v1": "012345678901", "relu": "0123456789ab"}


def header(text="", kernels=None, ops=None):
    """Of times of cpu.reference.v1 on a relu."""
    digests = {"cpu.reference.v1": variant_digest(REFERENCE)} if kernels is None else kernels
    return replace(
        HEADER, text=text, kernels=digests, ops={"relu": op_digest("relu")} if ops is None else ops
    )


@pytest.mark.spec("A7")
@pytest.mark.parametrize("name", OTHERS)
def test_times_of_a_kernel_or_an_op_that_has_changed_are_stale(name, file):
    changed = {name: OTHERS[name]}
    told = header(ops=changed) if name == "relu" else header(kernels=changed)
    Tuning(told, one_of("cpu.reference.v1").regions.values()).save(file)
    with pytest.raises(
        TuningError, match=r"tuning\.json is stale: what it has times of has changed"
    ) as error:
        Tuning.load(file, CPU, default_registry())
    assert name in str(error.value) and "--update" in str(error.value)
    stale = Tuning.load(file, CPU, stale=True)
    with pytest.raises(TuningError, match="this tuning is stale"):
        tuning_of(stale, CPU, default_registry())
    assert len(Tuning.load(file, CPU, default_registry(), stale=True)) == 1
    assert stale.stale(default_registry()) == [name]


@pytest.mark.spec("A7")
def test_a_change_of_other_kernels_makes_no_time_stale(file):
    """The text of all is another; that of the one measured, and of its op, are not."""
    good = Tuning(header(text="00ff"), one_of("cpu.reference.v1").regions.values())
    good.save(file)
    assert Tuning.load(file, CPU, default_registry()) == good
    more = default_registry().copy()
    more.add(replace(REFERENCE, id="cpu.newer.v1"))
    assert Tuning.load(file, CPU, more) == good


def test_a_kernel_of_another_package_has_a_digest_of_its_own(file):
    """aicf's text says nothing of it."""
    theirs = replace(REFERENCE, id="cpu.theirs.v1", origin="acme", build=lambda region, device: None)
    registry = default_registry().copy()
    registry.add(theirs)
    measured = one_of("cpu.theirs.v1").regions.values()
    made = Header.here(CPU, registry, measured)
    assert made.kernels == {"cpu.theirs.v1": variant_digest(theirs)} and made.ops == {
        "relu": op_digest("relu")
    }
    Tuning(made, measured).check("it", CPU, registry)
    other = default_registry().copy()
    other.add(replace(theirs, build=lambda region, device: []))
    with pytest.raises(TuningError, match="stale") as error:
        Tuning(made, measured).check("it", CPU, other)
    assert "cpu.theirs.v1" in str(error.value)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(file, monkeypatch):
    one_of("cpu.a.v1").save(file)

    def fails(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(TuningError, match="No space left"):
        one_of("cpu.b.v1").save(file)
    assert [p.name for p in file.parent.iterdir()] == [file.name]
    assert Tuning.load(file) == one_of("cpu.a.v1")


def test_what_is_saved_into_a_file_drops_what_is_stale_only_on_request(file):
    both = one_of("cpu.reference.v1").merge(one_of("cpu.gone.v1", r=REGIONS[1]))
    stale = {"cpu.reference.v1": "012345678901", "cpu.gone.v1": "00"}
    old = Tuning(
        header(kernels=stale),
        [*both.regions.values(), Measured(REGIONS[2], {"cpu.gemm_blas.v3": Timing(2.0)})],
    )
    old.save(file)
    new = Tuning(header(), one_of("cpu.reference.v1", us=7.0).regions.values())
    with pytest.raises(TuningError, match="different kernels"):
        new.save_into(file)
    assert parse(file.read_text(), "") == old
    new.save_into(file, update=default_registry())
    left = Tuning.load(file, CPU, default_registry())
    assert dict(left) == {
        (REGIONS[0].key, "cpu.reference.v1"): 7.0,
        (REGIONS[2].key, "cpu.gemm_blas.v3"): 2.0,
    }


def save_many(path: str, first: int) -> None:
    for n in range(first, first + 8):
        one_of("cpu.a.v1", us=float(n), r=region("relu", (n,))).save_into(path)


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("A7")
def test_processes_that_save_at_once_lose_nothing_and_a_reader_sees_whole_files(file):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=save_many, args=(str(file), first)) for first in (100, 200)]
    for w in writers:
        w.start()
    seen = 0
    while any(w.is_alive() for w in writers):
        if file.exists():
            now = len(Tuning.load(file))
            assert now >= seen
            seen = now
        time.sleep(0.03)
    assert [w.exitcode for w in writers] == [0, 0]
    assert sorted(Tuning.load(file).values()) == [float(n) for f in (100, 200) for n in range(f, f + 8)]


def test_the_hash_of_kernels_is_of_their_text(tmp_path):
    root = Path(tuning_module.__file__).parents[2]
    shutil.copytree(root / "aicf" / "cpu_kernels", tmp_path / "aicf" / "cpu_kernels")
    assert kernels_hash("cpu", tmp_path) == kernels_hash("cpu") != kernels_hash("cuda")
    with (tmp_path / "aicf" / "cpu_kernels" / "gemm.py").open("a") as changed:
        changed.write("# faster\n")
    assert kernels_hash("cpu", tmp_path) != kernels_hash("cpu")


@pytest.mark.parametrize("path", ["a\0b", 0, None, b"\0", ["x"]])
def test_what_is_no_name_of_a_file_is_refused(path):
    with pytest.raises(TuningError, match=r"can't be (read|the name of a file)"):
        Tuning.load(path)
    with pytest.raises(TuningError, match=r"can't be (written|the name of a file)"):
        one_of("cpu.a.v1").save(path)
