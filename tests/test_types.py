"""The vocabulary: element types, specs, descriptors, attribute packs, op kinds."""

import itertools
import math
import pickle
import struct
from contextlib import suppress

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicf.errors import AttrError, RegistryError
from aicf.types import (
    BASIC,
    ActKind,
    AttrPack,
    DType,
    OpKind,
    TensorDesc,
    TensorSpec,
    numel,
    pointer_alignment,
    rounded,
    row_major,
)

# --- element types ----------------------------------------------------------------------------------------


def test_ids_and_sizes_of_element_types_are_fixed():
    """Ids are stored in attribute blobs: a change of one breaks saved plans."""
    assert {t.name: (t.id, t.itemsize) for t in DType} == {
        "f32": (1, 4), "f16": (2, 2), "bf16": (3, 2), "i32": (4, 4), "i64": (5, 8), "bool": (6, 1), "f8e4m3": (7, 1),
        "f8e5m2": (8, 1), "i8": (9, 1), "u8": (10, 1), "i16": (11, 2), "u16": (12, 2), "u32": (13, 4), "u64": (14, 8), "f64": (15, 8),
    }  # fmt: skip
    assert all(DType.from_id(t.id) is t and t.numpy.itemsize == t.itemsize for t in DType)


@pytest.mark.parametrize(
    "value, want",
    [
        (DType.f16, DType.f16), ("bf16", DType.bf16), (np.float32, DType.f32), ("float16", DType.f16),
        (np.dtype("i8"), DType.i64), ("i8", DType.i8), ("uint16", DType.u16), (float, DType.f64), (ml_dtypes.bfloat16, DType.bf16), (bool, DType.bool), (int, DType.i64),
        (ml_dtypes.float8_e4m3fn, DType.f8e4m3), ("float8_e5m2", DType.f8e5m2),
    ],
)  # fmt: skip
def test_element_types_by_any_name(value, want):
    assert DType.of(value) is want


@pytest.mark.parametrize("value", [None, "f128", np.complex64, object(), "nonsense"])
def test_what_is_no_element_type(value):
    with pytest.raises(AttrError, match=r"is not an aicf element type\n  expected: one of f32, f16, bf16"):
        DType.of(value)


def test_narrow_floats_compute_in_f32():
    assert {t: t.compute for t in DType} == {
        DType.f32: DType.f32, DType.f16: DType.f32, DType.bf16: DType.f32,
        DType.i32: DType.i32, DType.i64: DType.i64, DType.bool: DType.bool, DType.f8e4m3: DType.f32, DType.f8e5m2: DType.f32,
        **{t: t for t in set(DType) - BASIC},
    }  # fmt: skip


def nearest(x: np.ndarray, dtype: DType) -> np.ndarray:
    """The fp8 number next to each, of two the one with an even code; from a table of all."""
    codes = np.arange(128, dtype=np.uint8)
    table = codes.view(dtype.numpy).astype(np.float64)
    codes, table = codes[np.isfinite(table)], table[np.isfinite(table)]
    wide = np.abs(x.astype(np.float64))
    above = np.searchsorted(table, wide).clip(1, len(table) - 1)
    low, high = wide - table[above - 1], table[above] - wide
    up = (high < low) | ((high == low) & (codes[above] % 2 == 0))
    found = np.where(up, codes[above], codes[above - 1]) | np.where(np.signbit(x), 128, 0).astype(np.uint8)
    return found.astype(np.uint8).view(dtype.numpy)


