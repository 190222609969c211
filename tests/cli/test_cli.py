"""`aicf info`, `aicf explain`, and how errors come out: one message, exit code 2, no traceback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import aicf
from aicf.cli import main
from aicf.device.runtime import cuda_missing
from aicf.device.spec import PRESETS
from aicf.errors import SettingError

ROOT = Path(aicf.__file__).parents[1]
EXAMPLE = str(ROOT / "examples" / "mlp.py")


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Tables are as wide as the terminal: a wide one, so that no id is cut."""
    monkeypatch.setenv("COLUMNS", "300")


def test_info_lists_every_op_variant_and_device(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for schema in aicf.schemas():
        assert f" {schema.name} " in out
    for variant in aicf.default_registry():
        assert f" {variant.kernel} " in out
    for name in PRESETS:
        assert f" {name} " in out


def test_info_fits_80_columns_and_cuts_no_name(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    firsts = [line.split()[0] for line in out.splitlines() if line.split()]
    for name in (*(s.name for s in aicf.schemas()), *(v.kernel for v in aicf.default_registry()), *PRESETS):
        assert name in firsts


def test_a_signature_is_python_s(capsys):
    assert main(["info", "relu"]) == 0
    assert capsys.readouterr().out.startswith("relu(x: float) -> y\n")
    assert main(["info", "leaky_relu"]) == 0
    assert capsys.readouterr().out.startswith("leaky_relu(x: float, *, slope: float = 0.01) -> y\n")


@pytest.mark.parametrize("op", ["gemm", "relu", "cross_entropy"])
def test_info_of_an_op_has_its_signature_its_rules_and_its_variants(capsys, op):
    assert main(["info", op]) == 0
    out = capsys.readouterr().out
    schema = aicf.schema_of(op)
    assert out.startswith(f"{op}(")
    for decl in (*schema.operands, *schema.attrs):
        assert f"{decl.name}" in out.splitlines()[0]
    for constraint in schema.constraints:
        assert f"\n{constraint:<3} " in out
    for variant in aicf.default_registry().variants(schema.kind):
        assert f"  {variant.kernel}\n" in out and variant.config in out


@pytest.mark.spec("F6")
@pytest.mark.parametrize("device", ["cpu", "h200", "H200", "RTX 4090"])
def test_explain_needs_no_gpu(capsys, device):
    assert main(["explain", EXAMPLE, "--device", device]) == 0
    out = capsys.readouterr().out
    assert out.startswith("infer plan ")
    assert "gemm + bias_add + gelu" in out
    assert main(["explain", EXAMPLE, "--device", device, "-v"]) == 0
    verbose = capsys.readouterr().out
    assert len(verbose) > len(out)


@pytest.mark.spec("F5", "F6")
def test_explain_as_json_is_nothing_but_json_and_always_the_same(capsys):
    command = ["explain", EXAMPLE, "--device", "h200", "--json"]
    outs = []
    for _ in range(2):
        assert main(command) == 0
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1]
    data = json.loads(outs[0])
    assert data["device"] == "h200"
    assert all(r["chosen"].startswith("cuda.") for r in data["regions"])
    assert sum(r["last"] - r["anchor"] + 1 for r in data["regions"]) == 8


ERRORS = {
    "no op": (["info", "no_such_op"], "RegistryError: no op is called 'no_such_op'"),
    "a malformed op": (["info", "No Op"], "RegistryError: no op is called 'No Op'"),
    "no device": (
        ["explain", EXAMPLE, "--device", "voodoo2"],
        "DeviceError: no device preset is called 'voodoo2'",
    ),
    "no file": (["explain", "nowhere.py"], "AicfError: there is no file 'nowhere.py'"),
    "a folder for a model": (["explain", str(ROOT)], "is a folder"),
    "no Python": (["explain", str(ROOT / "pyproject.toml")], "pyproject.toml is no Python file"),
    "a file that can't be written": (
        ["demo", "--json", "/nonexistent/o.json"],
        "/nonexistent/o.json can't be written: No such file or directory",
    ),
    "a page in no folder": (
        ["report", EXAMPLE, "-o", "/nonexistent/r.html"],
        "next: make the folder /nonexistent",
    ),
    "a GPU that is elsewhere to profile on": (["profile", EXAMPLE, "--device", "h200"], "aicf explain"),
    "the beginning of names": (
        ["explain", EXAMPLE, "--device", "h200", "--want", "gemm_wgm"],
        "next: 'gemm_wgm*'",
    ),
    "a folder for a tuning file": (
        ["explain", EXAMPLE, "--tuning", str(ROOT)],
        "can't be read: Is a directory",
    ),
    "a folder for an explanation": (
        ["explain", EXAMPLE, "--diff", str(ROOT)],
        "can't be read: Is a directory",
    ),
    "a folder to tune into": (["tune", EXAMPLE, "--output", str(ROOT)], "can't be read: Is a directory"),
    "a file without end": (
        ["tune", "--check", "/dev/zero"],
        "/dev/zero is not a tuning file: it has more than 256 MB",
    ),
    "a folder": (["demo", "--json", str(ROOT)], "can't be written: Is a directory"),
    "no such device to run on": (["demo", "--device", "tpu"], "DeviceError: no device is called 'tpu'"),
}


@pytest.mark.parametrize("what", ERRORS)
def test_an_error_is_one_message_and_exit_code_2(capsys, what):
    command, said = ERRORS[what]
    assert main(command) == 2
    err = capsys.readouterr().err
    assert said in " ".join(err.split())
    assert "Traceback" not in err


MODELS = {
    "nothing": ("x = 1\n", "broken_model.py has no model"),
    "a shape that does not fit": (
        "import aicf\nfrom aicf import nn\ndef build():\n"
        "    return nn.Model({'x': aicf.TensorSpec((3, 4))}).add(nn.Linear(5, 2))\n", "TypeInferenceError: Linear: x has 4 features",
    ),
    "no model": ("def build():\n    return 3\n", "build() returned a int"),
    "an exception": ("def build():\n    return 1 / 0\n", "ZeroDivisionError"),
    "an exit": ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
    "an exit in build": ("def build():\n    raise SystemExit\n", 'under `if __name__ == "__main__":`'),
    "no text": ("\0\0", "null bytes"),
    "a syntax error": ("def build(:\n", "SyntaxError"),
    "an import error": ("import nowhere_to_be_found\n", "ModuleNotFoundError"),
}  # fmt: skip


@pytest.mark.parametrize("what", MODELS)
def test_a_broken_model_file_is_one_message_that_names_the_file(capsys, tmp_path, monkeypatch, what):
    text, said = MODELS[what]
    (tmp_path / "broken_model.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "broken_model.py"]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert said in err
    assert (
        "broken_model.py" in err
        if what in ("nothing", "no model", "no text")
        else re.search(r"broken_model.py:\d", err)
    )
    assert "Traceback" not in err


def test_the_cache_is_counted_and_cleared(capsys, tmp_path, monkeypatch):
    from aicf.code_cache import disk

    monkeypatch.setenv("AICF_CACHE", "off")
    assert main(["cache"]) == 0 and "AICF_CACHE=off" in capsys.readouterr().out
    monkeypatch.setenv("AICF_CACHE", "on")
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path))
    assert (
        main(["cache"]) == 0
        and f"{tmp_path / 'kernels'}: 0 CUDA kernels, 0 CPU loops, 0 scalar functions of them, 0.0 MB"
        in capsys.readouterr().out
    )
    for key, suffix in (("a", disk.KERNEL), ("b", disk.LOOP), ("c", disk.LOOP), ("d", disk.FUNCTION)):
        disk.store(key, suffix, b"code", {})
    assert main(["cache", "--clear"]) == 0
    said = capsys.readouterr().out
    assert "1 CUDA kernels, 2 CPU loops, 1 scalar functions" in said and "removed 4 files" in said
    assert (
        main(["cache"]) == 0
        and "0 CUDA kernels, 0 CPU loops, 0 scalar functions of them, 0.0 MB" in capsys.readouterr().out
    )


