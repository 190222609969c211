"""Pictures for the notebooks: SVG, so that nothing need be installed."""

from collections.abc import Sequence

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
