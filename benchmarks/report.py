"""Documents from result files: a page of docs/results/ for each suite, and the tables of docs/performance.md, of the lesson in docs/kernels/gemm.md
and of the README, in both languages; and the tables of docs/platforms.md, from published figures and the predictions for the same work."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path

from . import published_figures
from .harness import Suite
from .results import RESULTS, ROOT, ResultFile, Row, all_files, earlier

BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
OLD = "†"
NOTHING = "\nNothing has been measured yet.\n"
OTHERS = ("coverage.md",)  # pages there that tools/ write

# The README's: (case, peer), wins and losses; what has not been measured is left out.
FIGURES = (
    ("GEMMs of published weights, all: geometric mean of ratios", None),
    ("gemm f32 NT 4096x4096x4096", "the better of cuBLAS and cuBLASLt"),
    ("linear + bias + GELU, bf16 4096x4096x4096", "the better of torch eager and torch.compile"),
    ("add f16, 2^28 elements", "torch.add(out=)"),
    ("op_call, host", "torch.add(out=)"),
    ("MLP of 4 layers, batch 128, width 512, SGD, f16, train step", "torch.compile + CUDA graph"),
    ("GPT-2 124M, 16x1024, bf16, AdamW: train step", "torch.compile + CUDA graph"),
    ("attention bf16 16x12x1024x64 causal, backward", "the better of cuDNN and FlashAttention"),
    ("digits MLP, first step, cold, the whole process", "torch.compile"),
    ("regions of published models: regret", None),
)

PAGE = """# Results: {name}

