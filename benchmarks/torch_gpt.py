"""PyTorch's GPT of gpts.py: from the same weights by name, with autocast, fused attention and a fused AdamW."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .gpts import BETAS, CLIP, DECAY, EPS, INIT, RATE, Gpt
from .torch_trainer import TorchTrainer


def logits(torch: Any, gpt: Gpt, w: Mapping[str, Any], tokens: Any) -> Any:
    """Of every place of every sequence."""
    F, size = torch.nn.functional, (gpt.size,)

    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, size, w[f"{name}.weight"], w[f"{name}.bias"])

    def linear(x: Any, name: str) -> Any:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    x = F.embedding(tokens, w["embed.weight"]) + w["place.weight"][: tokens.shape[1]]
    for n in range(gpt.depth):
        at = f"blocks.{n}"
        q, k, v = (
            part.unflatten(-1, (gpt.heads, -1)).transpose(1, 2)
            for part in linear(norm(x, f"{at}.norm1"), f"{at}.attn.qkv").chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + linear(seen, f"{at}.attn.out")
        up = F.gelu(linear(norm(x, f"{at}.norm2"), f"{at}.mlp.up"), approximate="tanh")
        x = x + linear(up, f"{at}.mlp.down")
    return F.linear(norm(x, "norm"), w["embed.weight"])


def started(torch: Any, gpt: Gpt, device: str) -> dict[str, Any]:
    """Weights of its own: norms of one, biases of zero, the rest normal."""
    made = {}
    for name, shape in gpt.shapes().items():
        ones = "norm" in name and name.endswith(".weight")
        made[name] = (
            torch.randn(shape, device=device) * INIT
            if len(shape) == 2
            else torch.full(shape, float(ones), device=device)
        )
    return made


def trainer(torch: Any, gpt: Gpt, start: Mapping[str, Any], how: str, exact: bool = False) -> TorchTrainer:
    """From weights by aicf's names, which stay as they are. `exact`: in f32, whatever the policy."""
    w = {name: x.detach().clone().requires_grad_() for name, x in start.items()}
    place = next(iter(w.values())).device.type
    groups = [
        {"params": [p for p in w.values() if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in w.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=RATE, betas=BETAS, eps=EPS, fused=True, capturable=place != "cpu"
    )
    half = gpt.policy == "bf16" and not exact

    def loss(x: Any, y: Any) -> Any:
        with torch.autocast(place, torch.bfloat16, enabled=half):
            made = logits(torch, gpt, w, x)
            return torch.nn.functional.cross_entropy(made.flatten(0, 1), y.flatten())

    return TorchTrainer(torch, list(w.values()), list(start.values()), loss, optimizer, how, CLIP)
