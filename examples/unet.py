"""A UNet (Ronneberger et al. 2015) as diffusion models have it, with group norms: it learns which noise was added to images.

python examples/unet.py --device cpu --steps 3
python examples/unet.py --device cuda --size 64 --batch 32 --width 64
aicf explain examples/unet.py --device h200 --mode train
"""

import argparse
from itertools import pairwise

import numpy as np

import aicf
from aicf import nn


class Block(nn.Layer):
    """Two convolutions beside a skip connection."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.norm1, self.conv1 = (
            nn.GroupNorm(min(8, inputs), inputs),
            nn.Conv2d(inputs, outputs, 3, padding=1),
        )
        self.norm2, self.conv2 = (
            nn.GroupNorm(min(8, outputs), outputs),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def emit(self, ctx, x):
        y = self.conv1(ctx.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(ctx.silu(self.norm2(y)))


class UNet(nn.Layer):
    """Down to smaller images of more channels and up again, where each size also sees what came down through it."""

    def __init__(self, channels: int = 3, width: int = 64, depth: int = 3) -> None:
        widths = [width * 2**n for n in range(depth + 1)]
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        pairs = list(pairwise(widths))
        self.down = [Block(a, a) for a, _ in pairs]
        self.smaller = [nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairs]
        self.middle = Block(widths[-1], widths[-1])
        self.larger = [
            nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(b, a, 3, padding=1)) for a, b in pairs
        ]
        self.up = [Block(2 * a, a) for a, _ in pairs]
        self.norm, self.last = nn.GroupNorm(min(8, width), width), nn.Conv2d(width, channels, 3, padding=1)

    def emit(self, ctx, x):
        x, seen = self.first(x), []
        for block, smaller in zip(self.down, self.smaller):
            seen.append(block(x))
            x = smaller(seen[-1])
        x = self.middle(x)
        for block, larger in zip(self.up[::-1], self.larger[::-1]):
            x = block(ctx.concatenate(larger(x), seen.pop(), axis=1))
        return self.last(ctx.silu(self.norm(x)))


def build(batch: int = 32, size: int = 64, width: int = 64, depth: int = 3) -> nn.Model:
    return nn.Model({"x": aicf.TensorSpec(("batch", 3, size, size))}, UNet(3, width, depth), batch=batch)


def loss() -> nn.Loss:
    return nn.MeanSquaredError()


def optimizer(rate: float = 1e-3) -> nn.Optimizer:
    return nn.AdamW(rate, clip_norm=1.0)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--device", help="cpu, cuda, or whatever is there")
    ask.add_argument("--steps", type=int, default=5)
    ask.add_argument("--batch", type=int, default=4)
    ask.add_argument("--size", type=int, default=16, help="of an image's sides, a multiple of 2 ** depth")
    ask.add_argument("--width", type=int, default=8, help="channels of the largest images")
    ask.add_argument("--depth", type=int, default=2, help="how often images are halved")
    ask.add_argument("--policy", default="f32", help="f32, bf16 or f16")
    args = ask.parse_args()
    model = build(args.batch, args.size, args.width, args.depth)
    train = aicf.compile(
        model, "train", device=args.device, loss=loss(), optimizer=optimizer(), policy=args.policy
    )
    rng = np.random.default_rng(0)
    waves = np.sin(np.linspace(0, 6, args.size))
    image = np.broadcast_to(waves[:, None] * waves, (args.batch, 3, args.size, args.size))
    for step in range(args.steps):
        noise = rng.standard_normal(image.shape).astype(np.float32)
        x = (image + noise).astype(np.float32)
        print(f"step {step + 1}: loss {float(train({'x': x, 'y': noise})['loss']):.4f}")


if __name__ == "__main__":
    main()
