"""op_call on the host: every op, every layout, against its reference; what is refused, and how it is told."""

from __future__ import annotations

import gc
import logging
import os
import random
import re
import threading
import weakref

import numpy as np
import pytest
from ops import sampling

import aicf
from aicf.dispatch import call
from aicf.errors import (
    AicfError,
    AttrError,
    DeviceError,
    FeedError,
    NoKernelError,
    RegistryError,
    TypeInferenceError,
)
from aicf.registry.cost import Cost
from aicf.registry.variant import HostCall, variant
from aicf.types import DType

from .layouts import LAYOUTS, padded

TOLERANCE = {DType.f16: 4e-3, DType.bf16: 3e-2}
EVERYTHING = bool(os.environ.get("AICF_TEST_ALL"))
CASES = list(sampling.cases())


@pytest.fixture(autouse=True)
def _fresh():
    call.cache_clear()
    yield
    call.cache_clear()


def empty_results(schema, arrays, attrs, layout=np.copy):
    specs = [sampling.spec(a) for a in arrays]
    inferred = schema.infer(specs, schema.normalized(specs, attrs))
    return [layout(np.full(s.shape, 77).astype(s.dtype.numpy)) for s in inferred]


def reference(schema, arrays, attrs):
    """In float64."""
    wide = [a.astype(np.float64) if a is not None and a.dtype.kind not in "iub" else a for a in arrays]
    specs = [sampling.spec(a) for a in arrays]
    full = schema.pack(schema.normalized(specs, attrs))
    return schema.call_reference(wide, full)


def check(schema, arrays, attrs, results):
    tolerance = max(TOLERANCE.get(DType.of(a.dtype), 2e-5) for a in [*arrays, *results] if a is not None)
    want = reference(schema, arrays, attrs)
    selection = aicf.op_call(schema.name, arrays, results, attrs)
    for got, expected in zip(results, want):
        np.testing.assert_allclose(
            got.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance
        )
    return selection


@pytest.mark.sample(16)
@pytest.mark.spec("B1", "D13")
@pytest.mark.parametrize("schema, sample, dtype", CASES, ids=sampling.name)
def test_every_op_agrees_with_its_reference(schema, sample, dtype):
    arrays = sampling.operands(schema, sample, dtype)
    results = empty_results(schema, arrays, sample["attrs"])
    selection = check(schema, arrays, sample["attrs"], results)
    assert selection.region.kind is schema.kind
    check(schema, arrays, sample["attrs"], results)  # and again, remembered


@pytest.mark.sample(1, each="op")
@pytest.mark.spec("B1", "B3")
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "dense"])
@pytest.mark.parametrize("op", sorted({s.name for s, _, _ in CASES}))
def test_every_op_takes_every_layout(op, layout):
    """Operands and results alike: strided, offset, unaligned, odd, empty."""
    schema = aicf.schema_of(op)
    some = schema.sample_specs if EVERYTHING else random.Random(op + layout).sample(schema.sample_specs, 1)
    for sample in some:
        plain = sampling.operands(schema, sample, DType.f32)
        arrays = [None if a is None else LAYOUTS[layout](a) for a in plain]
        results = empty_results(schema, arrays, sample["attrs"], LAYOUTS[layout])
        check(schema, arrays, sample["attrs"], results)


@pytest.mark.spec("B8", "B12")
def test_the_choice_says_why_with_the_value_seen():
    x, y = np.ones((4, 7), np.float32), padded(np.empty((4, 7), np.float32))
    selection = aicf.op_call("relu", [x], [y])
    assert selection.kernel_id == "cpu.reference.v1"
    said = " ".join(str(selection).split())
    assert "result 0 has strides (17, 2) for shape (4, 7), needs row-major" in said
    dense = aicf.op_call(aicf.OpKind.relu, [x], [y.copy()])
    assert dense.kernel_id == "cpu.elementwise_loop.v2"
    assert dense.to_json()["chosen"] == "cpu.elementwise_loop.v2"


