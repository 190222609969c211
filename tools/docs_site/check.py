"""What a built site must be: every link inside it leads somewhere, and no page loads anything from elsewhere."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"src", "srcset", "poster", "data", "background", "xlink:href"}
OF_CSS = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")
# What a <link> may say without anything being loaded.
NAMES_ONLY = {"canonical", "next", "prev", "search", "index", "genindex", "author", "license"}


class Page(HTMLParser):
    """What one page links to, loads, and can be linked to by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)
        self.loaded += OF_CSS.findall(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag in ("a", "area") and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and not set(given.get("rel", "").split()) <= NAMES_ONLY:
            self.loaded.append(given.get("href", ""))
        self.loaded += [given[name] for name in LOADED & given.keys()]
        if tag == "form":
            self.links.append(given.get("action", ""))

    handle_startendtag = handle_starttag


def faults(site: Path) -> list[str]:
    """One line for each fault; none for a site that is whole."""
    files = {path.relative_to(site).as_posix(): path for path in sorted(site.rglob("*")) if path.is_file()}
    pages = {
        name: Page(path.read_text(encoding="utf-8")) for name, path in files.items() if name.endswith(".html")
    }
    found = [] if "index.html" in pages else [f"{site}: no index.html"]
    for name, page in pages.items():
        found += [
            f"{name}: loads {url}" for url in page.loaded if is_elsewhere(url) and not url.startswith("data:")
        ]
        inside = (url for url in dict.fromkeys(page.links + page.loaded) if not is_elsewhere(url))
        found += [f"{name}: {what}" for url in inside if (what := _missing(name, url, files, pages))]
    for name, path in files.items():
        if name.endswith(".css"):
            found += [f"{name}: loads {url}" for url in OF_CSS.findall(path.read_text(encoding="utf-8"))]
    return list(dict.fromkeys(found))


def is_elsewhere(url: str) -> bool:
    """Whether it names a place outside of the site."""
    parts = urlsplit(url)
    return bool(parts.netloc or parts.scheme)


def _missing(name: str, url: str, files: Mapping[str, Path], pages: Mapping[str, Page]) -> str | None:
    parts = urlsplit(url)
    target = (
        posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path)))
        if parts.path
        else name
    )
    if parts.scheme or target not in files:
        return f"no file for the link {url}"
    fragment = unquote(parts.fragment)
    if fragment and target in pages and fragment not in pages[target].anchors:
        return f"no anchor for the link {url}"
    return None
