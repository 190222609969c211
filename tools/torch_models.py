"""The models that torch_coverage.py draws from: all names that timm, torchvision and transformers offer, with random weights, made small by
their sizes' names. None is chosen by hand."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]  # a model, and what it is called with
LARGEST = 15_000_000  # parameters of a model that is run,
BUILT = 100_000_000  # and of one whose repeated blocks are still to be dropped
Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]
VOCABULARY, LENGTH, IMAGE = 97, 12, 32
# Sides of images for models whose configuration does not say one: the first that the model takes.
IMAGES = (64, 96, 160, 224, 299)
# What a configuration's numbers become, by parts of their names: the first that is found counts.
SIZES = [
    (r"vocab_size$", VOCABULARY), (r"(max_position|n_positions|max_seq|n_ctx|max_length)", 64), (r"image_size$|img_size$", IMAGE),
    (r"patch_size$", 8), (r"experts_per|top_k$", 2), (r"num_.*experts|n_routed_experts|num_experts", 4), (r"key_value_heads|kv_heads", 2),
    (r"_heads?$|^n_head|attention_heads|num_heads", 4), (r"head_dim$|^d_kv$|rotary_dim", 8), (r"(num_.*layers|n_layers?|_layers|^depth|num_blocks)$", 2),
    (r"intermediate|ffn|d_ff|d_inner|feedforward|mlp_dim", 64), (r"(hidden_size|d_model|n_embd|^dim|embed_dim|embedding_size|projection_dim|hidden_dim)$", 32),
    (r"state_size$", 8), (r"mem.*_size|window", 16),
]  # fmt: skip


class Refused(Exception):
    """Why a drawn name is no model that can be run here: another one is drawn."""


@cache
def names() -> dict[str, list[str]]:
    """All names, by library; a library that is not installed has none."""
    found: dict[str, list[str]] = {}
    for library, listed in (("timm", _timm), ("torchvision", _torchvision), ("transformers", _transformers)):
        try:
            found[library] = sorted(listed())
        except (ImportError, RuntimeError) as error:
            print(f"no models of {library}: {error}", flush=True)
    return found


def _timm() -> list[str]:
    import timm

    return timm.list_models()


def _torchvision() -> list[str]:
    import torchvision

    return torchvision.models.list_models()


def _transformers() -> list[str]:
    from transformers import CONFIG_MAPPING

    return list(CONFIG_MAPPING)


def drawn(seed: str) -> Iterator[str]:
    """Names as `library name`, without end of a library before that of the others."""
    draw = random.Random(seed)
    orders = {library: draw.sample(all_of, len(all_of)) for library, all_of in names().items()}
    for n in range(max(map(len, orders.values()), default=0)):
        for library, order in orders.items():
            if n < len(order):
                yield f"{library} {order[n]}"


def make(name: str, layers: int) -> Made:
    """A model of so many layers at most by its name, and arguments that eager PyTorch takes. Refused if there is none."""
    library, _, kind = name.partition(" ")
    build, calls = {"timm": _of_timm, "torchvision": _of_torchvision, "transformers": _of_transformers}[
        library
    ](kind)
    why = "no arguments"
    for shrink in (True, False):
        try:
            with torch.device("meta"):
                _counted(_prepared(build, shrink), layers)
        except NotImplementedError:  # it computes with its parameters while it is built
            pass
        model = _prepared(build, shrink)
        _counted(model, layers)
        if not any(p.requires_grad for p in model.parameters()):
            raise Refused("no parameter is trained")
        for args, named in calls(model):
            try:
                with torch.no_grad():
                    model.train()(*args, **named)
                return model, args, named
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
    raise Refused(f"eager PyTorch: {why.splitlines()[0][:120]}")


def _prepared(build: Callable[[], nn.Module], shrink: bool) -> nn.Module:
    model = build()
    if (count := sum(p.numel() for p in model.parameters())) > BUILT:
        raise Refused(f"more than {BUILT:,} parameters: {count:,}")
    _without_dropout(model)
    if shrink:
        _without_repeats(model)
    return model


def _without_repeats(model: nn.Module) -> None:
    """Of blocks of a list that are alike, one: the others compute what it does."""
    for module in list(model.modules()):
        if not isinstance(module, (nn.Sequential, nn.ModuleList)):
            continue
        distinct: dict[str, tuple[str, nn.Module]] = {}
        for name, block in module.named_children():
            distinct.setdefault(_looks(block), (name, block))
        listed = isinstance(module, nn.ModuleList)
        module._modules = {
            str(n) if listed else name: block for n, (name, block) in enumerate(distinct.values())
        }


def _looks(block: nn.Module) -> str:
    """A block's layers, the shapes of its tensors, and the settings that its layers keep."""
    kept = (int, float, str, tuple, type(None))
    settings = [
        [(name, value) for name, value in sorted(vars(m).items()) if isinstance(value, kept)]
        for m in block.modules()
    ]
    return f"{block}{[tuple(t.shape) for t in block.state_dict().values()]}{settings}"


