"""The graph as a drawing: regions from top to bottom as they run, each a box around its ops; lines for the values between them.

A value that the next region reads is an arrow between two boxes. One that lives longer has a lane at the left, from the region that
makes it to those that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

from ..registry.trace import microseconds
from ..text import shortened
from .data import Json, family_of, ops_of, told_time, us_of, used_by
from .markup import Html, joined, svg, tag

COLOURS = {"product": "#3b82f6", "rows": "#f59e0b", "map": "#22a06b", "view": "#8a94a6"}
WORDS = {"product": "products and attention", "rows": "over rows", "map": "elementwise", "view": "views: nothing runs"}  # fmt: skip
CHARACTER, PILL, PAD, GAP, INSIDE = (
    7.25,
    22,
    8,
    18,
    700,
)  # pixels; INSIDE is the width that ops have before they wrap
LANE, LANES = 7, 40  # pixels; more values than LANES at once are not drawn
CHUNK = 10  # regions of one drawing: what is off the screen is not painted, and a printed page holds one


@dataclass(frozen=True)
class Stack:
    """Where a region lies, with its ops as (x, y, width), from the corner of its box."""

    y: float
    height: float
    pills: tuple[tuple[float, float, float], ...]


def drawings(
    data: Json, chunk: int = CHUNK, most: int | None = None, measured: Sequence[float | None] = ()
) -> list[tuple[float, Html]]:
    """The graph in drawings that join up, one below the other, with their heights.

    most      regions at the most; all if not given
    measured  microseconds of each region: a second bar, above the predicted one
    """
    regions = data["regions"]
    shown = len(regions) if most is None else min(most, len(regions))
    boxes = _placed(regions)
    lanes, left_out = _lanes(data)
    left = LANE * (max((lane for lane, *_ in lanes), default=-1) + 1) + 24
    longest = max((*map(us_of, regions), *(us or 0.0 for us in measured)), default=0.0)
    times = [*measured, *[None] * (len(regions) - len(measured))]
    names = {value["vid"]: value["name"] for value in data["values"]}
    made = []
    for first in range(0, shown, chunk):
        last = min(first + chunk, shown) - 1
        top, bottom = boxes[first].y - GAP, boxes[last].y + boxes[last].height
        wires = [_lane(boxes, left, lane, maker, readers, top, bottom) for lane, maker, readers in lanes
                 if maker <= last and readers[-1] >= first]  # fmt: skip
        arrows = [
            _arrow(left, boxes[n].y - top) for n in range(max(first, 1), last + 1) if _follows(regions, n)
        ]
        shapes = [
            _box(n, regions[n], boxes[n], left, boxes[n].y - top, longest, names, times[n])
            for n in range(first, last + 1)
        ]
        width = left + INSIDE + 2 * PAD + 4
        lines = tag(
            "path",
            d="".join([*wires, *arrows]),
            class_="wire",
            fill="none",
            stroke="currentColor",
            stroke_opacity=".45",
        )
        label = f"Regions {first} to {last}"
        made.append((bottom - top, svg(width, bottom - top, label, lines, *shapes)))
    if left_out and made:
        made.append(
            (
                0,
                tag(
                    "p",
                    f"{left_out} more values live across regions; their lanes are not drawn.",
                    class_="dim",
                ),
            )
        )
    return made


def _placed(regions: list[Json]) -> list[Stack]:
    boxes, y = [], float(GAP)
    for region in regions:
        pills, x, row = [], float(PAD), 0
        for step in region["steps"]:
            width = len(shortened(step["op"], 40)) * CHARACTER + 2 * PAD
            if x > PAD and x + width > INSIDE:
                x, row = float(PAD), row + 1
            pills.append((x, 24.0 + row * (PILL + 12), width))
            x += width + 20
        height = 24 + (row + 1) * (PILL + 12) + 16
        boxes.append(Stack(y, height, tuple(pills)))
        y += height + GAP
    return boxes


def _follows(regions: list[Json], n: int) -> bool:
    return not set(regions[n]["reads"]).isdisjoint(regions[n - 1]["writes"])


def _lanes(data: Json) -> tuple[list[tuple[int, int, list[int]]], int]:
    """(lane, region that makes it, regions that read it later than the next) of each value; and how many found no lane."""
    makers, readers = used_by(data)
    long = [(makers[v], [n for n in found if n > makers[v] + 1]) for v, found in readers.items()]
    found: list[tuple[int, int, list[int]]] = []
    used: list[tuple[int, int]] = []  # (end, lane)
    left_out = 0
    free = list(range(LANES))
    for maker, later in sorted((m, later) for m, later in long if later):
        while used and used[0][0] < maker:
            heappush(free, heappop(used)[1])
        if not free:
            left_out += 1
            continue
        lane = heappop(free)
        heappush(used, (later[-1], lane))
        found.append((lane, maker, later))
    return found, left_out


def _lane(
    boxes: list[Stack], left: float, lane: int, maker: int, readers: list[int], top: float, bottom: float
) -> str:
    """What of a lane lies between top and bottom."""
    x, edge = left - 16 - lane * LANE, left
    start, end = boxes[maker].y + boxes[maker].height - 10, boxes[readers[-1]].y + 12
    path = f"M{x:g} {max(start, top) - top:g}V{min(end, bottom) - top:g}"
    if top <= start <= bottom:
        path += f"M{edge:g} {start - top:g}H{x:g}"
    for n in readers:
        y = boxes[n].y + 12
        if top <= y <= bottom:
            path += f"M{x:g} {y - top:g}H{edge - 1:g}m-5 -3l5 3l-5 3"
    return path


def _arrow(left: float, y: float) -> str:
    return f"M{left + 30:g} {y - GAP:g}v{GAP - 1}m-3 -5l3 5l3 -5"


def _box(
    n: int, region: Json, box: Stack, x: float, y: float, longest: float, names: dict[int, str], measured: float | None
) -> Html:  # fmt: skip
    colour, us = COLOURS[family_of(region)], us_of(region)
    kernel = "a view: nothing runs" if region["view"] else f"{region['chosen']} · {told_time(region)}"
    kernel += "" if measured is None else f", measured {microseconds(measured)}"
    frame: dict[str, Any] = {"rx": 6, "stroke": colour, "stroke_opacity": ".9", "fill": colour}
    inside: list[Any] = [
        tag("title", f"region {n}: {ops_of(region)} · {kernel} · {region['ended']['sentence']}")
    ]
    dashes = "4 3" if region["view"] else None
    inside.append(
        tag("rect", class_="frame", x=f"{x:g}", y=f"{y:g}", width=INSIDE + 2 * PAD, height=f"{box.height:g}", fill_opacity=".09",
            stroke_dasharray=dashes, **frame)
    )  # fmt: skip
    reads = ", ".join(names[v] for v in region["reads"])
    inside.append(tag("text", tag("tspan", f"{n}", font_weight="bold"), f"  {shortened(reads, 88)}", x=f"{x + PAD:g}", y=f"{y + 16:g}", font_size=11, fill_opacity=".75"))  # fmt: skip
    inside += _ops(region, box, x, y, colour)
    foot = y + box.height - 7
    inside.append(tag("text", shortened(kernel, 80), x=f"{x + PAD:g}", y=f"{foot:g}", font_size=11))
    inside += _bars(us, measured, longest, colour, x + INSIDE - 116, foot - 8)
    return tag("g", *inside, class_="region", data_n=n)


def _bars(us: float, measured: float | None, longest: float, colour: str, x: float, y: float) -> list[Html]:
    """The predicted time on a track as wide as the longest one; above it the measured one, darker."""
    if not longest or not (us or measured):
        return []
    shapes = [(120.0, y, 0.12)]
    shapes += [(120 * us / longest, y, 0.7)] if us else []
    shapes += [(120 * measured / longest, y - 10, 1.0)] if measured else []
    return [
        tag("rect", x=f"{x:g}", y=f"{top:g}", width=f"{max(1.0, width):.1f}", height=8, fill=colour, fill_opacity=f"{ink:g}")
        for width, top, ink in shapes
    ]  # fmt: skip


def _ops(region: Json, box: Stack, x: float, y: float, colour: str) -> list[Html]:
    found, links = [], {(i, j) for i, j in region["links"]}
    path = ""
    for (i, (px, py, width)), (_, (qx, qy, _)) in pairwise(enumerate(box.pills)):
        if (i, i + 1) in links and py == qy:
            path += f"M{x + px + width:g} {y + py + PILL / 2:g}H{x + qx - 1:g}m-5 -3l5 3l-5 3"
    for i, j in sorted(links):
        (px, py, pw), (qx, qy, qw) = box.pills[i], box.pills[j]
        if j == i + 1 and py == qy:
            continue
        a, b = (x + px + pw / 2, y + py + PILL), (x + qx + qw / 2, y + qy + (PILL if py == qy else 0))
        bend = a[1] + 10 if py == qy else (a[1] + b[1]) / 2
        path += f"M{a[0]:g} {a[1]:g}C{a[0]:g} {bend:g} {b[0]:g} {bend:g} {b[0]:g} {b[1]:g}"
    if path:
        found.append(tag("path", d=path, fill="none", stroke="currentColor", stroke_opacity=".6"))
    for (px, py, width), step in zip(box.pills, region["steps"]):
        found.append(tag("rect", x=f"{x + px:g}", y=f"{y + py:g}", width=f"{width:g}", height=PILL, rx=11, fill=colour, fill_opacity=".22", stroke=colour, stroke_opacity=".5"))  # fmt: skip
        found.append(
            tag(
                "text",
                shortened(step["op"], 40),
                x=f"{x + px + width / 2:g}",
                y=f"{y + py + 15:g}",
                text_anchor="middle",
            )
        )
    return found


def legend() -> Html:
    """What the colours mean."""
    keys = [
        tag(
            "span",
            svg(12, 12, "", tag("rect", width=12, height=12, rx=3, fill=COLOURS[name], fill_opacity=".7")),
            f" {what}",
            class_="key",
        )
        for name, what in WORDS.items()
    ]
    return tag("p", joined(keys, " "), class_="legend")