def test_an_operand_may_be_left_out():
    a, b, bias = (np.random.default_rng(0).normal(size=s).astype(np.float32) for s in ((3, 4), (4, 5), (5,)))
    d = np.empty((3, 5), np.float32)
    aicf.op_call("gemm", [a, b, None, bias], [d], {"act": aicf.ActKind.relu})
    np.testing.assert_allclose(d, np.maximum(a @ b + bias, 0), rtol=1e-5, atol=1e-5)
    aicf.op_call("gemm", (a, b), (d,))
    np.testing.assert_allclose(d, a @ b, rtol=1e-5, atol=1e-5)


def test_other_hosts_of_memory():
    """Subclasses of ndarray, NumPy's scalars, objects that speak only __array_interface__ or DLPack, aicf's tensors."""

    class Speaks:
        def __init__(self, array):
            self.__array_interface__ = array.__array_interface__
            self.array = array

    class Packs:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    cpu = aicf.runtime("cpu")
    ours = cpu.upload(x, aicf.TensorSpec((2, 3)))
    for a in (x, x.view(np.matrix), Speaks(x), Packs(x), ours):
        for make in (np.array, lambda z: Speaks(np.array(z)), lambda z: Packs(np.array(z))):
            y = make(np.zeros_like(x))
            aicf.op_call("add", [a, np.float32(1)], [y])
            np.testing.assert_array_equal(getattr(y, "array", y), x + 1)
    y = cpu.empty(ours.spec)
    for _ in range(2):
        aicf.op_call("square", [ours], [y])
        np.testing.assert_array_equal(y.numpy(), x**2)


# --- overlaps ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("D12")
def test_in_place_is_allowed_where_each_element_meets_its_own():
    rng = np.random.default_rng(1)
    for op in ("relu", "square", "copy"):
        x = rng.normal(size=(33, 7)).astype(np.float32)
        want = aicf.schema_of(op).call_reference([x], {})[0]
        aicf.op_call(op, [x], [x])
        np.testing.assert_allclose(x, want, rtol=1e-6)
    p, g, v = rng.normal(size=(3, 100)).astype(np.float32)
    rates = [np.array(r, np.float32) for r in (0.1, 0.9, 0.01)] + [np.array(True)]
    want = aicf.schema_of("sgd_step").call_reference([p, g, v, *rates], {"nesterov": False})
    aicf.op_call("sgd_step", [p, g, v, *rates], [p, v])
    np.testing.assert_allclose(p, want[0], rtol=1e-5)
    np.testing.assert_allclose(v, want[1], rtol=1e-5)
    x, bias = rng.normal(size=(4, 5)).astype(np.float32), np.ones(5, np.float32)
    before = x.copy()
    aicf.op_call("bias_add", [x, bias], [x])
    np.testing.assert_allclose(x, before + 1)
    i = np.arange(10, dtype=np.int32)
    aicf.op_call("convert", [i], [i.view(np.float32)], {"dtype": DType.f32})
    np.testing.assert_array_equal(i.view(np.float32), np.arange(10))


def memory(n=100):
    return np.arange(n, dtype=np.float32)


OVERLAPS = {
    "shifted": ("relu", lambda m: ([m[:-1]], [m[1:]]), "y overlaps x"),
    "backwards": ("neg", lambda m: ([m], [m[::-1]]), "y overlaps x"),
    "repeated": ("add", lambda m: ([m[:10], m[5:6]], [m[:10]]), "y overlaps b"),
    "other type": ("convert", lambda m: ([m[:50]], [m.view(np.int64)]), "y overlaps x"),
    "no map": ("reduce_sum", lambda m: ([m], [m[7:8].reshape(())]), "y overlaps x"),
    "product": ("gemm", lambda m: ([m.reshape(10, 10), np.eye(10, dtype=np.float32)], [m.reshape(10, 10)]), "overlaps a"),
    "results": ("sgd_step", lambda m: ([*memory(60).reshape(3, 20), *rates()], [m[:20], m[19:39]]), "v2 overlaps p2"),
}  # fmt: skip


def rates():
    return [*[np.array(0.1, np.float32)] * 3, np.array(True)]


