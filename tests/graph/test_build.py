"""Emission, verification and lowering (C1-C5)."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import AttrError, CallSpecError, RegistryError, TypeInferenceError, VerifyError
from aicf.graph.emit.builder import Builder, GraphEmitter
from aicf.graph.emit.passes import lower, optimize, verify
from aicf.ir import LoweredOp, Role
from aicf.ops.schema import schema_of
from aicf.types import AttrPack, TensorSpec

from .chains import Fn, graph_of, model_of


def linear_relu(ctx, x):
    return ctx.relu(ctx.bias_add(ctx.gemm(x, ctx.param("w", (2, 4), nn.init.ones), trans_b=True),
                                 ctx.param("b", (2,), nn.init.zeros)))  # fmt: skip


# --- C1, C2: what add emits -------------------------------------------------------------------------------------------


@pytest.mark.spec("C1")
def test_add_emits_the_layer_s_values_and_ops_into_the_builder():
    model = nn.Model({"x": TensorSpec(("batch", 4))}, batch=3)
    assert model.add(nn.Linear(4, 2)) is model
    graph = model.graph
    assert [op.kind for op in graph.ops] == ["gemm", "bias_add"]
    assert [(v.name, v.role.value, str(v.spec)) for v in graph.externals()] == [
        ("x", "input", "tensor<3x4xf32>"), ("0.weight", "param", "tensor<2x4xf32>"), ("0.bias", "param", "tensor<2xf32>"),
    ]  # fmt: skip
    model.add(nn.ReLU())
    assert [op.kind for op in graph.ops] == ["gemm", "bias_add", "relu"]
    assert model.output == TensorSpec((3, 2))


@pytest.mark.spec("C1")
def test_a_refused_layer_leaves_no_trace():
    model = nn.Model({"x": TensorSpec(("batch", 4))}, batch=3).add(nn.Linear(4, 2))
    before, users = str(model.graph), [len(v.users) for v in model.graph.values]

    def fails(ctx, x):
        y = ctx.relu(ctx.add(x, ctx.param("w", (2,), nn.init.ones)))
        return ctx.gemm(y, y)

    with pytest.raises(TypeInferenceError, match="gemm C2") as error:
        model.add(Fn(fails))
    assert re.search(r"test_build.py:\d+", str(error.value))
    assert str(model.graph) == before
    assert [len(v.users) for v in model.graph.values] == users
    assert [name for name, _ in model.layers] == ["0"]
    model.add(nn.Linear(2, 5))
    assert model.output == TensorSpec((3, 5))
    assert aicf.compile(model, device="cpu").run({"x": np.ones((3, 4), np.float32)})["output"].shape == (3, 5)


@pytest.mark.spec("C1")
def test_two_layers_of_one_name_and_unknown_ops_are_refused():
    model = model_of(linear_relu)
    with pytest.raises(VerifyError, match="two layers are called '0'"):
        model.add(nn.ReLU(), "0")
    with pytest.raises(RegistryError, match="no op is called 'no_such_op'"):
        model.add(Fn(lambda ctx, x: ctx.no_such_op(x)))
    with pytest.raises(AttrError, match="relu has no attribute 'slope'"):
        model.add(Fn(lambda ctx, x: ctx.relu(x, slope=0.5)))


@pytest.mark.spec("C2")
def test_roles_are_declared_and_never_guessed_from_names():
    def emit(ctx, x):
        weight = ctx.state("input", (4,), 1.0)
        param = ctx.param("state", (4,), nn.init.zeros)
        return ctx.add(ctx.add(x, weight), param)

    graph = graph_of(emit)
    assert {v.name: v.role.value for v in graph.values} == {
        "x": "input", "input": "state", "state": "param", "add.3": "tmp", "output": "output",
    }  # fmt: skip


@pytest.mark.spec("C2")
def test_a_value_knows_its_slot_its_producer_and_its_users():
    graph = graph_of(linear_relu)
    for i, value in enumerate(graph.values):
        assert value.vid == i
        assert value.users == [op for op in graph.ops if i in op.inputs]
        assert [value.producer] == ([op for op in graph.ops if i in op.outputs] or [None])


@pytest.mark.spec("C2")
def test_a_param_or_state_declares_its_first_value_and_names_are_unique():
    builder = Builder()
    with pytest.raises(VerifyError, match="param w declares no initial value"):
        builder.value("w", TensorSpec((2,)), Role.param)
    with pytest.raises(VerifyError, match="x has unbound dimensions"):
        builder.value("x", TensorSpec(("batch", 2)), Role.input)
    builder.value("x", TensorSpec((2,)), Role.input)
    with pytest.raises(VerifyError, match="two values are called 'x'"):
        builder.value("x", TensorSpec((2,)), Role.input)


@pytest.mark.spec("C2")
def test_updates_fit_what_they_update_and_come_once():
    builder = Builder()
    ctx = GraphEmitter(builder, "cpu")
    x, count = ctx.input("x", (2,)), ctx.state("count", (), 0.0)
    with pytest.raises(VerifyError, match="can't be updated"):
        ctx.update(x, ctx.relu(x))
    with pytest.raises(VerifyError, match="the update of count does not fit"):
        ctx.update(count, x)
    ctx.update(count, ctx.add(count, 1.0))
    with pytest.raises(VerifyError, match="count is updated twice"):
        ctx.update(count, ctx.add(count, 2.0))


def test_the_same_state_and_the_same_constant_are_one_value():
    builder = Builder()
    ctx = GraphEmitter(builder, "cpu")
    assert ctx.state("step", (), 0) is ctx.state("step", (), 5)
    assert ctx.constant(0.5) is ctx.constant(0.5)
    assert ctx.constant(0.5) is not ctx.constant(0.5, aicf.f16)
    assert ctx.constant(0.5).constant


# --- C3, C5: the call spec --------------------------------------------------------------------------------------------


@pytest.mark.spec("C3")
def test_the_emitter_fills_in_the_call_spec():
    for op in graph_of(linear_relu).ops:
        schema = schema_of(op.kind)
        assert op.kind_id == schema.kind.id
        assert op.attr_schema == schema.attr_schema
        assert AttrPack.from_blob(op.attr_blob) == schema.pack(op.attrs)
        assert set(op.attrs) == {a.name for a in schema.attrs}
    assert graph_of(linear_relu).ops[0].attrs["trans_b"] is True


@pytest.mark.spec("C5")
def test_a_lowered_op_has_the_call_spec_and_slot_numbers_alone():
    graph = graph_of(linear_relu)
    for op, low in zip(graph.ops, lower(graph), strict=True):
        assert low == LoweredOp(
            op.kind_id, op.attr_schema, op.attr_blob, op.inputs, op.outputs, op.constraints, op.oid, op.where
        )
        assert (low.kind.name, low.attrs) == (op.kind, schema_of(op.kind).pack(op.attrs))
    assert lower(graph)[2].constraints == {"alias": {0: (0, "may")}}
    assert lower(graph)[0].in_vids == (0, 1, -1, -1)


@pytest.mark.spec("C5")
@pytest.mark.parametrize("field", ["kind_id", "attr_schema", "attr_blob"])
def test_an_op_without_its_call_spec_is_named(field):
    graph = graph_of(linear_relu)
    setattr(graph.ops[1], field, None)
    with pytest.raises(
        CallSpecError, match=rf"op 1 \(%4 = bias_add\(%2, %3\)\) has no call spec: {field} not set"
    ):
        lower(graph)


@pytest.mark.spec("C3")
def test_another_version_of_the_attributes_is_refused():
    graph = graph_of(linear_relu)
    good = graph.ops[0].attr_schema
    graph.ops[0].attr_schema = good.replace("/v1:", "/v2:")
    with pytest.raises(CallSpecError, match="emitted for another version of gemm") as error:
        lower(graph)
    assert error.value.expected == good
    renamed = replace(schema_of("gemm"), attrs=schema_of("gemm").attrs[::-1])
    assert renamed.attr_schema != good, "another layout of the attributes has another name"


@pytest.mark.spec("C3")
@pytest.mark.parametrize("field", ["attrs", "attr_blob", "kind_id"])
def test_a_call_spec_that_disagrees_with_its_op_is_refused(field):
    graph = graph_of(linear_relu)
    op = graph.ops[0]
    other = dict(op.attrs) | {"trans_b": False}
    setattr(op, field, {"attrs": other, "attr_blob": schema_of("gemm").pack(other).blob, "kind_id": 1}[field])
    with pytest.raises(CallSpecError, match="says something else than its attributes"):
        lower(graph)


# --- optimize and verify ----------------------------------------------------------------------------------------------


@pytest.mark.spec("C4")
def test_optimize_drops_what_nothing_needs_and_keeps_slot_numbers():
    def emit(ctx, x):
        ctx.exp(ctx.tanh(x))
        count = ctx.state("count", (), 0.0)
        ctx.update(count, ctx.add(count, 1.0))
        return ctx.relu(x)

    graph = graph_of(emit)
    vids = [v.vid for v in graph.values]
    optimize(graph)
    assert sorted(op.kind for op in graph.ops) == ["add", "relu"]
    assert [v.vid for v in graph.values] == vids
    assert [op.kind for op in graph.values[0].users] == ["relu"]


@pytest.mark.spec("E3")
@pytest.mark.parametrize(
    "spec", [TensorSpec((3, 5)), TensorSpec((3, 4, 1)), TensorSpec((3, 4), aicf.f16)], ids=str
)
def test_verify_infers_again_and_compares(spec):
    graph = graph_of(lambda ctx, x: ctx.relu(ctx.tanh(x)))
    verify(graph)
    graph.values[graph.ops[0].outputs[0]].spec = spec
    with pytest.raises((VerifyError, TypeInferenceError), match="is not what infer says") as error:
        verify(graph)
    assert str(spec) in str(error.value)
    assert "tensor<3x4xf32>" in str(error.value)


@pytest.mark.spec("E6")
def test_a_given_type_needs_only_to_be_compatible():
    from aicf.graph.emit.passes import compatible

    known, dynamic = TensorSpec((3, 4)), TensorSpec(("n", 4))
    assert compatible(known, dynamic)
    assert compatible(dynamic, known)
    assert not compatible(dynamic, TensorSpec((3, 5)))
    assert not compatible(dynamic, TensorSpec((3, 4, 1)))
    assert not compatible(known, TensorSpec((3, 4), aicf.f16))


@pytest.mark.spec("E3")
def test_verify_wants_values_made_once_and_before_they_are_read():
    graph = graph_of(lambda ctx, x: ctx.relu(ctx.tanh(x)))
    graph.ops.reverse()
    with pytest.raises(VerifyError, match="reads %1 before it is made"):
        verify(graph)
    graph = graph_of(lambda ctx, x: ctx.relu(ctx.tanh(x)))
    graph.ops[1].outputs = graph.ops[0].outputs
    with pytest.raises(VerifyError, match="makes %1 again"):
        verify(graph)
    graph = graph_of(lambda ctx, x: ctx.relu(ctx.tanh(x)))
    del graph.ops[1]
    with pytest.raises(VerifyError, match="output output is never made"):
        verify(graph)


@pytest.mark.spec("C4")
def test_an_op_without_a_gradient_is_named_where_the_loss_depends_on_it():
    model = nn.Model({"x": TensorSpec((3, 4))}).add(nn.Linear(4, 2)).add(Fn(
        lambda ctx, x: ctx.relu_grad(x, x)
    ))  # fmt: skip
    with pytest.raises(TypeInferenceError, match="relu_grad has no gradient"):
        aicf.compile(model, "grad", device="cpu", loss=nn.MeanSquaredError())


def test_a_parameter_that_the_loss_does_not_reach_has_a_gradient_of_zeros():
    def emit(ctx, x):
        ctx.param("unused", (5,), nn.init.ones)
        return ctx.mul(x, ctx.param("w", (4,), nn.init.ones))

    program = aicf.compile(model_of(emit), "grad", device="cpu", loss=nn.MeanSquaredError())
    x = np.ones((3, 4), np.float32)
    got = program.run({"x": x, "y": 2 * x})
    np.testing.assert_array_equal(got["grad.0.unused"].numpy(), np.zeros(5))
    np.testing.assert_allclose(got["grad.0.w"].numpy(), -2 * 3 / 12)
