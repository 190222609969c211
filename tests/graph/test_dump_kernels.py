"""The kernels of a dump: of the host, and of a GPU that is not here."""

from __future__ import annotations

import json
import re

import pytest

import aicf
from aicf import cli, nn
from aicf.cpu_kernels.compiler import loops
from aicf.cpu_kernels.compiler import shown as host
from aicf.cpu_kernels.compiler.code import code_of
from aicf.cuda_kernels.compiler import engine, shown
from aicf.device.spec import preset
from aicf.dispatch import default_registry
from aicf.graph.compile import dump_for
from aicf.rows.region_file import region_of

from .dump_support import HOSTILE, X, Y, read, tiny, training

pytestmark = pytest.mark.spec("F8")

# --- the host ---------------------------------------------------------------------------------------------------------


def test_the_kernels_of_the_host_have_source_loops_and_machine_code(tmp_path):
    lone = nn.Model({"x": aicf.TensorSpec((64,))}).add(nn.ReLU())
    (kernel,) = (dump_for(lone, "cpu", tmp_path) / "kernels").iterdir()
    told = read(kernel, "loop-1.txt")
    assert told.splitlines()[0] == "map relu"
    assert re.search(r"s1: f32 = relu\(s0\)\n  target 0 \(float32\) <- s1", told)
    assert re.search(r"def relu\(x", read(kernel, "loop-1.py")), "the op's scalar function"
    entry = re.search(r"^define .*@(\S+)\(", read(kernel, "loop-1.ll"), re.MULTILINE)[1].strip('"')
    assert f"{entry}:" in read(kernel, "loop-1.s").replace('"', "")
    assert "<8 x float>" in read(kernel, "loop-1.ll") or "<4 x float>" in read(kernel, "loop-1.ll")


def test_no_loop_of_the_host_is_left_out(monkeypatch):
    """Those found in the kernels of a plan are those that a run links."""
    linked = set()
    monkeypatch.setattr(loops, "code_of", lambda spec: linked.add(spec) or code_of(spec))
    program = training()
    program({"x": X, "y": Y})
    spec, registry = program.runtime.spec, program.registry
    built = [registry.by_id(s.kernel_id).build(s.region, spec) for s in program.plan.steps if s.kernel_id]
    found = {loop for call in built for loop in host.loops_of((call.function, call.bind))}
    assert found == linked and len(found) >= 4


# --- a GPU that is not here -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def for_h200(tmp_path_factory):
    lone = nn.Model({"x": aicf.TensorSpec((64,))}).add(nn.ReLU())
    return dump_for(lone, "h200", tmp_path_factory.mktemp("h200"), name=HOSTILE), lone


def test_a_kernel_has_source_ptx_and_what_ptxas_says(for_h200):
    folder, _ = for_h200
    assert folder.name == "0001-infer-_b_31m"
    (kernel,) = (folder / "kernels").iterdir()
    (step,) = json.loads(read(folder, "07-plan.json"))["steps"]
    assert kernel.name == f"00-{step['kernel']}"
    ptxas = read(kernel, "ptxas.txt")
    entry = re.search(r"^kernel +(\S+)", ptxas)[1]
    assert f".visible .entry {entry}(" in read(kernel, "kernel.ptx") and ".target sm_90a" in read(kernel, "kernel.ptx")  # fmt: skip
    registers = re.search(r"^registers a thread +(\d+)", ptxas, re.MULTILINE)[1]
    assert int(registers) > 0 and f"Used {registers} registers" in ptxas
    assert (kernel / "kernel.cubin").read_bytes().startswith(b"\x7fELF")
    source = read(kernel, "kernel.py")
    assert "def relu(x" in source and re.search(r"^def \w+\(.*\):", source, re.MULTILINE)
    assert entry.startswith("aicf_")
    assert json.loads(read(kernel, "region.json")) == step["region"]
    assert not (folder / "08-trace.txt").exists(), "nothing ran"


def test_ptx_is_there_for_kernels_that_come_from_the_disk(for_h200, tmp_path, monkeypatch):
    folder, lone = for_h200
    monkeypatch.setattr(engine, "_COMPILED", {})
    monkeypatch.setattr(shown, "_PTX", {})
    monkeypatch.setattr(engine, "compile_with_ptx", None)  # its machine code is not made again
    again = dump_for(lone, "h200", tmp_path)
    (old,), (new,) = (folder / "kernels").iterdir(), (again / "kernels").iterdir()
    assert (new / "kernel.cubin").read_bytes() == (old / "kernel.cubin").read_bytes()
    assert read(new, "kernel.ptx") == read(old, "kernel.ptx")
    region = region_of(json.loads(read(new, "region.json")), "region")
    h200 = preset("h200")
    (launch,) = default_registry().by_id(new.name.removeprefix("00-")).build(region, h200)
    alone = engine.compile_kernel(launch, region, h200.target)
    assert (new / "kernel.cubin").read_bytes() == alone.cubin, "what is launched without a dump"


def test_sass_is_the_disassembler_s_or_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(shown, "disassembler", lambda: None)
    assert "pip install nvidia-cuda-nvdisasm" in shown.sass(b"x")
    program = tmp_path / "nvdisasm"
    program.write_text('#!/bin/sh\necho "$1"; cat "$2"\n')
    program.chmod(0o755)
    monkeypatch.setattr(shown, "disassembler", lambda: ("nvdisasm", str(program)))
    assert shown.sass(b"MOV R1") == "--print-code\nMOV R1"
    program.write_text("#!/bin/sh\necho unknown arch >&2; exit 3\n")
    assert "ends with 3: unknown arch" in shown.sass(b"x")


def test_a_kernel_that_does_not_compile_is_told_and_the_rest_is_there(tmp_path, monkeypatch, capsys):
    def broken(*of):
        raise ValueError("no such instruction")

    monkeypatch.setattr(engine, "_COMPILED", {})
    monkeypatch.setattr(shown, "_PTX", {})
    monkeypatch.setattr(engine, "compile_with_ptx", broken)
    monkeypatch.setenv("AICF_CACHE", "off")
    file = tiny(tmp_path)
    assert cli.main(["dump", str(file), "-o", str(tmp_path / "out"), "--device", "h200"]) == 1
    (folder,) = (tmp_path / "out").iterdir()
    (kernel,) = (folder / "kernels").iterdir()
    assert "no such instruction" in read(kernel, "error.txt")
    assert not (kernel / "kernel.ptx").exists() and (kernel / "kernel.py").exists()
    told = capsys.readouterr().err
    assert f"{kernel.name} has no machine code" in told and str(kernel / "error.txt") in told
