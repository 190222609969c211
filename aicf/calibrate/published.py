"""Steps of published models, drawn anew by a seed: a model, what it is compiled for, its types, a batch. Their regions are cases for kernels.

Models have the sizes that were published and two blocks, whose regions are those of all the others.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .. import models, nn
from ..device.spec import DeviceSpec
from ..errors import AicfError
from ..files import example_folder
from ..graph.compile import explain_for
from ..models.quantized import quantize
from ..ops.schema import VIEW, schema_of
from ..rows import RegionSpec
from ..types import TensorSpec, i32

DEPTH = 2
TRANSFORMERS: dict[str, Mapping[str, Any]] = {
    "GPT-2": {"size": 768, "heads": 12},
    "GPT-2 medium": {"size": 1024, "heads": 16},
    "GPT-2 XL": {"size": 1600, "heads": 25},
    "Llama 2 7B": {},
    "Llama 3 8B": {"words": 128256, "hidden": 14336, "kv_heads": 8, "places": 8192},
    "Llama 3 70B": {"words": 128256, "size": 8192, "hidden": 28672, "heads": 64, "kv_heads": 8, "places": 8192},
    "Llama 3.2 1B": {"words": 128256, "size": 2048, "hidden": 8192, "kv_heads": 8, "head_size": 64, "places": 8192, "tied": True},
    "Qwen 2 0.5B": {"words": 151936, "size": 896, "hidden": 4864, "heads": 14, "kv_heads": 2, "qkv_bias": True, "tied": True, "places": 8192},
    "Qwen 2 7B": {"words": 152064, "size": 3584, "hidden": 18944, "heads": 28, "kv_heads": 4, "qkv_bias": True, "places": 8192},
    "Mistral 7B": {"hidden": 14336, "kv_heads": 8, "places": 8192},
}  # fmt: skip
OTHERS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "BERT base": ("bert", {"depth": DEPTH}),
    "BERT large": ("bert", {"depth": DEPTH, "width": 1024, "heads": 16}),
    "ViT-B/16": ("vit", {"depth": DEPTH}),
    "ViT-L/16": ("vit", {"depth": DEPTH, "width": 1024, "heads": 16}),
    "ViT-H/14": ("vit", {"depth": DEPTH, "width": 1280, "heads": 16, "patch": 14}),
    "ResNet-50": ("resnet", {"depths": (1, 1, 1, 1)}),
    "UNet": ("unet", {}),
}
MODELS = (*TRANSFORMERS, *OTHERS)
POLICIES = ("bf16", "bf16", "bf16", "f16", "f16", "f32", "tf32")
TOKENS = tuple(2**n for n in range(15))  # rows of a product, up to 16,384
LARGEST = 2**33  # bytes of a region
EACH = 10  # regions of a step, at most
BARREN = 50  # steps in a row without a region that is wanted, after which there are none


@dataclass(frozen=True)
class ModelStep:
    """One of a model: `batch` sequences of `length` tokens, or images. quantized: weights of 8 or 4 bits, "" for none."""

    model: str
    mode: str
    policy: str
    batch: int
    length: int
    quantized: str = ""

    def __str__(self) -> str:
        feed = f"{self.batch}x{self.length}" if self.length else f"{self.batch} images"
        return f"{self.model} {self.quantized or self.policy}, {self.mode}, {feed}"

    def regions(self, device: str | DeviceSpec) -> dict[RegionSpec, float]:
        """Of the plan for a device: each that a kernel runs, with its predicted microseconds; none for a step that does not fit the device."""
        layers, loss, optimizer = self._built()
        if self.quantized:
            layers = quantize(layers, self.quantized)
        trained: dict[str, Any] = {"loss": loss, "optimizer": optimizer} if self.mode == "train" else {}
        policy: dict[str, Any] = (
            {"policy": "f32", "precision": "tf32"} if self.policy == "tf32" else {"policy": self.policy}
        )
        try:
            explanation = explain_for(layers, device, self.mode, **policy, **trained)
        except AicfError:
            return {}
        return {
            r.spec: r.selection.chosen.us for r in explanation.regions if r.kernel_id and not _is_view(r.spec)
        }

    def _built(self) -> tuple[nn.Model, nn.Loss, nn.Optimizer]:
        if self.model in TRANSFORMERS:
            sizes = TRANSFORMERS[self.model]
            kind: Any = models.GPT2 if self.model.startswith("GPT") else models.Llama
            config: Any = models.GPT2Config if self.model.startswith("GPT") else models.LlamaConfig
            tokens = {"tokens": TensorSpec(("batch", "seq"), i32)}
            layer = kind(config(depth=DEPTH, **sizes))
            return (
                nn.Model(tokens, layer, batch=self.batch, seq=self.length),
                nn.LinearCrossEntropy(),
                nn.AdamW(1e-4),
            )
        name, sizes = OTHERS[self.model]
        module = example(name)
        length = {"length": self.length} if self.length else {}
        return module.build(batch=self.batch, **length, **sizes), module.loss(), module.optimizer()


def _is_view(region: RegionSpec) -> bool:
    return all(VIEW in schema_of(op.kind).traits for op in region.ops)


def example(name: str) -> Any:
    """The example of this name, as a module: its `build`, `loss` and `optimizer` are a model of published sizes."""
    spec = importlib.util.spec_from_file_location(f"published_{name}", example_folder() / f"{name}.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def steps(seed: str) -> Iterator[ModelStep]:
    """Without end: models alike often, training a third of the time, and as many small batches as large ones."""
    rng = random.Random(f"steps {seed}")
    while True:
        model, tokens = rng.choice(MODELS), rng.choice(TOKENS)
        mode, policy = rng.choice(("infer", "infer", "train")), rng.choice(POLICIES)
        if model in TRANSFORMERS or model.startswith("BERT"):
            limit = 512 if model.startswith("BERT") else 1024 if model.startswith("GPT") else 4096
            length = min(tokens, limit, 2 ** rng.randrange(13))
            quantized = (
                rng.choice(("", "", "", "int8", "int4")) if model in TRANSFORMERS and mode == "infer" else ""
            )
            yield ModelStep(
                model, mode, policy if not quantized else "bf16", tokens // length, length, quantized
            )
        else:
            yield ModelStep(model, mode, policy, max(1, tokens // 128), 0)


@dataclass(frozen=True)
class Drawn:
    """A region, with the step that has it."""

    step: ModelStep
    region: RegionSpec

    def __str__(self) -> str:
        tensors = ", ".join(map(str, self.region.operands))
        return f"{self.step}: {self.region.signature} of {tensors}"


def regions(
    seed: str,
    number: int,
    device: str | DeviceSpec,
    wanted: Callable[[RegionSpec], bool] = lambda region: True,
    each: int = EACH,
) -> list[Drawn]:
    """So many of the regions of `endless`; the first of them are the same whatever the number."""
    return list(islice(endless(seed, device, wanted, each), number))


def endless(
    seed: str,
    device: str | DeviceSpec,
    wanted: Callable[[RegionSpec], bool] = lambda region: True,
    each: int = EACH,
) -> Iterator[Drawn]:
    """Different regions that are wanted, at most `each` of a step, the more likely the longer they take, as predicted; until many steps in a
    row have none."""
    rng, seen, barren = random.Random(f"regions {seed}"), set[str](), 0
    for step in steps(seed):
        candidates = {
            r: us for r, us in step.regions(device).items() if r.key not in seen and r.nbytes <= LARGEST
        }
        order = sorted(candidates, key=lambda r: rng.random() ** (1 / candidates[r]), reverse=True)
        some = {region.key: region for region in islice(filter(wanted, order), each)}
        seen |= some.keys()
        yield from (Drawn(step, region) for region in some.values())
        barren = 0 if some else barren + 1
        if barren == BARREN:
            return
