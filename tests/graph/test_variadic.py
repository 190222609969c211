"""Ops of any number of operands: declared by `*xs`, called, differentiated, fused, told and kept like all others."""

import json

import numpy as np
import pytest
from ops.cases import f16, f32, i32
from ops.numpy_emitter import call_gradient

import aicf
from aicf.cli import main
from aicf.device.spec import preset
from aicf.dispatch import default_registry
from aicf.errors import RegistryError, TypeInferenceError
from aicf.ops.agreement import check_op
from aicf.ops.arithmetic import unbroadcast
from aicf.ops.schema import elementwise, require, unregister
from aicf.registry.select import select
from aicf.rows import RegionSpec
from aicf.types import TensorDesc, TensorSpec

from .chains import model_of

rng = np.random.default_rng(5)


@pytest.fixture
def add_n():
    @elementwise("add_n_of_test", continuous=True)
    def add_n(start, *xs, gain: float = 1.0):
        """start, and the sum of gain * x of all the others.

        C3  gain is not 13
        """
        total = start
        for x in xs:
            total += gain * x
        return total * 1.0

    add_n.checks(lambda start, *xs, gain: require(gain != 13, "C3", f"gain is {gain}"))
    add_n.reference(lambda start, *xs, gain: start + sum(start.dtype.type(gain) * x for x in xs))

    @add_n.gradient
    def _(emit, dy, start, xs, gain):
        each = emit.scale(dy, factor=gain)
        return unbroadcast(emit, dy, start), *(unbroadcast(emit, each, x) for x in xs)

    add_n.samples((4, 7), (4, 7))
    yield add_n
    unregister("add_n_of_test")


@pytest.mark.spec("E2")
def test_any_number_of_operands_is_inferred_and_told_by_place(add_n):
    assert add_n.infer([f32(4, 1), f32(7), f32(), f32(1, 7)], {}) == (f32(4, 7),)
    assert [str(d) for d in add_n.operands] == ["start", "*xs"]
    assert [d.name for d in add_n.declared(4)] == ["start", "xs[0]", "xs[1]", "xs[2]"]
    refused = [
        ([f32(4)], r"takes start, \*xs; got 1 operands"),
        ([f32(4), f32(4), None], r"xs\[1\] can't be left out"),
        ([f32(4), f32(4), f32(4), i32(4)], r"xs\[2\] is i32; expected float \(bf16, f16, f32\)"),
        ([f32(4), f32(4), f16(4)], r"xs\[1\] is f16 but start is f32; operands never promote"),
        ([f32(4), f32(4), f32(3)], r"C1: shapes do not broadcast: start \(4,\), xs\[0\] \(4,\), xs\[1\] \(3,\)"),
        ([f32(4), f32(4), TensorSpec((4,), device="cuda")], r"operands live on cpu and cuda"),
    ]  # fmt: skip
    for specs, message in refused:
        with pytest.raises(TypeInferenceError, match=message) as caught:
            add_n.infer(specs, {})
        if len(specs) == 4:
            assert "  xs[2]: tensor<4xi32>" in str(caught.value)


def test_its_reference_agrees_with_its_scalar_function(add_n):
    check_op(add_n, gain=0.5)


