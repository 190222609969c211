"""The tensors of attention and attention_grad as matrices in any strides of rows, for kernels on tensor cores."""

from __future__ import annotations

from typing import NamedTuple

from ...registry.variant import Checks, In, Num, Out, Reject, TensorMap, at_least, at_most
from ...rows import RegionSpec
from ...rows.program import collapse
from ...types import TensorDesc, bf16, f16
from . import plain
from .hopper_tiles import ATOM

ALIGNMENT = 16  # of pointers and rows, for tensor maps
EXTENT = 2**29  # of queries and keys: positions, and distances between them, are i32
LOG2E = 1.4426950408889634


class Matrices(NamedTuple):
    """q, k, v or one of their like: heads of a batch, of rows of `d`; bytes from one to the next."""

    name: str
    rows: int
    heads: int
    batch: int
    d: int
    pitches: tuple[int, int, int]

    def map(self, source: In | Out, like: TensorDesc, rows: int) -> TensorMap:
        """For boxes of 64 columns and so many rows."""
        extents = self.d, self.rows, self.heads, self.batch
        return TensorMap(source, like.dtype, extents, self.pitches, (ATOM, rows, 1, 1))

    def steps(self) -> tuple[Num, Num, Num]:
        """Elements from one row, head and batch entry to the next."""
        row, head, batch = (Num(pitch // 2) for pitch in self.pitches)
        return row, head, batch


def matrices(name: str, t: TensorDesc, alignment: int = ALIGNMENT) -> Matrices | Reject:
    """The tensor as such, of pointers and rows at multiples of so many bytes, or why it is none."""
    if t.alignment < alignment:
        return Reject("aligned", f"{name} is aligned to {t.alignment} bytes, needs {alignment}")
    *batch, heads, rows, d = t.shape
    *batch_steps, head_step, row_step, step = t.stride
    if step != 1 and d > 1:
        return Reject("rows", f"{name} is {t}, needs rows of neighbours")
    walk, (along,) = collapse(tuple(batch), [tuple(batch_steps)])
    if len(walk) > 1:
        return Reject("batch", f"{name} is {t}, needs a batch of equal steps")
    own = -(-d * t.dtype.itemsize // alignment) * alignment  # for extents of one, whose steps mean nothing
    steps = ((rows, row_step), (heads, head_step), (walk[0], along[0]))
    pitches = tuple(s * t.dtype.itemsize if extent > 1 else own for extent, s in steps)
    if any(p % alignment or p <= 0 for p in pitches):
        return Reject(
            "rows",
            f"{name} is {t}, needs rows, heads and batch entries at multiples of {alignment} bytes, one after the other",
        )
    return Matrices(name, rows, heads, walk[0], d, pitches)


FORWARD, GRADIENT = ("q", "k", "v", "out"), ("dout", "q", "k", "v", "out", "dq", "dk", "dv")


def tensors_of(region: RegionSpec) -> list[tuple[str, TensorDesc, In | Out]]:
    """Those that are read or written by rows of d, in the op's order."""
    gradient = region.kind.name == "attention_grad"
    inputs = region.anchor.inputs[: 5 if gradient else 3]
    given = [(region.tensors[t], In(region.inputs.index(t))) for t in inputs]
    made = [(t, Out(i)) for i, t in enumerate(region.results[: 3 if gradient else 1])]
    names = GRADIENT if gradient else FORWARD
    return [(name, t, at) for name, (t, at) in zip(names, [*given, *made])]


def lse_of(region: RegionSpec) -> tuple[TensorDesc, In | Out]:
    if region.kind.name == "attention":
        return region.results[1], Out(1)
    at = region.anchor.inputs[5]
    return region.tensors[at], In(region.inputs.index(at))


def halves_checks(region: RegionSpec) -> Checks:
    """What tensor cores multiply."""
    for name, t, _ in tensors_of(region):
        if t.dtype not in (f16, bf16):
            yield Reject("dtype", f"{name} is {t.dtype}, tensor cores multiply weights of f16 or bf16")
    if region.strict:
        yield Reject(
            "strict", "weights are rounded to halves before they multiply v; strict takes sums in f32"
        )


def extent_checks(region: RegionSpec, widest: int) -> Checks:
    """Something of everything, head sizes up to `widest`, and positions that i32 holds."""
    yield at_most("head size", max(t.shape[-1] for _, t, _ in tensors_of(region)), widest)
    p = plain.problem(region)
    yield at_least("least extent", min(p.queries, p.keys, p.heads, p.d, p.dv), 1)
    yield at_most("greatest extent", max(p.queries, p.keys), EXTENT)
