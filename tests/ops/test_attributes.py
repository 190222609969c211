"""What attributes may be declared as, what callers may write for them, and what stays of them in a blob."""

import enum
import re

import numpy as np
import pytest

import aicf
from aicf.errors import AttrError, RegistryError
from aicf.ops.agreement import check_op
from aicf.ops.attributes import told
from aicf.ops.schema import Any_, elementwise, op, schema_of, unregister
from aicf.types import ActKind, AttrPack, DType, Precision, Shape, TensorSpec

from .cases import f32


class Mode(enum.IntEnum):
    down = -1
    up = 3


UP = int(Mode.up)


class Side(enum.Enum):
    left = "l"
    right = "r"


@pytest.mark.spec("E2")
@pytest.mark.parametrize(
    "written", [DType.f16, "f16", "F16", np.float16, np.dtype("f2"), "float16", "half", DType.f16.id]
)
def test_an_element_type_is_written_in_any_way(written):
    assert schema_of("convert").pack({"dtype": written}) == AttrPack(dtype=2)
    x, y = np.array([1.5], np.float32), np.empty(1, np.float16)
    for _ in range(2):  # found anew, and by its key
        aicf.op_call("convert", [x], [y], {"dtype": written})
        assert y == 1.5


def test_an_element_type_of_torch_s():
    fake = type("dtype", (), {"__module__": "torch", "__repr__": lambda self: "torch.bfloat16"})()
    assert DType.of(fake) is DType.bf16


@pytest.mark.parametrize("written", [ActKind.gelu_erf, "gelu_erf", "GeluErf", 6, np.int64(6)])
def test_a_member_of_an_enumeration_is_written_in_any_way(written):
    assert schema_of("gemm").pack({"act": written})["act"] == 6


@pytest.mark.spec("E2")
@pytest.mark.parametrize(
    "op, attrs, message, expected, hint",
    [
        ("gemm", {"act": "gelo"}, "gemm: attribute act is 'gelo'",
         "one of none, relu, leaky_relu, gelu, sigmoid, tanh, gelu_erf", "gelu"),
        ("gemm", {"act": 7}, "gemm: attribute act is 7", "one of none, relu, .*", None),
        ("gemm", {"act": True}, "gemm: attribute act is True", "one of none, relu, .*", None),
        ("gemm", {"act": None}, "gemm: attribute act is None", "one of none, relu, .*", None),
        ("gemm", {"precision": "tf32x4"}, ".* precision is 'tf32x4'", "one of exact, tf32x3, tf32", "tf32x3.*"),
        ("gemm", {"out_dtype": "f15"}, ".* out_dtype is 'f15'", "one of f32, f16, .*, None", "f16.*"),
        ("convert", {"dtype": "fp16"}, ".* dtype is 'fp16'", "one of f32, .*f8e5m2.*", r"aicf\.f16"),
        ("convert", {"dtype": 0}, ".* dtype is 0", "one of f32, .*", None),
        ("convert", {"dtype": 99}, ".* dtype is 99", "one of f32, .*", None),
        ("convert", {"dtype": None}, ".* dtype is None", "one of f32, .*", None),
        ("reshape", {"shape": (2, 3.0)}, r"reshape: attribute shape is \(2, 3\.0\)", "a tuple of sizes", None),
        ("reshape", {"shape": "ab"}, "reshape: attribute shape is 'ab'", "a tuple of sizes", None),
        ("fill", {"shape": (True,), "value": 0.0, "dtype": "f32"}, r"fill: .* is \(True,\)", "a tuple of sizes", None),
    ],
)  # fmt: skip
def test_what_is_no_choice_is_told_with_the_choices(op, attrs, message, expected, hint):
    with pytest.raises(AttrError) as caught:
        schema_of(op).pack(attrs)
    for got, want in (
        (caught.value.what, message),
        (caught.value.expected, expected),
        (caught.value.hint, hint),
    ):
        assert (got is want is None) or re.fullmatch(want, got), got


@pytest.fixture
def declared():
    @op("declared_of_test")
    def declared(x: Any_, *, mode: Mode = Mode.up, side: Side = Side.left, name: str = "é", shape: Shape = (), dtype: DType | None = None):  # fmt: skip
        """The declared values, in a type."""
        assert isinstance(mode, Mode) and isinstance(side, Side) and isinstance(name, str)
        assert isinstance(dtype, (DType, type(None))) and isinstance(shape, tuple)
        return TensorSpec(shape, dtype or x.dtype)

    @declared.reference
    def _(x, mode, side, name, shape, dtype):
        assert (mode, side) == (Mode.up, Side.right)
        return np.full(shape, len(name), (dtype or DType.f32).numpy)

    yield declared
    unregister("declared_of_test")


def test_rules_see_what_was_declared_and_blobs_what_it_stands_for(declared):
    attrs = declared.pack({"side": "right", "name": "three", "shape": 2, "dtype": np.int32})
    assert dict(attrs) == {"mode": 3, "side": "r", "name": "three", "shape": (2,), "dtype": 4}
    assert AttrPack.from_blob(attrs.blob) == attrs
    assert declared.infer([f32(1)], attrs) == (TensorSpec((2,), DType.i32),)
    x, y = np.zeros(1, np.float32), np.empty(2, np.int32)
    aicf.op_call("declared_of_test", [x], [y], {"side": "r", "name": "three", "shape": [2], "dtype": "i32"})
    assert y.tolist() == [5, 5]
    assert [str(a) for a in declared.attrs] == [
        "mode: Mode = up", "side: Side = left", "name: str = 'é'", "shape: Shape = ()", "dtype: DType = None",
    ]  # fmt: skip
    for blob in (
        attrs.blob[:-1],
        attrs.blob.replace(b"three", b"\xff\xferee"),
        attrs.blob.replace(b"\5\0\0\0three", b"\xff\0\0\0three"),
    ):
        with pytest.raises(AttrError, match="this attribute blob can't be read"):
            AttrPack.from_blob(blob)


