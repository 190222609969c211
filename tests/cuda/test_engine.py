"""The door to numba: typed scalar functions, signatures, compiling, errors. Needs no GPU."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kernel_cases import VARIANTS, desc, gemm, region

import aicf
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.compiler.compile import numba_signature
from aicf.cuda_kernels.dsl import with_functions
from aicf.device.spec import preset
from aicf.errors import DeviceError, KernelCompileError
from aicf.ops.scalar import bound_scalar, typed_scalar
from aicf.ops.schema import schema_of
from aicf.registry.variant import In, Launch, Num, Out, Work
from aicf.rows.program import Expression
from aicf.types import ActKind, AttrPack, DType, bf16, f16, f32, i32, i64

H200 = preset("h200")
ADD = region("add", (8,), (8,))


def python(code: str) -> str:
    """Run code in a fresh interpreter that finds aicf, this folder and the one above."""
    paths = [
        str(Path(aicf.__file__).parents[1]),
        *map(str, Path(__file__).parents[:2]),
        os.environ.get("PYTHONPATH", ""),
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- scalar functions -------------------------------------------------------------------------------------------------

HALF = 0.5


def shifted(x, *, by: float = 0.25, flag: bool = False):
    return x * 2 + by if flag else x * HALF


def test_literals_globals_and_attributes_have_the_compute_type():
    typed, constants = typed_scalar(shifted, f32, {"by": 3.0, "flag": True})
    assert constants == (3.0, True) and [type(c) for c in constants] == [np.float32, bool]
    assert {type(c) for c in typed.__code__.co_consts if c is not None} == {np.float32}
    assert type(typed.__globals__["HALF"]) is np.float32
    x = np.float32(1.5)
    assert typed(x, *constants) == 6.0 and type(typed(x, *constants)) is np.float32
    assert shifted(1.5, by=3.0, flag=True) == 6.0  # the function itself is as it was


def test_equal_requests_give_the_identical_function():
    scale = schema_of("scale")
    one = bound_scalar(scale, f32, AttrPack({"factor": 1.0}), (f32,))
    assert one is bound_scalar(scale, f32, AttrPack({"factor": 1.0}), (f32,))
    assert one is not bound_scalar(scale, f32, AttrPack({"factor": 2.0}), (f32,))
    assert one is not bound_scalar(scale, i32, AttrPack({"factor": 1.0}), (f32,))


def test_an_untyped_literal_would_compute_in_f64():
    """What typed_scalar is for: without it this kernel multiplies in f64, with it it does not."""
    from aicf.cuda_kernels.maps.elementwise_body import strided

    def tenth(x):
        return x * 0.1

    relu = region("relu", (8,))
    for function, wide in ((tenth, True), (typed_scalar(tenth, f32)[0], False)):
        expr = Expression("tenth", ((function, (0,), (1,)),), (f32, f32), frozenset(), 1, (1,))
        body = strided("tenth", expr, (f32,), (f32,), (((1,), 0),), True)
        launch = Launch(body, (1,), (256,), ((In(0),), (Out(0),), (), (), Num(8)))
        assert ("mul.f64" in engine.ptx_of(launch, relu, "sm_80")) is wide


def test_float_of_an_integer_is_of_the_compute_type():
    step = region("adam_correction", desc((), i64), (), ())
    (launch,) = VARIANTS["cuda.elementwise_flat.v1"].build(step, H200)
    assert ".f64" not in engine.ptx_of(launch, step, "sm_90a")


# --- compiling --------------------------------------------------------------------------------------------------------


def logistic2(x):
    return -x


def test_functions_are_replaced_in_math_and_in_ops_only():
    """A function of someone else's that is called as one of ours stays."""
    twos = {"tanh": lambda x: 2.0, "logistic2": lambda *given: 2.0}
    assert with_functions(schema_of("tanh").scalar, twos)(3.0) == 2.0
    assert with_functions(schema_of("gelu").scalar, twos)(3.0) == 6.0
    assert with_functions(lambda x: logistic2(x), twos)(3.0) == -3.0


def test_the_signature_follows_the_arguments():
    from numba.cuda import types

    def body(*args):
        pass

    mixed = region("select", desc((8,), DType.bool), desc((8,), bf16), desc((8,), bf16))
    args = (In(0), (In(1), Out(0)), Work(16, i32), Num(2), Num(0.5, f32), (Num(1, i32), Num(1, i64)), ())
    signature = engine.signature_of(Launch(body, (1,), (32,), args), mixed)
    assert signature == (
        "*boolean",
        ("*uint16", "*uint16"),
        "*int32",
        "int64",
        "float32",
        ("int32", "int64"),
        (),
    )
    bits = types.CPointer(types.uint16)
    assert numba_signature(signature).args == (
        types.CPointer(types.boolean), types.UniTuple(bits, 2), types.CPointer(types.int32), types.int64, types.float32,
        types.Tuple((types.int32, types.int64)), types.Tuple(()),
    )  # fmt: skip


