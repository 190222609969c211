"""Windows as an operand of a GEMM on Hopper: what TMA's im2col mode can walk, its maps, and the numbers that producers get; the phases of strides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from ...ops.windows import Windows
from ...registry.variant import Checks, In, Reject, TensorMap, WindowMap, at_least, at_most, cdiv, multiple
from ...rows import RegionSpec
from ...types import DType, TensorDesc, bf16, f16, numel
from .. import chain as chains
from ..hopper.units import TMA_ALIGNMENT
from .problem import read
from .producer import Geometry

AXES = 2  # spatial ones; a single one is the first of them, with one of one element as the other
FURTHEST = 255  # elements from a window's first one to its last
STEP = 8


class WindowAxis(NamedTuple):
    """Windows along one axis of a tensor."""

    size: int = 1  # elements of the tensor
    windows: int = 1
    step: int = 1
    first: int = 0  # where the first window begins
    last: int = 0  # where the last one does, from the last element on
    places: int = 1  # of a window
    apart: int = 1  # from place to place


Axes = tuple[WindowAxis, WindowAxis]  # x, whose neighbours are nearer, and y


def axes_of(of: Windows, sizes: Sequence[int]) -> Axes:
    """Windows over an image of such sizes."""
    numbers = zip(sizes, of.made(tuple(sizes)), of.strides, of.low, of.high, of.window, of.dilation)
    return two([
        WindowAxis(size, windows, step, -low, high - (n - 1) * apart, n, apart)
        for size, windows, step, low, high, n, apart in numbers
    ])  # fmt: skip


def two(axes: Sequence[WindowAxis]) -> Axes:
    x, y = (*reversed(axes), *(WindowAxis(),) * (AXES - len(axes)))
    return x, y


def geometry(axes: Axes, chunks: int) -> Geometry:
    x, y = axes
    return Geometry(
        x.windows, y.windows, x.step, y.step, x.first, y.first, max(1, x.places), x.apart, y.apart, chunks
    )


def gemm_of(a: tuple[int, int], b: tuple[int, int], dtype: DType, **attrs: bool) -> RegionSpec:
    """A GEMM of matrices of these shapes: what a product with windows is but for how it is read."""
    return chains.region_of(
        {"a": chains.dense(a, dtype), "b": chains.dense(b, dtype)}, ("y", "gemm", "a b", attrs)
    )


# --- phases of strides ------------------------------------------------------------------------------------------------


class AxisPhase(NamedTuple):
    """Along one axis: elements offset, offset + stride, …; the windows over dy that have them, with places of the kernel from the last one on."""

    offset: int
    over_dy: WindowAxis
    place: int  # of the kernel, that a window's first element meets
    back: int  # places from one to the next


class Phase(NamedTuple):
    """x is the axis whose neighbours are nearer."""

    x: AxisPhase
    y: AxisPhase

    @property
    def axes(self) -> Axes:
        return self.x.over_dy, self.y.over_dy

    @property
    def taps(self) -> int:
        """Places of the kernel that reach these elements."""
        return prod(a.places for a in self.axes)

    @property
    def elements(self) -> int:
        """Of an image."""
        return prod(a.windows for a in self.axes)


def axis_phases(size: int, made: int, kernel: int, stride: int, low: int, dilation: int) -> list[AxisPhase]:
    """All of an axis that have elements; `made`: elements of dy."""
    phases = []
    for offset in range(min(stride, size)):
        at, count = offset + low, cdiv(size - offset, stride)
        places = [p for p in range(kernel) if (at - p * dilation) % stride == 0]
        back = places[1] - places[0] if len(places) > 1 else 0
        first = (at - places[-1] * dilation) // stride if places else 0
        apart = back * dilation // stride if back else 1
        over_dy = WindowAxis(made, count, 1, first, first + count - made, len(places), apart)
        phases.append(AxisPhase(offset, over_dy, places[-1] if places else 0, back))
    return phases


@lru_cache(maxsize=256)
def phases(region: RegionSpec) -> tuple[Phase, ...]:
    p = read(region)
    of = p.windows
    numbers = zip(p.sizes, p.made, of.window, of.strides, of.low, of.dilation)
    missing = [[AxisPhase(0, WindowAxis(), 0, 0)]] * (AXES - len(p.sizes))
    return tuple(Phase(x, y) for y, x in product(*missing, *(axis_phases(*n) for n in numbers)))


# --- maps -------------------------------------------------------------------------------------------------------------


def window_map(source: In, t: TensorDesc, axes: Axes, box: tuple[int, int]) -> WindowMap:
    """For copies of so many channels of so many windows over t."""
    first, last, steps = zip(*((a.first, a.last, a.step) for a in axes))
    extents, pitches = (t.shape[-1], *(a.size for a in axes), t.shape[0]), [t.dtype.itemsize]
    for extent in extents[:-1]:
        pitches.append(pitches[-1] * extent)
    return WindowMap(source, t.dtype, extents, tuple(pitches[1:]), box, first=first, last=last, steps=steps)


def kernel_map(source: In, w: TensorDesc, channels: int, results: int) -> TensorMap:
    """For copies of so many channels of so many results, of one place of w (O, window, C)."""
    (o, *window, c), size = w.shape, w.dtype.itemsize
    places = numel(window)
    return TensorMap(source, w.dtype, (c, places, o), (c * size, places * c * size), (channels, 1, results))


# --- checks -----------------------------------------------------------------------------------------------------------


def half(name: str, dtype: DType) -> Reject | None:
    return None if dtype in (f16, bf16) else Reject("dtype", f"{name} is {dtype}, needs f16 or bf16")


def aligned(name: str, t: TensorDesc) -> Reject | None:
    if t.alignment < TMA_ALIGNMENT:
        return Reject("aligned", f"{name} is aligned to {t.alignment} bytes, needs {TMA_ALIGNMENT}")
    return None


def whole_units(name: str, t: TensorDesc) -> Reject | None:
    """Channels as TMA copies them."""
    return multiple(name, t.shape[-1], TMA_ALIGNMENT // t.dtype.itemsize)


def channels_and_alignment(**named: TensorDesc) -> Checks:
    for name, t in named.items():
        yield whole_units(f"channels of {name}", t)
        yield aligned(name, t)


def undilated(of: Windows) -> Reject | None:
    if any(of.interior):
        return Reject("input_dilation", f"input_dilation is {tuple(n + 1 for n in of.interior)}, needs 1")
    return None


def within_reach(axes: Iterable[WindowAxis]) -> Checks:
    """What TMA's im2col mode can walk."""
    axes = tuple(axes)
    yield at_most("stride", max(a.step for a in axes), STEP)
    spans = ((a.places - 1) * a.apart for a in axes)
    yield at_most("elements from a window's first to its last", max(spans), FURTHEST)
    corners = [n for a in axes for n in (a.first, a.last)]
    most = max(max(n, -n - 1) for n in corners)
    yield at_most("padding", most, WindowMap.CORNERS[AXES] - 1)
    yield at_least("least extent of an axis", min(a.size for a in axes), 1)
