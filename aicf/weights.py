"""Arrays by name in safetensors files: written whole or not at all, read without copying, one by one.

`save` writes beside what is there and then takes its place, so that nothing is ever half written; of several files the index comes last.
`load` maps files into memory: an array is read from disk when it is used. The safetensors library checks a file's header before
anything is taken from it; indices are checked here.
"""

from __future__ import annotations

import json
import os
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from .errors import StateError
from .files import parse_json, replacing
from .mapped import MappedFile
from .types import DType, TensorSpec

NAMES = {  # safetensors' names of element types
    "F64": DType.f64, "F32": DType.f32, "F16": DType.f16, "BF16": DType.bf16, "F8_E4M3": DType.f8e4m3,
    "F8_E5M2": DType.f8e5m2, "I64": DType.i64, "I32": DType.i32, "I16": DType.i16, "I8": DType.i8, "U64": DType.u64,
    "U32": DType.u32, "U16": DType.u16, "U8": DType.u8, "BOOL": DType.bool,
}  # fmt: skip
TAKEN = {dtype.numpy for dtype in NAMES.values()}
MADE_BY = "aicf.save(path, program.state_dict()) writes one; so does safetensors of other frameworks"
END, INDEX = ".safetensors", ".safetensors.index.json"
LARGEST_INDEX = 1 << 26  # bytes


# --- arrays that are read one by one ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnreadArray:
    """An array that is not read yet."""

    spec: TensorSpec
    read: Callable[[], np.ndarray]


class StoredArrays(Mapping[str, np.ndarray]):
    """Arrays by name, each read when it is asked for; what type it has is known before."""

    @abstractmethod
    def spec(self, name: str) -> TensorSpec:
        """Of an array, which is not read."""

    def unread(self, name: str) -> UnreadArray:
        return UnreadArray(self.spec(name), partial(self.__getitem__, name))