{about}. Written by `python -m benchmarks report` from `benchmarks/results/`; not by hand. [How it is
measured](../performance.md#how-it-is-measured), [all suites](README.md).

A ratio above 1 means that aicf is better, whatever the unit; the spread is the interquartile range as a share of the median, the larger
of the two sides'.
"""

INDEX = """# Results

Every case of every suite, as it was measured: wins, losses, failures and what was left out. `python -m benchmarks report` writes these
pages from `benchmarks/results/`. [performance.md](../performance.md) says what they mean and how to measure yourself.
"""


def devices(files: Iterable[ResultFile]) -> dict[str, dict[str, list[ResultFile]]]:
    """Machine -> suite -> its files, parts of one run together. GPUs come before CPUs; tries with `--tiny` don't count."""
    machines: dict[str, dict[str, list[ResultFile]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(files, key=lambda f: (f.meta["device"] == "cpu", f.meta["gpu"], f.path.name)):
        if not file.meta.get("tiny"):
            machines[file.meta["gpu"]][file.suite].append(file)
    return machines


def _ordered(names: Iterable[str], suites: Mapping[str, Suite]) -> list[str]:
    order = list(suites)
    return sorted(set(names), key=lambda n: (order.index(n) if n in order else len(order), n))


def pages(files: Iterable[ResultFile], suites: Mapping[str, Suite]) -> dict[str, str]:
    """All of docs/results/, by the files' names."""
    found = devices(files)
    texts, lines = {}, ["", "| suite | what | measured on |", "|---|---|---|"]
    for name in _ordered((n for by_suite in found.values() for n in by_suite), suites):
        suite = suites.get(name)
        about = _sentence(suite.about) if suite else "A suite of an earlier version"
        machines = [machine for machine, by_suite in found.items() if name in by_suite]
        texts[f"{name}.md"] = PAGE.format(name=name, about=about) + "".join(
            f"\n## {machine}\n\n{_section(found[machine][name], suite)}" for machine in machines
        )
        dates = (f"{m}, {max(f.meta['date'] for f in found[m][name])[:10]}" for m in machines)
        lines.append(f"| [{name}]({name}.md) | {about} | {'; '.join(dates)} |")
    return {**texts, "README.md": INDEX + ("\n".join(lines) + "\n" if texts else NOTHING)}


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _rows(files: Sequence[ResultFile], suite: Suite | None) -> list[Row]:
    """With what they sum up to. A row of an earlier text of its kernels is marked, and so is a sum with such rows in it."""
    rows = [{**row, "old": old} for file in files for row, old in zip(file.cases, earlier(file))]
    sums = suite.summary(rows) if suite else ()
    return [*rows, *({**row, "old": any(r["old"] for r in rows)} for row in sums)]


def _section(files: Sequence[ResultFile], suite: Suite | None) -> str:
    rows = _rows(files, suite)
    lines = [*table([r for r in rows if "failed" not in r])]
    notes = [f"- **Failed**: {r['case']}: {_flat(r['failed'])}" for r in rows if "failed" in r]
    notes += [f"- Left out: {left['case']}: {_flat(left['why'])}" for file in files for left in file.left_out]
    if notes:
        lines += ["", *notes] if lines else notes
    return "\n".join([*lines, "", *_legend(rows), _origin(files), ""])


def _legend(rows: Iterable[Row]) -> list[str]:
    said = f"{OLD} Measured with an earlier text of its kernels."
    return [said, ""] if any(r.get("old") for r in rows) else []


def unmarked(text: str) -> str:
    """Without what changes when a kernel does: documents are current if all else is."""
    return re.sub(rf"^{OLD} .*\n\n| {OLD}", "", text, flags=re.MULTILINE)


def table(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    head = "| case | aicf | peer | | unit | ratio | spread | |", "|---|--:|--:|---|---|--:|--:|---|"
    return [*head, *map(_line, rows)]


def _line(row: Row) -> str:
    spread = max(row["spread"].values()) if row.get("spread") else None
    cells = (
        _case(row), _number(row["aicf"]), _number(row["peer"]), row["peer_name"] or "", row["unit"],
        ratio(row["ratio"]), "" if spread is None else f"{spread:.0%}", _flat(row.get("note") or "").replace("|", "\\|"),
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _case(row: Row) -> str:
    return f"{row['case']} {OLD}" if row.get("old") else row["case"]


def ratio(value: float | None) -> str:
    if value is None:
        return "–"
    shown = f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return f"{shown} **slower**" if value < 1 else shown


def _number(value: float | None) -> str:
    """Four digits that say something."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _flat(text: str) -> str:
    return " ".join(text.split())


def _origin(files: Sequence[ResultFile], with_versions: bool = True) -> str:
    """With what it was measured; one sentence for each different answer among the parts."""
    said = []
    for meta in (file.meta for file in files):
        versions = ", ".join(f"{name} {v}" for name, v in meta["versions"].items())
        driver = f", driver {meta['driver']}" if meta["driver"] else ""
        text = f"Measured {meta['date'][:10]} at commit {meta['commit'] or 'unknown'}"
        text += f"{driver}, {versions}." if with_versions else "."
        if text not in said:
            said.append(text)
    return "\n".join(said)


Key = tuple[str, str | None]


def _figures(by_suite: Mapping[str, Sequence[ResultFile]], suites: Mapping[str, Suite]) -> dict[Key, Row]:
    rows = (row for name, files in by_suite.items() for row in _rows(files, suites.get(name)))
    return {(row["case"], row["peer_name"]): row for row in rows if "failed" not in row}


def headlines(
    files: Iterable[ResultFile], suites: Mapping[str, Suite], wanted: Sequence[Key] | None = None
) -> str:
    """A table for each machine: of the rows that are wanted, or else those that the suites name; empty if there are none."""
    named = [key for suite in suites.values() for key in suite.headlines] if wanted is None else list(wanted)
    parts = []
    machines = devices(files).items()
    if wanted is not None:  # each once, of the GPU with the most suites that has it
        machines = sorted(machines, key=lambda item: (not item[0].startswith("NVIDIA"), -len(item[1])))
    for machine, by_suite in machines:
        figures = _figures(by_suite, suites)
        rows = [figures[key] for key in named if key in figures]
        if wanted is not None:
            named = [key for key in named if key not in figures]
        if rows:
            lines = [f"On an {machine}:" if machine.startswith("NVIDIA") else f"On {machine}:", ""]
            lines += ["| what | aicf | peer | | ratio |", "|---|--:|--:|---|--:|", *map(_headline, rows), ""]
            parts.append("\n".join(["", *lines, *_legend(rows)]))
    return "".join(parts).rstrip("\n") + "\n" if parts else ""


def _headline(row: Row) -> str:
    ours, peer = (f"{_number(row[side])} {row['unit']}" for side in ("aicf", "peer"))
    cells = (peer, row["peer_name"], ratio(row["ratio"])) if row["peer_name"] else ("", "", "")
    return f"| {_case(row)} | {ours} | " + " | ".join(cells) + " |"


def standing(files: Iterable[ResultFile], suites: Mapping[str, Suite]) -> str:
    """For each suite how many of its comparisons with others are won, and by how much the worst is lost."""
    head = "| suite | on | compared | not slower | geometric mean | least |", "|---|---|--:|--:|--:|---|"
    lines = []
    for machine, by_suite in devices(files).items():
        for name in _ordered(by_suite, suites):
            suite = suites.get(name)
            rows = [
                r
                for r in _rows(by_suite[name], None)
                if r.get("ratio") and (suite is None or suite.compared(r))
            ]
            if rows:
                worst, ratios = min(rows, key=lambda r: r["ratio"]), [r["ratio"] for r in rows]
                cells = (
                    f"[{name}](results/{name}.md)", machine, str(len(rows)), str(sum(r >= 1 for r in ratios)),
                    f"{prod(ratios) ** (1 / len(ratios)):.2f}", f"{worst['ratio']:.2f}: {worst['case']}, {worst['peer_name']}",
                )  # fmt: skip
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(["", *head, *lines, ""]) if lines else ""


def lessons(files: Iterable[ResultFile], suites: Mapping[str, Suite]) -> dict[str, str]:
    """The tables of docs/kernels/gemm.md by the names of their marks, one after the other for each GPU."""
    tables: dict[str, str] = defaultdict(str)
    for gpu, by_suite in devices(f for f in files if f.meta["device"] != "cpu").items():
        for name, files_of in by_suite.items():
            rows = _rows(files_of, None)
            end = [*_legend(rows), f"{_origin(files_of, False)} All of it: [{name}](../results/{name}.md)."]
            for mark, lines in (suites[name].tables(rows) if name in suites else {}).items():
                tables[mark] += "\n".join(["", f"{gpu}, TFLOP/s:", "", *lines, "", *end, "", ""])
    return tables


def between_marks(text: str, content: str, name: str = "") -> str:
    """A document with this content between its marks, those of this name; as it is if it has none."""
    begin = BEGIN.replace("measured", f"measured {name}".strip())
    pattern = re.escape(begin) + ".*?" + re.escape(END)
    return re.sub(pattern, lambda _: f"{begin}\n{content}{END}", text, flags=re.DOTALL)


def names_of_marks(text: str) -> list[str]:
    return re.findall("<!-- measured ([^>]+) -->", text)


def written(
    results: Path = RESULTS, root: Path = ROOT, suites: Mapping[str, Suite] | None = None
) -> dict[Path, str]:
    """What the documents are to say now, by path."""
    if suites is None:
        from .suites import SUITES as suites
    files, docs = list(all_files(results)), root / "docs"
    documents = {docs / "results" / name: text for name, text in pages(files, suites).items()}
    figures = {"": headlines(files, suites, FIGURES)}
    tables = {
        root / "README.md": figures,
        root / "README.ko.md": figures,
        docs / "performance.md": {"headlines": headlines(files, suites), "standing": standing(files, suites)},
        docs / "kernels" / "gemm.md": lessons(files, suites),
    }
    if (platforms := docs / "platforms.md").exists():
        tables[platforms] = published_figures.tables()
    for path, by_name in tables.items():
        if path.exists():
            text = path.read_text(encoding="utf-8")
            for name in ["", *names_of_marks(text)]:
                text = between_marks(text, by_name.get(name) or NOTHING, name)
            documents[path] = text
    return documents


def leftovers(documents: Mapping[Path, str], root: Path = ROOT) -> list[Path]:
    """Pages of suites that have no results any more."""
    return sorted(
        p for p in (root / "docs" / "results").glob("*.md") if p not in documents and p.name not in OTHERS
    )