def test_the_module_runs_as_the_command_does():
    ran = subprocess.run(
        [sys.executable, "-m", "aicf", "info", "nope"], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("RegistryError: no op is called 'nope'")


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert not ended.value.code and capsys.readouterr().out == f"aicf {aicf.__version__}\n"


@pytest.mark.parametrize("command", [["nothing"], ["demo", "--epochs", "many"], ["demo", "--epochs", "0"]])
def test_a_wrong_command_line_is_explained(capsys, command):
    with pytest.raises(SystemExit) as error:
        main(command)
    assert error.value.code == 2
    err = capsys.readouterr().err
    assert "usage: aicf" in err
    if "--epochs" in command:
        assert f"argument --epochs: {command[-1]!r} is not a whole number of 1 or more" in err


@pytest.mark.parametrize(
    "command, said",
    [
        (["explian", EXAMPLE], "next: explain"),
        (["explain", EXAMPLE, "--regoin", "1"], "usage: aicf explain"),
        (["explain", EXAMPLE, "--regoin=1"], "next: --region"),
        (["explain", EXAMPLE, "--mode", "trian"], "next: train"),
    ],
)
def test_a_misspelt_word_is_told_with_the_one_that_is_meant(capsys, command, said):
    with pytest.raises(SystemExit):
        main(command)
    assert said in capsys.readouterr().err


def test_explain_for_cuda_means_the_gpu_that_is_here_or_says_what_it_wants(capsys):
    missing = cuda_missing()
    assert main(["explain", EXAMPLE, "--device", "cuda"]) == (2 if missing else 0)
    captured = capsys.readouterr()
    if missing:
        assert f"--device cuda stands for a GPU of this machine, and {missing}" in captured.err
        assert "expected: a preset, which needs no GPU: a10, a100" in captured.err
    else:
        assert f"on {aicf.runtime('cuda').spec.name}" in captured.out


@pytest.mark.parametrize("variable, text, allowed", [
    ("AICF_CHECK", "NaN", "nan or ops"), ("AICF_LOGS", "select, every", "select or fusion or plan or capture or cache or tune or ranks or all"), ("AICF_CACHE", "of", "on or off"),
    ("AICF_NVTX", "no", "on or off"), ("AICF_PDL", "yes", "off or graph or on"), ("AICF_VERIFY", "all", "on or off"),
])  # fmt: skip
def test_a_misspelt_setting_is_refused_with_those_there_are(variable, text, allowed, capsys, monkeypatch):
    monkeypatch.setenv(variable, text)
    assert main(["explain", EXAMPLE]) == 2
    said = capsys.readouterr().err
    assert f"SettingError: {variable} is {text.split()[-1]!r}\n  expected: {allowed}\n" in said
    with pytest.raises(SettingError, match=f"{variable} is"):
        aicf.compile(aicf.nn.Model({"x": aicf.TensorSpec((2, 3))}).add(aicf.nn.ReLU()), device="cpu")
    monkeypatch.setenv(variable, "" if variable in ("AICF_CHECK", "AICF_LOGS") else "off")
    assert main(["explain", EXAMPLE]) == 0


def test_a_misspelt_variable_is_refused_and_others_are_let_be(capsys, monkeypatch):
    monkeypatch.setenv("AICF_SOMETHING_ELSE", "1")
    assert main(["info", "relu"]) == 0
    monkeypatch.setenv("AICF_LOG", "plan")
    assert main(["info", "relu"]) == 2
    assert "next: export AICF_LOGS=plan, and unset AICF_LOG" in " ".join(capsys.readouterr().err.split())


@pytest.mark.sample(1, pool="processes")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_can_t_be_written_is_one_message(unbuffered):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "aicf", "cache"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert ran.returncode == 2
    assert ran.stderr == "OSError: the output can't be written: No space left on device\n"


@pytest.mark.parametrize("command", [["explain", "m.py"], ["tune", "m.py", "--device", "cpu"]])
def test_ctrl_c_is_one_line_and_exit_code_130(command, capsys, tmp_path, monkeypatch):
    text = "import os, signal\ndef build():\n    os.kill(os.getpid(), signal.SIGINT)\n    import time; time.sleep(30)\n"
    (tmp_path / "m.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    # what a shell starts in its background ignores it
    held = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(command) == 130
    finally:
        signal.signal(signal.SIGINT, held)
    assert capsys.readouterr() == ("", "interrupted\n")


@pytest.mark.sample(1, pool="processes")
@pytest.mark.parametrize("command", ["info", f"explain {EXAMPLE} --json", "--help", f"explain {EXAMPLE}"])
def test_a_reader_that_leaves_early_is_no_error(command):
    """As `aicf info | true`: nothing on stderr, however much there was to say."""
    ran = subprocess.run(
        f"{sys.executable} -m aicf {command} | true", shell=True, cwd=ROOT, capture_output=True, text=True
    )
    assert ran.stderr == ""
