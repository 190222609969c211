"""`aicf demo`: train a two-hidden-layer MLP on handwritten digits, and show what aicf chose and why, on one screen."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from . import nn
from .errors import AicfError
from .graph.compile import compile, explain_for
from .graph.fuse import Region
from .graph.run.explain import Explanation
from .graph.run.picture import brief
from .graph.run.program import Program
from .printing import render
from .progress import progress
from .registry.measured import counted
from .registry.trace import microseconds, why_next_lost
from .types import TensorSpec

Rows = Iterator[tuple[str, str | Text]]  # a label, and what it says

DATA = Path(__file__).parent / "data" / "digits.npz"  # whose they are: data/README.md
EPOCHS, BATCH, SEED = 30, 64, 0
NOISE = 0.15  # standard deviation of the noise that each training image gets anew in each epoch
SHOWN = 7  # digits that are drawn
INK = 5 / 16  # of a pixel, from which on it is drawn where there are no shades


def build_model(batch: int = BATCH, seed: int = SEED) -> nn.Model:
    """64 pixels -> 512 -> 256 -> 10 classes."""
    model = nn.Model({"x": TensorSpec(("batch", 64))}, batch=batch, seed=seed)
    model.add(nn.Linear(64, 512)).add(nn.ReLU()).add(nn.Linear(512, 256)).add(nn.ReLU())
    return model.add(nn.Linear(256, 10))


def recipe(steps: int) -> dict[str, Any]:
    """How it is trained: arguments of `compile`."""
    schedule = nn.schedules.Cosine(2e-3, total=steps, warmup=min(20, steps // 2))
    return {"loss": nn.SoftmaxCrossEntropy(), "optimizer": nn.AdamW(schedule, weight_decay=0.3)}


def digits(seed: int = SEED) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(train images, train labels, test images, test labels): 1797 images of 8x8, every fifth of each class for the test."""
    with np.load(DATA) as data:
        images, labels = data["images"].reshape(-1, 64) / np.float32(16), data["labels"].astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # class after class, each in random order
    test = np.zeros(len(order), bool)
    test[::5] = True
    return images[order[~test]], labels[order[~test]], images[order[test]], labels[order[test]]


def predict(program: Program, x: np.ndarray, batch: int = BATCH) -> np.ndarray:
    """The class of each image; the last batch may be a partial one."""
    parts = [program({"x": x[i : i + batch]})["output"].numpy().argmax(1) for i in range(0, len(x), batch)]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def train(program: Program, x: np.ndarray, y: np.ndarray, epochs: int, seed: int = SEED) -> float:
    """Train for some epochs with a progress bar; the accuracy over the last epoch, as it was trained."""
    rng = np.random.default_rng(seed)
    right, loss = 0, float("nan")
    with progress("epoch") as advance:
        for epoch in range(epochs):
            advance(epoch, epochs, f"loss {loss:.4f} · accuracy {right / len(x):.1%}" if epoch else "")
            order, losses, right = rng.permutation(len(x)), [], 0
            noisy = x + rng.normal(0.0, NOISE, x.shape).astype(np.float32)
            for i in range(0, len(x), BATCH):
                batch = order[i : i + BATCH]
                result = program({"x": noisy[batch], "y": y[batch]})
                losses.append(float(result["loss"]) * len(batch))
                right += int((result["output"].numpy().argmax(1) == y[batch]).sum())
            loss = sum(losses) / len(x)
    return right / len(x)


def step_times(program: Program, feed: dict[str, np.ndarray], runs: int = 50) -> dict[str, float]:
    """Median microseconds of a step, eager and with the frozen plan replayed, results waited for. Weights are put back."""
    saved = program.state_dict()
    times: dict[str, float] = {}
    for name, step in (("eager", program.run), ("replay", program.replay)):
        for _ in range(3):
            step(feed)
        program.runtime.sync()
        samples = []
        for _ in range(runs):
            start = time.perf_counter()
            step(feed)
            program.runtime.sync()
            samples.append(time.perf_counter() - start)
        times[name] = float(np.median(samples) * 1e6)
    program.load_state_dict(saved)
    return times


