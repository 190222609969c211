"""quantize, dequantize and fake_quantize: codes written by hand, gradients by hand and against differences, on the CPU and on a GPU."""

import ml_dtypes
import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.types import DType, TensorSpec


class Op(nn.Layer):
    """One op of what is fed."""

    def __init__(self, name, **attrs):
        self.op, self.attrs = name, attrs

    def emit(self, ctx, x, scale):
        return getattr(ctx, self.op)(x, scale, **self.attrs)


class WithZero(Op):
    def emit(self, ctx, x, scale, zero):
        return getattr(ctx, self.op)(x, scale, zero, **self.attrs)


NAMES = "x", "scale", "zero"


def model(name, arrays, **attrs):
    specs = {n: TensorSpec(a.shape, DType.of(a.dtype)) for n, a in zip(NAMES, arrays)}
    return nn.Model(specs, (WithZero if len(arrays) == 3 else Op)(name, **attrs))


def run(name, *arrays, device="cpu", **attrs):
    made = aicf.compile(model(name, arrays, **attrs), device=device)
    return made(dict(zip(NAMES, arrays)))["output"].numpy()


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_codes_are_the_nearest_ones_and_saturate(device):
    x = np.array([0.5, 1.5, -0.5, -1.5, 2.5, 126.6, 127.5, 400, -128.4, -129, 0.49, -0.0], np.float32)
    want = [0, 2, 0, -2, 2, 127, 127, 127, -128, -128, 0, 0]
    assert run("quantize", x, np.float32(1), device=device).tolist() == want
    got = run("quantize", x, np.float32(1), np.uint8(3), device=device, dtype="u8")
    assert got.dtype == np.uint8 and got.tolist() == [3, 5, 3, 1, 5, 130, 131, 255, 0, 0, 3, 3]
    got = run(
        "quantize", np.array([500, -1e6, 0.1, 17], np.float32), np.float32(1), device=device, dtype="f8e4m3"
    )
    assert got.astype(np.float32).tolist() == [448, -448, 0.1015625, 16]


FORMS = [  # of scales beside (6, 40): one, channels, blocks, both axes in blocks
    ((), 0), ((1,), 0), ((6,), 0), ((40,), 1), ((6, 1), 0), ((1, 40), 0), ((6, 5), 0), ((3, 10), 0), ((10,), -1), ((2,), 0),
]  # fmt: skip


