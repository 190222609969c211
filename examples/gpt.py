"""A small GPT that learns to write like Python's own help texts, byte by byte: trained, sampled, saved, resumed.

python examples/gpt.py --device cpu --steps 300 --json out.json
python examples/gpt.py --resume --steps 600
aicf explain examples/gpt.py --device h200 --mode train
"""

import argparse
import json
import sys
from pydoc_data.topics import topics

import numpy as np

import aicf
from aicf import nn
from aicf.training import Tokens

BYTES, LENGTH, BATCH = 256, 128, 16  # values of a byte; tokens of a sequence; sequences of a batch
SIZE, DEPTH, HEADS = 128, 4, 4
STEPS, RATE = 300, 3e-3


class GPT(nn.Layer):
    """Embeddings of tokens and places, blocks of attention and an MLP, a norm, and a head that is tied to the tokens' embedding."""

    def __init__(self, words: int, size: int, depth: int, heads: int, places: int) -> None:
        start = nn.init.normal(0.02)
        self.embed = nn.Embedding(words, size, weight_init=start)
        self.place = nn.Embedding(places, size, weight_init=start)
        self.blocks = [
            nn.TransformerBlock(size, nn.MultiHeadAttention(size, heads), nn.MLP(size)) for _ in range(depth)
        ]
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, words, bias=False, weight=self.embed)

    def emit(self, ctx, tokens):
        x = self.embed(tokens) + self.place(ctx.positions(tokens.shape[-1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(seed: int = 0) -> nn.Model:
    tokens = {"x": aicf.TensorSpec(("batch", "length"), aicf.i32)}
    return nn.Model(tokens, GPT(BYTES, SIZE, DEPTH, HEADS, LENGTH), batch=BATCH, length=LENGTH, seed=seed)


def loss() -> nn.Loss:
    return nn.LinearCrossEntropy()


def optimizer(steps: int = STEPS) -> nn.Optimizer:
    """Decay is for the weights of products: not for biases, norms or embeddings."""
    rate = nn.schedules.Cosine(RATE, total=max(steps, 1), warmup=min(20, steps // 2))
    exempt = nn.ParamGroup(use=("bias", "norm", "embedding"), weight_decay=0.0)
    return nn.AdamW(rate, betas=(0.9, 0.95), weight_decay=0.1, clip_norm=1.0, groups=[exempt])


def text() -> np.ndarray:
    """Python's help topics, as bytes."""
    return np.frombuffer("\n\n".join(topics[name] for name in sorted(topics)).encode(), np.uint8)


def write(program: aicf.Program, prompt: bytes, count: int, temperature: float = 0.8, seed: int = 0) -> bytes:
    """The prompt, and so many bytes after it."""
    (said,) = aicf.generate(program, [list(prompt)], count, temperature=temperature, seed=seed)
    return bytes(said.tolist())


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--device", default=None, help="cpu, cuda, or whatever is there")
    ask.add_argument("--steps", type=int, default=STEPS, help="in all, those before a --resume included")
    ask.add_argument(
        "--total", type=int, help="steps that the learning rate is planned for (default: --steps)"
    )
    ask.add_argument("--checkpoints", default="gpt-checkpoints", help="folder")
    ask.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    ask.add_argument("--sample-every", type=int, default=100, metavar="STEPS")
    ask.add_argument("--json", metavar="FILE", help="write losses, tokens_per_s and sample")
    args = ask.parse_args()

    data = text()
    held_out = len(data) // 20
    batches = Tokens(data, LENGTH, BATCH, last=-held_out)
    validation = Tokens(data, LENGTH, BATCH, first=len(data) - held_out, shuffle=False)
    model = build()
    train = aicf.compile(
        model, "train", device=args.device, loss=loss(), optimizer=optimizer(args.total or args.steps)
    )
    speak = aicf.compile(model, device=args.device)  # by the weights that are trained

    def sample(program: aicf.Program, place: aicf.training.Progress) -> None:
        if args.sample_every and place.step % args.sample_every == 0:
            said = write(speak, b"The ", 120).decode(errors="replace")
            print(f"step {place.step}: {said!r}", file=sys.stderr)

    done = train.fit(
        batches, steps=args.steps, validation=validation, validate_every=args.steps or None, checkpoints=args.checkpoints,
        resume=args.resume, on_step=sample,
    )  # fmt: skip
    said = write(speak, b"The ", 200).decode(errors="replace")
    rate = next((row["rate"] for row in reversed(done.rows) if row["rate"]), None)
    if done.losses:
        print(f"loss {done.losses[0]:.3f} to {done.losses[-1]:.3f} nats a byte, {rate:,.0f} tokens/s")
    print(said)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"losses": done.losses, "tokens_per_s": rate, "sample": said}, file)


if __name__ == "__main__":
    main()