class Mapped(StoredArrays):
    """The arrays of a safetensors file: each a read-only view of it, or a copy where the file does not align it. StateError as for
    `load`, for element types that aicf lacks when such an array is asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        try:
            self._file = MappedFile(path)
            with safe_open(str(path), "numpy") as file:
                names = set(file.keys())
        except FileNotFoundError:
            raise StateError(f"there is no file {path}", hint=MADE_BY) from None
        except (OSError, ValueError, SafetensorError) as error:  # ValueError: a NUL in its name
            raise StateError(
                f"{path} is damaged, or no safetensors file", got=str(error), hint=MADE_BY
            ) from None
        self._head = 8 + int.from_bytes(self._file.read(0, 8).tobytes(), "little")
        told = json.loads(self._file.read(8, self._head).tobytes())
        self.metadata: dict[str, str] = told.pop("__metadata__", None) or {}
        if told.keys() != names:
            raise StateError(f"{path} was replaced while it was read", hint="load it again")
        self._told: dict[str, Any] = told

    def spec(self, name: str) -> TensorSpec:
        told = self._told[name]
        if told["dtype"] not in NAMES:
            raise StateError(
                f"{name} in {self.path} has elements of {told['dtype']}, which aicf does not have", expected=", ".join(sorted(NAMES)),
                hint="convert it where the file is made",
            )  # fmt: skip
        return TensorSpec(tuple(told["shape"]), NAMES[told["dtype"]])

    def __getitem__(self, name: str) -> np.ndarray:
        spec, (first, end) = self.spec(name), self._told[name]["data_offsets"]
        return self._file.array(self._head + first, self._head + end, spec.dtype.numpy, spec.shape)

    def __contains__(self, name: object) -> bool:
        return name in self._told

    def __iter__(self) -> Iterator[str]:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)


class Sharded(StoredArrays):
    """The arrays of several safetensors files, by the index that names them: `{"weight_map": {array: file}}`. The files lie beside it;
    where it is a link, as in a cache of downloads, they may lie beside what it links to."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metadata, self._places = _told_by(self.path)
        names: dict[str, list[str]] = {}
        for name, file in self._places.items():
            names.setdefault(file, []).append(name)
        self._files = {file: Mapped(self._beside(file)) for file in sorted(names)}
        for file, there in self._files.items():
            if lacking := sorted(name for name in names[file] if name not in there):
                raise StateError(
                    f"{path}: {len(lacking)} tensors are not in the files that it names", expected=f"{lacking[0]} in {file}",
                    hint="files of two downloads may be mixed: fetch it again",
                )  # fmt: skip
            if twice := sorted(name for name in there if self._places.get(name, file) != file):
                raise StateError(
                    f"{path}: {twice[0]} is in two of its files", expected="each tensor in one",
                    got=f"{self._places[twice[0]]} and {file}", hint="files of two downloads may be mixed: fetch it again",
                )  # fmt: skip

    def _beside(self, file: str) -> Path:
        if _is_elsewhere(file):
            raise StateError(
                f"{self.path} names a file elsewhere", expected="files beside it", got=repr(file)
            )
        place = self.path.parent / file
        if place.is_symlink():
            homes = {Path(os.path.realpath(p)).parent for p in (self.path, self.path.parent / "_")}
            if Path(os.path.realpath(place)).parent not in homes:
                raise StateError(
                    f"{self.path} names a file that is a link elsewhere", expected="files beside it", got=f"{file!r}, a link to {os.readlink(place)!r}",
                    hint="copy the file in its place",
                )  # fmt: skip
        return place

    def spec(self, name: str) -> TensorSpec:
        return self._files[self._places[name]].spec(name)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._files[self._places[name]][name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _told_by(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """An index: its metadata, and the file of each array."""
    try:
        file = MappedFile(path)
        if file.size > LARGEST_INDEX:
            raise ValueError(f"it has {file.size} bytes, and an index {LARGEST_INDEX} at most")
        told = parse_json(file.read(0, file.size).tobytes().decode("utf-8"))
    except FileNotFoundError:
        raise StateError(f"there is no file {path}", hint=MADE_BY) from None
    except (OSError, ValueError) as error:
        raise StateError(f"{path} can't be read", got=str(error), hint=MADE_BY) from None
    places = told.get("weight_map") if isinstance(told, dict) else None
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise StateError(f"{path} has no weight_map", expected='{"weight_map": {tensor: file}}')
    said = told.get("metadata")
    words = {k: v for k, v in said.items() if isinstance(v, str)} if isinstance(said, dict) else {}
    return words, places


def _is_elsewhere(file: str) -> bool:
    """Whether it is no name of a file in the same folder."""
    try:
        os.fsencode(file)
    except UnicodeEncodeError:
        return True
    return Path(file).name != file or file in ("", "..") or "\0" in file or "\\" in file


# --- loading ----------------------------------------------------------------------------------------------------------


def stored(path: str | Path) -> Mapped | Sharded:
    """The arrays that lie at a path: see `load`. Their element types are not looked at."""
    if not isinstance(path, (str, os.PathLike)):
        raise StateError(f"arrays can't be loaded from {path!r}", expected="a path", hint=MADE_BY)
    place = place_of(Path(path))
    return Sharded(place) if place.name.endswith(".json") else Mapped(place)


def load(path: str | Path) -> Mapped | Sharded:
    """The arrays of a safetensors file or of several, by name: a mapping that reads each from disk when it is asked for.

    path   a file; the index of several, `*.safetensors.index.json`; or a folder that has one of these. Where several were saved as
           `model.safetensors`, that name stands for their index

    `program.load_state_dict(aicf.load(path))` copies what it needs, one after the other; `dict(aicf.load(path))` is read-only views of all.

    StateError if there is no such file, if one is damaged, no safetensors file or not where its index says, or if an array is of a
    type that aicf lacks. Nothing is read or allocated before all of it is checked.
    """
    found = stored(path)
    for name in found:
        found.spec(name)
    return found


def place_of(path: Path) -> Path:
    try:
        if path.is_dir():
            return _in_folder(path)
        index = _index_of(path)
        return index if not path.exists() and index.is_file() else path
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        raise StateError(f"{path} can't be read", got=str(error), hint=MADE_BY) from None


def _in_folder(folder: Path) -> Path:
    """Of a folder the one file that names its arrays: as models are published, or the only one there is."""
    there = sorted(path for path in folder.iterdir() if path.name.endswith((END, INDEX)) and path.is_file())
    published = [folder / name for name in ("model" + END, "model" + INDEX) if folder / name in there]
    found = published[:1] or [path for path in there if path.name.endswith(INDEX)] or there
    if len(found) == 1:
        return found[0]
    got = ", ".join(sorted(path.name for path in found or folder.iterdir())[:8]) or "nothing"
    what = f"{folder} has several files of weights" if found else f"{folder} has no weights"
    raise StateError(
        what, expected=f"model{END} or model{INDEX}, or one file of such an end", got=got,
        hint="name the file" if found else "weights in another format: model.save_pretrained(folder) of transformers writes safetensors",
    )  # fmt: skip


def metadata(path: str | Path) -> dict[str, str]:
    """What was saved with arrays; StateError as for `load`."""
    return stored(path).metadata


# --- saving -----------------------------------------------------------------------------------------------------------


# Suffixes of other formats: what a file of that name is, and what writes one.
_TORCH = "file of PyTorch's", "torch.save({n: torch.as_tensor(a) for n, a in arrays.items()}, path)"
OTHERS = {
    ".npz": ("file of NumPy's", "np.savez(path, **arrays)"), ".npy": ("file of NumPy's", "np.save(path, array)"),
    ".pt": _TORCH, ".pth": _TORCH, ".pkl": ("pickle", "pickle.dump(dict(arrays), file)"), ".pickle": ("pickle", "pickle.dump(dict(arrays), file)"),
    ".onnx": ("model of ONNX's", ""), ".h5": ("file of HDF5", ""), ".hdf5": ("file of HDF5", ""), ".gguf": ("file of GGUF", ""), ".msgpack": ("file of msgpack", ""),
}  # fmt: skip


def save(
    path: str | Path, arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None, *, max_shard_bytes: int | None = None,
) -> None:  # fmt: skip
    """Write arrays to a safetensors file, such as a program's `state_dict()`. What is there is replaced only when all is on disk.

    arrays    by name; anything that NumPy takes. Every element type of aicf's, so bf16 and fp8 too. What `load` returns is read file by file
    metadata  strings by name, which `metadata(path)` returns
    max_shard_bytes   of arrays in a file: where there are more, `model.safetensors` is `model-00001-of-00003.safetensors` and so on, with
              `model.safetensors.index.json`, which `load` takes by either name. A larger array has a file to itself. None is one file

    StateError if an array has a type that the format lacks, if the name ends as another format's files do, such as `.npz` or `.pt`, or if
    the file can't be written; then an older one is as it was.
    """
    if max_shard_bytes is not None and (type(max_shard_bytes) is not int or max_shard_bytes < 1):
        raise StateError(
            f"max_shard_bytes={max_shard_bytes!r}", expected="bytes of a file, 1 or more; or None"
        )
    target, said = Path(path), dict(metadata or {})
    if other := OTHERS.get(target.suffix.lower()):
        raise StateError(
            f"{target} would be no {other[0]}: aicf.save writes safetensors", expected=f"a path such as model{END}",
            hint=f"aicf.save({str(target.with_suffix(END))!r}, arrays)" + (f", or {other[1]}" if other[1] else ""),
        )  # fmt: skip
    if target.name.endswith(INDEX) or target.is_dir():
        raise StateError(
            f"{target} can't be written: it is no name of a file of arrays",
            expected=f"a path such as model{END}",
        )
    sources = {name: _source(arrays, name) for name in arrays}
    shards = _shards({name: spec.nbytes for name, (spec, _) in sources.items()}, max_shard_bytes)
    before = _shards_at(target)
    if len(shards) == 1:
        _replace(target, partial(_write_arrays, sources, shards[0], said))
        kept = set()
    else:
        kept = _write_shards(target, sources, shards, said)
    _remove(target, before - kept, whole=len(shards) == 1)


def _shards(sizes: Mapping[str, int], most: int | None) -> list[list[str]]:
    """The names of each file, in order."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, nbytes in sizes.items():
        if most is not None and shards[-1] and filled + nbytes > most:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += nbytes
    return shards


Sources = Mapping[str, tuple[TensorSpec, Callable[[], np.ndarray]]]


def _write_shards(target: Path, sources: Sources, shards: list[list[str]], said: dict[str, str]) -> set[str]:
    """One file after the other, so that the host has no more than one of them in memory; their names."""
    stem, count = target.name.removesuffix(END), len(shards)
    files = [f"{stem}-{n:05}-of-{count:05}{END}" for n in range(1, count + 1)]
    if any((target.parent / file).exists() for file in files):  # an index that is there may name them
        mark = secrets.token_hex(4)
        files = [f"{stem}-{mark}-{n:05}-of-{count:05}{END}" for n in range(1, count + 1)]
    written: list[Path] = []
    try:
        for file, names in zip(files, shards):
            written.append(target.parent / file)
            _replace(written[-1], partial(_write_arrays, sources, names, said))
        total = sum(spec.nbytes for spec, _ in sources.values())
        index = {
            "metadata": {**said, "total_size": total},
            "weight_map": {name: file for file, names in zip(files, shards) for name in names},
        }
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        _replace(_index_of(target), lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))
    except BaseException:
        for path in written:  # named by no index
            path.unlink(missing_ok=True)
        raise
    return set(files)


def _index_of(target: Path) -> Path:
    return target.with_name(target.name.removesuffix(END) + INDEX) if target.name else target


def _shards_at(target: Path) -> set[str]:
    """The files that an index names which is to be replaced; none where it is not one that `save` would have written."""
    try:
        _, places = _told_by(_index_of(target))
    except StateError:
        return set()
    stem = target.name.removesuffix(END)
    return {
        f for f in places.values() if not _is_elsewhere(f) and f.startswith(f"{stem}-") and f.endswith(END)
    }


def _remove(target: Path, files: set[str], whole: bool) -> None:
    """What was there under this name and is replaced: first what names it."""
    named = [] if whole and not files else [_index_of(target) if whole else target]
    try:
        for path in [*named, *(target.parent / file for file in sorted(files))]:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StateError(
            f"{path} can't be removed: {error.strerror}", hint="it is replaced; remove it by hand"
        ) from None


def _write_arrays(sources: Sources, names: list[str], said: dict[str, str], temporary: str) -> None:
    save_file({name: sources[name][1]() for name in names}, temporary, said)


def _replace(target: Path, write: Callable[[str], Any]) -> None:
    """Write a file beside, then take the place of what is there."""
    with ExitStack() as stack:
        try:
            beside = stack.enter_context(replacing(target))
        except (OSError, ValueError) as error:
            raise StateError(
                f"{target} can't be written: {getattr(error, 'strerror', None) or error}", hint="name a file in a folder that is there"
            ) from None  # fmt: skip
        try:
            write(str(beside))
            with open(beside, "rb+") as file:
                os.fsync(file.fileno())
            stack.close()  # takes the place
        except (OSError, SafetensorError) as error:
            raise StateError(
                f"{target} can't be written: {error}",
                hint="make room, or name another folder; what was there is as it was",
            ) from None


def _source(arrays: Mapping[str, Any], name: str) -> tuple[TensorSpec, Callable[[], np.ndarray]]:
    """Of an array its type, which is one that the format has, and what reads it: dense."""
    if isinstance(arrays, StoredArrays):
        return arrays.spec(name), lambda: np.asarray(arrays[name], order="C")
    host = np.asarray(arrays[name])
    if host.dtype not in TAKEN:
        raise StateError(
            f"{name} has elements of {host.dtype}, which safetensors does not have", expected=", ".join(sorted(NAMES)),
            hint=f"leave it out, or np.asarray({name}, np.float32)",
        )  # fmt: skip
    return TensorSpec(host.shape, DType.of(host.dtype)), lambda: np.asarray(host, order="C")
