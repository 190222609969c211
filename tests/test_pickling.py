"""What is bound to a device or to code can't be pickled or copied, and says what can; the rest goes through both whole."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import AicfError, StateError
from aicf.ops.schema import schema_of

FEED = {"x": np.ones((4, 5), np.float32), "y": np.zeros(4, np.int64)}
WAYS = {"pickle": lambda t: pickle.loads(pickle.dumps(t)), "copy": copy.copy, "deepcopy": copy.deepcopy}


@pytest.fixture(scope="module")
def program():
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=4).add(nn.Linear(5, 3)).add(nn.Dropout())
    return aicf.compile(model, "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.AdamW(0.1))


IMMOVABLE = {
    "Program": (lambda p: p, "program.state_dict()"),
    "Tensor": (lambda p: p.run(FEED)["loss"], "t.numpy()"),
    "Variables": (lambda p: p.variables, "state_dict()"),
    "Explanation": (lambda p: p.explain(), "explanation.to_json()"),
    "CompiledPlan": (lambda p: p.compiled(), "plan.to_json()"),
    "CaptureReport": (lambda p: p.capture(FEED), "str(report)"),
}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", IMMOVABLE)
def test_what_lives_with_a_device_is_refused_with_what_to_keep_instead(kind, how, program):
    made, hint = IMMOVABLE[kind]
    thing = made(program)
    for held in (thing, {"among others": thing}) if how != "copy" else (thing,):
        with pytest.raises(StateError, match=f"a {kind} can't be pickled or copied") as error:
            WAYS[how](held)
        assert f"next: {thing.instead}" in str(error.value) and hint in thing.instead


def test_the_advice_for_a_program_works(program, tmp_path):
    """Weights, plan and model, each as the message says."""
    program.run(FEED)
    model = program.recipe.model
    np.savez(tmp_path / "model.npz", **program.state_dict())
    assert aicf.ExecPlan.from_json(program.plan.to_json(), program.registry) == program.plan
    again = aicf.compile(
        pickle.loads(pickle.dumps(model)), "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.AdamW(0.5)
    )  # fmt: skip
    again.load_state_dict(np.load(tmp_path / "model.npz"))
    assert float(again.run(FEED)["loss"]) == float(program.run(FEED)["loss"])


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    "thing",
    [aicf.OpKind.gemm, aicf.OpKind.copy, schema_of("gemm"), aicf.f32],
    ids=["kind", "copy", "schema", "dtype"],
)
def test_what_is_known_by_name_comes_back_as_itself(thing, how):
    assert WAYS[how](thing) is thing


def test_a_kernel_variant_is_copied_as_itself_and_pickled_by_nobody(program):
    variant = next(iter(program.registry))
    assert copy.copy(variant) is copy.deepcopy(variant) is variant
    for thing in (variant, program.registry):
        with pytest.raises(StateError, match=r"a KernelVariant can't be pickled") as error:
            pickle.dumps(thing)
        assert "registry.by_id(id)" in str(error.value)
    assert program.registry.by_id(variant.id) is variant


@pytest.mark.parametrize("how", WAYS)
def test_an_error_keeps_all_that_it_says(how):
    error = StateError("what", expected=1, got=2, hint="next", where="a.py:1", details=["more"])
    other = WAYS[how](error)
    assert isinstance(other, AicfError) and str(other) == str(error)