@pytest.mark.spec("D12")
@pytest.mark.parametrize("case", OVERLAPS)
def test_any_other_overlap_is_refused_by_name(case):
    op, make, said = OVERLAPS[case]
    m = memory()
    inputs, outputs = make(m)
    attrs = {"dtype": DType.i64} if op == "convert" else {}
    for _ in range(2):
        with pytest.raises(FeedError, match=said) as error:
            aicf.op_call(op, inputs, outputs, attrs)
    assert "bytes from" in str(error.value)
    np.testing.assert_array_equal(m, memory())


def test_interleaved_tensors_do_not_overlap():
    m = memory()
    aicf.op_call("neg", [m[::2]], [m[1::2]])
    np.testing.assert_array_equal(m[1::2], -m[::2])
    grid = memory().reshape(10, 10)
    aicf.op_call("neg", [grid[:, :5]], [grid[:, 5:]])
    np.testing.assert_array_equal(grid[:, 5:], -grid[:, :5])


def test_a_result_that_overlaps_itself_is_refused():
    view = np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (4, 5), (0, 4))
    with pytest.raises(FeedError, match="result y overlaps itself"):
        aicf.op_call("copy", [np.zeros((4, 5), np.float32)], [view])


# --- refusals ---------------------------------------------------------------------------------------------------------

X = np.ones((2, 3), np.float32)


class OnDevice:
    """Says it is on a CUDA device. Never read."""

    def __init__(self, ordinal=0, readonly=False, **more):
        self.ordinal = ordinal
        self.__cuda_array_interface__ = {
            "shape": (2, 3), "typestr": "<f4", "data": (4096, readonly), "version": 3, **more,
        }  # fmt: skip

    def __dlpack_device__(self):
        return 2, self.ordinal


def immutable(dtype=np.float32):
    y = np.empty((2, 3), dtype)
    y.flags.writeable = False
    return y


REFUSED = {
    "op": (("no_such_op", [X], [X.copy()]), RegistryError, "no op is called 'no_such_op'"),
    "kernel's name": (("cuda.add_half2.v1", [X], [X.copy()]), RegistryError, "no op is called 'cuda.add_half2.v1'"),
    "too few": (("add", [X], [X.copy()]), TypeInferenceError, "takes a, b; got 1 operands"),
    "too many": (("relu", [X, X], [X.copy()]), TypeInferenceError, "got 2 operands"),
    "outputs": (("relu", [X], []), AicfError, "relu gives 1 results: y"),
    "more outputs": (("relu", [X], [X.copy(), X.copy()]), AicfError, "relu gives 1 results: y"),
    "shape": (("relu", [X], [np.empty((3, 2), np.float32)]), AicfError, r"result y does not fit\n  expected: tensor<2x3xf32>"),
    "dtype": (("relu", [X], [np.empty((2, 3), np.float16)]), AicfError, "got: tensor<2x3xf16>"),
    "element type": (("relu", [X.astype(np.complex64)], [X.copy()]), FeedError, "x has element type complex64"),
    "mixed": (("add", [X, X.astype(np.float16)], [X.copy()]), TypeInferenceError, "operands never promote"),
    "attribute": (("relu", [X], [X.copy()], {"slope": 1.0}), AttrError, "relu has no attribute 'slope'"),
    "attribute's type": (("scale", [X], [X.copy()], {"factor": "2"}), AttrError, "factor"),
    "needed attribute": (("convert", [X], [X.copy()]), AttrError, "convert needs attribute 'dtype'"),
    "no list": (("relu", X, [X.copy()]), FeedError, "inputs is a ndarray"),
    "no tensor": (("relu", [3.0], [X.copy()]), FeedError, "x is a float, not a tensor"),
    "no output": (("relu", [X], [None]), FeedError, "result y is None"),
    "read-only": (("relu", [X], [immutable()]), FeedError, "result y can't be written: the array is read-only"),
    "scalar": (("relu", [np.float32(1)], [np.float32(0)]), FeedError, "a NumPy scalar is a value, not memory"),
    "devices": (("relu", [X], [OnDevice()]), DeviceError, "tensors live on cpu and cuda:0"),
    "two devices": (("relu", [OnDevice(1)], [OnDevice(0)]), DeviceError, "tensors live on cuda:0 and cuda:1"),
    "read-only device": (("relu", [OnDevice()], [OnDevice(readonly=True)]), FeedError, "__cuda_array_interface__ says read-only"),
    "mask": (("relu", [OnDevice(mask=X)], [OnDevice()]), FeedError, "x is a masked array"),
    "backwards": (("relu", [OnDevice(strides=(12, -4))], [OnDevice()]), FeedError, r"x runs backwards"),
}  # fmt: skip


