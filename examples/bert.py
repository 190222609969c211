"""BERT-base (Devlin et al. 2019), which fills in words that are masked out of sentences; trained for some steps on random ones.

python examples/bert.py --device cpu --steps 3
python examples/bert.py --device cuda --words 30522 --batch 32 --length 128 --width 768 --depth 12 --heads 12 --policy bf16
aicf explain examples/bert.py --device h200 --mode train
"""

import argparse

import numpy as np

import aicf
from aicf import nn

MASK, NOT_ASKED = 3, -100  # a masked word; a place whose word the loss does not ask for


class Block(nn.Layer):
    """norm(x + attention(x)), then norm(x + mlp(x)): norms stand behind the sums."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        self.attention = nn.MultiHeadAttention(width, heads, causal=False, dropout=dropout)
        self.mlp = nn.MLP(width, activation=nn.GELU(approximate=False), dropout=dropout)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

    def emit(self, ctx, x, mask):
        x = self.norm1(x + self.attention(x, mask=mask))
        return self.norm2(x + self.mlp(x))


class BERT(nn.Layer):
    """What each word of a sentence may be, by the words on both sides of it. A mask says where there are words."""

    def __init__(
        self, words: int, width: int, depth: int, heads: int, places: int = 512, dropout: float = 0.1
    ) -> None:
        start = nn.init.normal(0.02)
        self.words = nn.Embedding(words, width, weight_init=start)
        self.places = nn.Embedding(places, width, weight_init=start)
        self.kinds = nn.Embedding(2, width, weight_init=start)  # of the first sentence, or of the second
        self.norm, self.dropout = nn.LayerNorm(width, eps=1e-12), nn.Dropout(dropout)
        self.blocks = [Block(width, heads, dropout) for _ in range(depth)]
        self.transform, self.act = nn.Linear(width, width), nn.GELU(approximate=False)
        self.last, self.decoder = nn.LayerNorm(width, eps=1e-12), nn.Linear(width, words, weight=self.words)

    def emit(self, ctx, tokens, kinds, mask):
        x = self.words(tokens) + self.places(ctx.positions(tokens.shape[-1])) + self.kinds(kinds)
        x, seen = self.dropout(self.norm(x)), mask.reshape(mask.shape[0], 1, 1, mask.shape[1])
        for block in self.blocks:
            x = block(x, seen)
        return self.decoder(self.last(self.act(self.transform(x))))


def build(
    words: int = 30522, batch: int = 32, length: int = 128, width: int = 768, depth: int = 12, heads: int = 12
) -> nn.Model:
    places = ("batch", "length")
    inputs = {
        n: aicf.TensorSpec(places, t)
        for n, t in (("tokens", aicf.i32), ("kinds", aicf.i32), ("mask", aicf.bool_))
    }
    return nn.Model(inputs, BERT(words, width, depth, heads), batch=batch, length=length)


def loss() -> nn.Loss:
    return nn.SoftmaxCrossEntropy(ignore_index=NOT_ASKED)


def optimizer(rate: float = 1e-4) -> nn.Optimizer:
    exempt = nn.ParamGroup(use=("bias", "norm"), weight_decay=0.0)
    return nn.AdamW(rate, weight_decay=0.01, clip_norm=1.0, groups=[exempt])


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--device", help="cpu, cuda, or whatever is there")
    ask.add_argument("--steps", type=int, default=5)
    ask.add_argument("--policy", default="f32", help="f32, bf16 or f16")
    sizes = {
        "words": 100,
        "batch": 4,
        "length": 16,
        "width": 32,
        "depth": 2,
        "heads": 4,
    }  # BERT-base: see above
    for name, default in sizes.items():
        ask.add_argument(f"--{name}", type=int, default=default)
    args = ask.parse_args()
    model = build(*(getattr(args, name) for name in sizes))
    train = aicf.compile(
        model, "train", device=args.device, loss=loss(), optimizer=optimizer(1e-3), policy=args.policy
    )
    rng, shape = np.random.default_rng(0), (args.batch, args.length)
    text = rng.integers(4, args.words, shape)
    for step in range(args.steps):
        asked = rng.random(shape) < 0.15
        asked[:, 0] = True
        feed = {
            "tokens": np.where(asked, MASK, text).astype(np.int32),
            "kinds": np.zeros(shape, np.int32),
            "mask": np.ones(shape, bool),
            "y": np.where(asked, text, NOT_ASKED),
        }
        print(f"step {step + 1}: loss {float(train(feed)['loss']):.4f}")


if __name__ == "__main__":
    main()
