"""Reading a model takes no more memory and time than constants may: random models whose constants grow, and the limits one by one."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest
from draws.seeds import rng
from onnx import TensorProto, helper

import aicf
from aicf.errors import AicfError, DeviceError, SettingError, UnsupportedOpsError
from aicf.frontends.onnx import load

from .growing import drawn
from .models import model

MIB = 1 << 20
LIMIT = 8 * MIB
MODELS = 3


@pytest.fixture(autouse=True)
def _limit(monkeypatch):
    monkeypatch.setenv("AICF_FOLD_MB", "8")


def read(proto, explain=True):
    """(bytes that reading a model took at its peak, the error that refused it)."""
    error = None
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            imported = load(proto)
            if explain:
                aicf.explain_for(imported, "cpu")
    except AicfError as caught:
        error = caught
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak, error


def test_models_that_grow_are_read_within_the_limit_or_refused_by_an_error_of_aicf():
    """None takes more than a few times the limit, however large its sizes; none raises an error of Python's or NumPy's own."""
    accepted = 0
    for number in range(MODELS):
        seed = int(rng("growing", number).integers(2**32))
        peak, error = read(drawn(seed), explain=number % 4 == 0)
        assert peak < 6 * LIMIT, f"frontends.onnx.growing.drawn({seed}) took {peak} bytes"
        assert "can't be read" not in str(error), f"frontends.onnx.growing.drawn({seed}): {error}"
        accepted += error is None
    assert accepted > MODELS // 8, "the models that are drawn are refused too early"


def chain(count, kind="Concat"):
    """A constant of four numbers that is doubled so often, and a result that needs it."""
    nodes, name = [], "k"
    for i in range(count):
        attrs = {"axis": 0} if kind == "Concat" else {}
        nodes.append(helper.make_node(kind, [name, name], [f"t{i}"], **attrs))
        name = f"t{i}"
    nodes += [
        helper.make_node("ReduceSum", [name], ["r"], keepdims=0),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    return model(nodes, [("x", [2])], [("y", [2])], {"k": np.ones(4, np.float32)})


@pytest.mark.parametrize("count", [10, 18, 21, 34])
def test_a_constant_that_doubles_is_computed_up_to_the_limit_and_then_in_the_graph(count):
    proto = chain(count)
    peak, error = read(proto)
    assert error is None and peak < 6 * LIMIT
    if count > 30:
        with pytest.raises(DeviceError, match=r"the host has no memory of 1[0-9]{11} bytes"):
            aicf.compile(load(proto), device="cpu")({"x": np.ones(2, np.float32)})
    else:
        got = aicf.compile(load(proto), device="cpu")({"x": np.ones(2, np.float32)})["y"].numpy()
        np.testing.assert_array_equal(got, 1 + 2.0 ** (count + 2))


def test_a_shape_that_depends_on_too_much_names_the_bytes_the_limit_and_the_setting(monkeypatch):
    def proto():
        """Its result has a row for each element of a large constant that is not 0."""
        nodes = [helper.make_node("Concat", ["k"] * 4, ["t0"], axis=0)]
        nodes += [helper.make_node("Concat", [f"t{i}"] * 4, [f"t{i + 1}"], axis=0) for i in range(6)]
        nodes += [helper.make_node("NonZero", ["t6"], ["n"]), helper.make_node("Cast", ["n"], ["c"], to=1)]
        nodes += [helper.make_node("Add", ["x", "c"], ["y"])]
        return model(nodes, [("x", [1])], [("y", None)], {"k": np.ones(100, np.float32)})

    with pytest.raises(UnsupportedOpsError) as caught:
        load(proto())
    said = str(caught.value)
    assert "NonZero × 1: x is computed, and a shape depends on its value: 6553600 bytes of constants" in said
    assert "AICF_FOLD_MB sets the limit" in said and "next: AICF_FOLD_MB=4096" in said
    monkeypatch.setenv("AICF_FOLD_MB", "64")
    peak, error = read(proto(), explain=False)
    assert error is None and peak > 2 * 6553600


def test_the_setting_is_a_number_of_mebibytes(monkeypatch):
    for text in ("x", "-1", "1.5", "٣", "9" * 12):
        monkeypatch.setenv("AICF_FOLD_MB", text)
        with pytest.raises(SettingError, match="AICF_FOLD_MB is"):
            load(chain(2))
    monkeypatch.setenv("AICF_FOLD_MB", "0")
    _, error = read(chain(4))
    assert error is None  # its weight is 16 bytes: it may grow eightfold, and the rest is in the graph


def loop(count, *, ends, shows):
    """A Loop of so many iterations; `ends`: its body computes whether there is another one."""
    info, boolean = helper.make_tensor_value_info, TensorProto.BOOL
    go_on = (
        helper.make_node("Less", ["s", "edge"], ["d"]) if ends else helper.make_node("Identity", ["c"], ["d"])
    )
    nodes = [
        go_on,
        helper.make_node("Add", ["s", "s"], ["o"]),
        *[helper.make_node("Neg", ["s"], ["row"])] * shows,
    ]
    body = helper.make_graph(
        nodes, "body", [info("i", TensorProto.INT64, []), info("c", boolean, []), info("s", 1, [])],
        [info("d", boolean, []), info("o", 1, []), *[info("row", 1, [])] * shows],
    )  # fmt: skip
    node = helper.make_node("Loop", ["n", "", "x"], ["y", *["rows"] * shows], body=body)
    constants = {"n": np.array(count, np.int64), "edge": np.array(1000, np.float32)}
    return model([node], [("x", [])], [("y", [])], constants)


@pytest.mark.parametrize("shows", [False, True])
@pytest.mark.parametrize("count", [2**31, 2**60, 2**63 - 1])
def test_a_loop_that_nothing_ends_is_refused_with_its_iterations(count, shows):
    _, error = read(loop(count, ends=False, shows=shows))
    assert isinstance(error, UnsupportedOpsError)
    assert f"it has {count} iterations" in str(error) and "aicf runs up to 2147483647" in str(error)


def test_a_loop_that_its_body_ends_may_state_any_number_of_iterations():
    program = aicf.compile(load(loop(2**63 - 1, ends=True, shows=False)), device="cpu")
    assert program({"x": np.array(3, np.float32)})["y"].numpy() == 3 * 2**10
