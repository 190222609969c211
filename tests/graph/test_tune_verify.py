"""Verification (A7): a kernel is run on poisoned results and compared with the references before it is timed."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from draws.seeds import rng
from ops import sampling
from registry.synthetic import kernel, region, registry_of

from aicf.graph.tune.verify import Trial
from aicf.ops.schema import DISCONTINUOUS, schema_of
from aicf.rows import RegionSpec
from aicf.types import DType, OpKind, TensorDesc
from examples import EVERYTHING

from .tuning_support import RELU, error, nan, spoiled, tuned

# --- verification -------------------------------------------------------------------------------------------------------


def last_element(operands, results):
    results[0].reshape(-1)[-1] += 1e-2


def unwritten(operands, results):
    results[0].view(np.uint32).reshape(-1)[-1] = 0xFFFFFFFF  # what was there before: poison


def behind(operands, results):
    beyond = np.lib.stride_tricks.as_strided(results[0].reshape(-1), (results[0].size + 1,))
    beyond[-1] = 1.0


def before(operands, results):
    np.frombuffer((np.ctypeslib.ctypes.c_char * 4).from_address(results[0].ctypes.data - 4), np.float32)[
        0
    ] = 1.0


def operand(operands, results):
    operands[0].flags.writeable = True
    operands[0].reshape(-1)[0] += 1


WRONG = {
    last_element: "1 of 231 elements of result 0 are wrong, the first at (32, 6)",
    unwritten: "the first at (32, 6): nan",
    nan: "1 of 231 elements of result 0 are wrong, the first at (0, 3): nan",
    behind: "it writes outside of its results",
    before: "it writes outside of its results",
    operand: "it changes operand 0",
    error: "ZeroDivisionError: of all things",
}


@pytest.mark.spec("A7", "B13")
@pytest.mark.parametrize("spoil", WRONG, ids=lambda f: f.__name__)
def test_a_wrong_kernel_is_reported_never_timed_and_never_chosen(spoil, caplog):
    registry = registry_of(kernel("cpu.right.v1", us=5.0), spoiled("cpu.wrong.v1", spoil, us=1.0))
    report = tuned(registry, RELU)
    assert (RELU.key, "cpu.wrong.v1") not in report.tuning
    assert report.before.plan[0].kernel_id == "cpu.wrong.v1"
    assert report.after.plan[0].kernel_id == "cpu.right.v1"
    ((_, id, why),) = report.failures
    assert id == "cpu.wrong.v1" and WRONG[spoil] in why
    assert "WRONG" in str(report) and report.to_json()["wrong"][0]["kernel"] == "cpu.wrong.v1"
    with caplog.at_level(logging.WARNING, "aicf.tune"):
        assert report.usable() is report.tuning
    assert "cpu.wrong.v1 is WRONG on relu" in caplog.text


@pytest.mark.spec("A7")
def test_where_every_kernel_fails_nothing_is_remembered_against_them():
    """It is more likely the machine, or the reference: a file must not make a model impossible."""
    registry = registry_of(spoiled("cpu.a.v1", error), spoiled("cpu.b.v1", nan))
    report = tuned(registry, RELU)
    assert not report.tuning
    ((skipped, why),) = report.skipped
    assert skipped == RELU and "cpu.a.v1: ZeroDivisionError" in why and "cpu.b.v1: 1 of 231" in why
    assert report.after.plan[0].kernel_id == "cpu.a.v1"


@pytest.mark.spec("A7")
@pytest.mark.parametrize("dtype", [DType.f32, DType.f16, DType.bf16, DType.i32, DType.bool], ids=str)
def test_each_single_wrong_element_is_found_in_every_type(dtype):
    kind = "equal" if dtype is DType.bool else "mul"
    shapes = [(5, 9)] * 2
    r = region(kind, *shapes, dtype="f32" if dtype is DType.bool else dtype)
    rng = np.random.default_rng()
    trial = Trial.draw(r, rng)
    assert trial.fault(trial.apart) is None
    for n in range(45):
        got = trial.apart[0].copy()
        if dtype is DType.bool:
            got.view(np.uint8).reshape(-1)[n] ^= rng.choice([1, 2, 255])
        else:
            value = got.reshape(-1)[n].astype(np.float64)
            got.reshape(-1)[n] = value + max(0.2 * abs(value), 1)
        assert trial.fault([got]), n


CASES = [
    (schema, sample, dtype) for schema, sample, dtype in sampling.cases() if schema.reference_fn is not None
]


@pytest.mark.spec("A7")
def test_honest_arithmetic_of_every_op_in_every_type_passes(request):
    """The reference in the tensors' own types is right; the same with one element off is not, where a result is smooth."""
    draw, checked = rng(request.node.nodeid), 0
    some = draw.permutation(len(CASES))[:: 1 if EVERYTHING else 3]
    for schema, sample, dtype in [CASES[i] for i in some]:
        r = region_of(schema, sample, dtype)
        if not any(t.numel for t in r.results):
            continue
        trial = Trial.draw(r, draw)
        assert trial.fault(trial.apart) is None, (schema.name, sample, dtype)
        assert trial.fault([e.astype(t.dtype.numpy) for e, t in zip(trial.exact, r.results)]) is None, (
            schema.name
        )
        if DISCONTINUOUS not in schema.traits and r.results[0].dtype is DType.f32 and r.results[0].numel:
            off = np.array(np.nan_to_num(trial.apart[0]), order="C")  # so that reshape is no copy
            off.reshape(-1)[draw.integers(off.size)] += 0.02 * (1 + np.abs(off).max())
            assert trial.fault([off, *trial.apart[1:]]), (schema.name, sample)
            checked += 1
    assert checked > len(some) // 40


def region_of(schema, sample, dtype) -> RegionSpec:
    arrays = sampling.operands(schema, sample, dtype)
    specs = [sampling.spec(a) for a in arrays]
    pack = sampling.packed(schema, arrays, sample["attrs"])
    descs = [None if s is None else TensorDesc.dense(s) for s in specs]
    return RegionSpec.single(
        schema.kind, pack, descs, [TensorDesc.dense(s) for s in schema.infer(specs, pack)]
    )


@pytest.mark.spec("A7")
def test_a_result_that_jumps_may_be_right_in_another_draw():
    """x > y may turn out the other way for a rounding error; a kernel that is wrong is so in every draw."""
    once = iter([True])

    def flips(operands, results):
        if next(once, False):
            results[0][2] = not results[0][2]

    def inverts(operands, results):
        results[0][2] = not results[0][2]

    r = region("greater", (40,), (40,))
    registry = registry_of(spoiled("cpu.flips.v1", flips), spoiled("cpu.inverts.v1", inverts, us=0.5))
    report = tuned(registry, r)
    assert report.after.plan[0].kernel_id == "cpu.flips.v1"
    assert [id for _, id, _ in report.failures] == ["cpu.inverts.v1"]


def test_operands_come_from_the_domains_of_the_ops_that_read_them():
    labels = TensorDesc(DType.i64, (50,), (1,))
    logits, loss = TensorDesc(DType.f32, (50, 3), (3, 1)), TensorDesc(DType.f32, (50,), (1,))
    kind = OpKind("cross_entropy")
    trial = Trial.draw(
        RegionSpec.single(kind, schema_of(kind).pack({}), [logits, labels], [loss]), np.random.default_rng()
    )
    assert set(trial.operands[1]) == {0, 1, 2}
    assert np.isfinite(trial.exact[0]).all()
