"""How far products may round their operands: said once for a model, kept by gradients, shown, and allowed for (D10)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import aicf
from aicf import Precision, nn
from aicf.errors import VerifyError
from aicf.graph.tune.verify import Trial
from aicf.ops.gemm import round_tf32
from aicf.ops.schema import schema_of
from aicf.rows import RegionSpec
from aicf.types import TensorDesc, TensorSpec, f8e4m3, f32


def model() -> nn.Model:
    layers = nn.Model({"x": TensorSpec(("batch", 64))}, batch=32)
    return layers.add(nn.Linear(64, 96)).add(nn.ReLU()).add(nn.Linear(96, 10))


def products(explanation):
    return [op for r in explanation.regions for op in r.spec.ops if op.kind.name == "gemm"]


@pytest.mark.sample(2)
@pytest.mark.spec("D10")
@pytest.mark.parametrize("precision", ["exact", "tf32x3", "tf32", Precision.tf32])
def test_every_product_of_a_model_has_its_policy_and_the_trace_says_so(precision):
    explanation = aicf.explain_for(
        model(), "h200", "grad", loss=nn.SoftmaxCrossEntropy(), precision=precision
    )
    wanted = Precision[precision] if isinstance(precision, str) else precision
    made = products(explanation)
    assert len(made) == 5 and {op.attrs["precision"] for op in made} == {wanted}
    assert (f"precision {wanted.name}" in str(explanation.verbose())) == (wanted is not Precision.exact)


@pytest.mark.spec("D10")
def test_an_op_that_is_told_its_own_keeps_it():
    class Exact(nn.Layer):
        def emit(self, ctx, x):
            w = ctx.param("w", (64, 8), nn.init.zeros)
            return ctx.gemm(ctx.gemm(x, w, precision=Precision.exact), w, trans_b=True)

    net = nn.Model({"x": TensorSpec(("batch", 64))}, batch=4).add(Exact())
    made = products(aicf.explain_for(net, "h200", precision="tf32"))
    assert [op.attrs["precision"] for op in made] == [Precision.exact, Precision.tf32]


@pytest.mark.spec("D10")
@pytest.mark.parametrize("wrong", ["TF32", "fp8", 3, None, True, ["tf32"]])
def test_an_unknown_precision_is_refused_with_those_there_are(wrong):
    with pytest.raises(VerifyError, match=r"precision .* is unknown\n *expected: exact, tf32x3, tf32"):
        aicf.compile(model(), device="cpu", precision=wrong)


def region(precision: Precision) -> RegionSpec:
    schema = schema_of("gemm")
    specs = [TensorSpec((40, 200)), TensorSpec((200, 30)), None, None]
    attrs = schema.pack(schema.normalized(specs, {"precision": int(precision)}))
    descs = [s and TensorDesc.dense(s) for s in specs]
    return RegionSpec.single(schema.kind, attrs, descs, [TensorDesc.dense(TensorSpec((40, 30)))])


@pytest.mark.spec("D10", "A7")
@pytest.mark.parametrize("precision", Precision, ids=lambda p: p.name)
def test_a_kernel_that_rounds_operands_is_right_where_it_may_only(precision):
    trial = Trial.draw(region(precision), np.random.default_rng())
    a, b = trial.operands
    exact, rounded = a @ b, round_tf32(a) @ round_tf32(b)
    assert trial.fault([exact]) is None
    assert (trial.fault([rounded]) is None) == (precision is Precision.tf32)


@pytest.mark.spec("D10", "A7")
def test_tensor_cores_may_cut_off_sums_of_fp8_unless_numerics_are_strict():
    schema, kind = schema_of("gemm"), f8e4m3
    specs = [TensorSpec((40, 200), kind), TensorSpec((200, 30), kind), None, None]
    attrs = schema.pack(schema.normalized(specs, {"out_dtype": f32.id}))
    descs = [s and TensorDesc.dense(s) for s in specs]
    loose = RegionSpec.single(schema.kind, attrs, descs, [TensorDesc.dense(TensorSpec((40, 30)))])
    for r, bits, right in ((loose, 10, True), (loose, 6, False), (replace(loose, strict=True), 10, False)):
        trial = Trial.draw(r, np.random.default_rng())
        a, b = (x.astype(np.float32) for x in trial.operands)
        assert (trial.fault([a @ b * np.float32(1 + 2.0**-bits)]) is None) == right


@pytest.mark.spec("D10")
def test_tf32_has_ten_bits_of_mantissa_and_ties_go_away_from_zero():
    one = np.float32(1)
    x = np.array(
        [one, 1 + 2**-10, 1 + 2**-11, -1 - 2**-11, 1 + 2**-12, np.nan, np.inf, -0.0, 3e38], np.float32
    )
    got = round_tf32(x)
    assert np.array_equal(got[:5], np.float32([1, 1 + 2**-10, 1 + 2**-10, -1 - 2**-10, 1]))
    assert np.isnan(got[5]) and got[6] == np.inf and np.signbit(got[7]) and np.isfinite(got[8])
    values = np.random.default_rng().standard_normal(1000, np.float32)
    assert np.all(np.abs(round_tf32(values) - values) <= np.abs(values) * 2**-11)
    assert round_tf32(values).dtype == f32.numpy
