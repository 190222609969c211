"""Groups of parameters: each steps as an optimizer of its own would, in NumPy."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import StateError, VerifyError
from aicf.types import f16

from . import oracle
from .decoder import decoder
from .mlp import batch_of, mlp, on_each_device, params, trainer

OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "sgd": (
        lambda **k: nn.SGD(0.1, momentum=0.9, **k),
        lambda lr=0.1, **k: oracle.SGD(lr, momentum=0.9, **k),
    ),
    "adam": (lambda **k: nn.Adam(0.02, **k), lambda lr=0.02, **k: oracle.Adam(lr, **k)),
    "adamw": (lambda **k: nn.AdamW(0.02, **k), lambda lr=0.02, **k: oracle.Adam(lr, decoupled=True, **k)),
}
GROUPS = [
    nn.ParamGroup(use="bias", weight_decay=0.0),
    nn.ParamGroup(names=["4.*"], lr_scale=0.25, weight_decay=0.5, name="head"),
]


@on_each_device
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_group_steps_as_an_optimizer_of_its_own(name, device):
    made, numpy_s = OPTIMIZERS[name]
    lr = 0.1 if name == "sgd" else 0.02
    program = trainer(device, mlp(sizes=(5, 7, 6, 3)), made(weight_decay=0.1, groups=GROUPS))
    model = oracle.MLP(params(program), "relu")
    assert set(model.params) == {f"{n}.{part}" for n in (0, 2, 4) for part in ("weight", "bias")}
    biases = {n for n in model.params if n.endswith("bias")}
    parts = [
        (biases, numpy_s(weight_decay=0.0)),
        ({"4.weight"}, numpy_s(lr=0.25 * lr, weight_decay=0.5)),
        ({"0.weight", "2.weight"}, numpy_s(weight_decay=0.1)),
    ]
    for step in range(5):
        fed = batch_of(6, seed=step)
        got = program(fed)
        loss, _, grads = model.step(fed["x"], fed["y"])
        np.testing.assert_allclose(float(got["loss"]), loss, rtol=1e-4)
        for names, optimizer in parts:
            own = {n: model.params[n] for n in names}
            optimizer.update(own, grads)
            model.params |= own
    for n, value in params(program).items():
        np.testing.assert_allclose(value, model.params[n], rtol=1e-4, atol=1e-5, err_msg=n)


@on_each_device
def test_groups_change_between_steps_and_travel_in_state_dicts(device):
    def make() -> Any:
        return trainer(device, mlp(), nn.AdamW(0.1, weight_decay=0.1, groups=[nn.ParamGroup(use="bias", lr_scale=0.0), nn.ParamGroup(names="2.weight", weight_decay=0.2, name="head")]))  # fmt: skip

    program, start = make(), None
    start = params(program)
    program(batch_of(6))
    first = params(program)
    assert all((first[n] == start[n]).all() == n.endswith("bias") for n in start)
    program.set(group0_lr_scale=1.0, head_weight_decay=0.0, lr=0.05)
    with pytest.raises(VerifyError, match="head_weight_decay=-1"):
        program.set(head_weight_decay=-1)
    with pytest.raises(StateError, match="group0_weight_decay"):
        program.set(group0_weight_decay=0.5)
    state = program.state_dict()
    assert state["optimizer.group0_lr_scale"] == 1 and state["optimizer.head_weight_decay"] == 0
    other = make()
    other.load_state_dict(state)
    for each in (program, other):
        each(batch_of(6, seed=1))
    for (n, a), b in zip(params(program).items(), params(other).values()):
        np.testing.assert_array_equal(a, b, err_msg=n)
        assert (a != first[n]).any()
    assert program.get_last_lr() == np.float32(0.05)


def test_a_schedule_is_scaled_and_other_steps_are_counted_once():
    groups = [nn.ParamGroup(names="0.*", lr_scale=0.5)]
    program = trainer("cpu", mlp(), nn.SGD(nn.schedules.StepDecay(0.1, every=1, gamma=0.5), groups=groups))
    model = oracle.MLP(params(program), "relu")
    for step in range(3):
        fed = batch_of(6, seed=step)
        program(fed)
        _, _, grads = model.step(fed["x"], fed["y"])
        for n, grad in grads.items():
            model.params[n] = model.params[n] - 0.1 * 0.5**step * (0.5 if n[0] == "0" else 1) * grad
    for n, value in params(program).items():
        np.testing.assert_allclose(value, model.params[n], rtol=1e-4, atol=1e-6)
    assert program.get("step") == 3


def test_layers_say_what_their_params_are_for():
    seen: dict[str, set[str]] = {}

    def note(param: Any) -> bool:
        seen.setdefault(param.use, set()).add(param.name)
        return param.rank < 2

    optimizer = nn.AdamW(groups=[nn.ParamGroup(where=note, weight_decay=0.0)])
    aicf.compile(decoder(), "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=optimizer)
    mixes = [f"mix.{n}" for n in ("q", "k", "v", "out")]
    assert seen == {
        "embedding": {"embed.weight", "place.weight"},
        "norm": {"norm.weight", "norm.bias", "norm2.weight"},
        "bias": {f"{n}.bias" for n in (*mixes, "mlp.up", "mlp.down")},
        "weight": {f"{n}.weight" for n in (*mixes, "mlp.up", "mlp.down")},
    }


def test_a_layer_of_one_s_own_has_words_of_its_own():
    class Adapted(nn.Layer):
        def emit(self, ctx: Any, x: Any) -> Any:
            a = ctx.param("a", (5, 2), nn.init.normal(), use="adapter")
            return x @ a @ ctx.param("b", (2, 3), nn.init.ones)

    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, Adapted(), batch=6)
    program = trainer("cpu", model, nn.SGD(0.1, groups=[nn.ParamGroup(use={"adapter"}, lr_scale=0)]))
    before = params(program)
    program(batch_of(6))
    assert [n for n, v in params(program).items() if (v == before[n]).all()] == ["a"]


def test_half_params_have_groups_too():
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5), f16)}, batch=6).add(nn.Linear(5, 3))
    program = trainer("cpu", model, nn.AdamW(0.1, groups=[nn.ParamGroup(use="bias", lr_scale=0.0)]))
    before = params(program)
    fed = batch_of(6)
    program({"x": fed["x"].astype(np.float16), "y": fed["y"]})
    assert [n for n, v in params(program).items() if (v == before[n]).all()] == ["0.bias"]


def test_optimizers_with_groups_are_copied_and_pickled():
    optimizer = nn.AdamW(groups=GROUPS)
    for other in (copy.copy(optimizer), copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert other.groups == optimizer.groups == (("group0", GROUPS[0]), ("head", GROUPS[1]))


def test_groups_make_no_launches_more():
    """The steps of all parameters are one, as they are without groups."""

    def launches(groups: Any) -> int:
        explained = aicf.explain_for(
            decoder(), "h200", "train", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.AdamW(groups=groups)
        )
        return sum("adam_step" in str(region.spec.signature) for region in explained.regions)

    decay = nn.ParamGroup(use=("bias", "norm", "embedding"), weight_decay=0.0)
    assert launches([decay]) <= launches([])
    assert launches([decay, nn.ParamGroup(names="mlp.*", lr_scale=0.5)]) <= launches([])


class NoDecay(nn.Optimizer):
    family = "plain"

    def meta(self, ctx: Any, step: Any) -> dict[str, Any]:
        return {}

    def step(self, ctx: Any, param: Any, grad: Any, lr: Any, meta: dict[str, Any]) -> None:
        ctx.update(param, param - lr * grad)


REFUSED = {
    "nothing in it": (lambda: nn.ParamGroup(weight_decay=0.0), "a ParamGroup of no parameters", "use, names or where"),
    "nothing changed": (lambda: nn.ParamGroup(use="bias"), "changes nothing", "lr_scale or weight_decay"),
    "a use that is no text": (lambda: nn.ParamGroup(use=3, lr_scale=1), "use=3", "text, or several"),
    "names that are no texts": (lambda: nn.ParamGroup(names=["a", 3], lr_scale=1), "names=['a', 3]"),
    "a where that is no function": (lambda: nn.ParamGroup(where="bias", lr_scale=1), "where='bias'", "a function of a parameter"),
    "a scale under 0": (lambda: nn.ParamGroup(use="bias", lr_scale=-1), "ParamGroup: lr_scale=-1", "a finite number >= 0"),
    "a decay that is none": (lambda: nn.ParamGroup(use="bias", weight_decay="no"), "ParamGroup: weight_decay='no'"),
    "a name with a dot": (lambda: nn.ParamGroup(use="bias", lr_scale=1, name="a.b"), "name='a.b'", "an identifier"),
    "one group, no list": (lambda: nn.SGD(0.1, groups=GROUPS[0]), "groups=ParamGroup(", "groups=[ParamGroup("),
    "a dict": (lambda: nn.SGD(0.1, groups=[{"lr": 0.1}]), "groups has {'lr': 0.1}", "an nn.ParamGroup"),
    "two of one name": (lambda: nn.SGD(0.1, groups=[GROUPS[1], GROUPS[1]]), "two groups of parameters are called 'head'"),
    "a group that is empty": (
        lambda: trainer("cpu", mlp(), nn.SGD(0.1, groups=[nn.ParamGroup(names="haed.*", lr_scale=1)])),
        "no parameter is in the group group0: ParamGroup(names=('haed.*',)", "0.weight (weight), 0.bias (bias)",
    ),
    "a group behind one that has it all": (
        lambda: trainer("cpu", mlp(), nn.SGD(0.1, groups=[nn.ParamGroup(names="*", lr_scale=1), nn.ParamGroup(use="bias", lr_scale=1)])),
        "no parameter is in the group group1", "the first group that names it",
    ),
    "decay where there is none": (
        lambda: trainer("cpu", mlp(), NoDecay(0.1, groups=[nn.ParamGroup(use="bias", weight_decay=0)])),
        "the optimizer has no weight decay",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_no_sense_is_refused(what):
    call, *said = REFUSED[what]
    with pytest.raises(VerifyError) as raised:
        call()
    for part in said:
        assert part in str(raised.value), raised.value
