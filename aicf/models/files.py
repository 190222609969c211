"""A published model's folder: config.json, and weights in one safetensors file or in several with an index."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import StateError
from ..types import TensorSpec
from ..weights import Mapped, save

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
HEAD = "lm_head.weight"  # the one name without a prefix
FETCH = "hf download openai-community/gpt2 --local-dir gpt2 fetches one, and 'gpt2' is its folder then"


class Checkpoint(Mapping[str, np.ndarray]):
    """The tensors of safetensors files by their names, each read when it is asked for.

    path    a folder, a safetensors file, or the index of several
    prefix  of all names but the head's; it is put in front where the files leave it out
    """

    def __init__(self, path: Path, prefix: str) -> None:
        # not resolved: a cache of downloads links its files, and what is named beside them is beside the links
        self.path, self.prefix = Path(os.path.abspath(path)), prefix

    @cached_property
    def _files(self) -> dict[str, tuple[Mapped, str]]:
        """Of each name the file, and its name there."""
        if self.path.suffix == ".json":
            found = _indexed(self.path)
        else:
            whole = Mapped(self.path)
            found = {name: (whole, name) for name in whole}
        if any(name.startswith(self.prefix) for name in found):
            return found
        return {name if name == HEAD else self.prefix + name: at for name, at in found.items()}

    @cached_property
    def specs(self) -> dict[str, TensorSpec]:
        """Without reading any."""
        return {name: file.spec(there) for name, (file, there) in self._files.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        file, there = self._files[name]
        return file[there]

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "prefix": self.prefix}


def weights_of(path: Path) -> Path:
    """The file that names the weights: of a folder its one safetensors file, or its index."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise StateError(f"there is no folder and no file {str(path)!r}", hint=FETCH)
    found = [path / name for name in (WHOLE, INDEX) if (path / name).is_file()]
    if not found:
        raise StateError(
            f"{path} has no weights", expected=f"{WHOLE} or {INDEX}", got=", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing",
            hint="weights in another format: model.save_pretrained(folder) of transformers writes safetensors",
        )  # fmt: skip
    return found[0]


def read_config(path: Path) -> dict[str, Any]:
    """config.json beside some weights."""
    place = path.parent / CONFIG
    if not place.is_file():
        raise StateError(
            f"there is no {place}", hint="it says what model the weights are of; or give config="
        )
    return _object(place)


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{path} can't be read", got=str(error)) from None
    if not isinstance(found, dict):
        raise StateError(f"{path} is no object of JSON", got=type(found).__name__)
    return found


def _indexed(path: Path) -> dict[str, tuple[Mapped, str]]:
    """The tensors that an index names. Its files lie beside it."""
    named = _object(path).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
        raise StateError(f"{path} has no weight_map", expected='{"weight_map": {tensor: file}}')
    if away := sorted({file for file in named.values() if not _beside(file)}):
        raise StateError(f"{path} names a file elsewhere", expected="files beside it", got=repr(away[0]))
    files = {file: Mapped(path.parent / file) for file in sorted(set(named.values()))}
    if lacking := sorted(name for name, file in named.items() if name not in files[file]):
        raise StateError(
            f"{path}: {len(lacking)} tensors are not in the files that it names", expected=f"{lacking[0]} in {named[lacking[0]]}",
            hint="files of two downloads may be mixed: fetch it again",
        )  # fmt: skip
    return {name: (files[file], name) for name, file in named.items()}


def _beside(file: str) -> bool:
    """Whether it is the name of a file in the same folder."""
    try:
        os.fsencode(file)
    except UnicodeEncodeError:
        return False
    return Path(file).name == file and file not in ("", "..") and "\0" not in file


@dataclass(frozen=True)
class Group:
    """Tensors that are written into one file: what makes them, and their bytes."""

    make: Callable[[], dict[str, np.ndarray]]
    nbytes: int


def write(folder: Path, config: Mapping[str, Any], groups: Iterable[Group], most: int) -> None:
    """A new folder: whole, or not there. A file has at most `most` bytes, or one group."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StateError(
            f"there is something at {folder}", expected="a folder that is empty, or not there yet"
        )
    try:
        beside = folder.resolve().parent / f".{folder.name}.{os.getpid()}.{secrets.token_hex(4)}"
        beside.mkdir()
    except OSError as error:
        raise StateError(
            f"{folder} can't be written: {error.strerror}", hint="name a folder in one that is there"
        ) from None
    try:
        (beside / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        _write_shards(beside, _shards(groups, most))
        os.replace(beside, folder.resolve())
    except OSError as error:
        raise StateError(
            f"{folder} can't be written: {error.strerror}", hint="make room, or name another folder"
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _shards(groups: Iterable[Group], most: int) -> list[list[Group]]:
    shards: list[list[Group]] = [[]]
    for group in groups:
        if shards[-1] and sum(g.nbytes for g in shards[-1]) + group.nbytes > most:
            shards.append([])
        shards[-1].append(group)
    return shards


def _write_shards(folder: Path, shards: list[list[Group]]) -> None:
    """One file after the other, so that the host has no more than one of them in memory."""
    places: dict[str, str] = {}
    stem, end = WHOLE.split(".")
    for n, shard in enumerate(shards, 1):
        name = WHOLE if len(shards) == 1 else f"{stem}-{n:05}-of-{len(shards):05}.{end}"
        arrays = {name: array for group in shard for name, array in group.make().items()}
        save(folder / name, arrays, {"format": "pt"})  # transformers reads no file without it
        places |= dict.fromkeys(arrays, name)
    if len(shards) > 1:
        total = sum(group.nbytes for shard in shards for group in shard)
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
