"""Plans, programs, comparisons, tuning and models in a notebook, each of the JSON that the object makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..registry.measured import counted
from ..registry.trace import factor, microseconds
from ..text import shortened
from . import charts
from .data import Json
from .graph import COLOURS
from .markup import Html, joined, tag
from .notebook import DIM, bars, drawing, folded, headline, output, ruled

PLACES = 800  # in the drawing of the arena: values, and workspaces
ROWS = 100  # of a table: what is longer is in the object's text
WORDS = 80  # characters of a region


def plan(data: Json) -> Html:
    """Of a plan: the arena over time, and the steps. `data` has mode, device, plan, memory, steps and values."""
    memory, steps = data["memory"], data["steps"]
    head = headline(
        f"{data['mode']} plan on {data['device']}", tag("code", data["plan"]),
        counted(sum(bool(step["kernel"]) for step in steps), "kernel"), f"arena {memory['arena']:,} B", f"peak {memory['peak']:,} B",
    )  # fmt: skip
    colours = list(COLOURS.values())
    values = [(v, colours[v["life"][0] % 3]) for v in data["values"] if "life" in v]
    scratch = [(n, *step["workspace"]) for n, step in enumerate(steps) if step["workspace"]]
    arena = charts.lifetimes(memory["arena"], len(steps), values, scratch, "step", PLACES)
    names = {v["vid"]: f"%{v['vid']} {v['name']}" for v in data["values"]}
    listed = (
        (n, shortened(step["ops"], WORDS), tag("code", step["kernel"]) if step["kernel"] else "a view: nothing runs", _named(step["reads"], names), _named(step["writes"], names))
        for n, step in enumerate(steps[:ROWS])
    )  # fmt: skip
    parts = [
        folded("Arena over time", drawing(arena), opened=True),
        folded(counted(len(steps), "step"), ruled((("step", "ops", "kernel", "reads", "makes"), listed, frozenset({0}))), *_more(len(steps))),
    ]  # fmt: skip
    slots = (
        (f"%{v['vid']}", v["name"], v["type"], v["role"], f"{v['bytes']:,}", v["place"]) for v in data["values"][:ROWS]
    )  # fmt: skip
    heads = "value", "name", "type", "role", "bytes", "where"
    parts.append(folded(counted(len(data["values"]), "value"), ruled((heads, slots, frozenset({4}))), *_more(len(data["values"]))))  # fmt: skip
    return output(head, *parts)


def program(facts: Iterable[tuple[str, Any]], title: str, newest: Html | None) -> Html:
    """Of a program: what is true of it, and its newest plan behind a fold."""
    rows = [(tag("b", name), what) for name, what in facts if what]
    shown = [] if newest is None else [folded("The newest plan", newest)]
    return output(headline(title), ruled(((), rows, frozenset())), *shown)


def difference(data: Json) -> Html:
    """Of `Diff.to_json()`: where regions are cut otherwise or another kernel was chosen, both sides with their times."""
    names, total, found = (data["left"], data["right"]), data["predicted_us"], data["differences"]
    head = headline(
        f"{names[0]} against {names[1]}", counted(len(found), "difference"),
        f"predicted {microseconds(total[0])} against {microseconds(total[1])}",
    )  # fmt: skip
    most = max(total, default=0.0)
    rows = [
        (side, microseconds(us), bars(most, (us, COLOURS[family], 0.65)))
        for side, us, family in zip(_told_apart(names), total, ("product", "rows"))
    ]
    parts = [head, ruled((("side", "predicted", ""), rows, frozenset({1})))]
    for d in found[:ROWS]:
        ops = f"op {d['anchor']}" if d["anchor"] == d["last"] else f"ops {d['anchor']}..{d['last']}"
        sides = [(name, r) for name, side in zip(_told_apart(names), ("left", "right")) for r in d[side]]
        most = max((r["us"] for _, r in sides), default=0.0)
        cells = [
            (name, shortened(r["region"], WORDS), tag("code", r["chosen"]), microseconds(r["us"]), bars(most, (r["us"], COLOURS["product"], 0.65)), r["ended"].get("sentence", ""))
            for name, r in sides
        ]  # fmt: skip
        heads = "side", "ops", "kernel", "predicted", "", "ended"
        title = joined([f"{ops} ", tag("b", shortened(" + ".join(r["region"] for r in d["left"]), WORDS))])
        parts.append(folded(title, ruled((heads, cells, frozenset({3}))), opened=len(found) <= 4))
    return output(*parts, *_more(len(found)))


def tuning(data: Json) -> Html:
    """Of a tuning session's `to_json()`: what is chosen otherwise now, and measured times beside the predicted ones."""
    gain = data["gain"]
    faster = gain and f"{microseconds(data['us_before'])} → {microseconds(data['us_after'])}, {factor(gain)} times as fast"  # fmt: skip
    head = headline(
        f"tuned on {data['device']}", f"{counted(len(data['measured']), 'region')} measured in {data['seconds']:.1f} s",
        data["left"] and f"{len(data['left'])} left for want of time", faster,
    )  # fmt: skip
    parts = [head]
    if data["wrong"]:
        wrong = ((shortened(w["region"], WORDS), tag("code", w["kernel"]), w["why"]) for w in data["wrong"])
        words = (
            counted(len(data["wrong"]), "kernel") + " computed something wrong, and will not be used there"
        )
        parts.append(folded(tag("b", words), ruled((("region", "kernel", "what"), wrong, frozenset())), opened=True))  # fmt: skip
    if data["changed"]:
        changed = (
            (shortened(c["region"], WORDS), tag("code", c["before"]), "" if c["us_before"] is None else microseconds(c["us_before"]), tag("code", c["after"]), microseconds(c["us_after"]))
            for c in data["changed"][:ROWS]
        )  # fmt: skip
        heads = "region", "before", "measured", "now", "measured"
        parts.append(folded(counted(len(data["changed"]), "other choice"), ruled((heads, changed, frozenset({2, 4}))), *_more(len(data["changed"])), opened=True))  # fmt: skip
    if data["regions"]:
        most = max(max(r["predicted_us"], r["measured_us"]) for r in data["regions"])
        rows = (
            (shortened(r["region"], WORDS), tag("code", r["kernel"]), microseconds(r["predicted_us"]), microseconds(r["measured_us"]), bars(most, (r["predicted_us"], COLOURS["product"], 0.4), (r["measured_us"], COLOURS["product"], 1.0)))
            for r in data["regions"][:ROWS]
        )  # fmt: skip
        heads = "region", "kernel", "predicted", "measured", "pale: predicted"
        parts.append(folded("Predicted and measured, the worst prediction first", ruled((heads, rows, frozenset({2, 3}))), *_more(len(data["regions"])), opened=len(data["regions"]) <= 20))  # fmt: skip
    if data["skipped"]:
        skipped = ((shortened(s["region"], WORDS), s["why"]) for s in data["skipped"][:ROWS])
        parts.append(folded(f"{len(data['skipped'])} skipped", ruled((("region", "why"), skipped, frozenset())), *_more(len(data["skipped"]))))  # fmt: skip
    return output(*parts)


def layers(columns: Sequence[str], rows: Iterable[Sequence[str]], total: Sequence[str]) -> Html:
    """A model's summary: a row for each layer; the last column is numbers."""
    last = tuple(tag("b", cell) if cell else "" for cell in total)
    return output(ruled((columns, [*rows, last], frozenset({len(columns) - 1}))))


def _named(vids: Sequence[int], names: Mapping[int, str]) -> str:
    shown = ", ".join(names[v] for v in vids[:6])
    return shown if len(vids) <= 6 else f"{shown} and {len(vids) - 6} more"


def _told_apart(names: tuple[str, str]) -> tuple[str, str]:
    return names if names[0] != names[1] else (f"{names[0]} (this)", f"{names[1]} (other)")


def _more(count: int) -> list[Html]:
    return (
        [tag("p", f"and {count - ROWS:,} more: print() has all of them.", style=DIM)] if count > ROWS else []
    )
