"""Ops of other ops, called alone: the graph that stands in an op's place, on the host by its numbers, for a GPU by the kernels that it gets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ops import sampling

import aicf
from aicf.device.runtime import runtime
from aicf.device.spec import preset
from aicf.dispatch import default_registry
from aicf.errors import NoKernelError
from aicf.graph.composed import composed, planned
from aicf.graph.run.variables import Variables
from aicf.ops.schema import schemas
from aicf.registry.select import select
from aicf.rows import RegionSpec
from aicf.types import TensorDesc, TensorSpec, f32

COMPOSED = [s for s in schemas() if s.instead_fn is not None and s.origin == "aicf"]
CASES = [(s, sample) for s in COMPOSED for sample in s.sample_specs]
# of some types or forms a graph has the op itself, which has no kernel for a GPU
HOST_ONLY = {"convolution"}


def without_kernels(name):
    return not any(v.device == "cuda" for v in default_registry().variants(aicf.schema_of(name).kind))


@pytest.mark.sample(30)
@pytest.mark.parametrize("schema, sample", CASES, ids=sampling.name)
def test_a_graph_in_an_op_s_place_is_a_function_of_pointers(schema, sample):
    host = runtime("cpu")
    arrays = sampling.operands(schema, sample)
    specs = [sampling.spec(a) for a in arrays]
    attrs = schema.pack(schema.normalized(specs, sample["attrs"]))
    call, selection = composed(schema, sample["attrs"], specs, host, Variables(host, 0).of_program())
    want = schema.call_reference(arrays, attrs)
    results = [np.full(s.shape, 77).astype(s.dtype.numpy) for s in schema.infer(specs, attrs)]
    arena = np.empty(max(call.arena_bytes, 1) + 256, np.uint8)
    given = [np.ascontiguousarray(a) for a in arrays if a is not None]
    call([arena.ctypes.data, *(a.ctypes.data for a in (*given, *results))])
    assert selection.op == schema.name and selection.kernel_id
    for n, (got, expected, place) in enumerate(zip(results, want, call.places)):
        if place.base != 1 + len(given) + n:
            continue  # a view, which a call on CUDA copies
        np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=2e-5, atol=2e-5)


@pytest.mark.sample(30)
@pytest.mark.parametrize(
    "schema, sample", [c for c in CASES if without_kernels(c[0].name)], ids=sampling.name
)
def test_a_gpu_has_kernels_for_it(schema, sample):
    shapes = [None if a is None else sampling.spec(a) for a in sampling.operands(schema, sample)]
    specs = [None if s is None else TensorSpec(s.shape, s.dtype, "cuda") for s in shapes]
    if schema.name in HOST_ONLY and schema.instead_fn is not None:
        pytest.skip("a graph may have the op itself")
    made = planned(schema, sample["attrs"], specs, preset("h200"))
    assert all(region.kernel_id.startswith("cuda.") for region in made.regions)


ON_GPU = sampling.names_on("cuda")
OTHERS = sorted({s.name for s, _, _ in sampling.cases() if s.core != "collective"} - set(ON_GPU))


@pytest.mark.sample(40)
@pytest.mark.parametrize("op", [name for name in ON_GPU if aicf.schema_of(name).instead_fn is None])
def test_a_gpu_has_a_kernel_for_every_sample_and_type(op):
    """What tests on a GPU request of it, selected without one."""
    schema = aicf.schema_of(op)
    for sample in schema.sample_specs:
        for dtype in sampling.types_of(schema):
            chosen = select(region_of(schema, sample, dtype), preset("h200"), default_registry())
            assert chosen.kernel_id.startswith("cuda."), (op, sample, dtype)


def test_ops_without_a_kernel_for_a_gpu_are_named():
    assert OTHERS == ["ctc_loss", "ctc_loss_grad", "while_loop"]
    for op in OTHERS:
        schema = aicf.schema_of(op)
        for sample in schema.sample_specs:
            with pytest.raises(NoKernelError, match=f"no kernel takes {op}"):
                select(region_of(schema, sample, f32), preset("h200"), default_registry())


def region_of(schema, sample, dtype):
    """A sample's op alone, of dense tensors on a GPU."""
    specs = [
        s and replace(s, device="cuda") for s in map(sampling.spec, sampling.operands(schema, sample, dtype))
    ]
    attrs = schema.pack(schema.normalized(specs, sample["attrs"]))
    operands = [s and TensorDesc.dense(s) for s in specs]
    return RegionSpec.single(
        schema.kind, attrs, operands, list(map(TensorDesc.dense, schema.infer(specs, attrs)))
    )


def test_what_was_chosen_is_told():
    host = runtime("cpu")
    _, selection = composed(
        aicf.schema_of("reduce_var"),
        {"axes": (1,)},
        [TensorSpec((64, 32))],
        host,
        Variables(host, 0).of_program(),
    )
    assert (
        "reduce_var is made of other ops: " in str(selection)
        and selection.kernel_id in selection.to_json()["kernels"]
    )
