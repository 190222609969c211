"""ONNX files: bytes that nobody vouches for become a ModelProto and arrays, or one FrontendError. Nothing is allocated by what a file
claims: sizes are compared with the bytes there are before."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import AicfError, FrontendError
from ...types import DType

MOST_BYTES = 2**31 - 1  # of a protobuf message; what is larger keeps its weights in files beside it
TYPES: Mapping[int, DType] = {
    1: DType.f32, 2: DType.u8, 3: DType.i8, 4: DType.u16, 5: DType.i16, 6: DType.i32, 7: DType.i64, 9: DType.bool, 10: DType.f16,
    11: DType.f64, 12: DType.u32, 13: DType.u64, 16: DType.bf16, 17: DType.f8e4m3, 19: DType.f8e5m2,
}  # fmt: skip
MADE_BY = "a whole file as torch.onnx.export or onnx.save writes it"


def library() -> Any:
    """The package `onnx`, which reads the format and knows its ops; imported when a model is."""
    try:
        import onnx
        import onnx.defs
    except ImportError as error:
        raise AicfError(
            f"reading ONNX needs the package onnx: {error}", expected="onnx 1.17 or newer", hint="pip install onnx"
        ) from None  # fmt: skip
    return onnx


def bad(what: str, **parts: Any) -> FrontendError:
    return FrontendError(what, **parts)


@dataclass(frozen=True)
class Source:
    """A model as it was read, and where files that it names may lie: None is nowhere."""

    proto: Any
    folder: Path | None
    name: str


def read(source: Any, folder: str | Path | None = None) -> Source:
    """A path, bytes or a ModelProto.

    folder  where files of external data lie, for what is no path
    """
    onnx = library()
    if isinstance(source, onnx.ModelProto):
        return Source(source, None if folder is None else Path(folder), "the ModelProto")
    if isinstance(source, (bytes, bytearray, memoryview)):
        place = None if folder is None else Path(folder)
        return Source(_parsed(bytes(source), "the model"), place, "the model")
    if not isinstance(source, (str, Path)):
        raise bad(
            f"an ONNX model can't be a {type(source).__name__}",
            expected="a path, bytes or an onnx.ModelProto",
        )
    path = Path(source)
    return Source(
        _parsed(_bytes_of(path), str(path)), path.parent if folder is None else Path(folder), str(path)
    )


def _bytes_of(path: Path) -> bytes:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise bad(f"{path} is no file", expected=MADE_BY)
        if status.st_size > MOST_BYTES:
            raise bad(
                f"{path} is larger than a protobuf message can be", expected=f"at most {MOST_BYTES} bytes", got=status.st_size,
                hint="onnx.save(model, path, save_as_external_data=True) keeps weights beside it",
            )  # fmt: skip
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        raise bad(
            f"{path} can't be read: {getattr(error, 'strerror', None) or error}", expected=MADE_BY
        ) from None


def _parsed(data: bytes, name: str) -> Any:
    onnx = library()
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception as error:  # protobuf's own
        raise bad(
            f"{name} is damaged, or no ONNX model", got=str(error) or f"{len(data)} bytes", expected=MADE_BY
        ) from None
    if not model.HasField("graph") or not model.opset_import:
        lacks = "graph" if not model.HasField("graph") else "version of its ops (opset_import)"
        raise bad(f"{name} has no {lacks}", got=f"{len(data)} bytes", expected=MADE_BY)
    return model


# --- element types and tensors ------------------------------------------------------------------------------------------


def type_name(number: int) -> str:
    """What ONNX calls an element type."""
    names = library().TensorProto.DataType
    return str(names.Name(number)) if number in names.values() else f"number {number}"


def dtype_of(number: int, what: str) -> DType:
    """The element type of a number; FrontendError for what is none, or that aicf lacks."""
    if number in TYPES:
        return TYPES[number]
    known = number in library().TensorProto.DataType.values() and number != 0
    raise bad(
        f"{what} has elements of {type_name(number)}" + ", which aicf lacks" * known,
        expected=", ".join(type_name(n) for n in TYPES),
    )


def array_of(tensor: Any, source: Source, what: str) -> np.ndarray:
    """A TensorProto as an array, read-only and without a copy where its bytes can be used as they are."""
    dtype, shape = dtype_of(tensor.data_type, what), tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise bad(f"{what} has a negative size", got=shape)
    if tensor.HasField("segment"):
        raise bad(f"{what} is stored in segments, which no ONNX version has defined")
    count = prod(shape)
    if tensor.data_location == library().TensorProto.EXTERNAL:
        data = _external(tensor, source, count * dtype.itemsize, what)
    elif tensor.HasField("raw_data"):
        data = np.frombuffer(tensor.raw_data, np.uint8)
    else:
        return _from_fields(tensor, dtype, count, what).reshape(shape)
    if data.nbytes != count * dtype.itemsize:
        raise bad(
            f"{what} has not as many bytes as its shape needs", expected=f"{count * dtype.itemsize} for {dtype}{list(shape)}",
            got=data.nbytes,
        )  # fmt: skip
    if dtype is DType.bool and (data > 1).any():
        raise bad(f"{what} has a bool that is neither 0 nor 1")
    if data.ctypes.data % dtype.itemsize:
        data = data.copy()  # kernels of the host read whole elements
    return data.view(dtype.numpy).reshape(shape)


_FIELDS = {
    DType.f32: "float_data",
    DType.f64: "double_data",
    DType.i64: "int64_data",
    DType.u32: "uint64_data",
    DType.u64: "uint64_data",
}
_BITS = {DType.f16: np.uint16, DType.bf16: np.uint16, DType.f8e4m3: np.uint8, DType.f8e5m2: np.uint8}


def _from_fields(tensor: Any, dtype: DType, count: int, what: str) -> np.ndarray:
    """The elements of a tensor that lists them; narrow floats are listed by their bits."""
    field = _FIELDS.get(dtype, "int32_data")
    given = getattr(tensor, field)
    if len(given) != count:
        raise bad(
            f"{what} has not as many elements as its shape needs",
            expected=f"{count} in {field}",
            got=len(given),
        )
    stored = _BITS.get(dtype, dtype.numpy)
    if dtype.kind == "float" and dtype not in _BITS:
        return np.array(given, stored)
    numbers = np.array(given, np.uint64 if field == "uint64_data" else np.int64)
    most = 1 if dtype is DType.bool else np.iinfo(stored).max
    least = 0 if dtype is DType.bool else np.iinfo(stored).min
    if count and not (least <= int(numbers.min()) and int(numbers.max()) <= most):
        raise bad(f"{what} lists a number that {dtype} does not have", expected=f"{least} to {most}")
    return numbers.astype(stored).view(dtype.numpy)


def _external(tensor: Any, source: Source, size: int, what: str) -> np.ndarray:
    """Bytes of a file beside the model's: mapped, not read."""
    told = {entry.key: entry.value for entry in tensor.external_data}
    location = told.get("location", "")
    offset, length = (_count(told, key, what) for key in ("offset", "length"))
    path = _inside(source, location, what)
    there = path.stat().st_size
    length = size if length is None else length
    begin = offset or 0
    if length != size or begin + length > there:
        raise bad(
            f"{what} is not in {location!r} as it says", expected=f"{size} bytes, by its shape and type",
            got=f"{length} bytes from {begin} on, of a file of {there}",
        )  # fmt: skip
    if not size:
        return np.empty(0, np.uint8)
    return np.memmap(path, np.uint8, "r")[begin : begin + length].view(np.ndarray)


def _count(told: Mapping[str, str], key: str, what: str) -> int | None:
    text = told.get(key, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise bad(f"{what} has a {key} of its external data that is no number", got=repr(text[:40]))
    return int(text)


def _inside(source: Source, location: str, what: str) -> Path:
    """The file that a tensor names, which must lie in the model's folder, itself and not by a link."""
    hint = "keep the files of a model in its folder; from_onnx(..., folder=...) says which it is"
    if source.folder is None:
        raise bad(f"{what} lies in a file of its own, {location!r}, and the model in none", hint=hint)
    parts = Path(location).parts
    if not location or "\0" in location or "\\" in location or Path(location).is_absolute() or ".." in parts:
        raise bad(
            f"{what} lies outside of the model's folder", got=repr(location), expected="a path in the folder", hint=hint
        )  # fmt: skip
    path = source.folder
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise bad(
                f"{what} lies behind a symbolic link",
                got=repr(location),
                expected="a file in the folder",
                hint=hint,
            )
    if not path.is_file():
        raise bad(
            f"{what} lies in {location!r}, and there is no such file", where=str(source.folder), hint=hint
        )
    return path
