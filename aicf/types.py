"""The vocabulary: DType, TensorSpec, TensorDesc, AttrPack, OpKind, ActKind. Pure data; knows no op and no device."""

from __future__ import annotations

import builtins
import enum
import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from .errors import AttrError, RegistryError
from .lazy import lazy

Dim = int | str  # a named dimension ("batch") gets its size when a program is specialised
Shape = tuple[int, ...]


class DType(enum.Enum):
    """An element type. `id` is stable: it goes into attribute blobs. Names count bits: i8 is NumPy's int8, whose own "i8" has 64."""

    f32 = (1, 4, "float")
    f16 = (2, 2, "float")
    bf16 = (3, 2, "float")
    i32 = (4, 4, "int")
    i64 = (5, 8, "int")
    bool = (6, 1, "bool")
    f8e4m3 = (7, 1, "float")
    f8e5m2 = (8, 1, "float")
    i8 = (9, 1, "int")
    u8 = (10, 1, "int")
    i16 = (11, 2, "int")
    u16 = (12, 2, "int")
    u32 = (13, 4, "int")
    u64 = (14, 8, "int")
    f64 = (15, 8, "float")

    def __init__(self, id: int, itemsize: int, kind: str) -> None:
        self.id, self.itemsize, self.kind = id, itemsize, kind

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype; bf16 and fp8 come from ml_dtypes. f8e4m3 is the one without infinities, `e4m3fn`."""
        return _TO_NUMPY[self]

    @property
    def compute(self) -> DType:
        """The type arithmetic is done in: f32 for the narrower floats, itself for the others; integers wrap around in it."""
        return DType.f32 if self.kind == "float" and self.itemsize < 8 else self

    @classmethod
    def of(cls, value: Any) -> DType:
        """From a DType, its name, or anything NumPy takes for a dtype."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value in cls.__members__:
            return cls[value]
        if type(value).__module__ == "torch":  # torch.float16
            value = str(value).removeprefix("torch.")
        try:
            if value is None:  # NumPy's default is no choice
                raise TypeError
            return _FROM_NUMPY[np.dtype(value)]
        except (KeyError, TypeError):
            raise AttrError(
                f"{value!r} is not an aicf element type", expected="one of " + ", ".join(cls.__members__)
            ) from None

    @classmethod
    def from_id(cls, id: int) -> DType:
        """The element type of an id; KeyError if there is none."""
        return _BY_ID[id]

    @property
    def is_fp8(self) -> builtins.bool:
        """Whether it is f8e4m3 or f8e5m2, which are for storage and products."""
        return self in FINITE_MAX

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__
    __hash__ = object.__hash__  # Enum's own is a call of Python, and selection hashes many


_TO_NUMPY = {
    DType.f32: np.dtype(np.float32),
    DType.f16: np.dtype(np.float16),
    DType.bf16: np.dtype(ml_dtypes.bfloat16),
    DType.i32: np.dtype(np.int32),
    DType.i64: np.dtype(np.int64),
    DType.bool: np.dtype(np.bool_),
    DType.f8e4m3: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.f8e5m2: np.dtype(ml_dtypes.float8_e5m2),
    DType.i8: np.dtype(np.int8),
    DType.u8: np.dtype(np.uint8),
    DType.i16: np.dtype(np.int16),
    DType.u16: np.dtype(np.uint16),
    DType.u32: np.dtype(np.uint32),
    DType.u64: np.dtype(np.uint64),
    DType.f64: np.dtype(np.float64),
}
_FROM_NUMPY = {v: k for k, v in _TO_NUMPY.items()}
_BY_ID = {t.id: t for t in DType}