def spread(p, shape, axis):
    """By Python, element by element."""
    made = np.empty(shape, p.dtype)
    for at in np.ndindex(*shape):
        if p.ndim == 1:
            made[at] = p[at[axis] * p.shape[0] // shape[axis]] if p.shape[0] > 1 else p[0]
        else:
            made[at] = p[tuple(i * c // d for i, c, d in zip(at, p.shape, shape))] if p.ndim else p[()]
    return made


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape, axis", FORMS, ids=str)
@pytest.mark.parametrize("code", ["i8", "u8"])
def test_scales_of_a_tensor_of_channels_and_of_blocks(code, shape, axis, device):
    rng = np.random.default_rng()
    x = rng.normal(size=(6, 40)).astype(ml_dtypes.bfloat16)
    scale = rng.uniform(0.01, 0.05, shape).astype(np.float32)
    zero = rng.integers(0, 9, shape).astype(DType[code].numpy)
    s, z = (spread(p, x.shape, axis) for p in (scale, zero))
    low, high = (0, 255) if code == "u8" else (-128, 127)
    want = np.clip(np.rint(x.astype(np.float32) / s) + z, low, high)
    got = run("quantize", x, scale, zero, device=device, dtype=code, axis=axis)
    assert np.array_equal(got, want) or device == "cuda"
    assert np.abs(got.astype(int) - want).max() <= (device == "cuda")  # a division may differ in its last bit
    back = run("dequantize", got, scale, zero, device=device, axis=axis)
    np.testing.assert_allclose(back, (got.astype(np.float64) - z) * s, rtol=1e-6)


@pytest.mark.parametrize("target", ["f8e4m3", "f8e5m2"])
def test_fp8_by_blocks(target):
    x = np.random.default_rng().normal(size=(4, 32)).astype(np.float32)
    scale = (np.abs(x.reshape(4, 2, 16)).max(2) / 448).astype(np.float32)
    got = run("quantize", x, scale, dtype=target)
    want = x / np.repeat(scale, 16, 1)
    assert np.array_equal(got.astype(np.float32), want.astype(DType[target].numpy).astype(np.float32))
    back = run("dequantize", got, scale, dtype="f16")
    assert back.dtype == np.float16 and np.abs(back - x).max() < 0.15 * np.abs(x).max()


class Trained(nn.Layer):
    """fake_quantize of a weight, whose scale and zero point are weights, too."""

    def __init__(self, w, scale, zero, **attrs):
        self.given, self.attrs = (w, scale, zero), attrs

    def emit(self, ctx, x):
        made = [ctx.param(n, a.shape, lambda *_, a=a: a) for n, a in zip("wsz", self.given)]
        return ctx.mul(ctx.fake_quantize(*made, **self.attrs), x)


@pytest.mark.parametrize("shape, axis", [((), 0), ((5,), 0), ((5, 2), 0)], ids=str)
def test_rounding_passes_gradients(shape, axis):
    """To x where codes are in range; to the scale what is left over of each code, as learned step sizes have it."""
    rng = np.random.default_rng()
    w, x = (rng.normal(size=(5, 8)).astype(np.float32) for _ in range(2))
    w[0, 0], w[1, 0] = 9.0, 0.01  # beyond all codes, and within
    scale = rng.uniform(0.005, 0.02, shape).astype(np.float32)
    zero = rng.integers(-20, 20, shape).astype(np.float32)
    layer = Trained(w, scale, zero, axis=axis)
    program = aicf.compile(
        nn.Model({"x": TensorSpec((5, 8))}).add(layer),
        "grad",
        device="cpu",
        loss=nn.LossFunction(lambda out: out.sum()),
    )
    made = {name: np.asarray(v.numpy()) for name, v in program({"x": x}).items()}
    grads = {name[-1]: g for name, g in made.items() if name.startswith("grad")}
    s, z = (spread(p, w.shape, axis).astype(np.float64) for p in (scale, zero))
    t = w / s + z
    inside, code = (t >= -128) & (t <= 127), np.rint(np.clip(t, -128, 127))
    assert inside.any() and not inside.all()
    np.testing.assert_allclose(grads["w"], x * inside, rtol=1e-6)
    of_scale = x * np.where(inside, code - t, code - z)
    of_zero = x * np.where(inside, 0, -s)
    for name, want in (("s", of_scale), ("z", of_zero)):
        blocks = want.sum() if shape == () else want.reshape(5, *shape[1:], -1).sum(-1)
        np.testing.assert_allclose(grads[name], blocks, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("device", ["h200", "a100", "l4"])
def test_on_a_gpu_they_are_one_kernel_with_what_stands_around_them(device):
    class Chain(nn.Layer):
        def emit(self, ctx, x, scale):
            y = ctx.dequantize(ctx.quantize(ctx.relu(x), scale), scale, dtype="bf16")
            return ctx.add(y, y)

    given = {"x": TensorSpec((64, 256), DType.bf16), "scale": TensorSpec((64, 1))}
    (region,) = aicf.explain_for(nn.Model(given, Chain()), preset(device)).regions
    assert region.selection.kernel_id.startswith("cuda.elementwise_")


def test_bytes_go_in_and_out():
    """A code alone is read and written in vectors of bytes."""
    x, scale = TensorSpec((4096, 4096), DType.bf16), TensorSpec((4096, 1))
    for name, first in (("quantize", x), ("dequantize", TensorSpec((4096, 4096), DType.i8))):
        found = aicf.explain_for(nn.Model({"x": first, "scale": scale}, Op(name)), preset("h200"))
        (region,) = found.regions
        assert region.selection.kernel_id == "cuda.elementwise_rows.v1"
