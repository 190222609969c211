"""GPT-2 and Llama in NumPy float64, from the papers and the published config.json and tensors. Shares no code with aicf."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Arrays = Mapping[str, np.ndarray]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int | None = None) -> np.ndarray:
    """Heads (heads, T, d); k and v may have fewer, each for several of q in a row."""
    k, v = (np.repeat(x, len(q) // len(x), 0) for x in (k, v))
    place = np.arange(q.shape[1])
    seen = place <= place[:, None]
    if window is not None:
        seen &= place[:, None] - place < window
    scores = np.where(seen, q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]), -np.inf)
    return softmax(scores) @ v


def split(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(len(x), heads, -1).swapaxes(0, 1)


def merge(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def gpt2(w: Arrays, config: Mapping[str, Any], tokens: np.ndarray) -> np.ndarray:
    """Logits (T, words) of one sequence. Names without a prefix."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config["layer_norm_epsilon"])
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def conv1d(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    act = {
        "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "relu": lambda x: np.maximum(x, 0),
    }[config["activation_function"]]
    x = w["wte.weight"][tokens] + w["wpe.weight"][: len(tokens)]
    for n in range(config["n_layer"]):
        q, k, v = (
            split(p, config["n_head"])
            for p in np.split(conv1d(norm(x, f"h.{n}.ln_1"), f"h.{n}.attn.c_attn"), 3, -1)
        )
        x = x + conv1d(merge(attend(q, k, v)), f"h.{n}.attn.c_proj")
        x = x + conv1d(act(conv1d(norm(x, f"h.{n}.ln_2"), f"h.{n}.mlp.c_fc")), f"h.{n}.mlp.c_proj")
    return (
        norm(x, "ln_f") @ w["wte.weight" if config.get("tie_word_embeddings", True) else "lm_head.weight"].T
    )


def frequencies(config: Mapping[str, Any], size: int) -> np.ndarray:
    said = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = said.get("rope_theta", config.get("rope_theta", 10_000.0))
    plain = theta ** (-np.arange(0, size, 2) / size)
    kind = said.get("rope_type", said.get("type", "default"))
    if kind == "linear":
        return plain / said["factor"]
    if kind == "default":
        return plain
    made = []
    for f in plain:
        wave, old = 2 * np.pi / f, said["original_max_position_embeddings"]
        smooth = (old / wave - said["low_freq_factor"]) / (said["high_freq_factor"] - said["low_freq_factor"])
        between = (1 - smooth) * f / said["factor"] + smooth * f
        short, long = wave < old / said["high_freq_factor"], wave > old / said["low_freq_factor"]
        made.append(f if short else f / said["factor"] if long else between)
    return np.array(made)


def rotate(x: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    """x cos + rotate_half(x) sin."""
    angles = np.outer(np.arange(x.shape[1]), np.concatenate([frequency, frequency]))
    a, b = np.split(x, 2, -1)
    return x * np.cos(angles) + np.concatenate([-b, a], -1) * np.sin(angles)


def llama(w: Arrays, config: Mapping[str, Any], tokens: np.ndarray) -> np.ndarray:
    """Logits (T, words) of one sequence. Names without a prefix."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config["rms_norm_eps"]) * w[f"{name}.weight"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    window = config.get("sliding_window")
    x = w["embed_tokens.weight"][tokens]
    for n in range(config["num_hidden_layers"]):
        at, h = f"layers.{n}.self_attn", norm(x, f"layers.{n}.input_layernorm")
        q, k, v = (
            split(linear(h, f"{at}.{p}_proj"), count) for p, count in zip("qkv", (heads, shared, shared))
        )
        f = frequencies(config, q.shape[-1])
        x = x + linear(merge(attend(rotate(q, f), rotate(k, f), v, window)), f"{at}.o_proj")
        h, mlp = norm(x, f"layers.{n}.post_attention_layernorm"), f"layers.{n}.mlp"
        gate = linear(h, f"{mlp}.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, f"{mlp}.up_proj"), f"{mlp}.down_proj")
    head = w["embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return norm(x, "norm") @ head.T


def doubles(tensors: Arrays) -> dict[str, np.ndarray]:
    return {
        n.removeprefix("transformer.").removeprefix("model."): t.astype(np.float64)
        for n, t in tensors.items()
    }


# --- files of random weights ------------------------------------------------------------------------------------------

GPT2 = {
    "model_type": "gpt2", "vocab_size": 37, "n_positions": 24, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_inner": None,
    "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "resid_pdrop": 0.1, "eos_token_id": 36,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "vocab_size": 41, "max_position_embeddings": 64, "hidden_size": 12, "intermediate_size": 20,
    "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "rope_theta": 500.0, "tie_word_embeddings": False, "bos_token_id": 1,
}  # fmt: skip


def gpt2_shapes(c: Mapping[str, Any], prefix: str = "transformer.") -> dict[str, tuple[int, ...]]:
    size, inner = c["n_embd"], c["n_inner"] or 4 * c["n_embd"]
    found = {
        "wte.weight": (c["vocab_size"], size),
        "wpe.weight": (c["n_positions"], size),
        "ln_f.weight": (size,),
    }
    found["ln_f.bias"] = (size,)
    for n in range(c["n_layer"]):
        for name, a, b in (
            ("attn.c_attn", size, 3 * size), ("attn.c_proj", size, size), ("mlp.c_fc", size, inner), ("mlp.c_proj", inner, size),
        ):  # fmt: skip
            found |= {f"h.{n}.{name}.weight": (a, b), f"h.{n}.{name}.bias": (b,)}
        found |= {f"h.{n}.{ln}.{part}": (size,) for ln in ("ln_1", "ln_2") for part in ("weight", "bias")}
    head = {} if c.get("tie_word_embeddings", True) else {"lm_head.weight": (c["vocab_size"], size)}
    return {prefix + n: s for n, s in found.items()} | head


def llama_shapes(c: Mapping[str, Any], prefix: str = "model.") -> dict[str, tuple[int, ...]]:
    size, inner = c["hidden_size"], c["intermediate_size"]
    d = c.get("head_dim") or size // c["num_attention_heads"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    found: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (c["vocab_size"], size),
        "norm.weight": (size,),
    }
    biased = (
        "qkvo" if c.get("attention_bias") else "qkv" if c["model_type"] == "qwen2" else ""
    ) + "gud" * bool(c.get("mlp_bias"))
    for n in range(c["num_hidden_layers"]):
        for name, out, into in (
            ("self_attn.q_proj", q, size), ("self_attn.k_proj", kv, size), ("self_attn.v_proj", kv, size),
            ("self_attn.o_proj", size, q), ("mlp.gate_proj", inner, size), ("mlp.up_proj", inner, size),
            ("mlp.down_proj", size, inner),
        ):  # fmt: skip
            found[f"layers.{n}.{name}.weight"] = (out, into)
            if name.split(".")[1][0] in biased:
                found[f"layers.{n}.{name}.bias"] = (out,)
        found |= {
            f"layers.{n}.{ln}.weight": (size,) for ln in ("input_layernorm", "post_attention_layernorm")
        }
    head = {} if c["tie_word_embeddings"] else {"lm_head.weight": (c["vocab_size"], size)}
    return {prefix + n: s for n, s in found.items()} | head


def drawn(
    shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator, dtype: Any = np.float32
) -> dict[str, np.ndarray]:
    """Large enough that every part of the model matters."""
    return {
        n: (rng.normal(size=s) * (0.4 if len(s) > 1 else 0.3) + ("norm" in n or "ln_" in n)).astype(dtype)
        for n, s in shapes.items()
    }


def folder(path: Path, config: Mapping[str, Any], tensors: Arrays) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), path / "model.safetensors", {"format": "pt"})
    return path


def made(
    path: Path, config: Mapping[str, Any], rng: np.random.Generator, dtype: Any = np.float32
) -> tuple[Path, dict[str, np.ndarray]]:
    """A folder of random weights, and these."""
    shapes = gpt2_shapes(config) if config["model_type"] == "gpt2" else llama_shapes(config)
    tensors = drawn(shapes, rng, dtype)
    return folder(path, config, tensors), tensors


def logits(config: Mapping[str, Any], tensors: Arrays, tokens: np.ndarray) -> np.ndarray:
    forward = gpt2 if config["model_type"] == "gpt2" else llama
    w = doubles(tensors)
    return np.stack([forward(w, config, row) for row in tokens])