f32, f16, bf16, i32, i64, bool_ = DType.f32, DType.f16, DType.bf16, DType.i32, DType.i64, DType.bool
f8e4m3, f8e5m2 = DType.f8e4m3, DType.f8e5m2
i8, u8, i16, u16, u32, u64, f64 = DType.i8, DType.u8, DType.i16, DType.u16, DType.u32, DType.u64, DType.f64
BASIC = frozenset({f32, f16, bf16, i32, i64, bool_, f8e4m3, f8e5m2})  # a kernel for others says that it is
FINITE_MAX = {f8e4m3: 448.0, f8e5m2: 57344.0}  # what saturates: a greater finite number becomes this


def rounded(x: np.ndarray, dtype: DType) -> np.ndarray:
    """x in an element type, as it is stored: nearest even, once; fp8 saturates, where ml_dtypes makes a NaN or an infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype is bf16 or dtype.is_fp8:  # ml_dtypes goes by way of f32
            x = (
                odd_f32(x) if x.dtype == np.float64
                else fewer_bits_unsigned(x) if x.dtype.kind == "u"
                else fewer_bits(x) if x.dtype.kind == "i"
                else x
            )  # fmt: skip
        if dtype.is_fp8:
            wide = x.astype(np.float32)
            bounded = np.clip(wide, -FINITE_MAX[dtype], FINITE_MAX[dtype])
            x = np.where(np.isinf(wide), wide, bounded) if dtype is f8e5m2 else bounded
        return x.astype(dtype.numpy)


_ONE = np.int32(1)


def odd_f32(x: Any) -> Any:
    """f64 in f32, what is inexact to the odd neighbour: it then rounds to fewer bits as x itself. Of arrays, too; kernels call it."""
    near = np.float32(x)
    bits = near.view(np.int32)
    moves = np.int32(near != x) * np.int32(x == x) * (_ONE - (bits & _ONE))
    away = np.int32(abs(near) < abs(x))
    return np.int32(bits + moves * (away + away - _ONE)).view(np.float32)


_24, _38, _52, _63, _14, _12 = (np.int64(n) for n in (1 << 24, 1 << 38, 1 << 52, 63, 14, 12))


def fewer_bits(x: Any) -> Any:
    """An integer of at most 24 bits and zeros behind them, so that f32 has it, that rounds to bf16 as x: the last bit kept says
    whether any was lost. Of i32 or i64, and of arrays of them; kernels call it, too.
    """
    wide = np.int64(x)
    size = wide ^ (wide >> _63)  # |x|, or one less
    drop = _14 * np.int64(size >= _24) + _14 * np.int64(size >= _38) + _12 * np.int64(size >= _52)
    kept = wide >> drop
    return (kept | np.int64((kept << drop) != wide)) << drop


def fewer_bits_unsigned(x: Any) -> Any:
    """The same of unsigned integers, as f32: those that i64 lacks are halved before, and doubled behind."""
    wide = np.uint64(x)
    large = wide >> np.uint64(63)
    half = (wide >> large) | (wide & large)
    return np.float32(fewer_bits(np.int64(half))) * (np.float32(large) + np.float32(1))


def numel(shape: tuple[Any, ...]) -> int:
    """Number of elements; 1 for a 0-D shape."""
    try:
        number = prod(shape)
    except TypeError:  # of two names
        number = ""
    if isinstance(number, str):  # 4 times a name would be that name four times
        named = next(d for d in shape if isinstance(d, str))
        raise AttrError(
            f"a tensor of shape {shape} has no number of elements while {named} has no size",
            hint=f"spec.bind({{{named!r}: 32}})",
        )
    return number


@lru_cache(maxsize=4096)
def row_major(shape: Shape) -> Shape:
    """Strides, in elements, of a dense row-major tensor."""
    strides, step = [], 1
    for d in reversed(shape):
        strides.append(step)
        step *= max(d, 1)
    return tuple(reversed(strides))


def reshaped_strides(shape: Shape, stride: Shape, new: Shape) -> Shape | None:
    """Strides of the same elements, in row-major order, in another shape; None where no strides say that."""
    if numel(shape) == 0:
        return row_major(new)
    left = [(d, s) for d, s in zip(shape, stride) if d != 1][
        ::-1
    ]  # axes that are still to be split or merged
    made: list[int] = []
    for d in new:
        while left and left[-1][0] % d:
            size, step = left.pop()
            if not left or step != left[-1][0] * left[-1][1]:
                return None
            left[-1] = size * left[-1][0], left[-1][1]
        size, step = left[-1] if left else (1, 1)
        made.append(step * (size // d))
        if d != 1:
            left[-1:] = [(size // d, step)] if size > d else []
    return tuple(made)


class _Sized:
    """What follows from a shape and an element type."""

    shape: tuple[Any, ...]
    dtype: DType

    @property
    def rank(self) -> int:
        return len(self.shape)

    @lazy
    def numel(self) -> int:
        return numel(self.shape)

    @lazy
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True)
class TensorSpec(_Sized):
    """What a value is: shape, element type, device kind (`cpu` or `cuda`). Dimensions may be names until bound."""

    shape: tuple[Any, ...]  # of Dim: sizes, or names until they are bound
    dtype: DType = f32
    device: str = "cpu"

    def __post_init__(self) -> None:
        if type(self.shape) is tuple and type(self.dtype) is DType:
            for d in self.shape:
                if type(d) is not int or d < 0:
                    break
            else:
                return  # as most are
        shape = (self.shape,) if isinstance(self.shape, (int, str)) else tuple(self.shape)
        for d in shape:
            size = isinstance(d, (int, np.integer)) and not isinstance(d, bool) and d >= 0
            if not size and not isinstance(d, str):
                raise AttrError(
                    f"{d!r} is not a dimension", expected="a size >= 0, or a name such as 'batch'"
                )
        object.__setattr__(self, "shape", tuple(d if isinstance(d, str) else int(d) for d in shape))
        object.__setattr__(self, "dtype", DType.of(self.dtype))

    @lazy
    def dims(self) -> frozenset[str]:
        """Names of the dimensions that are not bound yet."""
        return frozenset([d for d in self.shape if isinstance(d, str)])

    def bind(self, sizes: Mapping[str, int]) -> TensorSpec:
        """The spec with named dimensions replaced; unknown names stay."""
        return replace(self, shape=tuple(sizes.get(d, d) if isinstance(d, str) else d for d in self.shape))

    def __str__(self) -> str:
        return "tensor<" + "x".join([*map(str, self.shape), str(self.dtype)]) + ">"


@dataclass(frozen=True)
class TensorDesc(_Sized):
    """What selection sees of a tensor: no pointer, only its alignment. Strides are in elements."""

    dtype: DType
    shape: Shape
    stride: Shape
    device: str = "cpu"
    alignment: int = 256

    @classmethod
    def dense(cls, spec: TensorSpec, alignment: int = 256) -> TensorDesc:
        """The descriptor of a plan's slot: row-major and aligned like the arena."""
        return cls(spec.dtype, spec.shape, row_major(spec.shape), spec.device, alignment)

    def __hash__(self) -> int:
        return self._hash

    @lazy
    def _hash(self) -> int:
        return hash((self.dtype, self.shape, self.stride, self.device, self.alignment))

    @lazy
    def contiguous(self) -> bool:
        """Row-major without gaps; dimensions of size 1 may have any stride, and an empty tensor is contiguous."""
        if self.numel == 0:
            return True
        dense = row_major(self.shape)
        return all(d == 1 or s == e for d, s, e in zip(self.shape, self.stride, dense))

    def __str__(self) -> str:
        text = f"{self.dtype}[{'x'.join(map(str, self.shape))}]"
        return text if self.contiguous else f"{text} strides {self.stride}"


