"""Pictures for the notebooks: SVG, so that nothing need be installed."""

from collections.abc import Mapping, Sequence

import numpy as np
from IPython.display import SVG

HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="{}" height="{}" font-family="sans-serif" font-size="12">'
)
SHEET = '<rect width="100%" height="100%" fill="white"/>'


def curve(values: Sequence[float], width: int = 640, height: int = 160) -> SVG:
    """A line through the values, the first at the left."""
    top, low, right = max(values), height - 20, width - 10
    places = np.linspace(40, right, len(values))
    points = " ".join(f"{x:.1f},{10 + (low - 10) * (1 - v / top):.1f}" for x, v in zip(places, values))
    return SVG(
        HEAD.format(width, height) + SHEET + f'<path d="M40 10V{low}H{right}" stroke="#999" fill="none"/>'
        f'<polyline points="{points}" fill="none" stroke="#2563eb" stroke-width="1.5"/>'
        f'<text x="34" y="16" text-anchor="end">{top:.2f}</text><text x="34" y="{low}" text-anchor="end">0</text>'
        f'<text x="{right}" y="{height - 4}" text-anchor="end">{len(values)} steps</text></svg>'
    )


def digits(images: np.ndarray, told: Sequence[int], labels: Sequence[int], size: int = 6) -> SVG:
    """Images of 8 x 8 pixels in 0..1 side by side, with what they were taken for."""
    parts, step = [], 8 * size + 22
    for n, (image, answer, label) in enumerate(zip(images, told, labels)):
        for i, ink in enumerate(image):
            grey = 255 - round(255 * float(ink))
            place = f'x="{n * step + size * (i % 8)}" y="{size * (i // 8)}" width="{size}" height="{size}"'
            parts.append(f'<rect {place} fill="rgb({grey},{grey},{grey})"/>')
        text, colour = (f"{answer}", "#15803d") if answer == label else (f"{answer}, not {label}", "#b91c1c")
        parts.append(f'<text x="{n * step}" y="{8 * size + 16}" fill="{colour}">{text}</text>')
    crisp = f'<g shape-rendering="crispEdges">{"".join(parts)}</g></svg>'
    return SVG(HEAD.format(len(images) * step, 8 * size + 24) + SHEET + crisp)


COLOURS = "#2563eb", "#b91c1c", "#15803d", "#b45309", "#7c3aed"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def lines(
    series: Mapping[str, Sequence[float]], x: Sequence[float], log: bool = False, x_title: str = "", y_title: str = "",
    width: int = 640, height: int = 240,
) -> SVG:  # fmt: skip
    """Lines over x with their names at the right; where a value is NaN a line is broken. `log` scales both axes so."""
    scale = np.log10 if log else np.asarray
    flat = [v for values in series.values() for v in values if np.isfinite(v)]
    (left, right), (low, high) = (scale([min(v), max(v)]) for v in (x, flat))
    across, up = width - 210, height - 40

    def place(a: float, b: float) -> str:
        where = scale([a, b])
        return f"{50 + across * (where[0] - left) / (right - left):.1f},{10 + up * (high - where[1]) / (high - low):.1f}"

    parts = [f'<path d="M50 10V{10 + up}H{50 + across}" stroke="#999" fill="none"/>']
    for n, (name, values) in enumerate(series.items()):
        colour, runs, run = COLOURS[n % len(COLOURS)], [], []
        for a, b in zip(x, values):
            run = [*run, place(a, b)] if np.isfinite(b) else []
            runs = [*runs[:-1], run] if len(run) > 1 else [*runs, run] if run else runs
        parts += [
            f'<polyline points="{" ".join(r)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
            for r in runs
        ]
        parts.append(f'<text x="{60 + across}" y="{24 + 18 * n}" fill="{colour}">{name}</text>')
    for text, where in ((_short(max(flat)), 16), (_short(min(flat)), 10 + up), (y_title, up / 2)):
        parts.append(f'<text x="44" y="{where}" text-anchor="end">{text}</text>')
    for text, where, anchor in (
        (f"{x[0]:g}", 50, "start"),
        (x_title, 50 + across / 2, "middle"),
        (f"{x[-1]:g}", 50 + across, "end"),
    ):
        parts.append(f'<text x="{where}" y="{height - 12}" text-anchor="{anchor}">{text}</text>')
    return SVG(HEAD.format(width, height) + SHEET + "".join(parts) + "</svg>")