def run(
    device: str | None = None,
    json_path: str | None = None,
    epochs: int = EPOCHS,
    verbose: bool = False,
    console: Console | None = None,
) -> dict[str, Any]:
    """The whole demo; returns, and writes to `json_path`, what it measured."""
    console = console or Console(highlight=False)
    if json_path:
        _check_writable(Path(json_path))
    x, y, x_test, y_test = digits()
    model, how = build_model(), recipe(epochs * -(-len(x) // BATCH))
    program = compile(model, "train", device=device, **how)
    feed = {"x": x[:BATCH], "y": y[:BATCH]}
    program.capture(feed)
    with console.status("timing a step"):
        times = step_times(program, feed)
    start = time.perf_counter()
    train_accuracy = train(program, x, y, epochs)
    seconds = time.perf_counter() - start
    told = predict(compile(model, device=device), x_test)
    explanation = program.explain()
    other = explain_for(model, "h200" if program.runtime.spec.name != "h200" else "a100", "train", **how)
    if verbose:
        console.print(model.summary(), explanation.verbose(), sep="\n\n")
        console.print()
    story = Story(explanation, other, times, epochs, seconds, x_test, y_test, told)
    if console.is_terminal:
        console.print(story)
    else:
        console.print(render(story, console.width), markup=False, soft_wrap=True)
    result = {
        "test_accuracy": story.accuracy,
        "train_accuracy": train_accuracy,
        "step_us": times,
        "device": program.runtime.spec.name,
        "selections": explanation.to_json()["regions"],
    }
    if json_path:
        Path(json_path).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


@dataclass(frozen=True)
class Story:
    """What the demo tells at its end: 25 lines of 80 columns."""

    explanation: Explanation
    other: Explanation  # of a device that is not here
    times: dict[str, float]
    epochs: int
    seconds: float
    images: np.ndarray
    labels: np.ndarray
    told: np.ndarray

    @property
    def accuracy(self) -> float:
        return float((self.told == self.labels).mean())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        shaded = not console.no_color and console.color_system in ("256", "truecolor", "windows")
        page = Table.grid(padding=(0, 2, 0, 0))
        page.add_column(style="bold", no_wrap=True)
        page.add_column(overflow="fold")
        for label, told in (*self._fused(), *self._chosen(), *_next_commands()):
            page.add_row(label, told)
        yield from (self._learned(), self._digits(shaded), page)

    def _learned(self) -> Text:
        return Text.assemble(
            (f"{self.accuracy:.1%}", "bold green"), f" of {len(self.labels)} digits it never saw. "
            f"{counted(self.epochs, 'epoch')} in {self.seconds:.1f} s on {self.explanation.device}, "
            f"{microseconds(self.times['replay'])} a step.\n",
        )  # fmt: skip

    def _digits(self, shaded: bool) -> Text:
        """Some that it read rightly, and one that it did not."""
        wrong = np.flatnonzero(self.told != self.labels)[:1]
        right = np.flatnonzero(self.told == self.labels)
        some = [*right[:: max(1, len(right) // SHOWN)][: SHOWN - len(wrong)], *wrong]
        text = Text()
        for row in zip(*(drawn(self.images[i], shaded) for i in some)):
            text.append_text(Text("   ").join(row)).append("\n")
        for told, label in zip(self.told[some], self.labels[some]):
            answer, style = (f"a {told}", "green") if told == label else (f"a {told}, not {label}", "red")
            text.append(answer.ljust(11), style)
        text.rstrip()
        return text.append("\n")

    def _fused(self) -> Rows:
        here, there = self.explanation.picture(), self.other.picture()
        yield f"{here.ops} ops", here.before()
        yield f"{len(here.boxes)} kernels", here.after()
        yield f"{len(there.boxes)} on {there.device.upper()}", there.after()
        yield "", ""

    def _chosen(self) -> Rows:
        """The two choices that mattered most here, and one for a device that is not here."""
        if (region := fusing(self.explanation)) is not None:
            yield "fused", _why_fused(region, region is self.explanation.regions[-1])
        if (region := choosing(self.explanation)) is not None:
            yield "chosen", _why_kernel(region)
        if (region := choosing(self.other)) is not None:
            step = f"{microseconds(self.other.predicted_us)} a step, predicted without having one. "
            yield self.other.device.upper(), step + _why_kernel(region, terms=1)
        yield "", ""


def drawn(image: np.ndarray, shaded: bool) -> list[Text]:
    """Four lines of eight characters, each two pixels high: in shades of grey, or black and white."""
    pixels, lines = image.reshape(8, 8), []
    for top, bottom in zip(pixels[::2], pixels[1::2]):
        if shaded:
            greys = [[round(255 * float(p)) for p in pair] for pair in zip(top, bottom)]
            parts = [("▀", f"rgb({a},{a},{a}) on rgb({b},{b},{b})") for a, b in greys]
        else:
            parts = [(" ▀▄█"[(a >= INK) + 2 * (b >= INK)], "") for a, b in zip(top, bottom)]
        lines.append(Text.assemble(*parts))
    return lines


def fusing(explanation: Explanation) -> Region | None:
    """The region whose ops lose most as kernels of their own."""
    fused = [
        r for r in explanation.regions if len(r.steps) > 1 and all(s.alone_us is not None for s in r.steps)
    ]
    return max(fused, key=_saved, default=None)


def choosing(explanation: Explanation) -> Region | None:
    """The region that takes longest, of those with a second kernel to choose."""
    contested = [r for r in explanation.regions if len(r.selection.ranked) > 1]
    return max(contested, key=lambda r: r.selection.chosen.us, default=None)


def _saved(region: Region) -> float:
    return sum(step.alone_us or 0.0 for step in region.steps) - region.selection.chosen.us


def _why_fused(region: Region, last: bool) -> str:
    us, ops = region.selection.chosen.us, len(region.spec.ops)
    before = sum(step.alone_bytes for step in region.steps)
    moved = (
        f"; {_bytes(region.spec.nbytes)} moved, not {_bytes(before)}"
        if region.spec.nbytes < 0.9 * before
        else ""
    )
    ended = "" if last else f". It ends there: {region.ended.sentence}"
    return (
        f"{brief([op.kind.name for op in region.spec.ops])}: {microseconds(us)} in one kernel, "
        f"{microseconds(us + _saved(region))} in {ops}{moved}{ended}"
    )


def _why_kernel(region: Region, terms: int = 2) -> str:
    best, other = region.selection.ranked[:2]
    return (
        f"{brief([op.kind.name for op in region.spec.ops])}: {best.variant.id}, {microseconds(best.us)}; "
        f"next {other.variant.id}, {why_next_lost(region.selection, terms)}"
    )


def _bytes(count: int) -> str:
    return f"{count / 1e3:.0f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def _next_commands() -> Rows:
    aicf = command()
    yield "next", f"{aicf} demo -v   # every choice"
    yield "", f"{aicf} examples mine   # models to change"
    yield "", f"{aicf} explain mine/mlp.py --device a100"


def command() -> str:
    """How aicf was called, so that the commands shown work as they are."""
    called = sys.argv[0]
    if Path(called).name != "aicf":
        return "python -m aicf"
    found = shutil.which("aicf")
    return "aicf" if found and Path(found).samefile(called) else called


def _check_writable(path: Path) -> None:
    """Asked before the training, whose results would be lost."""
    there = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise AicfError(
            f"{path} can't be written: {error.strerror}", expected="a file in a folder that exists"
        ) from None
    if not there:
        path.unlink()
