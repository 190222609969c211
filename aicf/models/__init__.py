"""Models that people know by name, with the weights that are published: GPT-2, Llama, Mistral, Qwen 2.

model = aicf.models.from_pretrained("folder")
program = aicf.compile(model)
aicf.models.save_pretrained(program, "other-folder")
"""

from typing import Any

from .. import near
from .gpt2 import GPT2, GPT2Config
from .llama import Llama, LlamaConfig
from .pretrained import from_pretrained, save_pretrained

__all__ = ["GPT2", "GPT2Config", "Llama", "LlamaConfig", "from_pretrained", "save_pretrained"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    raise near.no_attribute("aicf.models", name, near.MODELS, __all__)