def test_compiling_is_cached_by_body_types_target_and_block():
    (launch,) = VARIANTS["cuda.elementwise_flat.v1"].build(ADD, H200)
    (again,) = VARIANTS["cuda.elementwise_flat.v1"].build(region("add", (900,), (900,)), H200)
    compiled = engine.compile_launch(launch, ADD, "sm_90a")
    assert engine.compile_launch(again, ADD, "sm_90a") is compiled  # another size, the same kernel
    assert engine.compile_launch(launch, ADD, "sm_80") is not compiled
    assert (compiled.name, compiled.target) == ("aicf_elementwise_flat1_add", "sm_90a")
    assert compiled.cubin[:4] == b"\x7fELF" and "aicf_elementwise_flat1_add" in compiled.log


@pytest.mark.spec("F2")
def test_a_tile_reports_its_shared_memory_and_barrier():
    r = gemm(64, 64, 64, act=ActKind.relu)
    (launch,) = VARIANTS["cuda.gemm_tiled.v1[128x128]"].build(r, H200)
    compiled = engine.compile_launch(launch, r, "sm_90a")
    assert compiled.shared_bytes == 2 * 2 * 8 * (128 + 4) * 4
    assert compiled.barriers == 1 and 0 < compiled.registers <= 128  # two blocks per multiprocessor


def test_a_kernel_that_does_not_compile_is_named():
    def broken_kernel(x, n):
        x[0] = n.no_such_thing

    launch = Launch(broken_kernel, (1,), (32,), (Out(0), Num(1)))
    with pytest.raises(
        KernelCompileError, match=r"kernel cuda\.broken\.v1 did not compile for sm_90a"
    ) as caught:
        engine.compile_launch(launch, ADD, "sm_90a", "cuda.broken.v1")
    text = str(caught.value)
    for part in ("aicf_broken_kernel", "no_such_thing", "add(f32[8], f32[8])", "next: mend that line"):
        assert part in text


DIGEST = """
import hashlib
from aicf.cuda_kernels.compiler import engine
from aicf.device.spec import preset
from kernel_cases import VARIANTS, gemm
r = gemm(64, 64, 64, bias=64, act=3)
(launch,) = VARIANTS["cuda.gemm_tiled.v1[32x32]"].build(r, preset("h200"))
print(hashlib.sha256(engine.compile_launch(launch, r, "sm_90a").cubin).hexdigest())
"""


def test_a_cubin_is_the_same_in_every_process():
    """Even when another kernel was compiled before it: numba's mangled names hold a counter, ours do not."""
    x, r = region("relu", (8,)), gemm(64, 64, 64, bias=64, act=3)
    engine.compile_launch(VARIANTS["cuda.elementwise_flat.v1"].build(x, H200)[0], x, "sm_90a")
    (launch,) = VARIANTS["cuda.gemm_tiled.v1[32x32]"].build(r, H200)
    here = hashlib.sha256(engine.compile_launch(launch, r, "sm_90a").cubin).hexdigest()
    assert python(DIGEST) == here


@pytest.mark.spec("F6")
def test_choosing_predicting_building_and_explaining_need_no_numba():
    code = """
import os, sys
from draws.seeds import rng
from kernel_cases import FIRST, MORE, VARIANTS
from aicf.device.spec import preset
cases = [*FIRST, *MORE]
for case in cases if os.environ.get("AICF_TEST_ALL") else [cases[i] for i in rng("no numba").permutation(len(cases))[::12]]:
    variant = VARIANTS[case.variant]
    assert variant.supported(case.region, preset("h200")) is None
    assert variant.cost(case.region, preset("h200")).us > 0
    variant.query_workspace(case.region, preset("h200"))
    assert variant.build(case.region, preset("h200")) or not case.region.results[0].numel
import aicf.cuda_kernels.compiler.engine
from aicf import nn
model = nn.Model({"x": aicf.TensorSpec((8, 8))}).add(nn.Linear(8, 8)).add(nn.GELU())
explained = aicf.explain_for(model, preset("h200"), "train", loss=nn.MeanSquaredError(), optimizer=nn.Adam())
assert "adam_step" in str(explained)
print([name for name in sys.modules if name.split(".")[0] in ("numba", "llvmlite", "cuda", "torch", "jax")])
"""
    assert python(code) == "[]"


# --- launching --------------------------------------------------------------------------------------------------------


def test_without_a_driver_the_device_is_missed_by_name():
    from aicf.device.runtime import cuda_missing

    if cuda_missing() is None:
        pytest.skip("there is a GPU")
    (launch,) = VARIANTS["cuda.elementwise_flat.v1"].build(ADD, H200)
    with pytest.raises(DeviceError, match="no usable CUDA device"):
        engine.prepare(launch, ADD)


def test_arguments_are_packed_in_order_and_typed():
    args = ((In(1), Out(0)), Work(512, f16), Num(3), Num(0.5, f32), ((Num(1, i32),), ()))
    packed = engine.Start(None, None, *engine.parameters(args)).packed([10, 20], [30], 1000)
    assert packed == [20, 30, 1512, 3, 0.5, 1]
    assert [type(p) for p in packed] == [int, int, int, np.int64, np.float32, np.int32]