def pointer_alignment(pointer: int) -> int:
    """Largest power of two, up to 256, that divides a pointer."""
    return 256 if pointer % 256 == 0 else pointer & -pointer


# --- attributes -----------------------------------------------------------------------------------------------------

Scalar = bool | int | float | str | None
AttrValue = Scalar | tuple
_MAGIC = b"AP1\0"


class AttrPack(Mapping[str, Any]):
    """Attributes packed to bytes: key-sorted, typed, so that order never matters and True, 1, 1.0 differ.

    Holds bool, int (64 bits), float (64 bits), text, None and fixed-length, possibly nested, tuples of them; element types by their ids,
    members of enumerations by their values. Two packs are equal
    when their bytes are; so 0.0 and -0.0 differ and a NaN equals itself. `AttrPack.from_blob(p.blob) == p`.
    """

    __slots__ = ("_values", "blob")

    def __init__(self, values: Mapping[str, Any] | None = None, **more: Any) -> None:
        merged = {**(values or {}), **more}
        for key in merged:
            if not isinstance(key, str) or not key.isidentifier():
                raise AttrError(f"attribute name {key!r} is not an identifier")
        self._values = {key: _normal(key, merged[key]) for key in sorted(merged)}
        parts = [_MAGIC, struct.pack("<I", len(self._values))]
        for key, value in self._values.items():
            name = key.encode()
            parts += [struct.pack("<H", len(name)), name, _encode(value)]
        self.blob = b"".join(parts)

    @classmethod
    def from_blob(cls, blob: bytes) -> AttrPack:
        """The pack that has these bytes; AttrError if they are no pack."""
        try:
            if blob[:4] != _MAGIC:
                raise ValueError("bad magic")
            (count,), at, values = struct.unpack_from("<I", blob, 4), 8, {}
            for _ in range(count):
                (length,) = struct.unpack_from("<H", blob, at)
                key = blob[at + 2 : at + 2 + length].decode()
                values[key], at = _decode(blob, at + 2 + length)
            if at != len(blob):
                raise ValueError(f"{len(blob) - at} bytes left over")
        except (ValueError, IndexError, struct.error) as error:
            raise AttrError(f"this attribute blob can't be read: {error}", got=f"{len(blob)} bytes") from None
        pack = cls(values)
        if pack.blob != blob:  # unsorted or repeated keys, a bool of 2
            raise AttrError("this attribute blob can't be read: a pack has one blob, and this is not its")
        return pack

    def unpacked(self) -> dict[str, Any]:
        """A dict of what the pack holds, at once."""
        return dict(self._values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttrPack) and self.blob == other.blob

    def __hash__(self) -> int:
        return hash(self.blob)

    def __repr__(self) -> str:
        return f"AttrPack({', '.join(f'{k}={v!r}' for k, v in self._values.items())})"


