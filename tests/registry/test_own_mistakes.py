"""Mistakes in an op's or a variant's own Python are errors that name it, the line and what to do next (E6)."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest
from draws.seeds import rng, run_seed

import aicf
from aicf import nn
from aicf.errors import AttrError, KernelCompileError, KernelError, NoKernelError, RegistryError
from aicf.ops.schema import Float, elementwise, op, unregister
from aicf.registry.blame import built
from aicf.registry.cost import Cost, roofline
from aicf.registry.registry import KernelRegistry
from aicf.registry.select import select
from aicf.registry.variant import HostCall, Launch, Reject, one_op, variant
from aicf.rows import RegionSpec
from aicf.types import AttrPack, OpKind, TensorDesc, TensorSpec

from . import synthetic

CPU, H200 = aicf.device.spec.preset("cpu"), aicf.device.spec.preset("h200")
DESC = TensorDesc.dense(TensorSpec((4, 8), aicf.f32))
REGION = RegionSpec.single(OpKind("relu"), AttrPack({}), [DESC], [DESC])


def kernel(device="cpu", **functions):
    """A variant of relu, right but for what is given."""

    class Mine:
        """Wrong on purpose."""

        def accepts(region):
            yield one_op(region)

        def cost(region, device):
            return roofline(device, bytes=1)

        def build(region, device):
            return HostCall(lambda operands, results: None)

    for name, function in functions.items():
        setattr(Mine, name, function)
    return variant("relu", id=f"{device}.mine.v1")(Mine)


def raises(region):
    raise ValueError("unhappy")


def yields_true(region):
    yield True


def reads_nothing(region, device):
    return region.nothing


ANSWERS = {
    "accepts raises": ("accepts", raises, "ValueError: unhappy"),
    "accepts yields no Reject": ("accepts", yields_true, "TypeError: it yielded True"),
    "accepts returns a bool": ("accepts", lambda region: True, "TypeError: 'bool' object is not iterable"),
    "cost raises": ("cost", reads_nothing, "AttributeError: 'RegionSpec' object has no attribute 'nothing'"),
    "cost is a float": ("cost", lambda region, device: 3.5, "TypeError: it returned 3.5"),
    "cost is no number": ("cost", lambda region, device: Cost({"made up": math.nan}), "TypeError: it returned Cost("),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_what_selection_asks_and_gets_no_answer_to(case):
    name, function, got = ANSWERS[case]
    registry = KernelRegistry()
    registry.add(kernel(**{name: function}))
    with pytest.raises(KernelError) as caught:
        select(REGION, CPU, registry)
    text = str(caught.value)
    assert text.startswith(f"kernel cpu.mine.v1: its `{name}` failed\n  region: relu(f32[4x8])"), text
    assert f"got: {got}" in text and "docs/add-an-op.md" in caught.value.hint
    assert f"at: {__file__}:" in text


def test_viable_and_workspace_are_answered_for_too():
    mine = kernel(viable=raises, workspace=reads_nothing)
    with pytest.raises(KernelError, match="its `viable` failed"):
        mine.continues(REGION, CPU)
    with pytest.raises(KernelError, match="its `workspace` failed"):
        mine.query_workspace(REGION, CPU)


def test_a_refusal_is_still_a_refusal():
    registry = KernelRegistry()
    registry.add(kernel(accepts=lambda region: [None, Reject("mood", "not today")]))
    with pytest.raises(NoKernelError, match=r"cpu\.mine\.v1: not today"):
        select(REGION, CPU, registry)


def test_functions_that_take_other_arguments_are_refused_where_they_are_declared():
    with pytest.raises(RegistryError, match="its `accepts` takes 2 arguments, self, region") as caught:
        kernel(accepts=lambda self, region: ())
    assert "without self" in caught.value.expected
    with pytest.raises(RegistryError, match="its `cost` takes 1 arguments, region"):
        kernel(cost=lambda region: None)
    assert kernel(cost=lambda region, device, more=1: None) and kernel(build=lambda *all: None)


@pytest.mark.parametrize("made", [None, [], HostCall(lambda i, o: None), [Launch(raises, (1,), (1,), ())]])
def test_a_build_makes_a_call_of_its_device(made):
    for device, spec, good in [("cpu", CPU, isinstance(made, HostCall)), ("cuda", H200, isinstance(made, list))]:  # fmt: skip
        mine = kernel(device, build=lambda region, device: made)
        if good:
            assert built(mine, REGION, spec) is made
        else:
            with pytest.raises(KernelError, match=f"its `build` makes no call of the {device} device"):
                built(mine, REGION, spec)


@pytest.fixture
def wrong():
    yield lambda declare, **how: declare("wrong", **how)
    unregister("wrong")


def model() -> nn.Model:
    class Wrong(nn.Layer):
        def emit(self, ctx, x):
            return ctx.wrong(x)

    return nn.Model({"x": aicf.TensorSpec(("batch", 8))}, batch=4).add(nn.Linear(8, 8)).add(Wrong())


def message(call) -> str:
    with pytest.raises((RegistryError, NoKernelError, KernelCompileError)) as caught:
        call()
    return str(caught.value)


def trained():
    return aicf.compile(model(), "train", device="cpu", loss=nn.MeanSquaredError(), optimizer=nn.SGD(0.1))({"x": np.ones((4, 8), np.float32), "y": np.ones((4, 8), np.float32)})  # fmt: skip


@pytest.mark.parametrize(
    "rule, said",
    [
        (lambda emit, dy: (dy, dy), "returned 2 gradients, and 1 operands were given"),
        (lambda emit, dy: emit.reduce_sum(dy, axes=(-1,)), r"expected: (4, 8)"),
        (lambda emit, dy: 1.0, "got: 1.0"),
    ],
)
def test_a_gradient_rule_returns_one_for_each_operand_shaped_as_it_is(wrong, rule, said):
    wrong(elementwise)(lambda x: x * 2.0).gradient(rule)
    text = message(trained)
    assert "the gradient rule of wrong returned" in text and said in text and f"at: {__file__}:" in text


@pytest.mark.parametrize(
    "expansion, said",
    [
        (lambda emit, x: emit.reduce_sum(x, axes=(-1,)), "got: tensor<4xf32>"),
        (lambda emit, x: x - x, "unsupported operand type(s) for -"),
        (lambda emit, x: (x, x), "got: tensor<4x8xf32>, tensor<4x8xf32>"),
    ],
)
def test_an_expansion_ends_in_the_types_of_the_rule(wrong, expansion, said):
    @wrong(op, core="rows")
    def made(x: Float):
        return x

    made.reference(lambda x: x)
    made.expands(expansion)
    text = message(lambda: aicf.explain_for(model(), "h200"))
    assert text.startswith("the expansion of wrong") and said in text and f"at: {__file__}:" in text


def test_an_op_that_expands_without_a_core_is_told_of_it(wrong):
    @wrong(op)
    def made(x: Float):
        return x

    made.expands(lambda emit, x: emit.sub(x, emit.reduce_mean(x, axes=(-1,), keepdims=True)))
    assert 'next: wrong expands, and kernels of rows would take its steps if it said so: @op(..., core="rows")' in message(lambda: aicf.explain_for(model(), "h200"))  # fmt: skip
    said = message(lambda: aicf.compile(model(), device="cpu")({"x": np.ones((4, 8), np.float32)}))
    assert "wrong has no reference: write one with @wrong.reference" in said


def test_a_type_rule_that_returns_no_type(wrong):
    @wrong(op)
    def made(x: Float):
        return x.dtype

    text = message(model)
    assert "the type rule of wrong returned what is no type" in text and "got: f32" in text


def test_a_name_that_is_nowhere_in_a_scalar_function(wrong):
    wrong(elementwise)(lambda x: mth.tanh(x))  # noqa: F821
    text = message(lambda: aicf.compile(model(), device="cpu")({"x": np.ones((4, 8), np.float32)}))
    assert "got: there is no 'mth'" in text and f"at: {__file__}:" in text and "aicf doctor" not in text


def test_a_default_of_another_type_than_its_attribute():
    with pytest.raises(AttrError, match="attribute knee is 'one'"):

        @elementwise("wrong_default")
        def _(x, *, knee: float = "one"):
            return x * knee


def test_kernels_in_any_container_of_a_module_are_registered(request):
    """Drawn nests of lists, tuples and dictionaries, some of which contain themselves."""
    draw = rng(request.node.nodeid)
    for _ in range(20):
        made = [synthetic.kernel(f"cpu.k{n}.v1", "relu") for n in range(draw.integers(1, 9))]
        nest = list(made)
        while len(nest) > 1:
            cut = nest[-int(draw.integers(1, len(nest))) :]
            wrap = (list, tuple, lambda some: dict(enumerate(some)))[draw.integers(3)]
            nest = (
                [*nest[: len(nest) - len(cut)], wrap(cut)]
                if len(cut) > 1 and draw.random() < 0.2
                else [wrap(nest)]
            )
        module = ModuleType("brought")
        module.KERNELS, module.itself = nest, (loop := [1, {}])
        loop[1]["itself"] = loop
        registry = KernelRegistry()
        registry.add_module(module)
        assert {v.id for v in registry} == {v.id for v in made}, f"seed {run_seed()}: {nest}"


def test_a_kernel_for_no_op_or_for_no_device_is_refused(request):
    """Names of ops with a letter too few, and devices that aicf has not."""
    draw, registry = rng(request.node.nodeid), KernelRegistry()
    names = [s.name for s in aicf.schemas() if len(s.name) > 5]
    for name in map(str, draw.choice(names, 20, replace=False)):
        at = int(draw.integers(len(name)))
        slip = name[:at] + name[at + 1 :]
        with pytest.raises(RegistryError, match=f"cpu.mine.v1 is for '{slip}'") as e:
            registry.add(synthetic.kernel("cpu.mine.v1", "relu", slip))
        assert name in (e.value.hint or ""), f"seed {run_seed()}: {slip}: {e.value}"
        assert not [*registry]
    for device in ("gpu", "cuda0", "tpu", "host"):
        with pytest.raises(RegistryError, match="malformed") as e:
            kernel(device)
        assert "cpu.name.vN or cuda.name.vN" in str(e.value)
