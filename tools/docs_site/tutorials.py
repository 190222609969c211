"""The notebooks as pages: their text, their code, and the outputs that are stored with them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ANSI = re.compile(r"\x1b\[[0-9;]*m")
LINK = re.compile(r"(\]\([^)\s]*)\.ipynb(?=[)#])")


def pages(folder: Path) -> Mapping[str, str]:
    """By its name, without an ending, the text of each page; the index is the folder's own."""
    index = (folder / "README.md").read_text(encoding="utf-8")
    found = {path.stem: page(json.loads(path.read_text(encoding="utf-8"))) for path in _files(folder)}
    listed = "\n".join(["", "```{toctree}", ":hidden:", "", *found, "```", ""])
    return {"README": linked(index) + listed, **found}


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ipynb"))


def linked(text: str) -> str:
    """Links to notebooks are links to their pages."""
    return LINK.sub(r"\1.md", text)


def page(notebook: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(linked(source))
        else:
            parts.append(
                _fenced("python" if not re.search(r"^\s*%", source, re.MULTILINE) else "ipython", source)
            )
            parts += [text for output in cell["outputs"] for text in _shown(output)]
    return "\n\n".join(parts) + "\n"


def _shown(output: Mapping[str, Any]) -> Iterator[str]:
    data = {form: "".join(text) for form, text in output.get("data", {}).items()}
    for form in ("image/svg+xml", "text/html"):
        if form in data:
            yield _fenced("{raw} html", f'<div style="overflow-x:auto">\n{data[form]}\n</div>')
            return
    if "text/markdown" in data:
        yield data["text/markdown"]
    elif text := "".join(output.get("text", data.get("text/plain", ""))).rstrip():
        yield _fenced("text", ANSI.sub("", text))


def _fenced(kind: str, text: str) -> str:
    longest = max(map(len, re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{kind}\n{text.rstrip()}\n{fence}"