@pytest.mark.spec("D10")
@pytest.mark.parametrize(
    "dtype, greatest", [(DType.f8e4m3, 448), (DType.f8e5m2, 57344)], ids=["f8e4m3", "f8e5m2"]
)
def test_fp8_is_rounded_to_the_nearest_and_saturates(dtype, greatest):
    rng = np.random.default_rng()
    numbers = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32)
    numbers = np.sort(numbers[np.isfinite(numbers)])
    ties = (numbers[1:] + numbers[:-1]) / 2
    wide = rng.integers(0, 2**32, 10000, np.uint32).view(np.float32)
    x = np.concatenate([numbers, ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf), wide[np.isfinite(wide)],
                        rng.normal(size=1000).astype(np.float32), [1e-9, -1e-9, 3e38, -3e38, 464, 465, 61440]]).astype(np.float32)  # fmt: skip
    got = rounded(x, dtype)
    np.testing.assert_array_equal(got.view(np.uint8), nearest(x, dtype).view(np.uint8))
    assert np.abs(got.astype(np.float64)).max() == greatest
    inside = np.abs(x) <= greatest
    np.testing.assert_array_equal(got[inside].view(np.uint8), x[inside].astype(dtype.numpy).view(np.uint8))
    special = rounded(np.array([np.nan, np.inf, -np.inf, -0.0], np.float64), dtype).astype(np.float32)
    endless = greatest if dtype is DType.f8e4m3 else np.inf
    np.testing.assert_array_equal(special, [np.nan, endless, -endless, -0.0])
    assert np.signbit(special[-1])


# --- specs and descriptors ----------------------------------------------------------------------------------


def test_a_spec_prints_as_a_type():
    assert str(TensorSpec((2, 3), DType.bf16)) == "tensor<2x3xbf16>"
    assert str(TensorSpec((), "i64")) == "tensor<i64>"
    assert str(TensorSpec(("batch", 4))) == "tensor<batchx4xf32>"


def test_specs_are_equal_by_value_whatever_spells_them():
    a = TensorSpec([np.int64(2), 3], "float16", "cuda")
    assert a == TensorSpec((2, 3), DType.f16, "cuda") and hash(a) == hash(TensorSpec((2, 3), "f16", "cuda"))
    assert type(a.shape[0]) is int
    assert a != TensorSpec((2, 3), DType.f16) and a != TensorSpec((2, 3), DType.f32, "cuda")
    assert TensorSpec(5).shape == (5,) and TensorSpec("batch").shape == ("batch",)


def test_sizes_of_a_spec():
    spec = TensorSpec((4, 0, 2), DType.i64)
    assert (spec.rank, spec.numel, spec.nbytes) == (3, 0, 0)
    assert (TensorSpec(()).numel, TensorSpec((3, 5), "bf16").nbytes) == (1, 30)


def test_named_dimensions_are_bound_by_name():
    spec = TensorSpec(("batch", 4, "time"))
    assert spec.dims == {"batch", "time"}
    assert spec.bind({"batch": 8}).shape == (8, 4, "time")
    assert spec.bind({"batch": 8, "time": 2, "other": 1}) == TensorSpec((8, 4, 2))


@pytest.mark.parametrize("shape", [(-1,), (2.0,), (True,), (None, 2)])
def test_what_is_no_dimension(shape):
    with pytest.raises(AttrError, match="is not a dimension"):
        TensorSpec(shape)


@given(st.lists(st.integers(0, 4), max_size=4).map(tuple))
def test_row_major_strides_are_numpys(shape):
    """For what has elements; NumPy leaves the strides of an empty array open."""
    array = np.zeros(shape, np.int16)
    if array.size:
        assert row_major(shape) == tuple(s // 2 for s in array.strides)
    assert numel(shape) == array.size
    assert TensorDesc.dense(TensorSpec(shape)).contiguous


@pytest.mark.spec("B3")
@pytest.mark.parametrize(
    "shape, stride, contiguous",
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), False),
        ((2, 3), (4, 1), False),
        ((1, 3), (99, 1), True),  # a size of 1 is never stepped over
        ((3, 1), (1, 99), True),
        ((0, 3), (7, 7), True),  # nothing is anywhere
        ((4,), (0,), False),
        ((), (), True),
    ],
)
def test_contiguity(shape, stride, contiguous):
    assert TensorDesc(DType.f32, shape, stride).contiguous is contiguous