def _without_dropout(model: nn.Module) -> None:
    """Random numbers differ from type to type: every probability of a drop is 0."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and (
                "drop" in name or ("Dropout" in type(module).__name__ and name == "p")
            ):
                setattr(module, name, 0.0)


def _counted(model: nn.Module, layers: int) -> None:
    count = sum(p.numel() for p in model.parameters())
    if count > LARGEST:
        raise Refused(f"more than {LARGEST:,} parameters: {count:,}")
    count = sum(not m._modules for m in model.modules())
    if count > layers:
        raise Refused(f"more than {layers} layers: {count}")


def _first(builders: list[Callable[[], nn.Module]]) -> Callable[[], nn.Module]:
    """The first builder whose arguments are not refused; the last one is not tried."""
    for build in builders[:-1]:
        try:
            try:
                with torch.device("meta"):
                    build()
            except NotImplementedError:  # it computes with tensors while it is built
                build()
            return build
        except Exception:  # each model refuses a size in another way
            continue
    return builders[-1]


def _images(*sizes: int) -> Calls:
    return [((torch.randn(2, 3, size, size),), {}) for size in sizes]


def _of_timm(kind: str) -> tuple[Callable[[], nn.Module], Callable[[Any], Calls]]:
    import timm

    build = _first(
        [partial(timm.create_model, kind, num_classes=7, **more) for more in ({"img_size": IMAGES[0]}, {})]
    )
    return build, lambda model: _images(*IMAGES, model.default_cfg.get("input_size", (3, 224, 224))[-1])


def _of_torchvision(kind: str) -> tuple[Callable[[], nn.Module], Callable[[Any], Calls]]:
    from torchvision.models import get_model, get_model_builder

    own = {n: None for n in inspect.signature(get_model_builder(kind)).parameters if n.startswith("weights")}
    build = _first([partial(get_model, kind, **own, **more) for more in ({"image_size": IMAGES[0]}, {})])
    return build, lambda model: [*_images(*IMAGES), ((torch.randn(1, 3, 8, 64, 64),), {})]


def _of_transformers(kind: str) -> tuple[Callable[[], nn.Module], Callable[[Any], Calls]]:
    from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM

    config = _small(CONFIG_MAPPING[kind])
    config.use_cache = False
    for auto in (AutoModelForCausalLM, AutoModel):
        try:
            with torch.device("meta"):
                auto.from_config(config)
        except NotImplementedError:
            pass
        except ValueError:  # no class of that sort
            continue
        return partial(auto.from_config, config), _arguments
    raise Refused("no class for the configuration")


def _small(kind: Any) -> Any:
    """A configuration whose sizes are small, and so are those of the configurations in it."""
    default, made = kind(), {}
    for name, value in vars(default).items():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            made[name] = _small(type(value)).to_dict()
        elif isinstance(value, int) and not isinstance(value, bool):
            made |= _shrunk(name, value)
        elif isinstance(value, float) and "drop" in name:
            made[name] = 0.0
    return kind(**made)


def _shrunk(name: str, value: int) -> dict[str, int]:
    if name.endswith("_token_id"):
        return {name: value % VOCABULARY}
    size = next((size for pattern, size in SIZES if re.search(pattern, name)), value)
    return {} if size >= value else {name: size}


def _arguments(model: Any) -> Calls:
    """Calls by what forward's first arguments are called."""
    ids = torch.randint(2, VOCABULARY, (2, LENGTH))
    known = set(inspect.signature(model.forward).parameters)
    text: dict[str, Any] = {"input_ids": ids} | (
        {"decoder_input_ids": ids} if "decoder_input_ids" in known else {}
    )
    images = [{"pixel_values": torch.randn(2, 3, size, size)} for size in (IMAGE, 64, 224)]
    sounds: list[dict[str, Any]] = [
        {"input_values": torch.randn(2, 4000)},
        {"input_features": torch.randn(2, 80, 64)},
    ]
    calls = [
        *([text] if "input_ids" in known else []),
        *images,
        *({**text, **image} for image in images),
        *sounds,
    ]
    return [((), {**call}) for call in calls if set(call) <= known]
