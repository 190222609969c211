"""The drawings beside the graph: the arena over time, the predicted timeline, each kernel under the device's roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest

from ..registry.trace import microseconds
from ..text import shortened
from .data import Json, family_of, is_once, ops_of, us_of, used_by
from .graph import COLOURS
from .markup import Html, size_of, svg, tag

WIDTH = 900  # pixels
LINES = 8  # of the timeline
MARGIN = 70
MOST = 20_000  # rectangles of the arena: more can't be told apart, and browsers slow down


def arena(data: Json, most: int = MOST) -> Html:
    """An explanation's arena: values have the colour of the region that makes them."""
    makers, _ = used_by(data)
    regions = data["regions"]
    values = [
        (v, COLOURS[family_of(regions[makers[v["vid"]]])] if v["vid"] in makers else COLOURS["view"])
        for v in data["values"]
        if "life" in v
    ]
    scratch = [(n, *r["workspace"]) for n, r in enumerate(regions) if r["workspace"]]
    return lifetimes(data["memory"]["arena"], len(regions), values, scratch, "region", most)


def lifetimes(
    size: int, steps: int, values: Sequence[tuple[Json, str]], scratch: Sequence[tuple[int, int, int]], step: str,
    most: int = MOST,
) -> Html:  # fmt: skip
    """A rectangle for each value in the arena: from the step that first needs its place to the last, at its bytes.

    size     bytes of the arena
    values   each with its colour
    scratch  (step, offset, bytes) of workspaces, which are dashed
    step     what a step is called
    most     values, and workspaces, that are drawn: the largest
    """
    kept, kept_scratch = nlargest(most, values, key=lambda v: v[0]["bytes"]), nlargest(most, scratch, key=lambda w: w[2])  # fmt: skip
    if not size or not (values or scratch):
        return tag("p", "Nothing lies in the arena.")
    height, width = 260.0, WIDTH - MARGIN - 10

    def place(first: int, last: int, offset: int, nbytes: int, title: str, **more: object) -> Html:
        x, w = MARGIN + first / steps * width, max((last + 1 - first) / steps * width - 0.5, 0.5)
        h = max(nbytes / size * height, 0.75)
        y = 10 + height - offset / size * height - h
        shape = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{w:.1f}", "height": f"{h:.1f}"}
        edge = {"stroke": "currentColor", "stroke_opacity": ".35", "stroke_width": ".5"}
        return tag("g", tag("title", title), tag("rect", **shape, **edge, **more), data_n=first)

    shapes = []
    for v, colour in kept:
        first, last = v["life"]
        title = f"%{v['vid']} {v['name']}: {v['type']} · {v['bytes']:,} B at {v['offset']:,}, {step}s {first} to {last}"
        shapes.append(place(first, last, v["offset"], v["bytes"], title, fill=colour, fill_opacity=".5"))
    for n, offset, nbytes in kept_scratch:
        title = f"workspace of {step} {n}: {nbytes:,} B at {offset:,}"
        look = {"fill": "currentColor", "fill_opacity": ".15", "stroke_dasharray": "3 2"}
        shapes.append(place(n, n, offset, nbytes, title, **look))
    ticks = [
        tag("text", size_of(size * part / 4), x=MARGIN - 6, y=f"{14 + height * (4 - part) / 4:g}", text_anchor="end", font_size=10)
        for part in range(5)
    ]  # fmt: skip
    left_out = len(values) - len(kept) + len(scratch) - len(kept_scratch)
    words = f"{step} 0 to {steps - 1}, in the order of the run"
    words += f"; {left_out:,} smaller ones are not drawn" if left_out else ""
    axis = tag("text", words, x=MARGIN, y=height + 26, font_size=10)
    floor = tag("path", d=f"M{MARGIN} 10V{height + 10:g}H{MARGIN + width:g}", fill="none", stroke="currentColor", stroke_opacity=".5")  # fmt: skip
    return svg(WIDTH, height + 34, "The arena over time", *shapes, *ticks, axis, floor)