@pytest.mark.spec("B3")
def test_a_descriptor_holds_what_selection_may_see():
    desc = TensorDesc(DType.f16, (4, 6), (1, 4), "cuda", 16)
    assert (desc.rank, desc.numel, desc.nbytes) == (2, 24, 48)
    assert str(desc) == "f16[4x6] strides (1, 4)" and str(TensorDesc.dense(TensorSpec((4, 6)))) == "f32[4x6]"
    assert desc == TensorDesc(DType.f16, (4, 6), (1, 4), "cuda", 16)
    assert len({desc, TensorDesc(DType.f16, (4, 6), (1, 4), "cuda", 8)}) == 2, (
        "alignment is part of the question"
    )
    assert not any("pointer" in field for field in desc.__dataclass_fields__)


@pytest.mark.spec("B3")
@pytest.mark.parametrize(
    "pointer, want", [(0, 256), (256, 256), (4096, 256), (128, 128), (260, 4), (1, 1), (514, 2)]
)
def test_pointer_alignment(pointer, want):
    assert pointer_alignment(pointer) == want


# --- attribute packs ----------------------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.text(max_size=4)
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=True)
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=8)
packs = st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), values, max_size=5)


@pytest.mark.spec("B4")
@given(packs, st.randoms())
def test_the_order_of_attributes_never_matters(attrs, random):
    items = list(attrs.items())
    random.shuffle(items)
    one, other = AttrPack(attrs), AttrPack(dict(items))
    assert one == other and hash(one) == hash(other) and one.blob == other.blob
    assert list(one) == sorted(attrs)


@pytest.mark.spec("B4")
@given(packs)
def test_a_pack_comes_back_from_its_blob(attrs):
    pack = AttrPack(attrs)
    again = AttrPack.from_blob(pack.blob)
    assert again == pack and again.blob == pack.blob
    for key in attrs:
        assert _typed(again[key]) == _typed(attrs[key])


def _typed(value):
    """A value with the types in it, and the bits of its floats."""
    if isinstance(value, tuple):
        return tuple(map(_typed, value))
    return type(value), struct.pack("<d", value) if isinstance(value, float) and not math.isnan(
        value
    ) else repr(value)


@pytest.mark.spec("B4")
def test_true_1_and_1_0_are_three_attributes():
    spellings = [True, 1, 1.0, (1,), (True,), (1.0,), ((1,),), False, 0, 0.0, -0.0, ()]
    distinct = [AttrPack(x=v) for v in spellings]
    assert all(a != b for a, b in itertools.combinations(distinct, 2))
    assert len(set(distinct)) == len(spellings)


@pytest.mark.spec("B4")
def test_a_blob_is_fixed_byte_for_byte():
    """Plans are saved with it."""
    blob = AttrPack(beta=(1, 0.5), act=True).blob
    assert blob == (
        b"AP1\0" + struct.pack("<I", 2)
        + struct.pack("<H", 3) + b"act" + b"b\x01"
        + struct.pack("<H", 4) + b"beta" + b"t" + struct.pack("<H", 2)
        + b"i" + struct.pack("<q", 1) + b"f" + struct.pack("<d", 0.5)
    )  # fmt: skip


@pytest.mark.spec("B4")
def test_the_types_that_pack():
    pack = AttrPack(
        a=np.bool_(True), b=np.int32(3), c=np.float32(0.5), d=[1, [2.0]], e=ActKind.gelu, f=DType.bf16
    )
    assert dict(pack) == {"a": True, "b": 3, "c": 0.5, "d": (1, (2.0,)), "e": 3, "f": 3}
    assert [type(v) for v in pack.values()] == [bool, int, float, tuple, int, int]
    assert AttrPack(x=math.nan) == AttrPack(x=math.nan), "equal by bytes"
    assert repr(AttrPack(b=1, a=0.5)) == "AttrPack(a=0.5, b=1)"


