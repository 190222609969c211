"""Errors in a kernel's own Python name the kernel, the file and the line, on both devices (E6)."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest
from kernel_cases import region

import aicf
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.dsl import cuda, device, float32
from aicf.device.spec import preset
from aicf.errors import KernelCompileError, KernelError
from aicf.registry.blame import built, check_arguments
from aicf.registry.cost import roofline
from aicf.registry.variant import HostCall, In, Launch, Num, Out, variant

RELU = region("relu", (8,))
GOOD = In(0), Out(0), Num(8)


def unknown_name(x, y, n):
    i = cuda.grid(1)
    y[i] = x[i] * not_there  # noqa: F821  here


def unknown_attribute(x, y, n):
    i = cuda.gridd(1)  # here
    y[i] = x[i]


@device
def helper(v):
    return v * missing_factor  # noqa: F821  here


def in_a_helper(x, y, n):
    i = cuda.grid(1)
    y[i] = helper(x[i])


def right(x, y, n):  # here
    i = cuda.grid(1)
    y[i] = x[i] * float32(2)


def adds_pointers(x, y, n):  # here
    z = x + y
    y[0] = z


def line_of(function) -> int:
    """Of the comment `here`."""
    lines, first = inspect.getsourcelines(function)
    return first + next(n for n, line in enumerate(lines) if line.rstrip().endswith("here"))


WRONG_BODIES = {
    "a name": (unknown_name, unknown_name, "there is no 'not_there'"),
    "an attribute": (unknown_attribute, unknown_attribute, "there is no 'gridd'"),
    "in a device function": (in_a_helper, helper.args[0], "there is no 'missing_factor'"),
    "types": (adds_pointers, adds_pointers, "TypingError"),
}


@pytest.mark.parametrize("case", WRONG_BODIES)
def test_a_body_that_does_not_compile(case):
    body, blamed, said = WRONG_BODIES[case]
    with pytest.raises(KernelCompileError) as caught:
        engine.compile_launch(Launch(body, (1,), (32,), GOOD), RELU, "sm_75", "cuda.mine.v1")
    text = str(caught.value)
    assert text.startswith("kernel cuda.mine.v1 did not compile for sm_75\n")
    assert f"got: {said}" in text and "relu(f32[8]) -> f32[8]" in text
    assert f"at: {__file__}:{line_of(blamed)}" in text, text
    assert len(text.splitlines()) < 20, "numba's lists are cut"


WRONG_LAUNCHES = {
    "a result too many": ((In(0), Out(3), Num(8)), r"argument 1 is Out\(index=3, offset=0\): the region has 1 results, counted from 0"),
    "no such operand": ((In(5), Out(0), Num(8)), r"argument 0 is In\(index=5, offset=0\): the region has 1 operands"),
    "counted from behind": ((In(-1), Out(0), Num(8)), r"argument 0 is In\(index=-1, offset=0\)"),
    "within a tuple": (((In(0), In(2)), Out(0), Num(8)), r"argument 0\[1\] is In\(index=2, offset=0\)"),
    "one missing": ((In(0), Out(0)), r"it is launched with 2 arguments, and takes 3: x, y, n"),
    "one too many": ((*GOOD, Num(1)), r"it is launched with 4 arguments, and takes 3: x, y, n"),
    "a bare number": ((In(0), Out(0), 8), r"argument 2 is 8: expected In\(i\), Out\(i\), Num\(x\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_LAUNCHES)
def test_a_launch_whose_arguments_do_not_fit(case):
    args, said = WRONG_LAUNCHES[case]
    with pytest.raises(KernelCompileError, match=rf"kernel cuda.mine.v1: {said}") as caught:
        engine.compile_launch(Launch(right, (1,), (32,), args), RELU, "sm_75", "cuda.mine.v1")
    assert f"at: {__file__}:{line_of(right)}" in str(caught.value)
    with pytest.raises(KernelCompileError, match=said):
        engine.precompile([("cuda.mine.v1", RELU, [Launch(right, (1,), (32,), args)])], "sm_75", None)


def test_launches_that_fit_are_let_through():
    assert check_arguments(Launch(right, (1,), (32,), GOOD), RELU) is None
    assert check_arguments(Launch(lambda *all: None, (1,), (32,), GOOD), RELU) is None


def host(run=None, build=None):
    """A CPU variant of relu that is always chosen."""

    @variant("relu", id="cpu.mine.v1", priority=9)
    class Mine:
        """Wrong on purpose."""

        def accepts(region):
            return ()

        def cost(region, device):
            return roofline(device, bytes=1)

        def build(region, device):
            raise NotImplementedError

    def make(region, device):
        return build() if build else HostCall(run)

    return dataclasses.replace(Mine, build=make)


def fails_in_run(operands, results):
    results[0][...] = operands[0] * not_there  # noqa: F821  here


def fails_in_loop(operands, results):
    import numba

    @numba.njit
    def loop(x):
        return x + numba_has_none  # noqa: F821

    loop(operands[0])  # here


def fails_in_build():
    return HostCall(no_such_loop)  # noqa: F821  here


def value_error(operands, results):
    results[0][...] = operands[0][:, :3]  # here


@pytest.mark.parametrize("run", [fails_in_run, value_error, fails_in_loop])
def test_a_kernel_of_the_host_that_fails_in_a_run(run):
    registry = aicf.KernelRegistry([host(run)])
    model = aicf.nn.Model({"x": aicf.TensorSpec((2, 4))}).add(aicf.nn.ReLU())
    with pytest.raises(KernelError) as caught:
        aicf.compile(model, device="cpu", registry=registry).run({"x": np.ones((2, 4), np.float32)})
    text = str(caught.value)
    assert text.startswith("kernel cpu.mine.v1 failed\n  region: relu(f32[2x4])"), text
    lines = [line_of(run), line_of(run) - 2]  # numba may know better: inside the loop
    assert any(f"at: {__file__}:{n}" in text for n in lines), text
    assert caught.value.__cause__ is not None


def test_a_kernel_that_fails_while_it_is_built():
    with pytest.raises(KernelError, match=r"kernel cpu\.mine\.v1 can't be built\n") as caught:
        built(host(build=fails_in_build), RELU, preset("cpu"))
    assert f"at: {__file__}:{line_of(fails_in_build)}" in str(caught.value)
