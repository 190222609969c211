"""The copy that Sphinx reads: the documents where they lie in the repository, generated pages, and the tables of contents."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from . import ops, reference, tutorials

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "README.ko.md", "CONTRIBUTING.md", "CHANGELOG.md")
# Caption -> pages, some with a title. Documents that stand nowhere here are how-tos.
CONTENTS: dict[str, tuple[str, ...]] = {
    "Start": ("docs/guide", "notebooks/README", "examples/index"),
    "How to": ("docs/frontends", "docs/trace", "docs/tuning", "docs/determinism", "docs/platforms", "docs/add-an-op"),
    "Reference": ("reference/index", "ops/index"),
    "How it works": ("docs/architecture", "docs/kernels/gemm", "docs/kernels/tiles", "docs/kernels/rows"),
    "Performance": ("docs/performance", "docs/results/README"),
    "Project": ("CHANGELOG", "CONTRIBUTING", "docs/testing", "docs/spec", "docs/roadmap", "docs/notes/README", "README <README>",
                "README, 한국어 <README.ko>"),
}  # fmt: skip
EXAMPLE = re.compile(r"(\]\([^)\s]*examples/\w+)\.py(?=\))")


def stage(folder: Path) -> int:
    """Make the folder hold the copy, and nothing else; the number of its pages. Files that are the same stay as they are, so that
    Sphinx reads what has changed."""
    wanted = {
        path.relative_to(ROOT).with_suffix("").as_posix(): path.read_text(encoding="utf-8")
        for path in _documents()
    }
    texts = {f"{name}.md": EXAMPLE.sub(r"\1.md", text) for name, text in wanted.items()}
    for page in ("results", "notes"):
        names = sorted(
            Path(name).name
            for name in wanted
            if name.startswith(f"docs/{page}/") and not name.endswith("README")
        )
        texts[f"docs/{page}/README.md"] += _toctree(names if page == "results" else reversed(names))
    texts.update(_examples())
    for name, text in tutorials.pages(ROOT / "notebooks").items():
        texts[f"notebooks/{name}.md"] = EXAMPLE.sub(r"\1.md", text)
    texts["index.md"] = _index(wanted)
    for name, text in [*reference.pages(), *ops.pages()]:
        texts[f"{name}.rst"] = text
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "LICENSE", folder / "LICENSE")
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in {*texts, "LICENSE"}:
            path.unlink()
    return len(texts)


def _documents() -> Iterable[Path]:
    return [ROOT / name for name in DOCUMENTS if (ROOT / name).exists()] + sorted(
        (ROOT / "docs").rglob("*.md")
    )


def _toctree(names: Iterable[str], caption: str = "") -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *names, "```", ""])


def _index(documents: Iterable[str]) -> str:
    """The front page is written; what else there is, is listed below the captions."""
    named = {page.rpartition("<")[2].rstrip(">") for pages in CONTENTS.values() for page in pages}
    others = [
        name
        for name in sorted(documents)
        if name not in named and not name.startswith(("docs/results/", "docs/notes/"))
    ]
    text = (Path(__file__).parent / "index.md").read_text(encoding="utf-8")
    for caption, pages in CONTENTS.items():
        text += _toctree([*pages, *(others if caption == "How to" else [])], caption)
    return text


def _examples() -> dict[str, str]:
    texts, rows = {}, []
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        about = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0].replace("\n", " ")
        texts[f"examples/{path.stem}.md"] = f"# {path.name}\n\n````python\n{source.rstrip()}\n````\n"
        rows.append(f"- [{path.name}]({path.stem}.md): {about}")
    listed = "\n".join(rows)
    names = [path.removeprefix("examples/").removesuffix(".md") for path in texts]
    texts["examples/index.md"] = (
        f"# Examples\n\n`aicf examples FOLDER` writes them to try.\n\n{listed}\n{_toctree(names)}"
    )
    return texts