def _normal(key: str, value: Any) -> AttrValue:
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        if not -(2**63) <= int(value) < 2**63:
            raise AttrError(f"attribute {key} = {value} does not fit in 64 bits")
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, DType):
        return value.id
    if isinstance(value, str):
        return str(value)
    if isinstance(value, enum.Enum):
        return _normal(key, value.value)
    if isinstance(value, (tuple, list)):
        return tuple(_normal(key, v) for v in value)
    raise AttrError(
        f"attribute {key} has type {type(value).__name__}",
        expected="bool, int, float, str, None, an element type, a member of an enumeration, or a tuple of them",
        got=repr(value),
    )


def _encode(value: AttrValue) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"b" + struct.pack("<B", value)
    if isinstance(value, int):
        return b"i" + struct.pack("<q", value)
    if isinstance(value, float):
        return b"f" + struct.pack("<d", value)
    if isinstance(value, str):
        text = value.encode()
        return b"s" + struct.pack("<I", len(text)) + text
    return b"t" + struct.pack("<H", len(value)) + b"".join(map(_encode, value))


def _decode(blob: bytes, at: int) -> tuple[AttrValue, int]:
    tag, at = blob[at : at + 1], at + 1
    if tag == b"n":
        return None, at
    if tag == b"b":
        return bool(blob[at]), at + 1
    if tag in (b"i", b"f"):
        return struct.unpack_from("<q" if tag == b"i" else "<d", blob, at)[0], at + 8
    if tag == b"s":
        (length,) = struct.unpack_from("<I", blob, at)
        if at + 4 + length > len(blob):
            raise ValueError("text that ends too soon")
        return blob[at + 4 : at + 4 + length].decode(), at + 4 + length
    if tag == b"t":
        (count,), at, items = struct.unpack_from("<H", blob, at), at + 2, []
        for _ in range(count):
            item, at = _decode(blob, at)
            items.append(item)
        return tuple(items), at
    raise ValueError(f"unknown tag {tag!r}")


