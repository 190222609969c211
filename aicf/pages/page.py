"""The page: one HTML file that needs no network. What is long, such as candidates, waits in it as text until somebody opens it.

Its content security policy names the script and the styles by their digests: nothing else that finds its way into the page can run or load.
"""

from __future__ import annotations

import base64
import hashlib
import math
import platform
import sys
from pathlib import Path
from string import Template
from typing import Any

from ..code_cache.digest import version
from ..registry.measured import counted
from ..registry.trace import microseconds
from . import charts, graph
from .data import Json, accuracy_in, measured_by
from .markup import Html, joined, table, tag, text
from .regions import Told, recognised, title

FOLDER = Path(__file__).parent
PACKAGES = "numpy", "numba", "numba-cuda", "cuda-core", "onnx", "torch", "jax"


class Waiting:
    """Markup that is put into the page as text, once if it is equal, and drawn when the element that names it is opened."""

    def __init__(self) -> None:
        self.keys: dict[str, str] = {}

    def later(self, summary: Any, inside: Html, **attributes: Any) -> Html:
        key = self.keys.setdefault(inside, f"w{len(self.keys)}")
        return tag("details", tag("summary", summary), data_later=key, **attributes)

    def scripts(self) -> Html:
        """Escaped text holds no `<`, and no table is a script: nothing in it ends the element."""
        return joined(
            [tag("script", Html(inside), type="text/plain", id=key) for inside, key in self.keys.items()]
        )


def write(data: Json, path: str | Path, name: str = "", profile: Json | None = None) -> Path:
    """Write the page; OSError if the file can't be written."""
    place = Path(path)
    place.write_text(page(data, name, profile), encoding="utf-8")
    return place


def page(data: Json, name: str = "", profile: Json | None = None) -> str:
    """The whole file, of data that `check_drawn` has passed, and `check_profile`. `name` is the model's, for the title."""
    measured = measured_by(profile)
    css = (FOLDER / "page.css").read_text(encoding="utf-8")
    drawings = graph.drawings(data, measured=measured)
    css += "".join(
        f".c{i}{{contain-intrinsic-height:{height:g}px}}\n" for i, (height, _) in enumerate(drawings)
    )
    js = (FOLDER / "page.js").read_text(encoding="utf-8")
    waiting = Waiting()
    regions = _regions(data, waiting, measured)
    heading = f"{data['mode']} plan on {data['device']}"
    template = Template((FOLDER / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        script=_digest(js), style=_digest(css), css=css, js=js, waiting=waiting.scripts(), regions=regions,
        title=text(f"{name}: {heading}" if name else heading), heading=text(heading), name=text(name), summary=_summary(data, measured),
        graph=joined([graph.legend(), *(tag("div", drawn, class_=f"drawing c{i}") for i, (_, drawn) in enumerate(drawings))]),
        arena=charts.arena(data), timeline=charts.timeline(data), roofline=charts.roofline(data), environment=_environment(data),
    )  # fmt: skip


def _digest(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def _summary(data: Json, measured: list[float | None]) -> Html:
    fusion, memory = data["fusion"], data["memory"]
    ops = sum(step.get("count", 1) for region in data["regions"] for step in region["steps"])
    before = (
        ""
        if fusion["us_before"] is None
        else f"{microseconds(fusion['us_before'])} with a kernel for each op"
    )
    tiles = [
        (microseconds(fusion["us"]), "predicted", before),
        (f"{fusion['kernels']:,}", "kernels", f"{ops:,} ops in {counted(len(data['regions']), 'region')}"),
        (
            f"{fusion['bytes']:,} B",
            "moved at the least",
            f"{fusion['bytes_before']:,} B with a kernel for each op",
        ),
        (f"{memory['arena']:,} B", "arena", f"peak {memory['peak']:,} B"),
    ]
    if measured:
        tiles.insert(
            1, (microseconds(math.fsum(us or 0.0 for us in measured)), "measured", "the kernels together")
        )
    shown = [
        tag("div", tag("strong", what), tag("span", name), tag("small", more), class_="tile")
        for what, name, more in tiles
    ]
    found = charts.kernels(data, measured)
    rows = [
        (
            tag("code", k.id),
            k.launches,
            microseconds(k.us),
            *((microseconds(k.measured),) if measured else ()),
            joined([charts.bar(k.share, k.family), f" {k.share:.0%}"]),
        )
        for k in found
    ]
    heads = (
        "kernel",
        "launches",
        "predicted",
        *(("measured",) if measured else ()),
        "of the whole predicted",
    )
    numbers = frozenset({1, 2, 3} if measured else {1, 2})
    return joined([tag("div", *shown, class_="tiles"), _recognised(data), table(heads, rows, numbers)])


def _recognised(data: Json) -> Html:
    rows = recognised(data)
    return table(("recognised", "what it is, or what was in the way", "from"), rows) if rows else Html("")


def _regions(data: Json, waiting: Waiting, measured: list[float | None]) -> Html:
    told = Told(data)
    times = [*measured, *[None] * (len(data["regions"]) - len(measured))]
    return joined(
        [
            waiting.later(
                joined([title(n, region, times[n]), tag("span", f"ended: {region['ended']['sentence']}", class_="ended")]),
                told.body(n, waiting.later), id=f"r{n}", class_="region", data_names=told.names(n),
            )
            for n, region in enumerate(data["regions"])
        ],
        Html("\n"),
    )  # fmt: skip


def _environment(data: Json) -> Html:
    target = data["target"] or {}
    rows = [("device", data["device"]), ("plan", data["plan"]), ("numerics", data.get("numerics") or "")]
    if note := accuracy_in(data):
        rows.append(("predictions", note))
    if target:
        rates = ", ".join(f"{unit} {rate:g}" for unit, rate in target["tflops"].items() if rate)
        rows += [
            ("target", target["target"]), ("multiprocessors", target["sms"]), ("memory", f"{target['bandwidth']:g} GB/s, {target['memory_bytes']:,} B"),
            ("L2 cache", f"{target['l2_bytes']:,} B"), ("TFLOP/s at the most", rates), ("a launch", f"{target['launch_us']:g} us"),
        ]  # fmt: skip
    rows += [
        (
            "this page was written by",
            f"Python {platform.python_version()} on {platform.system()} {platform.machine()}",
        )
    ]
    versions = {"aicf": sys.modules["aicf"].__version__, **{name: version(name) for name in PACKAGES}}
    rows += [("with", ", ".join(f"{name} {found}" for name, found in versions.items() if found))]
    return table(("what", "value"), rows)
