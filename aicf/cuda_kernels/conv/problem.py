"""What a convolution of channels last is, or a gradient of one: tensors and windows, read once for every kernel, and the numbers that kernels get."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from ...ops.windows import Windows, windows_of
from ...registry.variant import Checks, In, Num, Reject, at_least, at_most, contiguous, one_op
from ...rows import RegionSpec
from ...types import DType, TensorDesc, f32, i32, numel
from ..gemm import problem as gemm_problem

TAKES = "convolution", "convolution+map"
STEPS = "strides", "dilation", "low", "high", "input_dilation"
AXES = 3
LIMIT = 2**31 - 2**20  # of what kernels count in 32 bits, with room for a step further

Triple = tuple[int, int, int]


class ConvolutionProblem(NamedTuple):
    """x (N, sizes, C), w (O, window, C / groups), y (N, made, O), or their gradients; x may have fewer images than y.

    c, o  channels of a group
    rows  windows of all images, which are rows of a product; `places` of a window, times c, are its k
    """

    x: TensorDesc
    w: TensorDesc
    y: TensorDesc
    windows: Windows
    groups: int

    @property
    def dtype(self) -> DType:
        return self.x.dtype

    @property
    def images(self) -> int:
        return self.x.shape[0]

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.x.shape[1:-1]

    @property
    def made(self) -> tuple[int, ...]:
        return self.y.shape[1:-1]

    @property
    def c(self) -> int:
        return self.w.shape[-1]

    @property
    def o(self) -> int:
        return self.w.shape[0] // self.groups

    @property
    def n(self) -> int:
        """Channels of y."""
        return self.w.shape[0]

    @property
    def places(self) -> int:
        return numel(self.windows.window)

    @property
    def k(self) -> int:
        return self.places * self.c

    @property
    def rows(self) -> int:
        return self.images * numel(self.made)

    @property
    def elements(self) -> int:
        """Of x, without channels."""
        return self.images * numel(self.sizes)

    @property
    def spread(self) -> bool:
        """Whether there are zeros between elements of x."""
        return any(self.windows.interior)

    @property
    def whole(self) -> bool:
        """Whether the matrix of windows is x itself."""
        of = self.windows
        still = (of.window, of.strides, of.dilation)
        return {n for t in still for n in t} <= {1} and not any((*of.low, *of.high, *of.interior))

    @property
    def geometry(self) -> WindowGeometry:
        of = self.windows

        def three(numbers: Any, other: int) -> Triple:
            a, b, c = (*(other,) * (AXES - len(of.window)), *numbers)
            return a, b, c

        return WindowGeometry(
            three(self.made, 1), three(of.strides, 1), three((-n for n in of.low), 0), three(of.window, 1),
            three(of.dilation, 1), three(self.sizes, 1), three((n + 1 for n in of.interior), 1),
        )  # fmt: skip


class WindowGeometry(NamedTuple):
    """Along each of three axes, the outermost first; those that a convolution lacks have one element."""

    made: Triple  # windows
    steps: Triple  # from window to window
    first: Triple  # where the first window begins
    window: Triple  # places of a window
    apart: Triple  # from place to place
    extents: Triple  # elements of x
    between: Triple  # places from element to element: input_dilation


def numbers(values: Any) -> tuple[Any, ...]:
    """Values, and tuples of them, as i32 arguments."""
    return tuple([numbers(v) if isinstance(v, tuple) else Num(v, i32) for v in values])


@lru_cache(maxsize=256)
def read(region: RegionSpec) -> ConvolutionProblem:
    """Of a region that begins with a convolution, or with a gradient of one."""
    anchor, (first, second) = region.anchor, given(region)
    last = region.tensors[anchor.outputs[0]]
    x, w, y = {
        "convolution_channels_last": (first, second, last),
        "convolution_data_gradient_channels_last": (last, second, first),
        "convolution_weight_gradient_channels_last": (first, last, second),
    }[anchor.kind.name]
    windows = windows_of(w.shape[1:-1], *(tuple(anchor.attrs[name]) for name in STEPS))
    return ConvolutionProblem(x, w, y, windows, anchor.attrs["groups"])


def given(region: RegionSpec) -> list[TensorDesc]:
    """Operands of a region's first op, in its own order."""
    return [region.tensors[i] for i in region.anchor.inputs]


def pointers(region: RegionSpec) -> list[In]:
    """To these."""
    return [In(region.inputs.index(i)) for i in region.anchor.inputs]


# --- checks -----------------------------------------------------------------------------------------------------------


def checks(region: RegionSpec) -> Checks:
    """Of a convolution and a map: rows of channels one after the other, and numbers of 32 bits within an image."""
    yield from gemm_problem.checks(region)
    yield at_most("axes of the batch", len(gemm_problem.read(region)[0].batch), 0)
    p = read(region)
    for name, t in (("x", p.x), ("w", p.w)):
        if not t.contiguous:
            yield Reject("contiguous", f"{name} is {t}, needs rows of channels, one after the other")
    yield at_most("windows", p.rows, LIMIT)
    yield at_most("elements of an image", numel(p.x.shape[1:]), LIMIT)
    yield at_most("elements of a padded axis", max((0, *p.windows.padded(p.sizes))), LIMIT)
    yield at_most("steps of a window", max(reach(p), default=0), LIMIT)


def reach(p: ConvolutionProblem) -> list[int]:
    """How far from the first element of x windows begin or end, along each axis."""
    of = p.windows
    return [
        abs(low) + made * step + size * apart
        for low, made, step, size, apart in zip(of.low, p.made, of.strides, of.window, of.dilation)
    ]


def not_empty(p: ConvolutionProblem) -> Checks:
    yield at_least("least extent of results", min(p.rows, p.n, p.k), 1)


def one_of_floats(region: RegionSpec) -> Checks:
    """One op of dense tensors that f32 arithmetic is exact for."""
    yield one_op(region)
    yield contiguous(region)
    if (dtype := region.operands[0].dtype).compute is not f32:
        yield Reject("dtype", f"operands are {dtype}, needs f32 or a half type")
