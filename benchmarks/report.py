"""The tables of docs/performance.md, of the lesson in docs/kernels/gemm.md, and the short one of the README, from result files
and from nothing else."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .harness import Suite
from .results import RESULTS, ROOT, ResultFile, Row, all_files

BEGIN, END = "<!-- measured -->", "<!-- /measured -->"

INTRO = """# Performance

This page is written by `python -m benchmarks report` from the files in `benchmarks/results/`; edit neither by hand.

A ratio above 1 means that aicf is better, whatever the unit; a ratio below 1 is marked **slower**. Before a case is timed,
both sides are checked against a reference on fresh random data, with results that start as NaN. Numbers are medians. The
sides are sampled there and back (A B B A), and the spread is the interquartile range as a share of the median, the larger of the two
sides'. Kernels too short to be timed by the host are launched twenty times in a CUDA graph, on both sides, with buffers in
turn and a cold L2 cache. Products of 100 GFLOP and more are sampled after half a second of
the same work, since power limits their clocks. Work without any pause is slower still, by up to a seventh
([kernels/gemm.md](kernels/gemm.md) has the energy of a product). In aicf's graphs, on GPUs from sm_90 on, the launch of a kernel overlaps the end of the one before, as in
every captured program (`AICF_PDL` in [the guide](guide.md) says where): a time is that of a kernel among others.

```sh
python -m benchmarks list                              # the suites and how long they take
python -m benchmarks elementwise mlp --device cuda     # measure; writes benchmarks/results/<gpu>/<suite>.json
python -m benchmarks report                            # write this page
```

The peers need PyTorch: `pip install torch`. A result belongs to the kernels it was measured with, whose hash is in its file;
`python -m benchmarks kernels-hash` prints today's, and `make test` names the files that are of others.
"""

NOTHING = "\nNothing has been measured yet.\n"


def devices(files: Iterable[ResultFile]) -> dict[str, dict[str, list[ResultFile]]]:
    """GPU -> suite -> its files, parts of one run together. GPUs come before CPUs; tries with `--tiny` don't count."""
    found: dict[str, dict[str, list[ResultFile]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(files, key=lambda f: (f.meta["device"] == "cpu", f.meta["gpu"], f.path.name)):
        if not file.meta.get("tiny"):
            found[file.meta["gpu"]][file.suite].append(file)
    return found


def page(files: Iterable[ResultFile], suites: Mapping[str, Suite]) -> str:
    """docs/performance.md as a whole."""
    parts = [INTRO]
    for gpu, by_suite in devices(files).items():
        parts.append(f"\n## {gpu}\n")
        for name in sorted(
            by_suite, key=lambda n: (list(suites).index(n) if n in suites else len(suites), n)
        ):
            parts.append(_suite(name, by_suite[name], suites.get(name)))
    return "".join(parts if len(parts) > 1 else [INTRO, NOTHING])


def _suite(name: str, files: Sequence[ResultFile], suite: Suite | None) -> str:
    title = f"\n### {name}\n\n" + (f"{suite.about[0].upper()}{suite.about[1:]}.\n\n" if suite else "")
    rows = [row for file in files for row in file.cases]
    rows += suite.summary(rows) if suite else ()
    lines = [*table([r for r in rows if "failed" not in r])]
    notes = [f"- **Failed**: {r['case']}: {_flat(r['failed'])}" for r in rows if "failed" in r]
    notes += [f"- Left out: {left['case']}: {_flat(left['why'])}" for file in files for left in file.left_out]
    if notes:
        lines += ["", *notes] if lines else notes
    return title + "\n".join(lines) + f"\n\n{_origin(files)}\n"


def table(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    head = "| case | aicf | peer | | unit | ratio | spread | |", "|---|--:|--:|---|---|--:|--:|---|"
    return [*head, *map(_line, rows)]


def _line(row: Row) -> str:
    spread = max(row["spread"].values()) if row.get("spread") else None
    cells = (
        row["case"], _number(row["aicf"]), _number(row["peer"]), row["peer_name"] or "", row["unit"],
        ratio(row["ratio"]), "" if spread is None else f"{spread:.0%}", _flat(row.get("note") or "").replace("|", "\\|"),
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


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


def _origin(files: Sequence[ResultFile]) -> str:
    """With what it was measured; one sentence for each different answer among the parts."""
    said = []
    for meta in (file.meta for file in files):
        versions = ", ".join(f"{name} {v}" for name, v in meta["versions"].items())
        driver = f", driver {meta['driver']}" if meta["driver"] else ""
        text = (
            f"Measured {meta['date'][:10]} at commit {meta['commit'] or 'unknown'}, kernels {meta['kernels_hash']}"
            f"{driver}, {versions}."
        )
        if text not in said:
            said.append(text)
    return "\n".join(said)


def headlines(files: Iterable[ResultFile], suites: Mapping[str, Suite]) -> str:
    """The README's table: rows that the suites named beforehand, of GPUs; empty if there are none."""
    parts = []
    for gpu, by_suite in devices(f for f in files if f.meta["device"] != "cpu").items():
        rows = {
            (row["case"], row["peer_name"]): row
            for parts_of in by_suite.values()
            for file in parts_of
            for row in file.cases
            if "failed" not in row
        }
        for name, files_of in by_suite.items():
            if name in suites:
                found = [row for file in files_of for row in file.cases]
                rows |= {(row["case"], row["peer_name"]): row for row in suites[name].summary(found)}
        wanted = [key for suite in suites.values() for key in suite.headlines if key in rows]
        if not wanted:
            continue
        lines = [f"On an {gpu}:" if gpu.startswith("NVIDIA") else f"On {gpu}:", ""]
        lines += ["| what | aicf | peer | | ratio |", "|---|--:|--:|---|--:|"]
        for key in wanted:
            row = rows[key]
            ours, peer = (f"{_number(row[side])} {row['unit']}" for side in ("aicf", "peer"))
            cells = (peer, row["peer_name"], ratio(row["ratio"])) if row["peer_name"] else ("", "", "")
            lines.append(f"| {row['case']} | {ours} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    if not parts:
        return ""
    tail = "A ratio above 1 means that aicf is better. [docs/performance.md](docs/performance.md) has everything measured."
    return "\n## Measured\n\n" + "\n\n".join([*parts, tail]) + "\n"


def lessons(files: Iterable[ResultFile], suites: Mapping[str, Suite]) -> dict[str, str]:
    """The tables of docs/kernels/gemm.md by the names of their marks, one after the other for each GPU."""
    found: dict[str, str] = defaultdict(str)
    for gpu, by_suite in devices(f for f in files if f.meta["device"] != "cpu").items():
        for name, files_of in by_suite.items():
            rows = [row for file in files_of for row in file.cases]
            for mark, lines in (suites[name].tables(rows) if name in suites else {}).items():
                found[mark] += "\n".join(["", f"{gpu}, TFLOP/s:", "", *lines, "", _origin(files_of), "", ""])
    return found


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
    files = list(all_files(results))
    readme, lesson = root / "README.md", root / "docs" / "kernels" / "gemm.md"
    documents = {
        root / "docs" / "performance.md": page(files, suites),
        readme: between_marks(readme.read_text(encoding="utf-8"), headlines(files, suites)),
    }
    if lesson.exists():
        text, tables = lesson.read_text(encoding="utf-8"), lessons(files, suites)
        for name in names_of_marks(text):
            text = between_marks(text, tables.get(name, NOTHING), name)
        documents[lesson] = text
    return documents
