"""tools/replay.py: processes and Pythons answer alike, and each kind of change is noticed; regions and plans are drawn."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FunctionType

import pytest
from draws.seeds import run_seed

import aicf
from aicf.ops.schema import schema_of
from aicf.registry.registry import KernelRegistry
from aicf.registry.variant import KernelVariant, Reject
from aicf.rows import RegionSpec
from aicf.types import TensorDesc, TensorSpec, f32

TOOLS = Path(__file__).parents[1] / "tools"
if not TOOLS.exists():
    pytest.skip("a source distribution has no tools", allow_module_level=True)
sys.path.append(str(TOOLS))
import replay  # noqa: E402
import replay_answers  # noqa: E402

DEVICES = "h200", "a100", "cpu"
SOURCES = "ops", "large"  # the others import cases of all kernels


@pytest.fixture(scope="module")
def questions() -> list[dict]:
    return replay.draw(run_seed(), 10, 2, DEVICES, SOURCES, {"mlp": {}})


@pytest.fixture(scope="module")
def before(questions) -> list[dict]:
    found = [replay_answers.answer(q) for q in questions]
    assert not any("error" in a for a in found[:10]), found
    return found


@pytest.mark.sample(1, pool="processes")
def test_another_process_answers_alike(questions, before, tmp_path, monkeypatch, capsys):
    """With another hash seed; the record of this process, which has run other tests."""
    replay.write_record(tmp_path / "record", run_seed(), questions, before)
    monkeypatch.setenv("PYTHONHASHSEED", "1")  # this process has another
    assert replay.main(["compare", str(tmp_path / "record"), "--jobs", "1"]) == 0, capsys.readouterr().out
    assert "10 regions, 2 plans\nno difference" in capsys.readouterr().out


def test_a_seed_draws_the_same_again(questions):
    assert replay.draw(run_seed(), 10, 2, DEVICES, SOURCES, {"mlp": {}}) == questions
    assert replay.draw("another", 10, 2, DEVICES, SOURCES, {"mlp": {}}) != questions


# --- each kind of change ----------------------------------------------------------------------------------------------


def later(variant: KernelVariant) -> KernelVariant:
    """Predicted to take longer by the last digit."""

    def cost(region, device):
        found = variant.cost(region, device)
        name = max(found.terms, key=lambda n: found.terms[n])
        return found._replace(terms={**found.terms, name: math.nextafter(found.terms[name], math.inf)})

    return replace(variant, cost=cost)


def stricter(variant: KernelVariant) -> KernelVariant:
    """Refuses with another value where it refuses."""

    def accepts(region):
        for reject in variant.accepts(region):
            yield reject and Reject(reject.condition, f"{reject.reason} or so")

    return replace(variant, accepts=accepts)


def launching(change: Callable) -> Callable:
    def changed(variant: KernelVariant) -> KernelVariant:
        def build(region, device):
            calls = variant.build(region, device)
            return [change(call) for call in calls] if isinstance(calls, list) else calls

        return replace(variant, build=build)

    return changed


def body_of(number: int) -> Callable:
    def kernel(x):
        x[0] = number

    return kernel


def with_scratch(variant: KernelVariant) -> KernelVariant:
    return replace(variant, workspace=lambda region, device: variant.workspace(region, device) + 256)


CHANGES = {
    "predicted time": later,
    "refusal": stricter,
    "body of a kernel": launching(lambda call: replace(call, body=body_of(1))),
    "launch": launching(lambda call: replace(call, grid=(call.grid[0] + 1, *call.grid[1:]))),
    "plan: arena": with_scratch,
}


def kinds_of(questions, before, monkeypatch, registry: KernelRegistry) -> set[str]:
    """Kinds of the differences that another registry makes."""
    monkeypatch.setattr(aicf, "default_registry", lambda: registry)
    monkeypatch.setattr("aicf.graph.compile.default_registry", lambda: registry)
    after = [replay_answers.answer(q) for q in questions]
    return {kind for triple in zip(questions, before, after) for kind, *_ in replay.differences(*triple)}


def test_no_change_makes_no_difference(questions, before, monkeypatch):
    same = KernelRegistry([replace(v) for v in aicf.default_registry()])
    assert kinds_of(questions, before, monkeypatch, same) == set()


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_noticed(kind, questions, before, monkeypatch):
    changed = KernelRegistry([CHANGES[kind](v) for v in aicf.default_registry()])
    assert kind in kinds_of(questions, before, monkeypatch, changed)


def test_another_choice_is_noticed(questions, before, monkeypatch):
    chosen = {answer[d]["chosen"] for answer in before[:10] for d in DEVICES}
    rest = KernelRegistry([v for v in aicf.default_registry() if v.id not in chosen])
    kinds = kinds_of(questions, before, monkeypatch, rest)
    assert {"choice", "candidate", "plan: steps"} <= kinds or {"choice", "candidate", "error"} <= kinds


# --- names ------------------------------------------------------------------------------------------------------------

MODULE = """
from dataclasses import dataclass
from math import sqrt

