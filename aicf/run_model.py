"""`aicf run FILE.onnx --input x.npy`: an ONNX model fed arrays from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import AicfError
from .frontends.onnx import load
from .graph.compile import compile
from .model_file import is_onnx
from .types import TensorSpec

SHOWN = 1000  # elements of a result that are printed whole; of more, the ends


def run(model: str, inputs: Sequence[str], output: str | None, device: str | None) -> int:
    if not is_onnx(model):
        raise AicfError(
            f"{model} is no ONNX model", expected="FILE.onnx", hint=f"python {model} runs a Python file"
        )
    if output is not None and not output.endswith(".npz"):
        raise AicfError(f"--output {output} is no .npz file", expected="a name that ends in .npz")
    if output is not None and not Path(output).parent.is_dir():
        raise AicfError(f"--output {output}: there is no folder {Path(output).parent}")
    imported = load(model)
    feed = _feed(inputs, imported.inputs)
    imported.sizes = {**imported.sizes, **_sizes(feed, imported.inputs)}
    program = compile(imported, device=device)
    results = {name: _plain(tensor.numpy()) for name, tensor in program(feed).items()}
    if output is not None:
        save: Any = np.savez
        save(output, **results)
        return 0
    for name, array in results.items():
        text = np.array2string(
            np.asarray(array, np.float32) if array.dtype.kind == "V" else array, threshold=SHOWN
        )
        print(f"{name}: {array.dtype}{list(array.shape)}\n{text}")
    return 0


def _plain(array: np.ndarray) -> np.ndarray:
    """.npz files have no bf16 and fp8: f32 has all their numbers."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _feed(given: Sequence[str], inputs: Mapping[str, TensorSpec]) -> dict[str, np.ndarray]:
    """An array for each input."""
    feed = read_feed(given, inputs)
    if lacking := [name for name in inputs if name not in feed]:
        raise AicfError(
            f"no array is given for {', '.join(lacking)}", expected=", ".join(f"{n}: {s}" for n, s in inputs.items()),
            hint=f"--input {lacking[0]}=FILE.npy",
        )  # fmt: skip
    return feed


def read_feed(given: Sequence[str], inputs: Mapping[str, TensorSpec]) -> dict[str, np.ndarray]:
    """What `--input` says: arrays by the inputs' names."""
    feed: dict[str, np.ndarray] = {}
    for text in given:
        name, path = _named(text, inputs)
        loaded = _loaded(path)
        if isinstance(loaded, dict):
            feed |= loaded
        elif name or len(inputs) == 1:
            feed[name or next(iter(inputs))] = loaded
        else:
            raise AicfError(
                f"--input {text} does not say which input it is",
                expected=", ".join(f"{n}={path}" for n in inputs),
            )
    return feed


def _named(text: str, inputs: Mapping[str, TensorSpec]) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    return (name, path) if equals and not Path(text).is_file() else ("", text)


def _loaded(path: str) -> Any:
    """An array, or those of a .npz file by name."""
    try:
        loaded = np.load(path, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except FileNotFoundError:
        raise AicfError(f"there is no file {path!r}", expected="a .npy or .npz file") from None
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise AicfError(
            f"{path} is no .npy or .npz file", got=str(error), hint="np.save(path, array) writes one"
        ) from None
    except Exception as error:  # zipfile's and zlib's own
        raise AicfError(
            f"{path} is damaged", got=str(error), hint="np.savez(path, x=array) writes one"
        ) from None


def _sizes(feed: Mapping[str, np.ndarray], inputs: Mapping[str, TensorSpec]) -> dict[str, int]:
    """Of named dimensions, so that one plan is made."""
    return {
        dim: size for name, spec in inputs.items() if feed[name].ndim == spec.rank
        for dim, size in zip(spec.shape, feed[name].shape) if isinstance(dim, str)
    }  # fmt: skip
