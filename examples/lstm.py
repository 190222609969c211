"""An LSTM that learns to write like Python's own help texts, byte by byte, and goes on from a state: python examples/lstm.py --steps 300"""

import argparse
from pydoc_data.topics import topics

import numpy as np

import aicf
from aicf import nn

BYTES, LENGTH, BATCH, SIZE, LAYERS = 256, 64, 32, 128, 2


class Writer(nn.Layer):
    """What byte comes next, of each place; and the state behind the last one."""

    def __init__(self) -> None:
        self.embed, self.lstm = nn.Embedding(BYTES, SIZE), nn.LSTM(SIZE, SIZE, LAYERS, batch_first=True)
        self.head = nn.Linear(SIZE, BYTES)

    def emit(self, ctx, x, h, c):
        y, (h, c) = self.lstm(self.embed(x), (h, c))
        return {"output": self.head(y), "h.next": h, "c.next": c}


def build() -> nn.Model:
    state = aicf.TensorSpec((LAYERS, "batch", SIZE))
    inputs = {"x": aicf.TensorSpec(("batch", "length"), aicf.i64), "h": state, "c": state}
    return nn.Model(inputs, Writer(), batch=BATCH, length=LENGTH, seed=0)


def loss() -> nn.Loss:
    return nn.SoftmaxCrossEntropy()


def optimizer() -> nn.Optimizer:
    return nn.Adam(3e-3, clip_norm=1.0)


def state(batch: int) -> dict[str, np.ndarray]:
    return {name: np.zeros((LAYERS, batch, SIZE), np.float32) for name in ("h", "c")}


def train(device: str | None, steps: int) -> aicf.Program:
    """Each row of the batch reads a stretch of the text; its state goes on from step to step."""
    text = np.frombuffer("\n\n".join(topics[name] for name in sorted(topics)).encode(), np.uint8).astype(
        np.int64
    )
    rows = text[: len(text) // BATCH * BATCH].reshape(BATCH, -1)
    program, carried = (
        aicf.compile(build(), "train", device=device, loss=loss(), optimizer=optimizer()),
        state(BATCH),
    )
    for step in range(steps):
        at = step * LENGTH % (rows.shape[1] - LENGTH - 1)
        x, y = rows[:, at : at + LENGTH], rows[:, at + 1 : at + LENGTH + 1]
        made = program({"x": x.copy(), "y": y.copy(), **carried})
        carried = {name: made[f"{name}.next"].numpy() for name in carried}
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4}   loss {float(made['loss'].numpy()):.3f}")
    return program


def write(program: aicf.Program, prompt: bytes, count: int, temperature: float = 0.7) -> bytes:
    """The prompt, and so many bytes after it."""
    one = aicf.compile(build(), device=program.runtime.place, variables=program)
    carried, said, rng = state(1), list(prompt), np.random.default_rng(0)
    for n in range(len(prompt) + count):
        made = one({"x": np.array([[said[n]]]), **carried})
        carried = {name: made[f"{name}.next"].numpy() for name in carried}
        odds = np.exp(made["output"].numpy()[0, 0].astype(np.float64) / temperature)
        if n + 1 >= len(said):
            said.append(int(rng.choice(BYTES, p=odds / odds.sum())))
    return bytes(said)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--device", default=None, help="cpu, cuda, or whatever is there")
    ask.add_argument("--steps", type=int, default=300)
    asked = ask.parse_args()
    print(write(train(asked.device, asked.steps), b"The ", 200).decode(errors="replace"))


if __name__ == "__main__":
    main()
