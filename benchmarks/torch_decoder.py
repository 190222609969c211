"""PyTorch's side of decoding: GPT-2 or Llama from weights by aicf's names, with a static KV cache, as torch.compile takes it best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """`kv_heads` of `head_size`; `theta` of rotary positions, None of a table of places; `eps` of norms."""

    depth: int
    heads: int
    kv_heads: int
    head_size: int
    length: int
    theta: float | None
    eps: float


def decoder(torch: Any, shape: Shape, weights: Mapping[str, Any]) -> Any:
    """A module: the next tokens (1, T) to their logits (1, T, words). It keeps keys and values of `length` places, and where it stands in
    `position`."""
    F, kind, place = torch.nn.functional, weights["embed.weight"].dtype, weights["embed.weight"].device

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in weights.items():
                self.register_buffer(name.replace(".", "_"), value.to(kind))
            size = (1, shape.kv_heads, shape.length, shape.head_size)
            for n in range(shape.depth):
                self.register_buffer(f"keys_{n}", torch.zeros(size, dtype=kind, device=place))
                self.register_buffer(f"values_{n}", torch.zeros(size, dtype=kind, device=place))
            self.register_buffer("position", torch.zeros(1, dtype=torch.int64, device=place))
            self.register_buffer("places", torch.arange(shape.length, device=place))
            if shape.theta is not None:
                pairs = torch.arange(0, shape.head_size, 2, device=place, dtype=torch.float64)
                angles = torch.outer(self.places.double(), shape.theta ** (-pairs / shape.head_size))
                self.register_buffer("cos", angles.cos().float())
                self.register_buffer("sin", angles.sin().float())

        def of(self, name: str) -> Any:
            return getattr(self, name.replace(".", "_"), None)

        def linear(self, x: Any, name: str) -> Any:
            return F.linear(x, self.of(f"{name}.weight"), self.of(f"{name}.bias"))

        def norm(self, x: Any, name: str) -> Any:
            weight, bias = self.of(f"{name}.weight"), self.of(f"{name}.bias")
            if bias is None:
                return F.rms_norm(x, weight.shape, weight, shape.eps)
            return F.layer_norm(x, weight.shape, weight, bias, shape.eps)

        def turned(self, x: Any, at: Any) -> Any:
            if shape.theta is None:
                return x
            cos, sin, (a, b) = self.cos[at], self.sin[at], x.float().chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

        def attend(self, x: Any, n: int, at: Any, seen: Any) -> Any:
            joined = (
                self.linear(x, f"blocks.{n}.attn.qkv").unflatten(-1, (-1, shape.head_size)).transpose(1, 2)
            )
            q, k, v = joined.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
            keys, values = self.of(f"keys_{n}"), self.of(f"values_{n}")
            keys.index_copy_(2, at, self.turned(k, at))
            values.index_copy_(2, at, v)
            if (shared := shape.heads // shape.kv_heads) > 1:
                keys, values = (t.repeat_interleave(shared, 1) for t in (keys, values))
            y = F.scaled_dot_product_attention(self.turned(q, at), keys, values, attn_mask=seen)
            return self.linear(y.transpose(1, 2).flatten(2), f"blocks.{n}.attn.out")

        def forward_of(self, x: Any, n: int) -> Any:
            at = f"blocks.{n}.mlp"
            up = self.linear(x, f"{at}.up")
            if self.of(f"{at}.gate.weight") is None:
                return self.linear(F.gelu(up, approximate="tanh"), f"{at}.down")
            return self.linear(F.silu(self.linear(x, f"{at}.gate")) * up, f"{at}.down")

        def forward(self, tokens: Any) -> Any:
            at = self.position + self.places[: tokens.shape[1]]
            seen = self.places <= at[:, None]
            x = F.embedding(tokens, self.of("embed.weight"))
            if shape.theta is None:
                x = x + self.of("place.weight")[at]
            for n in range(shape.depth):
                x = x + self.attend(self.norm(x, f"blocks.{n}.norm1"), n, at, seen)
                x = x + self.forward_of(self.norm(x, f"blocks.{n}.norm2"), n)
            self.position.add_(tokens.shape[1])
            return F.linear(self.norm(x, "norm"), self.of("embed.weight"))

    return Decoder().eval()


def greedy(torch: Any, model: Any) -> Any:
    """A module without inputs: `token` (1, 1) to the likeliest next one (1,), which takes its place."""

    class Greedy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.register_buffer(
                "token", torch.zeros((1, 1), dtype=torch.int64, device=model.position.device)
            )

        def forward(self) -> Any:
            drawn = self.model(self.token)[:, -1].argmax(-1)
            self.token.copy_(drawn[:, None])
            return drawn

    return Greedy().eval()
