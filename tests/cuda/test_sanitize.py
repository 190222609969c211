"""What compute-sanitizer is given, and what is made of its answers. Kernels run under it on a GPU only: see CONTRIBUTING.md."""

from __future__ import annotations

import itertools

import pytest
import sanitize
from kernel_cases import desc
from ptx_support import regions_of

import aicf
from aicf.cuda_kernels.compiler.engine import compile_launch
from aicf.device.spec import preset
from aicf.registry.variant import In, Launch, Out
from aicf.types import i32


def test_every_kernel_is_looked_at():
    """With a problem that it takes and that has something to do; epilogues, types and edges among them."""
    h200, made = preset("h200"), sanitize.cases(preset("h200"), each=2)
    assert {c.variant for c in made} == {
        v.id for v in aicf.default_registry() if v.device == "cuda" and not v.id.endswith("_nccl.v1")
    }
    for case in made:
        assert sanitize.VARIANTS[case.variant].supported(case.region, h200) is None, case
        assert all(t.numel for t in case.region.tensors)
    names = {op.kind.name for case in made for op in case.region.ops}
    assert {"gemm", "adam_step", "sgd_step", "reduce_sum", "cross_entropy", "dropout"} <= names
    taken = {id(case.region) for case in made}
    assert all(id(r) in taken for r, _ in sanitize.PRODUCTS)


def test_parts_are_a_partition():
    made = sanitize.cases(preset("h200"), each=1)
    parts = [sanitize.part(made, "gemm", (i, 3)) for i in (1, 2, 3)]
    assert sorted(map(str, itertools.chain(*parts))) == sorted(
        map(str, (c for c in made if "gemm" in c.variant))
    )


@pytest.mark.parametrize("says, code, seconds, want", [
    ("========= ERROR SUMMARY: 0 errors", 0, None, []),
    ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0, None, []),
    ("========= ERROR SUMMARY: 3 errors", 9, None, ["ERROR SUMMARY: 3 errors"]),
    ("========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)", 0, None,
     ["RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)"]),
    ("1/2 gemm: WRONG: 1 of 2", 1, None, ["1/2 gemm: WRONG: 1 of 2"]),
    ("", 9, None, ["exit code 9"]), ("; sleep 60", 0, 0.5, ["not done after 0.5 s, at "]),
])  # fmt: skip
def test_findings(says, code, seconds, want, tmp_path, monkeypatch):
    tool = tmp_path / "compute-sanitizer"
    text, after = ("", says) if says.startswith(";") else (says, "")
    tool.write_text(f"#!/bin/sh\necho '{text}' {after}\nexit {code}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert sanitize.watched("memcheck", [], seconds) == want


def test_errors_of_calls_are_no_findings(tmp_path, monkeypatch):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        '#!/bin/sh\ncase "$*" in *"--report-api-errors no"*) ;; *) echo "ERROR SUMMARY: 1 error";; esac\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert sanitize.watched("memcheck", [], None) == []


def test_no_tool_is_a_finding(tmp_path, monkeypatch):
    for name in ("PATH", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(sanitize, "TOOLKIT", str(tmp_path))
    (said,) = sanitize.watched("memcheck", [], None)
    assert "not here" in said


@pytest.mark.parametrize("tool", sanitize.FAULTS)
def test_faults_compile(tool):
    """And a tool that finds nothing in them is no good."""
    r = regions_of([desc((sanitize.THREADS,), i32)], desc((sanitize.THREADS,), i32))
    launch = Launch(sanitize.FAULTS[tool](), (1,), (sanitize.THREADS,), (In(0), Out(0)))
    assert compile_launch(launch, r, "sm_90a").cubin


@pytest.mark.parametrize("found, said", [(["ERROR SUMMARY: 1 error"], 0), ([], 1), (["exit code 1"], 1)])
def test_a_blind_tool_is_a_finding(found, said, monkeypatch):
    monkeypatch.setattr(sanitize, "watched", lambda *args, **more: found)
    assert len(sanitize.blind("memcheck")) == said
