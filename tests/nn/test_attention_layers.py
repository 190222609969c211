"""Rotary positions, multi-head attention and the transformer's block against NumPy in double precision."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import AicfError
from aicf.nn.attention import alibi_slopes
from aicf.types import TensorSpec, bf16, bool_, f16, f64

from .mlp import on_each_device, params
from .test_layers import drawn, gelu, layer_norm, linear, program_of, rms_norm, silu


def rotated(x: np.ndarray, theta: float, interleaved: bool = False, offset: int = 0) -> np.ndarray:
    """Pairs as complex numbers, times e^(i angle)."""
    half = x.shape[-1] // 2
    angles = np.outer(np.arange(x.shape[-2]) + offset, theta ** (-2.0 * np.arange(half) / x.shape[-1]))
    real, imaginary = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    turned = (real + 1j * imaginary) * np.exp(1j * angles)
    parts = turned.real, turned.imag
    return np.stack(parts, -1).reshape(x.shape) if interleaved else np.concatenate(parts, -1)


def attention(
    x: np.ndarray, w: Mapping[str, np.ndarray], heads: int, kv_heads: int, causal: bool = True, window: int | None = None,
    theta: float | None = None, scale: float | None = None, mask: Any = True, bias: Any = None, prefix: str = "",
) -> np.ndarray:  # fmt: skip
    """Head by head, row by row."""
    *batch, rows, _ = x.shape
    joined = linear(x, w, f"{prefix}qkv.")
    d = joined.shape[-1] // (heads + 2 * kv_heads)
    every = [joined[..., n * d : (n + 1) * d] for n in range(heads + 2 * kv_heads)]
    if theta is not None:
        every = [rotated(h, theta) if n < heads + kv_heads else h for n, h in enumerate(every)]
    place = np.arange(rows)
    seen = np.ones((*batch, heads, rows, rows), bool) & mask
    if causal:
        seen &= place <= place[:, None]
    if window is not None:
        seen &= place > place[:, None] - window
    out = []
    for h in range(heads):
        k, v = (every[heads + n * kv_heads + h * kv_heads // heads] for n in (0, 1))
        scores = every[h] @ k.swapaxes(-1, -2) * (d**-0.5 if scale is None else scale)
        if bias is not None:
            scores = scores + bias[..., h, :, :]
        e = np.where(seen[..., h, :, :], np.exp(scores), 0)
        out.append(e / e.sum(-1, keepdims=True) @ v)
    return linear(np.concatenate(out, -1), w, f"{prefix}out.")


# --- rotary positions -----------------------------------------------------------------------------------------------


@on_each_device
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [(5, 6), (2, 3, 7, 6), (1, 65, 6), (2, 0, 6), (1, 2)], ids=str)
def test_pairs_are_turned_by_their_positions(shape, interleaved, device):
    rng = np.random.default_rng()
    layer = nn.RoPE(shape[-1], theta=100.0, interleaved=interleaved)
    program = program_of(layer, shape, device)
    x, target = (rng.standard_normal(shape, np.float32) for _ in range(2))
    got = program({"x": x, "y": target})
    wanted = rotated(x.astype(np.float64), 100.0, interleaved)
    np.testing.assert_allclose(got["output"].numpy(), wanted, rtol=1e-5, atol=1e-5)
    if x.size:  # a rotation's gradient is the rotation back
        slope = 2 * (wanted - target) / x.size
        back = np.conj(rotated_operator(shape, 100.0, interleaved))
        np.testing.assert_allclose(
            got["grad.shift"].numpy(), as_pairs(back * as_complex(slope, interleaved), interleaved), rtol=1e-4, atol=1e-6
        )  # fmt: skip
    assert list(program.state_dict()) == ["shift"], "tables are in no state dict"


def as_complex(x: np.ndarray, interleaved: bool) -> np.ndarray:
    half = x.shape[-1] // 2
    return x[..., ::2] + 1j * x[..., 1::2] if interleaved else x[..., :half] + 1j * x[..., half:]


def as_pairs(z: np.ndarray, interleaved: bool) -> np.ndarray:
    if interleaved:
        return np.stack([z.real, z.imag], -1).reshape(*z.shape[:-1], -1)
    return np.concatenate([z.real, z.imag], -1)


def rotated_operator(shape: tuple[int, ...], theta: float, interleaved: bool) -> np.ndarray:
    angles = np.outer(np.arange(shape[-2]), theta ** (-2.0 * np.arange(shape[-1] // 2) / shape[-1]))
    return np.exp(1j * angles)


@pytest.mark.parametrize("dtype, tolerance", [(f16, 2e-3), (bf16, 2e-2), (f64, 1e-12)])
def test_angles_are_computed_in_double_precision(dtype, tolerance):
    """At positions where the f32 product of position and frequency is off by radians / 100."""

    class Far(nn.Layer):
        def __init__(self) -> None:
            self.rope = nn.RoPE(8)

        def emit(self, ctx: Any, x: Any) -> Any:
            return self.rope(x, offset=200_000)

    x = np.random.default_rng(0).standard_normal((3, 8)).astype(dtype.numpy)
    got = aicf.compile(nn.Model({"x": TensorSpec((3, 8), dtype)}, Far()), device="cpu")({"x": x})
    wanted = rotated(x.astype(np.float64), 10_000.0, offset=200_000)
    np.testing.assert_allclose(
        got["output"].numpy().astype(np.float64), wanted, rtol=tolerance, atol=tolerance
    )


def test_lengths_share_tables():
    program = aicf.compile(nn.Model({"x": TensorSpec(("seq", 4))}, nn.RoPE(4), seq=3), device="cpu")
    for rows in (1, 2, 63, 64, 65, 100, 128):
        program({"x": np.ones((rows, 4), np.float32)})
    tables = [name for name in program.variables.shared._own if "rope" in name]
    assert len(tables) == 4  # cosines and sines of up to 64, and of up to 128


def llama3_frequency(frequency: float, scaling: nn.Llama3Scaling) -> float:
    """Case by case, as Llama 3.1's reference code has it."""
    wave = 2 * np.pi / frequency
    if wave < scaling.positions / scaling.high:
        return frequency
    if wave > scaling.positions / scaling.low:
        return frequency / scaling.factor
    smooth = (scaling.positions / wave - scaling.low) / (scaling.high - scaling.low)
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def test_frequencies_are_scaled_for_longer_texts():
    size, theta, llama3 = 16, 10_000.0, nn.Llama3Scaling(factor=4.0, low=1.0, high=6.0, positions=1000)
    plain = theta ** (-2.0 * np.arange(size // 2) / size)
    cases = {
        llama3: np.array([llama3_frequency(f, llama3) for f in plain]),
        nn.LinearScaling(2.5): plain / 2.5,
    }
    ratio = cases[llama3] / plain
    assert ratio.max() == 1 and ratio.min() == 0.25 and ((ratio > 0.25) & (ratio < 1)).any()
    x = np.random.default_rng().standard_normal((2, 70, size), np.float32)

    class All(nn.Layer):  # side by side: each has tables of its own
        def __init__(self) -> None:
            self.ropes = [nn.RoPE(size, theta, scaling=s) for s in (*cases, None)]

        def emit(self, ctx: Any, x: Any) -> Any:
            return ctx.concatenate(*(rope(x) for rope in self.ropes), axis=0)

    got = aicf.compile(nn.Model((2, 70, size), All()), device="cpu")({"x": x})["output"].numpy()
    z = as_complex(x.astype(np.float64), False)
    for part, frequencies in zip(np.split(got, 3), (*cases.values(), plain)):
        wanted = as_pairs(z * np.exp(1j * np.outer(np.arange(70), frequencies)), False)
        np.testing.assert_allclose(part, wanted, rtol=1e-5, atol=1e-5)


# --- attention ------------------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({"heads": 2}, {"heads": 2, "kv_heads": 2}),
    "to all": ({"heads": 3, "causal": False}, {"heads": 3, "kv_heads": 3, "causal": False}),
    "grouped": ({"heads": 3, "kv_heads": 1, "bias": False}, {"heads": 3, "kv_heads": 1}),
    "windowed": ({"heads": 2, "window": 2}, {"heads": 2, "kv_heads": 2, "window": 2}),
    "turned": ({"heads": 4, "kv_heads": 2, "head_size": 4, "rope": 50.0}, {"heads": 4, "kv_heads": 2, "theta": 50.0}),
    "scaled": ({"heads": 1, "scale": 0.25, "rope": nn.RoPE(6, 30.0)}, {"heads": 1, "kv_heads": 1, "scale": 0.25, "theta": 30.0}),
}  # fmt: skip


def check_gradients(
    program: Any, x: np.ndarray, function: Callable[..., np.ndarray], picked: int = 12
) -> None:
    """Output and gradients of a `Moved` layer at drawn weights; of each weight some elements, by difference quotients."""
    rng = np.random.default_rng()
    weights = drawn(program, rng)
    target = rng.standard_normal(x.shape, np.float32)
    got = {n: np.asarray(v, np.float64) for n, v in program({"x": x, "y": target}).items()}

    def output(w: Mapping[str, np.ndarray]) -> np.ndarray:
        own = {n.removeprefix("layer."): v for n, v in w.items()}
        return function(x.astype(np.float64) + own.pop("shift"), own)

    np.testing.assert_allclose(got["output"], output(weights), rtol=2e-4, atol=2e-5)
    for n, w in weights.items():
        places = [tuple(rng.integers(0, w.shape)) for _ in range(picked)]
        numeric = []
        for at in places:
            sides = []
            for step in (1e-5, -1e-5):
                moved = w.copy()
                moved[at] += step
                sides.append(np.mean((output({**weights, n: moved}) - target) ** 2))
            numeric.append((sides[0] - sides[1]) / 2e-5)
        own = got[f"grad.{n}"]
        np.testing.assert_allclose(
            [own[at] for at in places], numeric, rtol=2e-3, atol=1e-3 * np.abs(own).max() + 1e-7, err_msg=n
        )


@pytest.mark.sample(1, each="kind")
@pytest.mark.spec("D13")
@pytest.mark.parametrize("shape", [(4, 6), (2, 5, 6), (2, 1, 3, 6), (2, 1, 6)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_numpys_and_has_its_gradients(kind, shape):
    given, asked = KINDS[kind]
    layer = nn.MultiHeadAttention(6, **given)
    program = program_of(layer, shape, "cpu")
    d, heads, kv = layer.head_size, layer.heads, layer.kv_heads
    shapes = {n.removeprefix("layer."): v.shape for n, v in params(program).items()}
    assert shapes.pop("shift") == shape
    rows = {"qkv.weight": ((heads + 2 * kv) * d, 6), "out.weight": (6, heads * d)}
    biases = {"qkv.bias": ((heads + 2 * kv) * d,), "out.bias": (6,)}
    assert shapes == (rows if given.get("bias") is False else rows | biases)
    x = np.random.default_rng().standard_normal(shape, np.float32)
    check_gradients(program, x, lambda x, w: attention(x, w, **asked))


def test_a_mask_is_a_value_of_bools():
    class Masked(nn.Layer):
        def __init__(self) -> None:
            self.attention = nn.MultiHeadAttention(6, 2, causal=False)

        def emit(self, ctx: Any, x: Any, keep: Any) -> Any:
            return self.attention(x, mask=keep[:, None, None, :])

    inputs = {"x": TensorSpec(("batch", "seq", 6)), "keep": TensorSpec(("batch", "seq"), bool_)}
    program = aicf.compile(nn.Model(inputs, Masked(), batch=2, seq=3), device="cpu")
    rng = np.random.default_rng()
    x, keep = rng.standard_normal((3, 5, 6), np.float32), rng.random((3, 5)) < 0.5
    keep[:, 2] = True
    w = {n.removeprefix("attention."): v.astype(np.float64) for n, v in program.state_dict().items()}
    wanted = attention(x.astype(np.float64), w, 2, 2, causal=False, mask=keep[:, None, None, :])
    np.testing.assert_allclose(
        program({"x": x, "keep": keep})["output"].numpy(), wanted, rtol=1e-4, atol=1e-5
    )


SLOPES = {
    1: [2**-8], 4: [2**-2, 2**-4, 2**-6, 2**-8], 8: [2.0**-i for i in range(1, 9)], 6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
    12: [*[2.0**-i for i in range(1, 9)], 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
}  # fmt: skip


class Distant(nn.Layer):
    def __init__(self, heads: int) -> None:
        self.alibi, self.attention = nn.ALiBi(heads), nn.MultiHeadAttention(12, heads)

    def emit(self, ctx: Any, x: Any) -> Any:
        return self.attention(x, bias=self.alibi(x))


@pytest.mark.parametrize("heads", [1, 4, 6, 12])
def test_alibi_is_as_published_and_asks_for_no_gradient(heads):
    program = program_of(Distant(heads), (2, 5, 12), "cpu")
    far = np.abs(np.subtract.outer(range(5), range(5)))
    bias = -np.array(SLOPES[heads])[:, None, None] * far
    assert not any("alibi" in name for name in program.state_dict())
    x = np.random.default_rng().standard_normal((2, 5, 12), np.float32)
    check_gradients(program, x, lambda x, w: attention(x, w, heads, heads, bias=bias, prefix="attention."), 3)
    told = str(program.explain().verbose())
    assert "attention_grad" in told and "attention_bias_grad" not in told


def test_slopes_of_any_number_of_heads():
    for heads, slopes in SLOPES.items():
        np.testing.assert_allclose(alibi_slopes(heads), slopes)


@pytest.mark.parametrize("bias, out_bias", [(True, False), (False, True)])
def test_each_projection_may_have_a_bias(bias, out_bias):
    layer = nn.MultiHeadAttention(6, 2, bias=bias, out_bias=out_bias)
    names = {n for n in params(program_of(layer, (4, 6), "cpu")) if n.endswith(".bias")}
    assert names == ({"layer.qkv.bias"} if bias else {"layer.out.bias"})


def test_attention_at_any_length_and_of_no_rows():
    model = nn.Model(
        {"x": TensorSpec(("batch", "seq", 8))}, nn.MultiHeadAttention(8, 2, rope=10.0), batch=2, seq=4
    )
    program = aicf.compile(model, device="cpu")
    w = {n: v.astype(np.float64) for n, v in program.state_dict().items()}
    for rows in (1, 2, 64, 65, 0):
        x = np.random.default_rng(rows).standard_normal((2, rows, 8), np.float32)
        got = program({"x": x})["output"].numpy()
        np.testing.assert_allclose(
            got, attention(x.astype(np.float64), w, 2, 2, theta=10.0), rtol=2e-4, atol=2e-5
        )


# --- blocks ---------------------------------------------------------------------------------------------------------


def of(w: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {n.removeprefix(prefix): v for n, v in w.items() if n.startswith(prefix)}


def gpt2(x, w):
    x = x + attention(layer_norm(x, of(w, "norm1.")), of(w, "attn."), 2, 2)
    mlp = of(w, "mlp.")
    return x + linear(gelu(linear(layer_norm(x, of(w, "norm2.")), mlp, "up.")), mlp, "down.")


def llama(x, w):
    x = x + attention(rms_norm(x, of(w, "norm1.")), of(w, "attn."), 4, 2, theta=100.0)
    h, mlp = rms_norm(x, of(w, "norm2.")), of(w, "mlp.")
    return x + linear(silu(linear(h, mlp, "gate.")) * linear(h, mlp, "up."), mlp, "down.")


BLOCKS: dict[str, tuple[Callable[[], Any], Callable[..., np.ndarray]]] = {
    "gpt2": (lambda: nn.TransformerBlock(8, nn.MultiHeadAttention(8, 2), nn.MLP(8)), gpt2),
    "llama": (
        lambda: nn.TransformerBlock(
            8, nn.MultiHeadAttention(8, 4, 2, bias=False, rope=100.0), nn.SwiGLU(8, 12), nn.RMSNorm
        ),
        llama,
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_numpys_and_has_its_gradients(name):
    make, function = BLOCKS[name]
    x = np.random.default_rng().standard_normal((2, 5, 8), np.float32)
    check_gradients(program_of(make(), (2, 5, 8), "cpu"), x, function)


def test_blocks_are_copied_and_pickled_and_hand_on_what_attention_takes():
    class Padded(nn.Layer):
        def __init__(self) -> None:
            self.blocks = [make() for make, _ in BLOCKS.values()]

        def emit(self, ctx: Any, x: Any, keep: Any) -> Any:
            for block in self.blocks:
                x = block(x, mask=keep[:, None, None, :])
            return x

    model = nn.Model({"x": (2, 5, 8), "keep": TensorSpec((2, 5), bool_)}, Padded())
    feed = {
        "x": np.random.default_rng(0).standard_normal((2, 5, 8), np.float32),
        "keep": np.ones((2, 5), bool),
    }
    wanted = aicf.compile(model, device="cpu")(feed)["output"].numpy()
    other = aicf.compile(copy.deepcopy(model), device="cpu")
    np.testing.assert_array_equal(other(feed)["output"].numpy(), wanted)
    assert "blocks.1.attn.qkv.weight" in other.state_dict()
    feed["keep"][:, 1] = False
    assert (other(feed)["output"].numpy()[:, 2:] != wanted[:, 2:]).any()
    for make, _ in BLOCKS.values():
        pickle.loads(pickle.dumps(nn.Model((2, 5, 8), make())))


MHA, BLOCK = nn.MultiHeadAttention, nn.TransformerBlock
REFUSED = {
    "heads that divide no size": (lambda: MHA(10, 3), "MultiHeadAttention: heads=3", "a divisor of size=10", "head_size=64"),
    "no heads": (lambda: MHA(8, 0), "heads=0", "1 or more"),
    "shared heads": (lambda: MHA(8, 4, 3), "kv_heads=3", "a divisor of heads=4"),
    "a window": (lambda: MHA(8, 4, window=0), "window=0"),
    "a flag": (lambda: MHA(8, 4, causal=1), "causal=1", "True or False"),
    "a scale": (lambda: MHA(8, 4, scale=0), "scale=0"),
    "an odd head that is turned": (lambda: MHA(9, 3, rope=10.0), "RoPE: size=3", "an even number"),
    "a rotation of another size": (lambda: MHA(8, 2, rope=nn.RoPE(8)), "rope=", "RoPE(4), as the heads are"),
    "a scaling": (lambda: nn.RoPE(4, scaling=2.0), "RoPE: scaling=2.0", "nn.Llama3Scaling"),
    "a factor": (lambda: nn.LinearScaling(0), "LinearScaling: factor=0"),
    "the ends of a scaling": (lambda: nn.Llama3Scaling(low=4.0), "Llama3Scaling: high=4.0", "low=4.0"),
    "a theta": (lambda: nn.RoPE(4, 0), "RoPE: theta=0"),
    "a norm that is made": (lambda: BLOCK(8, MHA(8, 2), nn.MLP(8), nn.RMSNorm(8)), "norm=RMSNorm(", "nn.RMSNorm"),
    "a norm by name": (lambda: BLOCK(8, MHA(8, 2), nn.MLP(8), "rms"), "norm='rms'"),
    "a class for attention": (lambda: BLOCK(8, MHA, nn.MLP(8)), "MultiHeadAttention is a class"),
    "a row for a sequence": (lambda: nn.Model((8,), MHA(8, 2)), "x is no sequence", "(..., T, 8)"),
    "other columns": (lambda: nn.Model((3, 6), MHA(8, 2)), "x has 6 features, and the layer takes 8"),
    "other rows to turn": (lambda: nn.Model((3, 6), nn.RoPE(8)), "RoPE: x does not have rows of 8", "(..., T, 8)"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_no_sense_is_refused(what):
    call, *said = REFUSED[what]
    with pytest.raises(AicfError) as raised:
        call()
    for part in said:
        assert part in str(raised.value), raised.value
