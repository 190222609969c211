"""Why did it compile again? (F5) Each compilation names the first difference to the nearest one before."""

from __future__ import annotations

import json
import logging
import threading
import time

import numpy as np
import pytest
from registry.synthetic import region

import aicf
from aicf import nn
from aicf.code_cache import ledger
from aicf.cuda_kernels.compiler import engine, keys
from aicf.graph.run import plans
from aicf.graph.run import program as programs
from aicf.graph.run.compilations import Compilations, differences

from .chains import model_of


def x(rows: int, columns: int = 4) -> dict:
    return {"x": np.ones((rows, columns), np.float32)}


def relu(rows: int = 3, **how) -> aicf.Program:
    return aicf.compile(model_of(lambda ctx, x: ctx.relu(x), rows=rows), device="cpu", **how)


def whys(program: aicf.Program, what: str) -> list[str]:
    return [one.why for one in program.compilations if one.what == what]


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("F5")
def test_each_new_size_is_a_plan_and_says_so():
    program = relu(3)
    assert whys(program, "plan") == ["the first"] and whys(program, "bound") == []
    for rows in (3, 33, 32, 33, 3):
        program(x(rows))
    assert whys(program, "plan") == ["the first", "batch 3 → 33", "batch 33 → 32"]
    assert whys(program, "bound")[1] == "x f32[3x4] on cpu → f32[33x4] on cpu"
    assert len(whys(program, "bound")) == 3 and len(program.compilations) == program.compilations.total == 6
    assert all(one.seconds > 0 for one in program.compilations)


def test_what_was_forgotten_is_told(monkeypatch):
    for module in (plans, programs):
        monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    program = relu(1)
    for rows in (1, 2, 3, 1):
        program(x(rows))
    assert whys(program, "plan")[-1] == "that of number 0 was forgotten: others were used since"


