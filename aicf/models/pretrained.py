"""Models from the folders that they are published in, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import nn
from ..errors import AicfError, StateError, VerifyError
from ..graph.run.program import Program
from ..ir import Role
from ..types import DType, TensorSpec, bf16, f16, f32, i32
from .config import Fields
from .files import CONFIG, Checkpoint, Written, read_config, weights_of, write
from .gpt2 import GPT2, GPT2Config
from .llama import ARCHITECTURES, Llama, LlamaConfig
from .published import TAKEN, stored

CONFIGS: dict[str, type[GPT2Config] | type[LlamaConfig]] = {
    "gpt2": GPT2Config,
    **dict.fromkeys(ARCHITECTURES, LlamaConfig),
}
IN_TORCH = {f32: "float32", bf16: "bfloat16", f16: "float16"}


def from_pretrained(
    path: str | Path,
    *,
    dtype: Any = None,
    config: GPT2Config | LlamaConfig | None = None,
    batch: int = 1,
    seq: int | None = None,
) -> nn.Model:
    """A published model: GPT-2, Llama, Mistral or Qwen 2. Its weights are read when it is compiled, one after the other.

    Its input "tokens" are (batch, seq), of i32; its output is logits (batch, seq, words).

    path        a folder with config.json and model.safetensors, or the index of several such files; or one of these files
    dtype       of its weights and of what is computed: f32, bf16 or f16. None is that of the largest tensor
    config      in the place of config.json
    batch, seq  sizes that are planned for first; it runs at others too. seq is 128, or less where there are fewer positions

    StateError where the folder is not whole, a file is damaged, the model is none of these, or the weights are not those of
    config.json: one list says what is missing, too many or of another shape. No model is made then.
    """
    if not isinstance(path, (str, Path)):
        raise StateError(f"a folder of weights can't be {path!r}", expected="its path")
    place = weights_of(Path(path))
    said = place.parent / CONFIG if config is None else "config="
    try:
        config = _config(read_config(place)) if config is None else config
        kind = _kind(config)
        checkpoint = Checkpoint(place, kind.prefix)
        _check_depth(checkpoint, kind, config.depth)
        layer = kind(config, _held(checkpoint, dtype))
        tokens = {"tokens": TensorSpec(("batch", "seq"), i32)}
        seq = min(128, config.places) if seq is None else seq
        model = nn.Model(tokens, layer, batch=batch, seq=seq)  # tells the weights' shapes
    except StateError:
        raise
    except AicfError as error:
        raise StateError(
            error.what, where=str(said), expected=error.expected, got=error.got, hint=error.hint
        ) from None
    shapes = {value.name: value.spec for value in model.graph.externals(Role.param)}
    return nn.Model(tokens, layer, initial=stored(checkpoint, layer, shapes), batch=batch, seq=seq)


def save_pretrained(program: Program, folder: str | Path, *, most: int = 5 * 10**9) -> None:
    """Write the model of a program as it is published: config.json and its weights, by their published names, for `from_pretrained` and
    for transformers.

    folder  a new one, or one that is empty: whole in the end, or as it was
    most    bytes of a file; more weights are in several files with an index. The host has one of them in memory at a time, twice

    Weights are of the type that the model has; what was loaded in it is written bit for bit. StateError if the model is none of
    aicf.models, or the folder can't be written.
    """
    layer = getattr(getattr(program, "recipe", None), "model", None)
    layer = getattr(layer, "layer", None)
    if not isinstance(layer, (GPT2, Llama)):
        raise StateError(
            "this has no published names", expected="a program of a GPT2 or a Llama of aicf.models",
            got=repr(type(layer if layer is not None else program).__name__), hint="aicf.save(path, program.state_dict()) keeps any model",
        )  # fmt: skip
    if not isinstance(folder, (str, Path)):
        raise StateError(f"a folder can't be {folder!r}", expected="its path")
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise StateError(f"most can't be {most!r}", expected="bytes of a file, 1 or more")
    weights = program.variables

    names = layer.published()
    shapes = {ours: p.shapes(weights[ours].shape) for ours, p in names.items()}
    specs = {
        name: TensorSpec(shape, weights[ours].dtype) for ours in names for name, shape in shapes[ours].items()
    }
    parts = {name: ours for ours in names for name in shapes[ours]}
    tensors = Written(specs, parts, lambda ours: names[ours].parts(weights[ours].numpy()))
    # "dtype", as newer folders call it, would be that of the folder that was read
    said = {field: value for field, value in layer.config.to_json().items() if field != "dtype"}
    largest = max((weights[ours].spec for ours in names), key=lambda spec: spec.nbytes)
    with weights.lock:
        write(Path(folder), said | {"torch_dtype": IN_TORCH[largest.dtype]}, tensors, most)


def _config(said: Mapping[str, Any]) -> GPT2Config | LlamaConfig:
    kind = Fields(said).one_of("model_type", CONFIGS)
    return CONFIGS[kind].of_json(said)


def _kind(config: Any) -> Any:
    if not isinstance(config, (GPT2Config, LlamaConfig)):
        raise VerifyError(f"config={config!r}", expected="a GPT2Config or a LlamaConfig")
    return GPT2 if isinstance(config, GPT2Config) else Llama


def _check_depth(checkpoint: Checkpoint, kind: Any, depth: int) -> None:
    """Before as many blocks are made as a file says."""
    found = [int(match[1]) for name in checkpoint if (match := re.match(kind.block, name))]
    there = 1 + max(found, default=-1)
    if there != depth:
        raise VerifyError(
            f"{checkpoint.path.name} is not of this model: it has {there} blocks", expected=f"{depth} blocks",
            hint="config.json must be of the model that the weights are of",
        )  # fmt: skip


def _held(checkpoint: Checkpoint, dtype: Any) -> DType:
    if dtype is None:
        largest = max(checkpoint.specs.values(), key=lambda spec: spec.nbytes, default=None)
        return largest.dtype if largest is not None and largest.dtype in TAKEN else f32
    if (held := DType.of(dtype)) not in TAKEN:
        raise VerifyError(f"dtype={held}", expected=", ".join(map(str, TAKEN)))
    return held