@pytest.mark.spec("B1", "B2")
@pytest.mark.parametrize("name", ["EltwiseAdd", aicf.OpKind.EltwiseAdd, "eltwise_add", "Add", "add"])
def test_an_op_has_the_names_of_the_design_documents_too(name):
    y = np.empty_like(X)
    assert aicf.op_call(name, [X, X], [y], {}).region.kind.name == "add"
    np.testing.assert_array_equal(y, X + X)


@pytest.mark.spec("B1", "D12")
@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_one_clear_error(case):
    arguments, kind, said = REFUSED[case]
    for _ in range(2):  # an error leaves nothing behind that would let the second call through
        with pytest.raises(kind) as error:
            aicf.op_call(*arguments)
        assert re.search(said, str(error.value)), str(error.value)


# --- what is remembered -----------------------------------------------------------------------------------------------


@pytest.mark.spec("B4", "B13")
def test_attributes_are_told_apart_by_value_and_type():
    x = np.array([-4.0], np.float32)
    y = np.empty_like(x)
    for slope in (0.5, 0.25):
        aicf.op_call("leaky_relu", [x], [y], {"slope": slope})
        assert y == -4 * slope
    aicf.op_call("leaky_relu", [x], [y], {"slope": 0.0})
    assert np.signbit(y[0])
    aicf.op_call("leaky_relu", [x], [y], {"slope": -0.0})
    assert not np.signbit(y[0])
    m = np.ones((2, 3), np.float32)
    aicf.op_call("reduce_sum", [m], [np.empty((2, 1), np.float32)], {"axes": (1,), "keepdims": True})
    with pytest.raises(AttrError):
        aicf.op_call("reduce_sum", [m], [np.empty((2, 1), np.float32)], {"axes": (1,), "keepdims": 1})
    for attrs in (
        {"axes": (1,), "keepdims": False},
        {"keepdims": False, "axes": [np.int64(1)]},
        {"axes": (-1,)},
    ):
        y = np.empty(2, np.float32)
        aicf.op_call("reduce_sum", [m], [y], attrs)
        np.testing.assert_array_equal(y, [3, 3])


@pytest.mark.spec("B13")
def test_equal_calls_get_the_same_answer_and_other_layouts_their_own():
    x = np.ones((8, 8), np.float32)
    first = aicf.op_call("relu", [x], [np.empty_like(x)])
    ids = {id(aicf.op_call("relu", [np.ones_like(x)], [np.empty_like(x)])) for _ in range(20)}
    again = aicf.op_call("relu", [x], [np.empty_like(x)])
    assert again.kernel_id == first.kernel_id
    assert len(ids) <= 9  # one for each pair of alignments at most, not one for each array
    assert aicf.op_call("relu", [x], [np.empty_like(x).T]).kernel_id == "cpu.reference.v1"


def test_the_tables_are_bounded_and_hold_no_tensor(monkeypatch):
    monkeypatch.setattr(call, "QUICK_LIMIT", 8)
    monkeypatch.setattr(call, "PREPARED_LIMIT", 4)
    for n in range(1, 40):
        x = np.full(n, 2, np.float32)
        aicf.op_call("square", [x], [x])
        assert (x == 4).all()
    assert len(call._quick) <= 8 and len(call._prepared) <= 4

    class Array(np.ndarray):
        pass

    x = np.ones(5, np.float32).view(Array)
    alive = weakref.ref(x)
    aicf.op_call("square", [x], [x])
    del x
    gc.collect()
    assert alive() is None