def test_threads_that_ask_for_one_size_at_once_have_one_plan():
    program = relu(3)
    make, found = program._plans._specialise, []

    def slowly(*asked):
        time.sleep(0.2)
        return make(*asked)

    program._plans._specialise = slowly
    threads = [
        threading.Thread(target=lambda: found.append(program.compiled({"batch": 9}))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and found[0] is found[1] is found[2]
    assert whys(program, "plan") == ["the first", "batch 3 → 9"]


def test_runs_that_are_fed_params_and_runs_that_accumulate_have_plans_of_their_own():
    model = nn.Model({"x": aicf.TensorSpec(("batch", 4))}, batch=2).add(nn.Linear(4, 3))
    y = {"y": np.zeros(2, np.int64)}
    trained = aicf.compile(
        model, "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.1), accumulate=2
    )
    assert whys(trained, "plan") == ["the first", "runs that only add up gradients, which was not there"]
    for _ in range(4):
        trained({**x(2), **y})
    assert len(whys(trained, "plan")) == 2 and len(whys(trained, "bound")) == 2
    half = aicf.compile(model, device="cpu", policy="bf16")
    half.run({**x(2), "0.weight": np.ones((3, 4), np.float32)})
    assert whys(half, "plan")[-1] == "runs that may be fed params or states, which was not there"


def test_a_static_input_that_moved():
    program = relu(3, static_roles={"input", "param", "state"}, copy_roles=set())
    first, second = x(3), x(3)
    program(first)
    program(second)
    assert whys(program, "bound")[-1].startswith("a static input moved: x was captured at 0x")


def test_what_fails_is_no_compilation():
    program = relu(3)
    with pytest.raises(aicf.AicfError):
        program({"x": np.ones((3, 5), np.float32)})
    assert len(program.compilations) == 1


@pytest.mark.spec("F5")
def test_the_table_and_its_advice():
    program = relu(1)
    for rows in range(1, 9):
        program(x(rows))
    text = str(program.compilations)
    assert text.startswith("infer on cpu: 16 compilations") and "batch 7 → 8" in text
    assert "next: 8 sizes of batch: each has a plan of its own" in text and "drop_last=True" in text
    few = relu(1)
    few(x(1))
    assert "next:" not in str(few.compilations)
    data = json.loads(json.dumps(program.compilations.to_json()))
    assert data[2]["for"] == {"batch": "2"} and data[2]["why"] == "batch 1 → 2"


def test_the_log_has_them(monkeypatch, caplog):
    monkeypatch.setenv("AICF_LOGS", "plan")
    with caplog.at_level(logging.INFO, "aicf.plan"):
        program = relu(3)
        program(x(5))
    lines = [record.getMessage() for record in caplog.records if record.name == "aicf.plan"]
    assert any("batch=5" in line and line.endswith("batch 3 → 5") for line in lines)
    assert lines[-1].startswith("infer on cpu: bound for x f32[5x4] on cpu")
    monkeypatch.delenv("AICF_LOGS")
    caplog.clear()
    program(x(6))
    assert not caplog.records


# --- the nearest one before -------------------------------------------------------------------------------------------


def test_the_nearest_is_the_one_that_differs_least():
    made = Compilations("f")
    for facts in (
        {"a": 1, "b": "f32[4]"},
        {"a": 2, "b": "bf16[4]"},
        {"a": 1, "b": "bf16[4]"},
        {"a": 3, "b": "i32[9]", "c": 1},
    ):
        with made.made("function", facts):
            pass
    assert [one.why for one in made] == [
        "the first", "a 1 → 2; b f32[4] → bf16[4]", "a 2 → 1", "a 1 → 3; b bf16[4] → i32[9]; c 1, which was not there",
    ]  # fmt: skip
    assert differences({"a": 1, "b": 2}, {"a": 1}) == ["without b 2"]


def test_advice_counts_each_graph_by_itself():
    made = Compilations("f")
    for graph in range(8):
        with made.made("function", {"graph": f"g{graph}", "x": f"f32[{graph}]"}):
            pass
    assert "next:" not in str(made)
    for size in range(6):
        with made.made("sizes", {"graph": "g0", "x": f"f32[{size},9]"}):
            pass
    text = str(made)
    assert "8 functions · 6 sets of sizes" in text
    assert "next: 6 kinds of x of g0" in text and text.count("next:") == 1


def test_only_so_many_are_kept_and_all_are_counted(monkeypatch):
    from aicf.graph.run import compilations

    monkeypatch.setattr(compilations, "KEPT", 3)
    made = Compilations("f")
    for n in range(5):
        with made.made("plan", {"n": n}):
            pass
    assert [one.number for one in made] == [2, 3, 4] and made.total == 5 and made[-1].facts == {"n": 4}


def test_names_are_text():
    made = Compilations("[red]f")
    with made.made("function", {"[bold]x": "[link=http://evil]y"}):
        pass
    assert "[bold]x [link=http://evil]y" in str(made) and "[red]f" in str(made) and "\x1b" not in str(made)


# --- code -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("AICF_CACHE", raising=False)
    return tmp_path / "kernels"


def test_why_code_is_compiled_that_was_compiled_before(folder):
    facts = {"its code": "a" * 32, "numba-cuda": "0.20"}
    assert ledger.why_again("0" * 32, facts) == ledger.NEW
    ledger.remember("0" * 32, facts)
    assert ledger.why_again("0" * 32, facts) == ledger.GONE
    assert ledger.why_again("0" * 32, {**facts, "numba-cuda": "0.21"}) == "numba-cuda 0.20 → 0.21"
    assert ledger.why_again("0" * 32, {**facts, "its code": "b" * 32}) == "its code changed"
    assert "can't be described" in ledger.why_again(None, facts)


def test_a_kernel_of_a_body_that_changed_says_so(folder, monkeypatch):
    """With a compiler that is made up: which kernel it is stays, its body does not."""
    from aicf.registry.variant import Launch, Num

    def body(factor):
        def scale(n):
            return n * factor

        return scale

    def launch(factor):
        return Launch(body(factor), (1,), (32,), (Num(1),))

    fake = engine.CompiledKernel(
        **{f: b"" if f == "cubin" else "x" for f in engine.CompiledKernel.__dataclass_fields__}
    )
    monkeypatch.setattr(engine, "compile_kernel", lambda *asked: fake)
    asked = region("relu", (4,), device="cuda")

    def made(factor) -> ledger.MadeCode:
        monkeypatch.setattr(engine, "_COMPILED", {})
        with ledger.collected() as found:
            engine.compile_launch(launch(factor), asked, "sm_90a", "cuda.scale.v1")
        (one,) = found
        return one

    assert made(2)[:2] == ("cuda.scale.v1", "compiled")
    assert made(2)[:2] == ("cuda.scale.v1", "disk")
    again = made(3)
    assert again.how == "compiled" and again.why == "its code changed"
    monkeypatch.setattr(keys, "toolchain", lambda: b"other")
    monkeypatch.setattr(keys, "compilers", lambda: {**real, "numba": "99"})
    assert made(3).why.endswith("→ 99")


real = keys.compilers()


def test_loops_of_the_host_are_counted(folder):
    program = aicf.compile(model_of(lambda ctx, x: ctx.relu(ctx.tanh(x) * 0.12345)), device="cpu")
    program(x(3))
    (bound,) = [one for one in program.compilations if one.what == "bound"]
    assert (bound.compiled, bound.from_disk) == (1, 0) and bound.kernels[0].why == ledger.NEW
    assert ": 1 compiled" in str(program.compilations) and bound.again() == []
