"""How tests of PTX intrinsics look at code, and run kernels: on a model of the machine, and on a GPU."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernel_cases import desc, region
from machines.hopper_model import Machine

from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.dsl import device as device_function
from aicf.cuda_kernels.dsl import uint32
from aicf.registry.variant import In, Launch, Num, Out, TensorMap
from aicf.rows import RegionSpec
from aicf.types import f16, f32, i32

ALL = bool(os.environ.get("AICF_TEST_ALL"))


def code(launch: Launch, r: RegionSpec, target: str = "sm_90a") -> str:
    """PTX of a kernel whose machine code is as it should be."""
    made = engine.compile_launch(launch, r, target)
    assert (made.spill_bytes, made.stack_bytes) == (0, 0), made.log
    assert not re.findall(r"C75(04|09|1[0-5])", made.log), made.log  # registers kept, serialized products
    return engine.ptx_of(launch, r, target)


def regions_of(operands: list[Any], result: Any) -> RegionSpec:
    """A region for launches that belong to no op: it has these operands and this result, however many operands there are."""
    count = len(operands)
    op = region("abs", desc((1,), f32)).anchor._replace(inputs=tuple(range(count)), outputs=(count,))
    return RegionSpec((op,), (*operands, result), op.inputs, op.outputs)


# Intrinsics by the instruction that each assembles to, and each as a device function of (a u32 address, a descriptor or a
# global address, an i32), which may return a number.
Instructions = dict[str, tuple[Any, Callable[[Any], Callable[..., Any]]]]


def groups(instructions: Instructions) -> list[tuple[str, ...]]:
    """A kernel's worth each: a few, or one."""
    texts, size = list(instructions), 1 if ALL else 8
    return [tuple(texts[i : i + size]) for i in range(0, len(texts), size)]


def assembles(
    instructions: Instructions, values: set[str], group: tuple[str, ...], target: str = "sm_90a"
) -> None:
    """Each of the group is in the code of a kernel that has them one after another; `values`: those that return a number."""
    run = device_function(lambda out, a, m, x: None)
    for i, text in enumerate(group):
        intrinsic, use = instructions[text]
        run = _then(run, device_function(use(intrinsic)), i, text in values)
    tensor_map = TensorMap(In(0), f16, (64, 64), 128, (64, 64))

    def kernel(out, m, x):
        run(out, uint32(x), m, x)

    kernel.blocks_per_sm = 1
    launch = Launch(kernel, (1,), (384,), (Out(0), tensor_map, Num(0, i32)))
    made = code(launch, region("abs", desc((len(group),), i32)), target)
    for text in group:
        assert made.count(text) >= sum(text in other for other in group), text


def _then(before: Any, call: Any, i: int, value: bool) -> Any:
    def run(out, a, m, x):
        before(out, a, m, x)
        call(a, m, x)

    def keep(out, a, m, x):
        before(out, a, m, x)
        out[i] = call(a, m, x)

    return device_function(keep if value else run)


class OnModel:
    def __call__(self, launch: Launch, r: RegionSpec, arrays: list[np.ndarray]) -> np.ndarray:
        out = np.zeros(r.results[0].numel, r.results[0].dtype.numpy)
        out.view(np.uint8)[...] = 0xFF
        Machine(random.randrange(2**32)).launch(launch, [x.reshape(-1) for x in arrays], [out])
        return out.reshape(r.results[0].shape)


class OnGpu:
    def __init__(self, device: Any) -> None:
        self.device = device

    def __call__(self, launch: Launch, r: RegionSpec, arrays: list[np.ndarray]) -> np.ndarray:
        device, t = self.device, r.results[0]
        if "sm_90a" not in device.spec.features:
            pytest.skip(f"needs sm_90a; this is {device.spec.target}")
        ins = [device.allocate(x.nbytes) for x in arrays]
        for pointer, x in zip(ins, arrays):
            device.upload(pointer, x)
        out = device.allocate(t.nbytes)
        device.upload(out, np.full(t.nbytes, 0xFF, np.uint8))
        engine.bind(engine.prepare(launch, r), device.stream, ins, [out])()
        device.stream.sync()
        return device.download(out, t.nbytes).view(t.dtype.numpy).reshape(t.shape)


PLACES = [
    "model",
    pytest.param("gpu", marks=pytest.mark.gpu),
]  # parameters of a fixture that calls `computer`


def computer(request: Any) -> Callable[..., np.ndarray]:
    """`compute(launch, region, arrays)`: the result, of memory that was all ones before."""
    return OnModel() if request.param == "model" else OnGpu(request.getfixturevalue("gpu"))
