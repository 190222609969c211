"""Standard output that is not UTF-8: every command prints, and so does everything that objects say of themselves."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from draws.seeds import rng

import aicf
from aicf import nn, text
from aicf.cli import main
from examples import EVERYTHING

ROOT = Path(__file__).parents[2]
ENCODINGS = "latin-1", "cp1252", "euc-kr", "cp949", "iso8859-15", "cp437"
MODEL = """
import aicf
from aicf import nn

model = nn.Model({"x": aicf.TensorSpec(("batch", 8))}, batch=4).add(nn.Linear(8, 4)).add(nn.ReLU())
options = dict(loss=nn.MeanSquaredError(), optimizer=nn.SGD(lr=0.1))
"""
COMMANDS = [
    [], ["--help"], ["--version"], ["info"], ["info", "gemm"], ["info", "nothing"], ["cache"], ["examples"], ["examples", "there"],
    ["explain", "model.py"], ["explain", "model.py", "-v"], ["explain", "model.py", "--device", "h200", "--region", "0"],
    ["explain", "model.py", "--json"], ["explain", "model.py", "--device", "h200", "--want", "gemm_wgmma*"],
    ["explain", "model.py", "--device", "h200", "--batch", "1..4096"], ["explain", "model.py", "--device", "h200", "--diff", "l4"],
    ["explain", "model.py", "--device", "h200", "--without", "elementwise*"], ["explain", "model.py", "--device", "h200", "--gpus", "4", "--mode", "train"],
    ["explain", "none.py"], ["explain", "model.py", "--device", "h201"], ["explian", "model.py"],
    ["report", "model.py", "-o", "report.html"], ["dump", "model.py", "-o", "dump"], ["profile", "model.py", "--runs", "2"],
    ["profile", "model.py", "--runs", "2", "-v", "-o", "trace.json"], ["profile", "model.py", "--runs", "2", "--json"],
    ["tune", "model.py", "--device", "cpu", "--budget", "20"], ["tune", "--check", "tuning.json"], ["doctor", "--device", "cpu"],
    ["demo", "--device", "cpu", "--epochs", "1"], ["run", "none.onnx"], ["calibrate", "--device", "cpu"],
]  # fmt: skip


@contextmanager
def stdout_of(encoding: str) -> Iterator[io.BytesIO]:
    """Standard output and error as PYTHONIOENCODING would have them: a byte that the encoding lacks is an error."""
    out, err = io.BytesIO(), io.BytesIO()
    before = sys.stdout, sys.stderr
    sys.stdout = io.TextIOWrapper(out, encoding, "strict", write_through=True)
    sys.stderr = io.TextIOWrapper(err, encoding, "backslashreplace", write_through=True)
    try:
        yield out
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.detach()  # or it closes what it has written to
        sys.stdout, sys.stderr = before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    (place / "model.py").write_text(MODEL)
    return place


def ran(command: list[str], encoding: str) -> tuple[int, str]:
    with stdout_of(encoding) as out:
        try:
            code = main(command)
        except SystemExit as ended:  # argparse's
            code = int(ended.code or 0)
        assert sys.stdout.errors == "strict", "the stream is as it was"
    return code, out.getvalue().decode(encoding)


@pytest.mark.sample(12)
@pytest.mark.spec("F1")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_prints_whatever_the_encoding(command, folder, monkeypatch):
    """ASCII or another drawn one, or both; nothing that aicf itself writes is spelt out as an escape."""
    monkeypatch.chdir(folder)
    if command[0:1] in (["cache"], ["doctor"]):  # they look at each file of the cache, which has thousands
        monkeypatch.setenv("AICF_CACHE_DIR", str(folder / "cache"))
    draw = rng(__name__, command)
    both = ["ascii", str(draw.choice(ENCODINGS))]
    for encoding in both if EVERYTHING else [both[int(draw.integers(2))]]:
        code, said = ran(command, encoding)
        assert code in (0, 2), (encoding, said)
        if code == 0 and "--json" not in command:
            assert said, encoding
            escaped = re.findall(r"\\(?:u[0-9a-f]{4}|x[0-9a-f]{2})", said)
            assert not escaped, (encoding, escaped, said)


def test_files_of_a_dump_are_the_same_whatever_the_encoding(folder, monkeypatch):
    monkeypatch.chdir(folder)
    drawn = str(rng(__name__, "dump").choice(ENCODINGS))
    for encoding in ("utf-8", "ascii", drawn):
        assert ran(["dump", "model.py", "-o", f"dump-{encoding}"], encoding)[0] == 0

    def texts(encoding: str) -> dict[str, bytes]:
        (place,) = Path(f"dump-{encoding}").iterdir()
        return {f.name: f.read_bytes() for f in sorted(place.glob("0[1-8]-*.txt"))}

    assert texts("ascii") == texts(drawn) == texts("utf-8") and "·".encode() in texts("ascii")["07-plan.txt"]


def test_the_commands_above_are_all_that_there_are():
    from aicf.cli import COMMANDS as modules

    names = {module.__name__.rpartition(".")[2] for module in modules}
    assert names <= {command[0] for command in COMMANDS if command}


@pytest.mark.spec("F1", "F5")
def test_the_readmes_example_prints(tmp_path, monkeypatch):
    code = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)[1]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AICF_DEVICE", "cpu")
    encoding = str(rng(__name__, "README").choice(["ascii", *ENCODINGS]))
    with stdout_of(encoding) as out:
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert "gemm + bias_add + relu" in out.getvalue().decode(encoding)


# --- objects ----------------------------------------------------------------------------------------------------------

NAMES = {"x": "입력", "batch": "배치", "layer": "층", "y": "y"}


def objects() -> dict[str, object]:
    """What people print, of a model with Korean names."""
    x, batch = NAMES["x"], NAMES["batch"]

    def model() -> nn.Model:
        return nn.Model({x: aicf.TensorSpec((batch, 4))}, **{batch: 2}).add(nn.Linear(4, 3)).add(nn.ReLU())

    feed = {x: np.ones((2, 4), np.float32)}
    infer = aicf.compile(model(), device="cpu")
    options = {"loss": nn.MeanSquaredError(), "optimizer": nn.SGD(lr=0.1)}
    train = aicf.compile(model(), mode="train", device="cpu", **options)
    history = train.fit([{**feed, "y": np.ones((2, 3), np.float32)}] * 2, epochs=1)
    explanation, far = train.explain(), aicf.explain_for(model(), "h200")
    made = {
        "model": model(), "graph": model().graph, "value": model().graph.values[0], "summary": model().summary(),
        "program": infer, "results": infer(feed), "tensor": infer(feed)["output"], "history": history, "curve": history.curve(),
        "explanation": explanation, "verbose": explanation.verbose(), "region": explanation.region(0), "plan": explanation.plan,
        "picture": explanation.picture, "gain": explanation.gain, "far": far, "want": far.want("gemm_wgmma*"),
        "compilations": train.compilations, "profile": infer.profile(feed), "sizes": aicf.explain_over(model(), "h200", f"{batch}=1,64"),
        "schemas": aicf.schemas(), "registry": aicf.default_registry(),
    }  # fmt: skip
    for name, wrong in {
        "feed": lambda: infer({"x": 1}), "shape": lambda: infer({x: np.ones((2, 5), np.float32)}),
        "attribute": lambda: nn.Dense, "device": lambda: aicf.compile(model(), device="층"),
    }.items():  # fmt: skip
        with pytest.raises(Exception) as raised:
            wrong()
        made[f"error of {name}"] = raised.value
    return made


@pytest.mark.spec("F5")
def test_what_objects_say_of_themselves_prints(monkeypatch):
    made, failed = objects(), []
    for encoding in ("ascii", str(rng(__name__, "objects").choice(ENCODINGS))):
        for name, one in made.items():
            for how in (str, repr):
                if (how is repr and name in ("plan", "graph")) or (
                    isinstance(one, Exception) and how is repr
                ):
                    continue  # a record of fields, and Python's own text of an error
                with stdout_of(encoding):
                    try:
                        print(how(one))
                    except UnicodeEncodeError as error:
                        failed.append((encoding, name, how.__name__, error.object[error.start :][:20]))
        with stdout_of(encoding):
            print(made["plan"].text())
    assert not failed


def test_where_the_encoding_has_it_text_is_as_it_was():
    drawn = rng(__name__, "texts")
    pool = [*text.ASCII, *"abc 가나다éß語\n"]
    for _ in range(200):
        line = "".join(drawn.choice(pool, int(drawn.integers(1, 20))))
        for encoding in ("utf-8", "utf-16", *ENCODINGS, "ascii"):
            with stdout_of(encoding):
                shown = text.printable(line)
                print(shown)
            spelt = (
                c if encodes(c, encoding) else text.ASCII.get(c) or c.encode("ascii", "backslashreplace").decode()
                for c in line
            )  # fmt: skip
            assert shown == "".join(spelt), (encoding, line)


def encodes(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
        return True
    except UnicodeEncodeError:
        return False


def test_a_user_s_choice_for_what_can_t_be_encoded_stays():
    out = io.BytesIO()
    stream = io.TextIOWrapper(out, "ascii", "ignore", write_through=True)
    with text.printable_streams(stream):
        stream.write("a→b")
    assert out.getvalue() == b"ab"
