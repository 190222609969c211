"""A published model's folder: config.json, and weights in one safetensors file or in several with an index."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .. import weights
from ..errors import StateError
from ..files import check_depth, replacing
from ..types import TensorSpec
from ..weights import StoredArrays

CONFIG, WHOLE = "config.json", "model.safetensors"
HEAD = "lm_head.weight"  # the one name without a prefix
FETCH = "hf download openai-community/gpt2 --local-dir gpt2 fetches one, and 'gpt2' is its folder then"


class Checkpoint(StoredArrays):
    """The tensors of safetensors files by their published names, each read when it is asked for.

    path    a safetensors file, or the index of several
    prefix  of all names but the head's; it is put in front where the files leave it out
    """

    def __init__(self, path: Path, prefix: str) -> None:
        # not resolved: a cache of downloads links its files, and what is named beside them is beside the links
        self.path, self.prefix = Path(os.path.abspath(path)), prefix

    @cached_property
    def _found(self) -> tuple[StoredArrays, dict[str, str]]:
        """The files, and of each name that which it has there."""
        files = weights.stored(self.path)
        if any(name.startswith(self.prefix) for name in files):
            return files, {name: name for name in files}
        return files, {name if name == HEAD else self.prefix + name: name for name in files}

    @cached_property
    def specs(self) -> dict[str, TensorSpec]:
        """Without reading any."""
        return {name: self.spec(name) for name in self}

    def spec(self, name: str) -> TensorSpec:
        files, names = self._found
        return files.spec(names[name])

    def __getitem__(self, name: str) -> np.ndarray:
        files, names = self._found
        return files[names[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._found[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found[1])

    def __len__(self) -> int:
        return len(self._found[1])

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "prefix": self.prefix}


def weights_of(path: Path) -> Path:
    """The file that names the weights: of a folder its one safetensors file, or its index."""
    if not path.exists():
        raise StateError(f"there is no folder and no file {str(path)!r}", hint=FETCH)
    return weights.place_of(path)


def read_config(path: Path) -> dict[str, Any]:
    """config.json beside some weights."""
    place = path.parent / CONFIG
    if not place.is_file():
        raise StateError(
            f"there is no {place}", hint="it says what model the weights are of; or give config="
        )
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
        check_depth(found)
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{place} can't be read", got=str(error)) from None
    if not isinstance(found, dict):
        raise StateError(f"{place} is no object of JSON", got=type(found).__name__)
    return found


class Written(StoredArrays):
    """Tensors that are made when they are written: several of one weight, which is fetched once for those that follow each other.

    specs   by published name
    parts   of a name: of which weight it is
    fetch   (weight) -> its tensors
    """

    def __init__(
        self, specs: Mapping[str, TensorSpec], parts: Mapping[str, str], fetch: Callable[[str], Mapping[str, np.ndarray]],
    ) -> None:  # fmt: skip
        self._specs, self._parts, self._fetch = specs, parts, fetch
        self._last: tuple[str, Mapping[str, np.ndarray]] = "", {}

    def spec(self, name: str) -> TensorSpec:
        return self._specs[name]

    def __getitem__(self, name: str) -> np.ndarray:
        if self._last[0] != self._parts[name]:
            self._last = "", {}
            self._last = self._parts[name], self._fetch(self._parts[name])
        return self._last[1][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


def write(folder: Path, config: Mapping[str, Any], tensors: Written, most: int) -> None:
    """A new folder: whole, or not there. A file has at most `most` bytes, or one tensor."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StateError(
            f"there is something at {folder}", expected="a folder that is empty, or not there yet"
        )
    with ExitStack() as stack:
        try:
            fresh = stack.enter_context(replacing(folder.resolve(), folder=True))
        except OSError as error:
            raise StateError(
                f"{folder} can't be written: {error.strerror}", hint="name a folder in one that is there"
            ) from None
        try:
            (fresh / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            # transformers reads no file without its format
            weights.save(fresh / WHOLE, tensors, {"format": "pt"}, max_shard_bytes=most)
            stack.close()  # replaces what is there
        except OSError as error:
            raise StateError(
                f"{folder} can't be written: {error.strerror}", hint="make room, or name another folder"
            ) from None