@dataclass(frozen=True)
class {record}:
    width: int

def {helper}(x):
    return sqrt(x) + {number}

def {factory}(tile):
    def {kernel}(x):
        x[0] = {helper}(x[1]) + tile.width
    return {kernel}

body = {factory}({record}({width}))
"""
FIRST = {"record": "A", "helper": "b", "factory": "c", "kernel": "d", "number": 1, "width": 64}
OTHER_NAMES = {"record": "Tile", "helper": "root", "factory": "make", "kernel": "kernel"}


def digest_of(folder: Path, name: str, names: dict) -> str:
    path = folder / f"{name}.py"
    path.write_text(MODULE.format(**names))
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return replay_answers.body_digest(module.body)


def test_a_digest_depends_on_code_and_values_and_on_no_name(tmp_path):
    first = digest_of(tmp_path, "replayed_one", FIRST)
    assert digest_of(tmp_path, "replayed_two", FIRST | OTHER_NAMES) == first
    assert digest_of(tmp_path, "replayed_three", FIRST | {"number": 2}) != first
    assert digest_of(tmp_path, "replayed_four", FIRST | {"width": 128}) != first


OLD = {
    "chosen": "cuda.gemm_x_64x32.v1",
    "verdicts": {
        "cuda.gemm_x_64x32.v1": 1.5,
        "cuda.gemm_x_8x8.v1": "k: k is 3",
        "cuda.gemm_x_9x9.v1": "k: k is 3",
    },
}
NEW = {
    "chosen": "cuda.gemm_x.v1[64x32]",
    "verdicts": {
        "cuda.gemm_x.v1[64x32]": 1.5,
        "cuda.gemm_x.v1[8x8]": "k: k is 3",
        "cuda.gemm_x.v1": "k: k is 3",
    },
}
TILE = r"gemm_x_(\d+x\d+)\.v1=gemm_x.v1[\1]"


def kinds_renamed(old: dict, new: dict, *rules: str) -> list[str]:
    question = {"region": {}, "text": "a product", "devices": ["h200"]}
    renamed = replay.renamed({"h200": old}, replay.renaming(rules))
    return [kind for kind, *_ in replay.differences(question, renamed, {"h200": new})]


def test_a_kernel_with_a_config_equals_the_kernel_that_it_was():
    assert kinds_renamed(OLD, NEW, TILE) == []
    assert set(kinds_renamed(OLD, NEW)) == {"choice", "candidate"}
    other = {**NEW, "verdicts": {**NEW["verdicts"], "cuda.gemm_x.v1": "k: k is 4"}}
    assert kinds_renamed(OLD, other, TILE) == ["refusal"]
    with pytest.raises(SystemExit, match=r"several names .* 'cuda.gemm_x.v1'"):
        kinds_renamed(OLD, NEW, r"gemm_x_\d+x\d+=gemm_x")


def test_a_report_has_old_and_new_of_the_first_of_each_kind():
    found = [
        ("choice", "a product", "x", "y"),
        ("choice", "another", "x", "z"),
        ("launch", "a product", "grid (1)", "grid (2)"),
    ]
    text = replay.report(found)
    assert (
        "choice: 2 differ\n  1 × x -> y" in text
        and "  a product\n    old  grid (1)\n    new  grid (2)" in text
    )


# --- machine code -----------------------------------------------------------------------------------------------------


def code_of(op: str, monkeypatch, name: str = "") -> dict:
    """The machine code of the kernel that is chosen for an op, its body under another name."""
    x = TensorDesc.dense(TensorSpec((64,), f32, "cuda"))
    region = RegionSpec.single(schema_of(op).kind, schema_of(op).pack({}), [x, x], [x])

    def named(call):
        code = call.body.__code__.replace(co_name=name, co_qualname=name)
        body = FunctionType(code, call.body.__globals__, name, call.body.__defaults__, call.body.__closure__)
        return replace(call, body=body)

    change = launching(named) if name else replace
    registry = KernelRegistry([change(v) for v in aicf.default_registry()])
    monkeypatch.setattr(aicf, "default_registry", lambda: registry)
    code = replay_answers.answer({"compile": region.to_json(), "text": "", "device": "h200", "number": 0})
    monkeypatch.undo()
    return code


def test_machine_code_has_no_names(monkeypatch):
    first = code_of("add", monkeypatch)
    assert first["launch 0"]["registers"] > 0 and first["launch 0"]["stack_bytes"] == 0
    assert any(s.startswith(".text ") for s in first["launch 0"]["sections"]), first
    assert code_of("add", monkeypatch, "another") == first
    assert code_of("sub", monkeypatch) != first
