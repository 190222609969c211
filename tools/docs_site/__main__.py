"""`python -m tools.docs_site [FOLDER]`: build the site into a folder, site/ by default, and check it. Exit code 1 for any warning."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from . import check, stage

COPY = stage.ROOT / "build" / "docs"


def main(arguments: list[str]) -> int:
    from sphinx.cmd.build import build_main

    began = time.perf_counter()
    out = Path(arguments[0]) if arguments else stage.ROOT / "site"
    pages = stage.stage(COPY / "pages")
    settings = ["--conf-dir", str(Path(__file__).parent), "--doctree-dir", str(COPY / "doctrees")]
    strict = ["--fail-on-warning", "--quiet", "--jobs", "auto"]
    if code := build_main(["-b", "html", *settings, *strict, str(COPY / "pages"), str(out)]):
        return code
    faults = check.faults(out)
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{out / 'index.html'}: {pages} pages in {time.perf_counter() - began:.0f} s")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