@pytest.mark.spec("B4")
@pytest.mark.parametrize(
    "attrs, message",
    [
        ({"x": {}}, "attribute x has type dict"),
        ({"x": {1}}, "attribute x has type set"),
        ({"x": (1, b"a")}, "attribute x has type bytes"),
        ({"x": 2**63}, "attribute x = 9223372036854775808 does not fit in 64 bits"),
        ({"x": -(2**63) - 1}, "does not fit in 64 bits"),
        ({"not a name": 1}, "attribute name 'not a name' is not an identifier"),
        ({1: 1}, "attribute name 1 is not an identifier"),
    ],
)
def test_what_does_not_pack(attrs, message):
    with pytest.raises(AttrError, match=message):
        AttrPack(attrs)


@pytest.mark.spec("B4")
@given(packs, st.data())
def test_a_damaged_blob_never_ends_in_an_error_of_another_kind(attrs, data):
    blob = AttrPack(attrs).blob
    at = data.draw(st.integers(0, len(blob) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != blob[at]))
    for cut in (blob[:at], blob + b"\0"):
        with pytest.raises(AttrError, match="this attribute blob can't be read"):
            AttrPack.from_blob(cut)
    with suppress(AttrError):  # or it is a pack
        AttrPack.from_blob(blob[:at] + bytes([byte]) + blob[at + 1 :])


@pytest.mark.spec("B4")
@pytest.mark.parametrize(
    "body",
    [
        b"\1\0\0\0" + b"\1\0xb\2",  # a bool that is neither 0 nor 1
        b"\2\0\0\0" + b"\1\0yb\1" + b"\1\0xb\1",  # keys out of order
        b"\2\0\0\0" + b"\1\0xb\1" + b"\1\0xb\1",  # a key twice
    ],
)
def test_a_pack_has_one_blob(body):
    with pytest.raises(AttrError, match="this attribute blob can't be read"):
        AttrPack.from_blob(b"AP1\0" + body)


@pytest.mark.spec("B4")
@pytest.mark.parametrize("blob", [b"", b"AP0\0\0\0\0\0", b"AP1\0", b"AP1\0\xff\xff\xff\xff"])
def test_what_is_no_blob(blob):
    with pytest.raises(AttrError, match=rf"this attribute blob can't be read: .*\n  got: {len(blob)} bytes"):
        AttrPack.from_blob(blob)


# --- op kinds -----------------------------------------------------------------------------------------------


@pytest.mark.spec("B2")
def test_an_op_kind_is_one_object_under_every_spelling():
    gemm = OpKind("gemm")
    assert OpKind("gemm") is gemm is OpKind.gemm is OpKind.Gemm is OpKind.GEMM
    assert OpKind("bias_add") is OpKind.BiasAdd is OpKind.bias_add
    assert OpKind("add") is OpKind.EltwiseAdd is OpKind.eltwise_add
    assert OpKind("leaky_relu") is OpKind.EltwiseLeakyReLU
    assert OpKind.from_id(gemm.id) is gemm
    assert pickle.loads(pickle.dumps(gemm)) is gemm
    assert (repr(gemm), str(gemm)) == ("OpKind.gemm", "gemm")


@pytest.mark.spec("B2")
def test_ids_come_from_names_alone():
    """They are stored in plans; neither another op nor the order of imports may change them."""
    assert OpKind("gemm").id == 813075914 and OpKind("relu").id == 464885734
    assert all(0 <= kind.id < 2**31 for kind in OpKind)
    assert len({kind.id for kind in OpKind}) == len(list(OpKind))


@pytest.mark.spec("B2")
def test_unknown_and_ill_formed_op_kinds():
    with pytest.raises(AttributeError, match=r"no op kind 'gem' is known; .*gemm"):
        _ = OpKind.gem
    with pytest.raises(RegistryError, match="no op kind has id 7"):
        OpKind.from_id(7)
    for name in ("Gemm", "a b", "", "1x"):
        with pytest.raises(RegistryError, match="is not a lower_snake_case identifier"):
            OpKind(name)


@pytest.mark.spec("D3")
def test_activation_numbers_are_fixed():
    assert {a.name: int(a) for a in ActKind} == {
        "none": 0, "relu": 1, "leaky_relu": 2, "gelu": 3, "sigmoid": 4, "tanh": 5, "gelu_erf": 6,
    }  # fmt: skip
