"""Beside transformers, where it is installed: its models' files are read and its logits and greedy tokens met, and it reads ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aicf
from aicf import models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LLAMA = {
    "vocab_size": 101, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT2 = {
    "vocab_size": 97, "n_positions": 64, "n_embd": 48, "n_layer": 3, "n_head": 4, "initializer_range": 0.2, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
STRETCHED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "gpt2, its own head, relu": ("GPT2", GPT2 | {"activation_function": "relu", "n_inner": 100, "tie_word_embeddings": False}),
    "llama": ("Llama", LLAMA),
    "llama, tied, biases, wide heads": ("Llama", LLAMA | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    "llama 3.1": ("Llama", LLAMA | {"rope_scaling": STRETCHED}),
    "llama, linear": ("Llama", LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}),
    "mistral": ("Mistral", LLAMA | {"sliding_window": 7, "head_dim": 8}),
    "mistral without a window": ("Mistral", LLAMA | {"sliding_window": None}),
    "qwen2": ("Qwen2", LLAMA | {"tie_word_embeddings": True}),
}  # fmt: skip


def theirs(name: str) -> Any:
    kind, fields = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**fields)
    model_class = getattr(transformers, f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")
    torch.manual_seed(int(np.random.default_rng().integers(2**31)))
    model = model_class._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases too, which start from 0
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_logits_tokens_and_files_are_those_of_transformers(name, tmp_path):
    model, rng = theirs(name), np.random.default_rng()
    model.save_pretrained(tmp_path / "theirs")
    program = aicf.compile(models.from_pretrained(tmp_path / "theirs", batch=2, seq=40), device="cpu")
    tokens = rng.integers(3, 97, (2, 40)).astype(np.int32)
    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens).long()).logits.numpy()
    got = program({"tokens": tokens})["output"].numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    # greedy, token for token
    prompt = tokens[:1, :9]
    said = aicf.generate(program, [prompt[0]], 24, temperature=0, cache=True)[0]
    asked = model.generate(
        torch.from_numpy(prompt).long(),
        max_new_tokens=24,
        min_new_tokens=24,
        do_sample=False,
        eos_token_id=None,
    )
    assert said.tolist() == asked[0].tolist()
    # what is written is read there, to the same bits
    models.save_pretrained(program, tmp_path / "ours", most=20_000)
    again = type(model).from_pretrained(tmp_path / "ours", attn_implementation="eager")
    assert again.config.to_dict().keys() >= model.config.to_dict().keys()
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)
    with torch.no_grad():
        np.testing.assert_array_equal(again(torch.from_numpy(tokens).long()).logits.numpy(), wanted)


@pytest.mark.parametrize("name", ["gpt2", "llama 3.1"])
def test_a_model_of_bf16(name, tmp_path):
    """Both round at places of their own: neither is farther from f32 than twice the other."""
    model = theirs(name)
    model.save_pretrained(tmp_path / "f32")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "bf16")
    tokens = np.random.default_rng().integers(3, 97, (1, 33)).astype(np.int32)
    with torch.no_grad():
        rounded = model(torch.from_numpy(tokens).long()).logits.float().numpy()
        exact = model.float()(torch.from_numpy(tokens).long()).logits.numpy()
    program = aicf.compile(models.from_pretrained(tmp_path / "bf16"), device="cpu")
    got = program({"tokens": tokens})["output"].numpy().astype(np.float32)
    assert np.sqrt(np.mean((got - exact) ** 2)) < 2 * np.sqrt(np.mean((rounded - exact) ** 2))