@pytest.mark.spec("B11")
def test_a_variant_that_comes_later_is_seen():
    @variant("square", id="cpu.square_later.v1")
    class Later:
        """Cubes, so that it shows."""

        def accepts(region):
            yield None

        def cost(region, device):
            return Cost({"call": 0.001})

        def build(region, device):
            return HostCall(lambda operands, results: np.power(operands[0], 3, out=results[0]))

    registry = aicf.default_registry()
    x, y = np.full(3, 2, np.float32), np.empty(3, np.float32)
    aicf.op_call("square", [x], [y])
    assert y[0] == 4
    registry.add(Later)
    try:
        aicf.op_call("square", [x], [y])
        assert y[0] == 8
    finally:
        registry.remove(Later.id)
    aicf.op_call("square", [x], [y])
    assert y[0] == 4


def test_an_op_that_is_defined_again_is_seen():
    from aicf.ops.record import unregister
    from aicf.ops.schema import elementwise

    x, y = np.full(3, 2, np.float32), np.empty(3, np.float32)
    try:
        for factor in (3.0, 5.0):
            unregister("defined_again")

            @elementwise("defined_again")
            def op(x):
                """x times a number."""
                return x * factor  # noqa: B023

            op.reference(lambda x: x * np.float32(factor))  # noqa: B023
            aicf.op_call("defined_again", [x], [y])
            assert y[0] == 2 * factor
    finally:
        unregister("defined_again")


def test_threads_may_call_at_once():
    x = np.arange(1000, dtype=np.float32)
    wrong = []

    def work(n):
        y = np.empty_like(x)
        for i in range(200):
            aicf.op_call("scale", [x], [y], {"factor": float(n + i % 3)})
            if not (y == x * np.float32(n + i % 3)).all():
                wrong.append((n, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_no_kernel_is_an_error_with_every_reason():
    from aicf.device.spec import preset
    from aicf.dispatch.prepared import prepare
    from aicf.types import TensorDesc, TensorSpec, f16

    class Gpu:
        kind, spec, ordinal = "cuda", preset("h200"), 0

    flag = TensorDesc.dense(TensorSpec((3,), DType.bool, "cuda"))
    with pytest.raises(AicfError):
        prepare(aicf.schema_of("reduce_sum"), {}, [flag], [flag], Gpu(), aicf.default_registry())
    a = TensorDesc.dense(TensorSpec((4, 4), f16, "cuda"))
    registry = aicf.KernelRegistry()
    with pytest.raises(NoKernelError, match="no variant for gemm on cuda"):
        prepare(aicf.schema_of("gemm"), {}, [a, a], [a], Gpu(), registry)


@pytest.mark.spec("B12")
def test_calls_are_logged_with_kind_variant_tensors_and_stream(monkeypatch, caplog):
    x, y = np.ones((3, 5), np.float32), np.empty((3, 5), np.float32)
    logger = logging.getLogger("aicf.select")
    level = logger.level
    try:
        monkeypatch.setenv("AICF_LOGS", "select")
        with caplog.at_level(logging.INFO, logger="aicf.select"):
            aicf.op_call("relu", [x], [y])
            aicf.op_call("relu", [x], [y])
        assert len(caplog.messages) == 2
        assert all("relu -> cpu." in m and "f32[3x5]" in m and "stream=0x0" in m for m in caplog.messages)
        monkeypatch.delenv("AICF_LOGS")
        aicf.op_call("relu", [x], [y])
        assert len(caplog.messages) == 2
    finally:
        logger.setLevel(level)


@pytest.mark.spec("B8")
def test_attributes_may_be_left_to_the_op():
    """None is what an op says that it stands for."""
    rng = np.random.default_rng()
    q, k, v = (rng.normal(size=(2, 5, 4)).astype(np.float32) for _ in range(3))
    out, lse = np.empty_like(q), np.empty((2, 5), np.float32)
    aicf.op_call("attention", [q, k, v], [out, lse], {"scale": None})
    scores = np.einsum("hid,hjd->hij", q, k, dtype=np.float64) / 2
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(out, weights @ v, rtol=1e-5, atol=1e-6)
