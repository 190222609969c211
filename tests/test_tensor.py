"""aicf's Tensor as results are read: 0-D ones like numbers, the others like NumPy's, and never an unclear truth."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import DeviceError
from aicf.types import TensorSpec

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def tensor(array, device="cpu") -> aicf.Tensor:
    array = np.asarray(array, np.float32)
    return aicf.runtime(device).upload(array, TensorSpec(array.shape, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_a_0d_tensor_is_formatted_ordered_and_tested_like_its_number(device):
    loss = tensor(0.25, device)
    assert f"{loss:.3f}" == "0.250"
    assert f"{loss}" == "0.25"
    assert loss < 0.5 and loss <= 0.25 and loss > 0.1 and loss >= tensor(0.25, device)
    assert not loss > 0.5 and 0.5 > loss  # noqa: SIM300
    assert min([tensor(3, device), loss], key=float) is loss and max(loss, tensor(3, device)) is not loss
    assert bool(loss) and not bool(tensor(0.0, device))
    assert f"{tensor(2.0, device):5.1f}|" == "  2.0|"


@pytest.mark.parametrize("device", DEVICES)
def test_an_nd_tensor_has_a_length_elements_and_no_truth_value(device):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    t = tensor(values, device)
    assert len(t) == 2
    np.testing.assert_array_equal(t[1], values[1])
    assert t[1, 2] == 5 and isinstance(t[:, 1], np.ndarray)
    np.testing.assert_array_equal(np.stack(list(t)), values)
    np.testing.assert_array_equal(np.asarray(t), values)
    assert f"{t}" == repr(t)
    with pytest.raises(ValueError, match="no one truth value"):
        bool(t)
    with pytest.raises(ValueError, match="no one truth value"):
        bool(tensor(np.ones(1), device))  # length 1: still no number
    with pytest.raises(TypeError, match="not ordered"):
        t < 1  # noqa: B015
    with pytest.raises(TypeError, match="0-D"):
        len(tensor(1.0, device))
    with pytest.raises(IndexError):
        t[2]


def test_equality_and_hash_are_the_object_s():
    t = tensor(1.0)
    assert t == t and t != tensor(1.0) and len({t, t}) == 1


# --- who owns what ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("D12")
@pytest.mark.parametrize("device", DEVICES)
def test_a_tensor_names_its_runtime_and_keeps_its_memory(device):
    runtime = aicf.runtime(device)
    assert aicf.runtime(device) is runtime, "one for each device"
    memory = runtime.allocate(1024)
    alive = weakref.ref(memory.owner)
    views = [runtime.view(memory, offset, TensorSpec((4,), device=device)) for offset in (0, 256)]
    assert all(v.runtime is runtime and v.device == device for v in views)
    assert views[1].ptr == views[0].ptr + 256
    del memory, views[0]
    gc.collect()
    assert alive() is not None, "the second view still owns it"
    views.clear()
    gc.collect()
    assert alive() is None


@pytest.mark.spec("D12")
def test_a_fed_array_stays_the_caller_s_and_is_kept_while_it_is_used():
    x = np.ones((2, 3), np.float32)
    borrowed = aicf.runtime("cpu").borrow(aicf.device.interop.adopt(x))
    assert borrowed.array is x or np.shares_memory(borrowed.array, x)
    assert borrowed.owner is x


@pytest.mark.spec("D12")
@pytest.mark.gpu
def test_variables_of_one_device_are_not_taken_for_another_s():
    model = nn.Model((2, 3)).add(nn.Linear(3, 1))
    with pytest.raises(DeviceError, match="these variables live on another device"):
        aicf.compile(model, device="cuda", variables=aicf.compile(model, device="cpu"))


def test_what_a_tensor_lacks_says_where_it_is():
    t = aicf.compile(nn.Model({"x": (2, 3)}).add(nn.ReLU()))({"x": np.ones((2, 3), np.float32)})["output"]
    with pytest.raises(AttributeError, match=r"t\.numpy\(\)\.argmax"):
        t.argmax(1)
    assert not hasattr(t, "nothing_like_it") and not hasattr(t, "__nothing__")
    for sum_of in (lambda: t + 1, lambda: 0.5 + t, lambda: t * t):
        with pytest.raises(TypeError, match=r"t\.numpy\(\)"):
            sum_of()
    assert (np.ones((2, 3)) + t == 2).all() and (t + np.ones((2, 3)) == 2).all()
