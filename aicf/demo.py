"""`aicf demo`: train a two-hidden-layer MLP on scikit-learn's handwritten digits, and show what aicf chose and why."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import nn
from .errors import AicfError
from .graph.compile import compile
from .graph.run.program import Program
from .types import TensorSpec

EPOCHS, BATCH, SEED = 30, 64, 0
NOISE = 0.2  # standard deviation of the noise that each training image gets anew in each epoch


def build_model(batch: int = BATCH, seed: int = SEED) -> nn.Model:
    """64 pixels -> 512 -> 256 -> 10 classes."""
    model = nn.Model({"x": TensorSpec(("batch", 64))}, batch=batch, seed=seed)
    model.add(nn.Linear(64, 512)).add(nn.ReLU()).add(nn.Linear(512, 256)).add(nn.ReLU())
    return model.add(nn.Linear(256, 10))


def digits(seed: int = SEED) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(train images, train labels, test images, test labels): 1797 images of 8x8, split 80 : 20, stratified, seeded."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise AicfError(
            "the demo's data set comes with scikit-learn", hint="pip install scikit-learn"
        ) from None
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    parts = train_test_split(
        images, labels.astype(np.int64), test_size=0.2, stratify=labels, random_state=seed
    )
    x_train, x_test, y_train, y_test = parts
    return x_train, y_train, x_test, y_test


def accuracy(program: Program, x: np.ndarray, y: np.ndarray, batch: int = BATCH) -> float:
    """Share of right answers; the last batch may be a partial one."""
    right = 0
    for i in range(0, len(x), batch):
        logits = program({"x": x[i : i + batch]})["output"].numpy()
        right += int((logits.argmax(1) == y[i : i + batch]).sum())
    return right / max(len(x), 1)


def train(
    program: Program, x: np.ndarray, y: np.ndarray, epochs: int, console: Console, seed: int = SEED
) -> float:
    """Train for some epochs with a progress bar; the accuracy over the last epoch, as it was trained."""
    rng = np.random.default_rng(seed)
    columns = (
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TextColumn("accuracy {task.fields[acc]:6.2%}"),
        TimeElapsedColumn(),
    )
    right = 0
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("train", total=epochs, loss=float("nan"), acc=0.0)
        for _ in range(epochs):
            order, losses, right = rng.permutation(len(x)), [], 0
            noisy = x + rng.normal(0.0, NOISE, x.shape).astype(np.float32)
            for i in range(0, len(x), BATCH):
                batch = order[i : i + BATCH]
                result = program({"x": noisy[batch], "y": y[batch]})
                losses.append(float(result["loss"]) * len(batch))
                right += int((result["output"].numpy().argmax(1) == y[batch]).sum())
            progress.update(task, advance=1, loss=sum(losses) / len(x), acc=right / len(x))
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
    console = console or Console()
    if json_path:
        _check_writable(Path(json_path))
    x, y, x_test, y_test = digits()
    model = build_model()
    program = compile(
        model,
        "train",
        device=device,
        loss=nn.SoftmaxCrossEntropy(),
        optimizer=nn.AdamW(
            nn.schedules.Cosine(2e-3, total=epochs * -(-len(x) // BATCH), warmup=20), weight_decay=0.3
        ),
    )
    console.rule(
        f"[bold]aicf demo · {len(x)} training and {len(x_test)} test images · {program.runtime.spec.name}"
    )
    console.print(model_table(model))
    explanation = program.explain()
    console.print(explanation.verbose() if verbose else explanation)
    with console.status("compiling the kernels"):
        times = step_times(program, {"x": x[:BATCH], "y": y[:BATCH]})
    train_accuracy = train(program, x, y, epochs, console)
    test_accuracy = accuracy(compile(model, device=device), x_test, y_test)
    replayed = "its captured graph replayed" if program.device == "cuda" else "the frozen plan replayed"
    console.print(
        f"test accuracy [bold green]{test_accuracy:.2%}[/] · training accuracy {train_accuracy:.2%}\n"
        f"time per step of {BATCH}: eager {times['eager']:.0f} us · {replayed} {times['replay']:.0f} us"
    )
    if program.device == "cpu" and times["replay"] > 10 * explanation.predicted_us:
        console.print(
            "That is far above the prediction: on a busy machine BLAS's threads wait for one another. "
            "OPENBLAS_NUM_THREADS=1 avoids it."
        )
    result = {
        "test_accuracy": test_accuracy,
        "train_accuracy": train_accuracy,
        "step_us": times,
        "device": program.runtime.spec.name,
        "selections": explanation.to_json()["regions"],
    }
    if json_path:
        Path(json_path).write_text(json.dumps(result, indent=1) + "\n")
    return result


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


def model_table(model: nn.Model) -> Table:
    table = Table(title="model", title_justify="left", show_edge=False)
    for column, justify in (("name", "left"), ("layer", "left"), ("output", "left"), ("parameters", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    rows = model.summary()
    for name, layer, output, count in rows:
        table.add_row(name, layer, output, f"{count:,}" if count else "")
    table.add_row("[bold]total", "", "", f"[bold]{sum(r[3] for r in rows):,}")
    return table
