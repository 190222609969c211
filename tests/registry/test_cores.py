"""A core that aicf has never heard of: declared beside its op, with maps fused around it by kernels that take them."""

from functools import cache

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.errors import RegistryError
from aicf.ops import record
from aicf.ops.schema import Float, op, require
from aicf.registry.cost import roofline
from aicf.registry.variant import HostCall, Reject, variant
from aicf.rows.cores import Core, declare, undeclare
from aicf.rows.program import CoreOp
from aicf.rows.read import read
from aicf.types import TensorDesc, TensorSpec

SHAPE = (5, 33)


@variant("map", "sums", id="cpu.scan_rows.v1", takes=("sums", "map+sums", "sums+map", "map+sums+map"))
class ScanRows:
    """Blocks of rows through the maps; NumPy adds up."""

    def accepts(region):
        program = read(region)
        yield program if isinstance(program, Reject) else None
        axis = program.core.attrs["axis"]
        if axis not in (-1, len(program.before.shape) - 1):
            yield Reject("axis", f"axis {axis} of {program.before.shape}: adds up along the last one")

    def cost(region, device):
        return roofline(device, bytes=region.nbytes, flops=region.results[0].numel)

    def build(region, device):
        from aicf.cpu_kernels.compiler.loops import MapLoop

        program = read(region)
        before, after = program.before, program.after
        number = before.dtypes[before.core_input].compute
        wide = TensorDesc.dense(TensorSpec(before.shape, number, "cpu"))
        feed = before.with_core_input_stored(len(region.results))
        first = MapLoop(feed, region.operands, (*region.results, wide))
        last = MapLoop(after, region.operands, region.results)

        def bind(operands, results):
            given, sums = (np.empty(before.shape, number.numpy) for _ in range(2))
            feed, finish = first.bind(operands, [*results, given]), last.bind(operands, results)

            def run():
                feed()
                np.cumsum(given, -1, out=sums)
                finish(sums)

            return run

        return HostCall.binding(bind)


@variant("sums", id="cpu.scan_alone.v1")
class ScanAlone:
    """One op; a kernel that knows nothing of maps."""

    def accepts(region):
        yield None

    def cost(region, device):
        return roofline(device, bytes=region.nbytes, flops=region.results[0].numel).plus(call=1.0)

    def build(region, device):
        axis = region.attrs["axis"]

        def run(ins, outs):
            sums = np.cumsum(ins[0].astype(np.float32), axis)
            np.copyto(outs[0], sums, casting="unsafe")

        return HostCall(run)


@pytest.fixture
def scan():
    """An op that is neither product nor reduction, and its core, for one test."""

    @op("running_sum", core="sums")
    def running_sum(x: Float, *, axis: int = -1):
        """y[..., i] = x[..., 0] + ... + x[..., i].

        C1  axis is one of x
        """
        require(-x.rank <= axis < x.rank, "C1", f"axis {axis} of rank {x.rank}")
        return x

    @running_sum.reference
    def _(x, axis):
        return np.cumsum(x, axis)

    core = declare(Core("sums", prologue=0, epilogue=True))
    yield core
    undeclare("sums")
    record.unregister("running_sum")


class Scanned(nn.Layer):
    """relu(2 * x) summed up as it goes, then tanh of that plus a bias."""

    def __init__(self, axis=-1):
        self.axis = axis

    def emit(self, ctx, x):
        y = ctx.op("running_sum", ctx.relu(ctx.scale(x, factor=2.0)), axis=self.axis)
        return ctx.tanh(ctx.bias_add(y, ctx.param("b", SHAPE[1:], nn.init.uniform(-1.0, 1.0))))


def model(axis=-1, dtype=aicf.f32):
    return nn.Model({"x": aicf.TensorSpec(("batch", SHAPE[1]), dtype)}, batch=SHAPE[0]).add(Scanned(axis))


def registry(*variants):
    found = aicf.default_registry().copy()
    for added in variants:
        found.add(added)
    return found


@cache
def both():
    return registry(ScanRows, ScanAlone)


WHOLE = "scale + relu + running_sum + bias_add + tanh"


def expected(x, bias):
    wide = np.maximum(2.0 * x.astype(np.float64), 0.0)
    return np.tanh(np.cumsum(wide, -1) + bias)


def explained(known, **more):
    return aicf.explain_for(model(**more), preset("cpu"), registry=known).to_json()["regions"]


def run(dtype=aicf.f32, **more):
    x = np.random.default_rng(5).normal(size=SHAPE).astype(dtype.numpy)
    made = model(dtype=dtype)
    program = aicf.compile(made, device="cpu", **more)
    (bias,) = [v for v in program.state_dict().values() if v.shape == SHAPE[1:]]
    return program, program({"x": x})["output"].numpy(), expected(x, bias)


