"""Published figures: each has a source and a case that can be predicted; ratios and tables of drawn ones; docs/platforms.md has today's predictions."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from draws import seeds

published_figures = pytest.importorskip(
    "benchmarks.published_figures", reason="a source distribution has no benchmarks"
)
from aicf.device.spec import PRESETS  # noqa: E402
from benchmarks import report, sides  # noqa: E402

FIVE = {"t4", "a100", "l4", "rtx4090", "b200"}
BOARDS = ("T4", "A100-SXM4-40GB", "NVIDIA L4", "RTX 4090", "B200", "H100 80GB HBM3")
DRAWN = 60


def test_each_figure_has_a_source_a_board_and_a_plausible_rate():
    """No rate exceeds the datasheet's by more than a clock above it explains; each of five cards has two figures at the least."""
    published = published_figures.load()
    cards = [figure.device.name for figure in published.figures]
    assert all(cards.count(card) >= 2 for card in FIVE) and set(cards) <= set(PRESETS)
    assert {figure.source for figure in published.figures} == set(published.sources)
    assert all(s["url"].startswith("https://") and s["quoted"] for s in published.sources.values())
    assert len(set(published.figures)) == len(published.figures)
    for figure in published.figures:
        most = figure.device.bandwidth if figure.unit == "GB/s" else figure.device.tflops[figure.dtype] * 1.2
        assert 0.05 * most < figure.rate <= most, figure
        assert (figure.unit == "GB/s") == (figure.group == "copies and adds")


def drawn(rng, times: dict) -> tuple:
    """A figure of a drawn case, and its work, counted here; `times` gets the predicted microseconds of each region, drawn."""
    op = str(rng.choice(["gemm", *published_figures.GRADIENTS, *published_figures.MAPS]))
    dtype = str(rng.choice(["f32", "f16", "bf16"]))
    sizes = [int(n) for n in rng.integers(1, 40, 4)]
    cases, works = [], []
    for _ in range(int(rng.integers(1, 4)) if op == "gemm" else 1):
        if op == "gemm":
            m, n, k = (int(v) for v in rng.integers(1, 400, 3))
            cases.append(f"{m}x{n}x{k}")
            works.append(np.prod([2.0, m, n, k]) / 1e6)
        elif op in published_figures.GRADIENTS:
            batch, heads, length, _ = sizes
            mask = str(rng.choice(["full", "causal"]))
            cases.append(f"{batch}x{heads}x{length}x64 {mask}")
            forward = 2 * (2.0 * length * length * 64) * batch * heads / (2 if mask == "causal" else 1)
            works.append((forward + (2.5 * forward if "backward" in op else 0)) / 1e6)
        else:
            n = int(rng.integers(1, 10**6))
            cases.append(str(n))
            width = 4 if dtype == "f32" else 2
            works.append(n * width * (2 if op == "copy" else 3) / 1e3)
    us = rng.uniform(1, 1000, len(cases))
    parts = 2 if "backward" in op else 1
    queue = [(f"cuda.kernel{i}.v1[64x64]", float(t) / parts) for i, t in enumerate(us) for _ in range(parts)]
    times["queue"] = iter(queue)
    rate = float(rng.uniform(0.01, 100))
    unit = "GB/s" if op in published_figures.MAPS else "TFLOP/s"
    order = str(rng.choice(["NN", "NT", "TN", "TT"])) if op == "gemm" else ""
    figure = published_figures.Figure(
        "source", str(rng.choice(BOARDS)), "cuBLAS", op, dtype, unit, " | ".join(cases), rate, order
    )
    return figure, max(w / t for w, t in zip(works, us)) / rate


def test_ratios_of_drawn_figures_are_of_the_work_that_a_case_says(request, monkeypatch):
    """The time comes from `select`; of several sizes the best one counts, of forward and backward the sum."""
    rng, times = seeds.rng(request.node.nodeid), {}
    monkeypatch.setattr(sides, "predicted", lambda region, device: [next(times["queue"])])
    found = []
    for _ in range(DRAWN):
        figure, want = drawn(rng, times)
        assert figure.ratio == pytest.approx(want), figure
        assert next(times["queue"], None) is None, "each region is predicted once"
        found.append((figure, want))
    lines = published_figures.summary([figure for figure, _ in found])
    for line, card in itertools.product(lines[2:], {figure.device.name for figure, _ in found}):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] != card:
            continue
        for cell, group in zip(cells[1:], published_figures.SUMMARY, strict=True):
            ratios = [want for figure, want in found if (figure.device.name, figure.group) == (card, group)]
            mean = np.exp(np.mean(np.log(ratios))) if ratios else None
            assert cell == (f"{mean:.2f} ({len(ratios)})" if ratios else "none found")
    assert len(lines) == 2 + len({figure.device.name for figure, _ in found})


def test_kernels_of_mma_sync_are_a_card_of_their_own_in_the_summary():
    """A B200's cuBLAS uses instructions that aicf's kernels lack."""
    figure = next(f for f in published_figures.load().figures if f.by.endswith(published_figures.MMA_SYNC))
    rows = published_figures.summary([figure, replace(figure, by="cuBLAS", rate=2 * figure.rate)])[2:]
    assert [row.split("|")[1].strip() for row in rows] == ["b200, kernels of mma.sync", "b200"]


def test_the_tables_follow_the_predictions(tmp_path, monkeypatch):
    """They are written between the marks of docs/platforms.md, and others where predictions are: then the page is out of date."""
    page = report.ROOT / "docs" / "platforms.md"
    text = page.read_text(encoding="utf-8")
    assert report.names_of_marks(text) == list(published_figures.tables())
    before = report.written(tmp_path)[page]
    real = sides.predicted
    monkeypatch.setattr(sides, "predicted", lambda *of: [(kernel, 2 * us) for kernel, us in real(*of)])
    published_figures.tables.cache_clear()
    after = report.written(tmp_path)[page]
    published_figures.tables.cache_clear()
    assert after != before and len(after.splitlines()) == len(before.splitlines())
    first, second = (
        float(re.search(r"\| h20 \| (\d+\.\d+) \(2\)", version)[1]) for version in (before, after)
    )
    assert second == pytest.approx(first / 2, abs=0.011)
