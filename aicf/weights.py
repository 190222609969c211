"""Arrays by name in safetensors files: written whole or not at all, read without copying.

`save` writes beside the file and then takes its place, so that a file is never half written. `load` maps the file into memory: an array
is read from disk when it is used. The safetensors library checks a file's header before anything is taken from it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from .errors import StateError
from .types import DType, TensorSpec

NAMES = {  # safetensors' names of element types
    "F64": DType.f64, "F32": DType.f32, "F16": DType.f16, "BF16": DType.bf16, "F8_E4M3": DType.f8e4m3,
    "F8_E5M2": DType.f8e5m2, "I64": DType.i64, "I32": DType.i32, "I16": DType.i16, "I8": DType.i8, "U64": DType.u64,
    "U32": DType.u32, "U16": DType.u16, "U8": DType.u8, "BOOL": DType.bool,
}  # fmt: skip
TAKEN = {dtype.numpy for dtype in NAMES.values()}
MADE_BY = "aicf.save(path, program.state_dict()) writes one; so does safetensors of other frameworks"


def save(path: str | Path, arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays to a safetensors file, such as a program's `state_dict()`. The file is replaced only when all is on disk.

    arrays    by name; anything that NumPy takes. Every element type of aicf's, so bf16 and fp8 too
    metadata  strings by name, which `metadata(path)` returns

    StateError if an array has a type that the format lacks, or if the file can't be written; then an older one is as it was.
    """
    hosts = {name: _host(name, array) for name, array in arrays.items()}
    target = Path(path)
    try:
        temporary = str(target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}"))
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise StateError(
            f"{target} can't be written: {error.strerror}", hint="name a file in a folder that is there"
        ) from None
    try:
        save_file(hosts, temporary, dict(metadata or {}))
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except (OSError, SafetensorError) as error:
        raise StateError(
            f"{target} can't be written: {error}",
            hint="make room, or name another folder; what was there is as it was",
        ) from None
    finally:
        Path(temporary).unlink(missing_ok=True)


def load(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, read-only views of it; `program.load_state_dict(aicf.load(path))` copies what it needs.

    StateError if there is no such file, or if it is damaged or no safetensors file.
    """
    return dict(Mapped(path))


class Mapped(Mapping[str, np.ndarray]):
    """The arrays of a safetensors file. Each is made when it is asked for: a read-only view of the file, or a copy where the file does
    not align it. StateError as for `load`."""

    def __init__(self, path: str | Path) -> None:
        self.path, (names, self.metadata) = path, _checked(path)
        self._bytes = np.memmap(path, np.uint8, "r")
        self._head = 8 + int.from_bytes(self._bytes[:8].tobytes(), "little")
        told = json.loads(self._bytes[8 : self._head].tobytes())
        self._told = {name: told[name] for name in names}

    def spec(self, name: str) -> TensorSpec:
        """Of an array, which is not read."""
        told = self._told[name]
        if told["dtype"] not in NAMES:
            raise StateError(
                f"{name} in {self.path} has elements of {told['dtype']}, which aicf does not have", expected=", ".join(sorted(NAMES)),
                hint="convert it where the file is made",
            )  # fmt: skip
        return TensorSpec(tuple(told["shape"]), NAMES[told["dtype"]])

    def __getitem__(self, name: str) -> np.ndarray:
        spec, (first, end) = self.spec(name), self._told[name]["data_offsets"]
        data, dtype = self._bytes[self._head + first : self._head + end], spec.dtype.numpy
        # kernels of the host read whole elements
        aligned = data if (self._head + first) % dtype.itemsize == 0 else data.copy()
        return aligned.view(np.ndarray).view(dtype).reshape(spec.shape)

    def __contains__(self, name: object) -> bool:
        return name in self._told

    def __iter__(self) -> Iterator[str]:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)


def metadata(path: str | Path) -> dict[str, str]:
    """What was saved with a file's arrays; StateError as for `load`."""
    return _checked(path)[1]


def _checked(path: str | Path) -> tuple[list[str], dict[str, str]]:
    try:
        with safe_open(str(path), "numpy") as file:
            return list(file.keys()), dict(file.metadata() or {})
    except FileNotFoundError:
        raise StateError(f"there is no file {path}", hint=MADE_BY) from None
    except (OSError, SafetensorError) as error:
        raise StateError(f"{path} is damaged, or no safetensors file", got=str(error), hint=MADE_BY) from None


def _host(name: str, array: Any) -> np.ndarray:
    """Dense, and of a type that the format has."""
    host = np.asarray(array, order="C")
    if host.dtype not in TAKEN:
        raise StateError(
            f"{name} has elements of {host.dtype}, which safetensors does not have", expected=", ".join(sorted(NAMES)),
            hint=f"leave it out, or np.asarray({name}, np.float32)",
        )  # fmt: skip
    return host