@pytest.mark.spec("A12", "B11")
def test_maps_fuse_around_a_core_that_is_declared(scan):
    program, got, want = run(registry=both())
    assert program.executed == ["cpu.scan_rows.v1"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    (told,) = program.explain().to_json()["regions"]
    assert (told["region"], told["chosen"]) == (WHOLE, "cpu.scan_rows.v1")
    refused = {r["id"]: r["reason"] for r in told["rejected"]}
    assert refused["cpu.elementwise_loop.v2"] == "takes map, this is map+sums+map"
    assert refused["cpu.reduce_loop.v1"] == "takes map+reduce+map, this is map+sums+map"
    states = {step["op"]: step["changed"] for step in told["steps"]}
    assert states["running_sum"]["slot"] == "map+sums" and states["running_sum"]["core"] == "running_sum"
    assert states["bias_add"]["slot"] == "map+sums+map"
    assert states["running_sum"]["domain"] == "(5, 33) after the core"


def test_the_region_reads_as_maps_around_the_op(scan):
    (region,) = [s.region for s in run(registry=both())[0].plan.steps]
    program = read(region)
    assert isinstance(program.core, CoreOp)
    assert (program.core.kind.name, program.core.operands, program.core.results) == (
        "running_sum",
        (None,),
        (),
    )
    assert [a.kind.name for a in program.before.applies] == ["scale", "relu"]
    assert [a.kind.name for a in program.after.applies] == ["bias_add", "tanh"]


@pytest.mark.parametrize("dtype", [aicf.f32, aicf.bf16])
def test_strict_gives_the_bits_of_unfused_kernels(scan, dtype):
    program, fused, _ = run(dtype, registry=both(), numerics="strict")
    assert program.executed == ["cpu.scan_rows.v1"]
    ops, alone, _ = run(dtype, registry=registry(ScanAlone), numerics="strict")
    assert "cpu.scan_alone.v1" in ops.executed and len(ops.executed) == 3
    assert fused.tobytes() == alone.tobytes()


def test_without_a_kernel_that_takes_the_maps_regions_end_with_the_reason(scan):
    first, middle, last = explained(registry(ScanAlone))
    assert [r["region"] for r in (first, middle, last)] == ["scale + relu", "running_sum", "bias_add + tanh"]
    ended = first["ended"]
    assert (ended["row"], ended["left"], ended["right"]) == ("slot", "map", "map+sums")
    assert "elementwise_loop: takes map, this is map+sums" in ended["detail"]
    ended = middle["ended"]
    assert (ended["row"], ended["left"], ended["right"]) == ("slot", "sums", "sums+map")
    assert "takes one op, got 2 (running_sum + bias_add)" in ended["detail"]


def test_a_kernel_says_why_it_does_not_take_this_one(scan):
    _, middle, _ = explained(both(), axis=0)
    assert middle["chosen"] == "cpu.scan_alone.v1"
    reason = "axis 0 of (5, 33): adds up along the last one"
    assert {"id": "cpu.scan_rows.v1", "condition": "axis", "reason": reason, "origin": "aicf"} in middle[
        "rejected"
    ]


def reasons():
    """Why maps before and behind the op don't read as one region with it, "" if they do."""
    (step,) = aicf.explain_for(model(), preset("cpu"), registry=registry(TakesAll)).plan.steps
    known, ops = step.region, step.region.ops
    assert known.signature == WHOLE

    def told(ops):
        made = [t for op in ops for t in op.outputs]
        ins = tuple(dict.fromkeys(t for op in ops for t in op.inputs if t not in made))
        program = read(aicf.rows.RegionSpec(ops, known.tensors, ins, (made[-1],)))
        return program.reason if isinstance(program, Reject) else ""

    return told(ops[:3]), told(ops[2:])


@variant("*", id="cpu.takes_all.v1")
class TakesAll:
    """Whatever comes, for nothing."""

    def accepts(region):
        yield None

    viable = accepts

    def cost(region, device):
        return roofline(device, bytes=0)

    def build(region, device):
        return HostCall(lambda ins, outs: None)


@pytest.mark.parametrize("core, before, behind", [
    (None, "running_sum has a kernel of its own", "running_sum has a kernel of its own"),
    (Core("sums"), "scale comes before running_sum", "bias_add comes after running_sum"),
    (Core("sums", prologue=0), "", "bias_add comes after running_sum"),
    (Core("sums", epilogue=True, said="the sums"), "scale comes before the sums", ""),
    (Core("sums", prologue=0, epilogue=True), "", ""),
])  # fmt: skip
def test_what_stands_around_a_core_is_what_it_declares(scan, core, before, behind):
    undeclare("sums")
    if core is not None:
        declare(core)
    assert reasons() == (before, behind)


def test_a_core_is_declared_once(scan):
    assert declare(Core("sums", prologue=0, epilogue=True)) == scan
    with pytest.raises(RegistryError, match="core 'sums' is already declared"):
        declare(Core("sums"))