def test_a_scalar_function_computes_with_members_of_numbers():
    @elementwise("moded_of_test")
    def moded(x, *, mode: Mode = Mode.up):
        """mode * x, or 0 where the mode is up."""
        return x * mode if mode != UP else x * 0.0

    moded.reference(lambda x, mode: x * 0 if mode is Mode.up else x * int(mode))
    try:
        check_op(moded, mode=Mode.down)
        x, y = np.array([2.0], np.float32), np.empty(1, np.float32)
        for mode, want in (("down", -2.0), ("up", 0.0)):
            aicf.op_call("moded_of_test", [x], [y], {"mode": mode})
            assert y == want
    finally:
        unregister("moded_of_test")


@pytest.mark.parametrize("mode, message", [
    (complex, "attribute mode needs bool, int, float, str, tuple, Shape, DType, Subgraph, or an enumeration"),
    (enum.Enum("Mixed", {"a": 1, "b": "two"}), "attribute mode is a Mixed\n *expected: members that are all integers, or all text"),
])  # fmt: skip
def test_what_no_attribute_can_be_is_refused_at_the_declaration(mode, message):
    def moded(x: Any_, *, mode):
        return x

    moded.__annotations__["mode"] = mode
    with pytest.raises(RegistryError, match=message):
        op("moded_of_test")(moded)


@pytest.mark.parametrize("mode", [str, Side])
def test_no_kernel_computes_with_text(mode):
    def moded(x, *, mode):
        return x

    moded.__annotations__["mode"] = mode
    with pytest.raises(
        RegistryError, match="moded: attribute mode is text, and a scalar function computes with numbers"
    ):
        elementwise("moded_of_test")(moded)


def test_an_absent_number_is_none_and_no_number():
    def scaled(x: Any_, *, scale: float | None = None):
        return x

    schema = op("scaled_of_test")(scaled)
    try:
        absent = schema.pack({})
        assert (
            absent == schema.pack({"scale": None}) == AttrPack.from_blob(absent.blob)
            and absent["scale"] is None
        )
        assert len({absent, schema.pack({"scale": 0}), schema.pack({"scale": 1})}) == 3
        with pytest.raises(AttrError, match="attribute scale is 'x'") as error:
            schema.pack({"scale": "x"})
        assert error.value.expected == "float or None"
    finally:
        unregister("scaled_of_test")


def test_no_kernel_computes_with_an_absent_number():
    def shifted(x, *, by: float | None = None):
        return x

    with pytest.raises(RegistryError, match="shifted: attribute by may be None"):
        elementwise("shifted_of_test")(shifted)


# Of plans, tuning data and results that were written when types and activations were declared as integers.
BLOBS = {
    "gemm": ("a09b3b93", {"act": "gelu", "precision": "tf32", "out_dtype": "f16"},
             "415031000900000003006163746903000000000000000500616c70686166000000000000f03f04006265746166000000000000f03f"
             "09006f75745f64747970656902000000000000000900707265636973696f6e6902000000000000000b00736176655f7072656163746200"
             "0500736c6f7065667b14ae47e17a843f07007472616e735f61620007007472616e735f626200"),
    "convert": ("8723ffc8", {"dtype": "f8e4m3"}, "415031000100000005006474797065690700000000000000"),
    "fill": ("9ae6a757", {"shape": (4, 7), "value": 1.5, "dtype": "bf16"},
             "41503100030000000500647479706569030000000000000005007368617065740200690400000000000000690700000000000000"
             "050076616c756566000000000000f83f"),
}  # fmt: skip


@pytest.mark.parametrize("op", BLOBS)
def test_blobs_are_what_they_were(op):
    schema, (layout, attrs, blob) = schema_of(op), BLOBS[op]
    assert schema.attr_schema == f"{op}/v1:{layout}"
    assert schema.pack(attrs).blob.hex() == blob
    assert schema.pack(schema.values(AttrPack.from_blob(bytes.fromhex(blob)))).blob.hex() == blob


def test_graphs_and_info_tell_names(capsys):
    from aicf.cli import main
    from aicf.graph.emit.builder import Builder, GraphEmitter

    builder = Builder()
    ctx = GraphEmitter(builder, "cpu")
    x = ctx.input("x", (4, 4))
    ctx.convert(ctx.gemm(x, x, act="gelu", precision="tf32"), dtype="f16")
    text = str(builder.graph)
    assert (
        " act=gelu " in text
        and " precision=tf32 " in text
        and " out_dtype=None " in text
        and " dtype=f16 " in text
    )
    assert main(["info", "gemm"]) == 0
    assert "act: ActKind = none" in (out := capsys.readouterr().out) and "out_dtype: DType = None" in out
    assert told((Precision.tf32, 1)) == "(tf32, 1)"
