"""Models as users have them: those of transformers, by configuration, with random weights. Importing this imports neither library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Batch = Mapping[str, Any]
Call = Callable[[Batch], Any]


@dataclass(frozen=True)
class Brought:
    """`config` and `model` are transformers' classes; `batch` sequences of `length` tokens, or images where `image` is their size.

    padded     sequences of lengths of their own, with a mask
    classes    labels are one of so many for each sequence; 0: the next token
    autotuned  whether TorchInductor's max-autotune is measured, too
    """

    name: str
    config: str
    model: str
    options: Mapping[str, Any]
    batch: int
    length: int
    words: int = 0
    image: int = 0
    padded: bool = False
    classes: int = 0
    autotuned: bool = False

    @property
    def feed(self) -> str:
        return f"{self.batch}x{self.length}" if self.words else f"{self.batch} images"

    def build(self, device: str) -> Any:
        """The module in f32, in evaluation mode; there are no dropouts, so training computes the same."""
        import transformers

        made = getattr(transformers, self.model)(getattr(transformers, self.config)(**self.options))
        return made.to(device).eval()

    def data(self, torch: Any, device: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Random inputs, by the names of forward's arguments; and the labels."""
        if not self.words:
            size = (self.batch, 3, self.image, self.image)
            return {"pixel_values": torch.randn(size, device=device)}, self._labels(torch, device)
        tokens = torch.randint(self.words, (self.batch, self.length), device=device)
        inputs = {"input_ids": tokens}
        if self.padded:
            lengths = torch.randint(self.length // 2, self.length + 1, (self.batch, 1), device=device)
            inputs["attention_mask"] = (torch.arange(self.length, device=device) < lengths).long()
        return inputs, self._labels(torch, device) if self.classes else {"labels": tokens}

    def _labels(self, torch: Any, device: str) -> dict[str, Any]:
        return {"labels": torch.randint(self.classes, (self.batch,), device=device)}

    def products(self, module: Any) -> float:
        """Flops of the products with weights, for all tokens: all of the forward pass except attention."""
        kinds = ("Linear", "Conv1D", "Conv2d")
        each = sum(m.weight.numel() for m in module.modules() if type(m).__name__ in kinds)
        return 2.0 * each * self.batch * self.length


def inference(torch: Any, module: Any) -> Call:
    def logits(inputs: Batch) -> Any:
        return module(**inputs).logits

    return logits


def training(torch: Any, module: Any, half: bool) -> Call:
    """The loss, in bf16 by autocast, or in f32."""
    place = next(module.parameters()).device.type

    def loss(batch: Batch) -> Any:
        with torch.autocast(place, torch.bfloat16, enabled=half):
            return module(**batch).loss

    return loss


GPT2 = Brought(
    "GPT-2 124M", "GPT2Config", "GPT2LMHeadModel",
    {"use_cache": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    batch=8, length=1024, words=50257, autotuned=True,
)  # fmt: skip
BERT = Brought(
    "BERT-base", "BertConfig", "BertForSequenceClassification", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    batch=32, length=384, words=30522, padded=True, classes=2, autotuned=True,
)  # fmt: skip
LLAMA = Brought(
    "Llama 1B", "LlamaConfig", "LlamaForCausalLM",
    {
        "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 8192, "max_position_embeddings": 8192, "tie_word_embeddings": True, "use_cache": False,
    },
    batch=4, length=2048, words=128256,
)  # fmt: skip
VIT = Brought(
    "ViT-B/16", "ViTConfig", "ViTForImageClassification", {"num_labels": 1000}, batch=128, length=197, image=224, classes=1000,
)  # fmt: skip
MODELS = {"gpt2": GPT2, "bert": BERT, "llama": LLAMA, "vit": VIT}

# The same models where nothing is measured in earnest.
_TEXT = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
SMALL = {
    "small-gpt2": Brought(
        "small GPT-2", "GPT2Config", "GPT2LMHeadModel",
        {**GPT2.options, "vocab_size": 97, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}, 2, 16, words=97,
    ),
    "small-bert": Brought("small BERT", "BertConfig", "BertForSequenceClassification", {**BERT.options, **_TEXT}, 2, 16, words=97, padded=True, classes=2),
    "small-llama": Brought(
        "small Llama", "LlamaConfig", "LlamaForCausalLM", {**LLAMA.options, **_TEXT, "num_key_value_heads": 1, "max_position_embeddings": 64}, 2, 16, words=97,
    ),
    "small-vit": Brought(
        "small ViT", "ViTConfig", "ViTForImageClassification",
        {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 32, "patch_size": 8, "num_labels": 10},
        2, 17, image=32, classes=10,
    ),
}  # fmt: skip
