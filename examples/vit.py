"""A Vision Transformer, ViT-B/16 (Dosovitskiy et al. 2021), trained for some steps on random images.

python examples/vit.py --device cpu --steps 3
python examples/vit.py --device cuda --size 224 --patch 16 --batch 64 --width 768 --depth 12 --heads 12 --policy bf16
aicf explain examples/vit.py --device h200 --mode train
"""

import argparse

import numpy as np

import aicf
from aicf import nn


class ViT(nn.Layer):
    """Patches of an image as the words of a sentence, behind a token that is asked for the class."""

    def __init__(self, size: int, patch: int, width: int, depth: int, heads: int, classes: int) -> None:
        self.width, self.places = width, (size // patch) ** 2 + 1
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.blocks = [
            nn.TransformerBlock(
                width, nn.MultiHeadAttention(width, heads, causal=False), nn.MLP(width, activation=nn.GELU(False)),
                norm=lambda size: nn.LayerNorm(size, eps=1e-6),
            )
            for _ in range(depth)
        ]  # fmt: skip
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def emit(self, ctx, x):
        x = self.patches(x)
        n, c, h, w = x.shape
        x = x.reshape(n, c, h * w).transpose(0, 2, 1)
        asked = ctx.param("class_token", (1, 1, c), nn.init.zeros, x.dtype, "embedding")
        places = ctx.param("places", (1, self.places, c), nn.init.normal(0.02), x.dtype, "embedding")
        x = ctx.concatenate(ctx.broadcast_in_dim(asked, shape=(n, 1, c), dims=(0, 1, 2)), x, axis=1) + places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def build(
    batch: int = 64, size: int = 224, patch: int = 16, width: int = 768, depth: int = 12, heads: int = 12, classes: int = 1000
) -> nn.Model:  # fmt: skip
    images = {"x": aicf.TensorSpec(("batch", 3, size, size))}
    return nn.Model(images, ViT(size, patch, width, depth, heads, classes), batch=batch)


def loss() -> nn.Loss:
    return nn.SoftmaxCrossEntropy()


def optimizer(rate: float = 1e-3) -> nn.Optimizer:
    exempt = nn.ParamGroup(use=("bias", "norm", "embedding"), weight_decay=0.0)
    return nn.AdamW(rate, weight_decay=0.1, clip_norm=1.0, groups=[exempt])


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--device", help="cpu, cuda, or whatever is there")
    ask.add_argument("--steps", type=int, default=5)
    ask.add_argument("--policy", default="f32", help="f32, bf16 or f16")
    sizes = {"batch": 8, "size": 32, "patch": 8, "width": 32, "depth": 2, "heads": 4}  # ViT-B/16: see above
    for name, default in sizes.items():
        ask.add_argument(f"--{name}", type=int, default=default)
    args = ask.parse_args()
    model = build(*(getattr(args, name) for name in sizes), classes=10)
    train = aicf.compile(
        model, "train", device=args.device, loss=loss(), optimizer=optimizer(), policy=args.policy
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((args.batch, 3, args.size, args.size), np.float32)
    y = rng.integers(0, 10, args.batch)
    for step in range(args.steps):
        print(f"step {step + 1}: loss {float(train({'x': x, 'y': y})['loss']):.4f}")


if __name__ == "__main__":
    main()