def timeline(data: Json) -> Html:
    """The kernels one after the other, as wide as their predicted times; a line follows the other as in a text."""
    times = [(n, us_of(r)) for n, r in enumerate(data["regions"]) if us_of(r) > 0]
    total = math.fsum(us for _, us in times)
    if not total:
        return tag("p", "Nothing runs.")
    lines = min(LINES, max(1, -(-len(times) // 12)))
    each, bar, start = total / lines, 26, 0.0
    shapes = []
    for n, us in times:
        region = data["regions"][n]
        title = f"region {n}: {ops_of(region)} · {region['chosen']} · {microseconds(us)}, from {microseconds(start) if start else '0'} on"
        at, left = start, us
        while left > total * 1e-12:
            line = min(int(at / each + 1e-9), lines - 1)
            part = left if line == lines - 1 else min(left, (line + 1) * each - at)
            if part <= total * 1e-12:
                at = (line + 1) * each
                continue
            x, w = (at - line * each) / each * WIDTH, part / each * WIDTH
            if w >= 0.25:
                inside = [tag("title", title), tag("rect", x=f"{x:.2f}", y=line * (bar + 14) + 12, width=f"{max(w - 0.5, 0.25):.2f}", height=bar, fill=COLOURS[family_of(region)], fill_opacity=".65")]  # fmt: skip
                if words := _fitting(n, ops_of(region), int((w - 6) / 6.2)):
                    inside.append(tag("text", words, x=f"{x + 3:.1f}", y=line * (bar + 14) + 29, font_size=10))  # fmt: skip
                shapes.append(tag("g", *inside, data_n=n))
            at, left = at + part, left - part
        start += us
    marks = [tag("text", microseconds(line * each) if line else "0", x=0, y=line * (bar + 14) + 10, font_size=9, fill_opacity=".7") for line in range(lines)]  # fmt: skip
    return svg(WIDTH, lines * (bar + 14) + 4, "Predicted timeline", *shapes, *marks)


def _fitting(n: int, ops: str, room: int) -> str:
    """What so many characters hold of a region: number and ops, the number alone, or nothing."""
    number = str(n)
    if room >= len(number) + 6:
        return shortened(f"{number} {ops}", room)
    return number if room >= len(number) else ""


def roofline(data: Json) -> Html:
    """Each kernel by its arithmetic intensity and its predicted rate, under what the device can do at the most; its area is its time."""
    target = data["target"]
    dots: dict[tuple[str, float, float], list[int]] = {}  # regions at a place
    for n, r in enumerate(data["regions"]):
        us = us_of(r)
        if us > 0 and r["flops"] > 0 and r["bytes"] > 0:
            key = r["unit"], float(f"{r['flops'] / r['bytes']:.4g}"), float(f"{r['flops'] / us * 1e-6:.4g}")
            dots.setdefault(key, []).append(n)
    if not dots or not target or not target["bandwidth"]:
        return tag("p", "No kernel computes, or nothing is known of the device.")
    peaks = {unit: target["tflops"].get(unit, 0.0) for unit, _, _ in dots}
    peaks = {unit: peak for unit, peak in peaks.items() if peak > 0}
    memory = target["bandwidth"] * 1e-3  # TFLOP/s for each flop of a byte
    xs = [x for _, x, _ in dots] + [peak / memory for peak in peaks.values()]
    ys = [max(y, 1e-9) for _, _, y in dots] + list(peaks.values())
    lo, hi = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs)) + 0.3)
    bottom, top = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)) + 0.1)
    height, width = 300.0, WIDTH - MARGIN - 20.0

    def px(x: float) -> float:
        return MARGIN + (math.log10(x) - lo) / (hi - lo) * width

    def py(y: float) -> float:
        return 10 + (top - math.log10(max(y, 10.0**bottom))) / (top - bottom) * height

    grid = "".join(f"M{px(10.0**i):.1f} 10V{height + 10:g}" for i in range(lo, hi + 1))
    grid += "".join(f"M{MARGIN} {py(10.0**i):.1f}H{MARGIN + width:g}" for i in range(bottom, top + 1))
    shapes = [tag("path", d=grid, stroke="currentColor", stroke_opacity=".15")]
    shapes += [tag("text", f"{10.0**i:g}", x=f"{px(10.0**i):.1f}", y=height + 24, font_size=10, text_anchor="middle") for i in range(lo, hi + 1)]  # fmt: skip
    shapes += [tag("text", f"{10.0**i:g}", x=MARGIN - 6, y=f"{py(10.0**i) + 4:.1f}", font_size=10, text_anchor="end") for i in range(bottom, top + 1)]  # fmt: skip
    start = max(10.0**lo, 10.0**bottom / memory)
    for unit, peak in sorted(peaks.items(), key=lambda item: item[1]):
        ridge = peak / memory
        shapes.append(tag("path", d=f"M{px(start):.1f} {py(start * memory):.1f}L{px(ridge):.1f} {py(peak):.1f}H{MARGIN + width:g}", fill="none", stroke="currentColor", stroke_width="1.5"))  # fmt: skip
        shapes.append(tag("text", f"{unit} {peak:g} TFLOP/s", x=f"{MARGIN + width:g}", y=f"{py(peak) - 4:.1f}", font_size=10, text_anchor="end"))  # fmt: skip
    spent = {key: math.fsum(us_of(data["regions"][n]) for n in found) for key, found in dots.items()}
    whole = math.fsum(spent.values())
    for key, found in sorted(dots.items(), key=lambda item: -spent[item[0]]):  # the small ones on top
        _, x, y = key
        n, region = found[0], data["regions"][found[0]]
        like = f" and {len(found) - 1} like it" if len(found) > 1 else ""
        title = f"region {n}{like}: {ops_of(region)} · {region['chosen']} · {x:g} flops for each byte, {y:g} TFLOP/s predicted, {microseconds(spent[key])}"
        radius = 3 + 22 * math.sqrt(spent[key] / whole)
        dot = tag("circle", cx=f"{px(x):.1f}", cy=f"{py(y):.1f}", r=f"{radius:.1f}", fill=COLOURS[family_of(region)], fill_opacity=".6", stroke="currentColor", stroke_opacity=".5")  # fmt: skip
        shapes.append(tag("g", tag("title", title), dot, data_n=n))
    shapes.append(
        tag(
            "text",
            "flops for each byte",
            x=MARGIN + width / 2,
            y=height + 40,
            font_size=11,
            text_anchor="middle",
        )
    )
    shapes.append(tag("text", "TFLOP/s, predicted", x=MARGIN + 6, y=22, font_size=11))
    return svg(WIDTH, height + 48, f"Kernels under the roofline of {data['device']}", *shapes)


