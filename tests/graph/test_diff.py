"""Two explanations compared (F6): devices, numerics, saved files; on the command line too."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from registry.synthetic import kernel, registry_of

import aicf
from aicf.cli import main
from aicf.errors import AicfError
from aicf.files import Bad
from aicf.graph.run.diff import Diff
from aicf.pages.data import check_explanation
from examples import examples

from .chains import model_of

EXAMPLE = str(Path(aicf.__file__).parents[1] / "examples" / "mlp.py")
ONE = kernel("cpu.one.v1")
PAIR = kernel("cpu.pair.v1", "relu", us=0.5, signatures=["relu + tanh"])
FAST = kernel("cpu.fast.v1", us=0.25)


def chain_model(*kinds: str):
    def emit(ctx, x):
        for kind in kinds:
            x = ctx.op(kind, x)
        return x

    return model_of(emit)


def explained(*variants):
    return aicf.explain_for(
        chain_model("relu", "tanh", "neg"), "cpu", registry=registry_of(*variants)
    ).to_json()


@pytest.mark.spec("F6")
def test_regions_that_are_cut_otherwise_stand_side_by_side_with_why():
    diff = Diff(explained(ONE), explained(ONE, PAIR))
    (cut,) = [d for d in diff.parts if not d.same]
    assert (cut.anchor, cut.last, cut.recut) == (0, 1, True)
    assert [r["region"] for r in cut.left] == ["relu", "tanh"]
    assert [r["region"] for r in cut.right] == ["relu + tanh"]
    text = str(diff)
    assert "cpu (this) against cpu (other) · 1 of 2 stretches differ · predicted 3 us against 1.5 us" in text
    assert "ends before the next op: tanh fits none" in text


@pytest.mark.spec("F6")
def test_another_kernel_is_shown_with_what_it_would_take_here():
    diff = Diff(explained(ONE, FAST), explained(ONE))
    assert len([d for d in diff.parts if not d.same]) == 3
    assert "cpu.one.v1 would take 1 us" in str(diff)
    assert [d["left"][0]["chosen"] for d in diff.to_json()["differences"]] == ["cpu.fast.v1"] * 3


@pytest.mark.spec("F6")
def test_a_kernel_that_can_not_run_here_says_why():
    left = aicf.explain_for(chain_model("relu"), "h200").to_json()
    diff = Diff(left, aicf.explain_for(chain_model("relu"), "cpu").to_json())
    assert not diff.parts[0].same
    same = Diff(left, left)
    assert all(d.same for d in same.parts)
    assert "0 of 1 stretches differ" in str(same)


@pytest.mark.spec("F6")
def test_ops_that_one_side_alone_has_stand_by_themselves():
    """Another version of aicf may spell an op otherwise: the others still meet."""

    def told(*kinds):
        return aicf.explain_for(chain_model(*kinds), "cpu", registry=registry_of(ONE)).to_json()

    diff = Diff(told("relu", "tanh", "neg", "exp"), told("relu", "tanh", "abs", "neg", "exp"))
    (only,) = [d for d in diff.parts if not d.same]
    assert ([r["region"] for r in only.left], [r["region"] for r in only.right]) == ([], ["abs"])
    assert only.us == (0.0, 1.0) and "no such ops" in str(diff)
    back = Diff(told("relu", "tanh", "abs", "neg", "exp"), told("relu", "tanh", "neg", "exp"))
    assert [d["us"] for d in back.to_json()["differences"]] == [[1.0, 0.0]]


@pytest.mark.spec("F6")
def test_the_same_kernel_in_another_time_is_told_by_its_terms():
    slow = kernel("cpu.one.v1", us=3.0)
    diff = Diff(explained(ONE), explained(slow))
    assert [d for d in diff.parts if not d.same] == []
    text = str(diff)
    assert "predicted 3 us against 9 us, 3 times as long" in text
    assert "op 0      cpu.one.v1  1 us against 3 us: made up +2" in text
    assert diff.to_json()["moved"][0] == {"anchor": 0, "last": 0, "us": [1.0, 3.0], "terms": {"made up": 2.0}}


@pytest.mark.spec("F6")
def test_what_an_older_version_wrote_is_compared():
    """It lacked some fields, and had others that mean nothing now."""
    older = explained(ONE)
    for region in older["regions"]:
        del region["view"], region["rejected"], region["ended"]["detail"]
        region["colour"] = "red"
    for name in ("target", "memory", "numerics", "recognised"):
        del older[name]
    check_explanation(older)
    text = str(Diff(explained(ONE, PAIR), older))
    assert "predicted 1.5 us against 3 us" in text and "ends before the next op: candidates" in text


@pytest.mark.spec("F6")
def test_a_kernel_that_came_or_went_is_told():
    diff = Diff(explained(ONE), explained(ONE, FAST))
    assert "cpu.fast.v1: there is no such kernel on this side" in str(diff)


def test_explanations_of_other_ops_are_refused():
    with pytest.raises(AicfError, match="not of the same ops") as error:
        Diff(
            explained(ONE), aicf.explain_for(chain_model("relu"), "cpu", registry=registry_of(ONE)).to_json()
        )
    assert "3 ops: relu, tanh, neg" in str(error.value)


@pytest.mark.spec("F6")
def test_the_command_compares_devices_and_saved_explanations(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["explain", EXAMPLE, "--device", "h200", "--diff", "cpu"]) == 0
    assert "h200 against cpu" in capsys.readouterr().out
    assert main(["explain", EXAMPLE, "--device", "t4", "--json"]) == 0
    (tmp_path / "t4.json").write_text(capsys.readouterr().out)
    assert main(["explain", EXAMPLE, "--device", "t4", "--diff", str(tmp_path / "t4.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"device": "t4", "regions": [{}]}', '{"device": "t4"}'])
def test_a_file_that_is_no_explanation_is_refused_by_name(capsys, tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    assert main(["explain", EXAMPLE, "--diff", str(tmp_path / "x.json")]) == 2
    assert "x.json" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["grad", "train"])
def test_a_mode_that_needs_a_loss_says_so(capsys, tmp_path, mode):
    file = tmp_path / "model_without_loss.py"
    file.write_text(
        "from aicf import nn, TensorSpec\ndef build(): return nn.Model({'x': TensorSpec((2, 3))}).add(nn.Linear(3, 1))\n"
    )
    assert main(["explain", str(file)]) == 0
    assert main(["explain", str(file), "--mode", mode]) == 2
    assert "defines no loss(), which mode" in capsys.readouterr().err


def places(data, path=()):
    found = [path] if path else []
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        found += places(value, (*path, key))
    return found


SAVED = json.dumps(explained(ONE, PAIR))


@examples(150)
@given(st.data())
def test_a_changed_explanation_is_refused_or_compared(data):
    saved = json.loads(SAVED)
    *path, key = data.draw(st.sampled_from(places(saved)))
    functools.reduce(lambda inside, k: inside[k], path, saved)[key] = data.draw(
        st.sampled_from([None, -1, 2**70, "x", [], {}, 1e9, True])
    )
    try:
        check_explanation(saved)
        assert str(Diff(explained(ONE), saved))
    except (Bad, AicfError):
        pass


def test_an_explanation_is_what_it_should_be():
    check_explanation(json.loads(SAVED))
