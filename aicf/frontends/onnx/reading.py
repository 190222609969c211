"""ONNX files: bytes that nobody vouches for become a ModelProto and arrays, or one FrontendError. Nothing is allocated by what a file
claims: sizes are compared with the bytes there are before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import AicfError, FrontendError
from ...mapped import MappedFile
from ...types import DType, TensorSpec
from ...weights import UnreadArray
from .wire import Span, without_weights

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
    """A model as it was read, and where files that it names may lie: None is nowhere.

    data, spans   where bytes of initializers lie that `proto` lacks, by their number
    files         of external data, each mapped once
    """

    proto: Any
    folder: Path | None
    name: str
    data: MappedFile | bytes = b""
    spans: Mapping[int, Span] = field(default_factory=dict)
    files: dict[Path, MappedFile] = field(default_factory=dict)


def read(source: Any, folder: str | Path | None = None) -> Source:
    """A path, bytes or a ModelProto.

    folder  where files of external data lie, for what is no path
    """
    onnx = library()
    if isinstance(source, onnx.ModelProto):
        return Source(source, None if folder is None else Path(folder), "the ModelProto")
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _source(bytes(source), None if folder is None else Path(folder), "the model")
    if not isinstance(source, (str, Path)):
        raise bad(
            f"an ONNX model can't be a {type(source).__name__}",
            expected="a path, bytes or an onnx.ModelProto",
        )
    path = Path(source)
    return _source(_mapped(path), path.parent if folder is None else Path(folder), str(path))


def _mapped(path: Path) -> MappedFile:
    try:
        file = MappedFile(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        raise bad(
            f"{path} can't be read: {getattr(error, 'strerror', None) or error}", expected=MADE_BY
        ) from None
    if file.size > MOST_BYTES:
        raise bad(
            f"{path} is larger than a protobuf message can be", expected=f"at most {MOST_BYTES} bytes", got=file.size,
            hint="onnx.save(model, path, save_as_external_data=True) keeps weights beside it",
        )  # fmt: skip
    return file


def _source(data: MappedFile | bytes, folder: Path | None, name: str) -> Source:
    """Weights stay in the file, or in the bytes that were given."""
    view = memoryview(data) if isinstance(data, bytes) else data.read(0, data.size).data
    stripped = without_weights(view)
    if stripped is None:
        return Source(_parsed(view.tobytes(), name), folder, name)
    return Source(_parsed(stripped[0], name), folder, name, data, stripped[1])


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
    return unread(tensor, source, what).read()


def unread(tensor: Any, source: Source, what: str, span: Span | None = None) -> UnreadArray:
    """A TensorProto whose bytes are there, and are read when they are asked for if they lie in a file.

    span  where they lie, if `source.data` has them
    """
    dtype, shape = dtype_of(tensor.data_type, what), tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise bad(f"{what} has a negative size", got=shape)
    if tensor.HasField("segment"):
        raise bad(f"{what} is stored in segments, which no ONNX version has defined")
    count = prod(shape)
    data: MappedFile | bytes
    size = count * dtype.itemsize
    if tensor.data_location == library().TensorProto.EXTERNAL:
        data, first, end = _external(tensor, source, size, what)
    elif span is not None:
        data, (first, end) = source.data, span
    elif tensor.HasField("raw_data"):
        first, end = 0, len(tensor.raw_data)
        data = tensor.raw_data
    else:
        array = _from_fields(tensor, dtype, count, what).reshape(shape)
        return UnreadArray(TensorSpec(shape, dtype), partial(_itself, array))
    if end - first != size:
        raise bad(
            f"{what} has not as many bytes as its shape needs", expected=f"{size} for {dtype}{list(shape)}", got=end - first
        )  # fmt: skip
    made = UnreadArray(TensorSpec(shape, dtype), partial(_array, data, first, end, dtype, shape))
    if dtype is DType.bool and (made.read().view(np.uint8) > 1).any():
        raise bad(f"{what} has a bool that is neither 0 nor 1")
    return made


def _itself(array: np.ndarray) -> np.ndarray:
    return array


def _array(
    data: MappedFile | bytes, first: int, end: int, dtype: DType, shape: tuple[int, ...]
) -> np.ndarray:
    if isinstance(data, MappedFile):
        return data.array(first, end, dtype.numpy, shape)
    found = np.frombuffer(data, np.uint8, end - first, first) if end > first else np.empty(0, np.uint8)
    if found.ctypes.data % dtype.itemsize:
        found = found.copy()  # kernels of the host read whole elements
    return found.view(dtype.numpy).reshape(shape)


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


def _external(tensor: Any, source: Source, size: int, what: str) -> tuple[MappedFile, int, int]:
    """A file beside the model's, and where in it the bytes lie."""
    told = {entry.key: entry.value for entry in tensor.external_data}
    location = told.get("location", "")
    offset, length = (_count(told, key, what) for key in ("offset", "length"))
    path = _inside(source, location, what)
    if path not in source.files:
        try:
            source.files[path] = MappedFile(path)
        except OSError as error:
            raise bad(f"{what} can't be read in {location!r}: {error.strerror or error}") from None
    file = source.files[path]
    length = size if length is None else length
    begin = offset or 0
    if length != size or begin + length > file.size:
        raise bad(
            f"{what} is not in {location!r} as it says", expected=f"{size} bytes, by its shape and type",
            got=f"{length} bytes from {begin} on, of a file of {file.size}",
        )  # fmt: skip
    return file, begin, begin + length


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
