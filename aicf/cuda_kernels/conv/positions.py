"""Windows of a convolution of channels last as numbers that kernels are told, along three spatial axes; those that it lacks have one element."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...ops.windows import Windows
from ...registry.variant import Checks, Num, Reject, at_least, at_most
from ...rows import RegionSpec
from ...rows.program import Gemm
from ...types import TensorDesc, i32, numel
from ..gemm import problem as gemm_problem

AXES = 3
LIMIT = 2**31 - 2**20  # of what kernels count in 32 bits, with room for a step further

Triple = tuple[int, int, int]


class WindowNumbers(NamedTuple):
    """Along each axis, the outermost first."""

    made: Triple  # windows
    steps: Triple  # from window to window
    first: Triple  # where the first window begins
    window: Triple  # places of a window
    apart: Triple  # from place to place
    extents: Triple  # elements of x
    between: Triple  # places from element to element: input_dilation

    @property
    def arguments(self) -> tuple[Any, ...]:
        return tuple(tuple(Num(n, i32) for n in along) for along in self)


class WindowProblem(NamedTuple):
    """A region whose core is a convolution. m windows of all images, n = O channels of results, k places and channels of a group."""

    product: Gemm
    x: TensorDesc
    w: TensorDesc
    windows: Windows
    groups: int

    @property
    def images(self) -> int:
        return self.x.shape[0]

    @property
    def made(self) -> tuple[int, ...]:
        return self.windows.made(self.x.shape[1:-1])

    @property
    def places(self) -> int:
        return numel(self.windows.window)

    @property
    def rows(self) -> int:
        return self.images * numel(self.made)

    @property
    def spread(self) -> bool:
        """Whether there are zeros between elements of x."""
        return any(self.windows.interior)

    @property
    def whole(self) -> bool:
        """Whether the matrix of windows is x as it lies."""
        of = self.windows
        still = (of.window, of.strides, of.dilation)
        return {n for t in still for n in t} <= {1} and not any((*of.low, *of.high, *of.interior))

    @property
    def positions(self) -> WindowNumbers:
        of = self.windows

        def three(numbers: Any, other: int) -> Triple:
            a, b, c = (*(other,) * (AXES - len(of.window)), *numbers)
            return a, b, c

        return WindowNumbers(
            three(self.made, 1), three(of.strides, 1), three((-n for n in of.low), 0), three(of.window, 1),
            three(of.dilation, 1), three(self.x.shape[1:-1], 1), three((n + 1 for n in of.interior), 1),
        )  # fmt: skip


def problem(region: RegionSpec) -> WindowProblem:
    """Of a region that can be read."""
    p, _ = gemm_problem.read(region)
    assert p.windows is not None
    groups = region.anchor.attrs["groups"]
    return WindowProblem(p, region.operands[p.a], region.operands[p.b], p.windows, groups)


def checks(region: RegionSpec) -> Checks:
    """Rows of channels one after the other, and numbers of 32 bits within an image."""
    yield from gemm_problem.checks(region)
    c = problem(region)
    yield at_most("axes of the batch", len(c.product.batch), 0)
    for name, t in (("x", c.x), ("w", c.w)):
        if not t.contiguous:
            yield Reject("contiguous", f"{name} is {t}, needs rows of channels, one after the other")
    yield at_most("windows", c.rows, LIMIT)
    yield at_most("elements of an image", numel(c.x.shape[1:]), LIMIT)
    yield at_most("elements of a padded axis", max((0, *c.windows.padded(c.x.shape[1:-1]))), LIMIT)
    yield at_most("steps of a window", max(reach(c), default=0), LIMIT)


def reach(c: WindowProblem) -> list[int]:
    """How far from the first element of x windows begin or end, along each axis."""
    of = c.windows
    return [
        abs(low) + made * step + size * apart
        for low, made, step, size, apart in zip(of.low, c.made, of.strides, of.window, of.dilation)
    ]


def not_empty(c: WindowProblem) -> Checks:
    yield at_least("least extent of results", min(c.rows, c.product.n, c.product.k), 1)