@dataclass(frozen=True)
class KernelShare:
    """All launches of a kernel together: predicted microseconds, their share of the whole, and the measured ones."""

    id: str
    family: str
    launches: int
    us: float
    share: float
    measured: float


def kernels(data: Json, measured: Sequence[float | None] = ()) -> list[KernelShare]:
    """The longest first."""
    us: dict[str, list[float]] = {}
    took: dict[str, float] = {}
    family: dict[str, str] = {}
    times = [*measured, *[None] * (len(data["regions"]) - len(measured))]
    for region, time in zip(data["regions"], times):
        if not region["view"] and not is_once(region):
            family.setdefault(region["chosen"], family_of(region))
            us.setdefault(region["chosen"], []).append(us_of(region))
            took[region["chosen"]] = took.get(region["chosen"], 0.0) + (time or 0.0)
    whole = math.fsum(t for found in us.values() for t in found) or 1.0
    sums = {id: math.fsum(found) for id, found in us.items()}
    ordered = sorted(sums, key=lambda id: (-sums[id], id))
    return [KernelShare(id, family[id], len(us[id]), sums[id], sums[id] / whole, took[id]) for id in ordered]


def bar(share: float, family: str = "product") -> Html:
    """A share of a whole as a bar."""
    return svg(
        120,
        10,
        f"{share:.0%}",
        tag("rect", width=f"{120 * share:.1f}", height=10, rx=2, fill=COLOURS[family], fill_opacity=".7"),
    )