def test_its_gradient_has_a_term_for_each_operand(add_n):
    arrays = [rng.normal(size=s) for s in [(4, 7), (7,), (4, 1), ()]]
    dy = rng.normal(size=(4, 7))
    y = add_n.call_reference(arrays, {"gain": 0.5})
    grads = call_gradient(add_n, arrays, y, [dy], {"gain": 0.5})
    wants = [dy, 0.5 * dy.sum(0), 0.5 * dy.sum(1, keepdims=True), 0.5 * dy.sum()]
    for got, want in zip(grads, wants, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.spec("A12")
@pytest.mark.parametrize("numerics", ["fused", "strict"])
def test_it_fuses_with_what_stands_around_it(add_n, numerics):
    x, w, v = (rng.normal(size=s).astype(np.float32) for s in [(3, 4), (3, 4), (4,)])

    def emit(ctx, x):
        more = [ctx.param("w", (3, 4), lambda *_: w), ctx.param("v", (4,), lambda *_: v), 2.0]
        made = ctx.add_n_of_test(ctx.relu(x), *more, gain=0.5)
        for same in (
            ctx.add_n_of_test(x, more),
            ctx.add_n_of_test(x, xs=more),
        ):  # a list, as other libraries take it
            assert same.spec == made.spec and same.producer.inputs[1:] == made.producer.inputs[1:]
        return ctx.tanh(made)

    program = aicf.compile(model_of(emit), device="cpu", numerics=numerics)
    assert [s.region.signature for s in program.plan.steps] == ["relu + add_n_of_test + tanh"]
    want = np.tanh(np.maximum(x.astype(float), 0) + 0.5 * (w + v + 2.0))
    np.testing.assert_allclose(program.run({"x": x})["output"].numpy(), want, rtol=1e-5)
    plan = aicf.ExecPlan.from_json(json.loads(json.dumps(program.plan.to_json())))
    assert [s.region for s in plan.steps] == [s.region for s in program.plan.steps]


@pytest.mark.spec("D3")
def test_a_model_is_trained_through_it(add_n):
    w, x = (rng.normal(size=s).astype(np.float32) for s in [(4,), (3, 4)])

    def emit(ctx, x):
        p = ctx.param("w", (4,), lambda *_: w)
        return ctx.add_n_of_test(x, p, p, x, gain=0.5)

    program = aicf.compile(model_of(emit), "grad", loss=aicf.nn.MeanSquaredError(), device="cpu")
    got = program.run({"x": x, "y": np.zeros_like(x)})["grad.0.w"].numpy()
    np.testing.assert_allclose(got, np.sum(2 * (1.5 * x.astype(float) + w) / 12, axis=0), rtol=1e-5)


def test_a_rule_that_returns_too_few_gradients_is_told(add_n):
    add_n.gradient(lambda emit, dy, xs: (dy, dy))

    def emit(ctx, x):
        return ctx.add_n_of_test(x, ctx.param("w", (4,), aicf.nn.init.ones), x)

    with pytest.raises(RegistryError, match="returned 2 gradients, and 3 operands were given"):
        aicf.compile(model_of(emit), "grad", loss=aicf.nn.MeanSquaredError(), device="cpu")


def test_it_is_called_by_itself(add_n):
    arrays, y = (
        [rng.normal(size=s).astype(np.float32) for s in [(4, 1), (7,), (4, 7), (1,)]],
        np.empty((4, 7), np.float32),
    )
    aicf.op_call("add_n_of_test", arrays, [y], {"gain": 2.0})
    np.testing.assert_allclose(y, arrays[0] + 2.0 * (arrays[1] + arrays[2] + arrays[3]), rtol=1e-5)
    with pytest.raises(aicf.AicfError, match=r"xs\[2\]"):
        aicf.op_call("add_n_of_test", [*arrays[:3], "no tensor"], [y], {"gain": 2.0})
    memory = np.zeros(40, np.float32)
    over, into = memory[:28].reshape(4, 7), memory[1:29].reshape(4, 7)
    with pytest.raises(aicf.AicfError, match=r"y overlaps xs\[1\]"):
        aicf.op_call("add_n_of_test", [*arrays[:2], over], [into], {"gain": 2.0})


def test_it_is_told_by_info(add_n, capsys):
    assert main(["info", "add_n_of_test"]) == 0
    assert capsys.readouterr().out.startswith(
        "add_n_of_test(start: float, *xs: float, gain: float = 1.0) -> y\n"
    )


def test_cuda_kernels_take_it(add_n):
    from aicf.cuda_kernels.compiler import engine

    device, x = preset("h200"), TensorDesc.dense(TensorSpec((64, 128), device="cuda"))
    region = RegionSpec.single(add_n.kind, add_n.pack({"gain": 0.5}), [x] * 5, [x])
    assert RegionSpec.from_json(json.loads(json.dumps(region.to_json()))) == region
    chosen = select(region, device, default_registry())
    variant = next(v for v in default_registry() if v.id == chosen.kernel_id)
    (launch,) = variant.build(region, device)
    compiled = engine.compile_launch(launch, region, device.target, chosen.kernel_id)
    assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0)
    assert ".f64" not in engine.ptx_of(launch, region, device.target)