# --- op kinds and activations -----------------------------------------------------------------------------------------

_KINDS: dict[str, OpKind] = {}
_KINDS_BY_ID: dict[int, OpKind] = {}


class _OpKindMeta(type):
    def __getattr__(cls, name: str) -> OpKind:
        """OpKind.gemm, OpKind.Gemm and OpKind.GEMM are the same kind; an unknown name is an AttributeError."""
        if not name.startswith("__") and (kind := cls.known(name)):  # Python asks for __copy__
            return kind
        raise AttributeError(f"no op kind {name!r} is known; known kinds: {', '.join(sorted(_KINDS))}")

    def known(cls, name: str) -> OpKind | None:
        """The kind of this name, in any spelling: `bias_add` is also BiasAdd, `add` is also EltwiseAdd."""
        if name in _KINDS:
            return _KINDS[name]
        folded = name.replace("_", "").lower()
        kinds = {kind.name.replace("_", ""): kind for kind in cls}
        return kinds.get(folded) or kinds.get(folded.removeprefix("eltwise"))

    def __iter__(cls) -> Iterator[OpKind]:
        return iter([_KINDS[name] for name in sorted(_KINDS)])


class OpKind(metaclass=_OpKindMeta):
    """Which op. An open, interned set: the id comes from the name, so that a new op edits no list."""

    name: str
    id: int
    __slots__ = ("id", "name")

    def __new__(cls, name: str) -> OpKind:
        if name in _KINDS:
            return _KINDS[name]
        if not name.isidentifier() or name != name.lower():
            raise RegistryError(f"op kind {name!r} is not a lower_snake_case identifier")
        kind = object.__new__(cls)
        kind.name = name
        digest = hashlib.blake2s(name.encode(), digest_size=4).digest()
        kind.id = int.from_bytes(digest, "little") & 0x7FFFFFFF
        if kind.id in _KINDS_BY_ID:
            raise RegistryError(
                f"op kinds {name!r} and {_KINDS_BY_ID[kind.id].name!r} hash to one id; rename one"
            )
        _KINDS[name] = _KINDS_BY_ID[kind.id] = kind
        return kind

    @classmethod
    def from_id(cls, id: int) -> OpKind:
        """The kind that has this id; RegistryError if no op that is known here has it."""
        try:
            return _KINDS_BY_ID[id]
        except KeyError:
            raise RegistryError(f"no op kind has id {id}; is the package that brings it installed?") from None

    def __repr__(self) -> str:
        return f"OpKind.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple:
        return OpKind, (self.name,)


class ActKind(enum.IntEnum):
    """Activations a GEMM can take as an attribute. Each but `none` is also an elementwise op of that name."""

    none = 0
    relu = 1
    leaky_relu = 2
    gelu = 3
    sigmoid = 4
    tanh = 5
    gelu_erf = 6


class Precision(enum.IntEnum):
    """How far the f32 operands of a product may be rounded before they are multiplied. Sums are of f32 in any case, but
    for fp8, of which tensor cores may sum 128 products of k in some 14 bits, unless numerics are strict.

    A kernel may be more exact than it has to be. Narrower types are never rounded.
    """

    exact = 0
    tf32x3 = 1  # split in two tf32 parts each, three products: an error near that of f32
    tf32 = 2  # 10 bits of mantissa
