"""Regions over rows at other numbers of rows: the same rows in another order, alone, and among others, by kernels of one numeric class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from kernel_cases import Case, Operands, attention, desc, fused, gemm, operands_for, region, softmax

from aicf.device.spec import DeviceSpec
from aicf.dispatch import default_registry
from aicf.registry.numerics import NumericClass
from aicf.registry.variant import KernelVariant
from aicf.rows import RegionSpec
from aicf.types import ActKind, Precision, f8e4m3, f16, f32, i8

Runner = Callable[[Case, Operands], list[np.ndarray]]


@dataclass(frozen=True)
class OverRows:
    """`make(count)` is the region with so many rows.

    axes  the operands that have rows, each with its axis of them; results have them first
    """

    make: Callable[[int], RegionSpec]
    axes: Mapping[int, int]
    name: str

    def operands(self, count: int, seed: int) -> Operands:
        return operands_for(Case("", self.make(count)), seed)

    def take(self, operands: Operands, rows: Sequence[int]) -> Operands:
        """Operands of these rows only, in this order; dense, as all regions here are."""
        arrays = [
            np.ascontiguousarray(np.take(a, rows, self.axes[i]) if i in self.axes else a)
            for i, a in enumerate(operands.arrays)
        ]
        return Operands(arrays, [a.reshape(-1) for a in arrays])


# --- what is drawn ----------------------------------------------------------------------------------------------------


def drawn_gemm(draw: np.random.Generator, kind: str, most: int = 300, epilogues: int = 3) -> OverRows:
    """A product of a type, with drawn sizes and layouts, and one of so many epilogues: none, a bias, a scale with a bias and GELU. Half of the sizes of
    f32 are multiples of 16, of other types all."""
    n, k = (int(draw.integers(9, most)) for _ in range(2))
    if kind not in ("f32", "simt f16") or draw.random() < 0.5:
        n, k = n // 16 * 16 or 16, k // 16 * 16 or 16
    dtype = {"simt f16": f16, "f16": f16, "fp8": f8e4m3, "int8": i8}.get(kind, f32)
    trans_a, trans_b = bool(draw.random() < 0.3), bool(draw.random() < 0.6)
    if dtype.itemsize == 1 or kind == "tf32":
        trans_a, trans_b = False, True
    more: dict = {"precision": Precision[kind]} if kind.startswith("tf32") else {}
    epilogue = int(draw.integers(epilogues)) if dtype.itemsize > 1 else 0
    if dtype is f8e4m3 or (dtype is f16 and not epilogue):
        more["out_dtype"] = f32  # all bits of the sums
    if epilogue:
        more.update(bias=n, act=(ActKind.none, ActKind.gelu)[epilogue - 1], alpha=(1.0, 0.375)[epilogue - 1])

    def make(m: int) -> RegionSpec:
        return gemm(m, n, k, dtype=dtype, trans_a=trans_a, trans_b=trans_b, **more)

    return OverRows(make, {0: int(trans_a)}, f"{kind} {n}x{k} ta={trans_a} tb={trans_b} epilogue {epilogue}")


def drawn_rows(draw: np.random.Generator) -> OverRows:
    """A softmax, a map with a vector along the rows, or attention, whose rows are batch entries."""
    which, dtype = int(draw.integers(3)), (f16, f32)[draw.integers(2)]
    if which == 0:
        length = int(draw.integers(1, 9)) * int(draw.choice([1, 4, 8]))
        return OverRows(lambda rows: softmax((rows, length), dtype), {0: 0}, f"softmax {dtype} {length}")
    if which == 1:
        length = int(draw.integers(1, 700))

        def gelu(rows: int) -> RegionSpec:
            given = {"x": desc((rows, length), dtype), "b": desc((length,), dtype)}
            return fused(given, ("y", "bias_add", "x", "b"), ("z", "gelu", "y"), ("w", "mul", "z", "x"))

        return OverRows(gelu, {0: 0}, f"map {dtype} {length}")
    heads, queries, keys, d = (int(draw.integers(*ends)) for ends in ((1, 4), (2, 150), (2, 200), (1, 9)))
    causal = bool(draw.random() < 0.5)
    keys = max(keys, queries)

    def attend(rows: int) -> RegionSpec:
        return attention((rows, heads, queries, 8 * d), (rows, heads, keys, 8 * d), dtype=f16, causal=causal)

    return OverRows(attend, {0: 0, 1: 0, 2: 0}, f"attention {heads}x{queries}x{keys}x{8 * d} causal={causal}")


def drawn_op_of_rows(draw: np.random.Generator) -> OverRows:
    """One op: over rows of any length, or attention."""
    if draw.random() < 0.75:
        return drawn_norm(draw, 8192)
    heads, queries, d = int(draw.integers(1, 4)), int(draw.integers(1, 150)), 8 * int(draw.integers(1, 9))
    shape = heads, queries, d
    return OverRows(
        lambda n: attention((n, *shape), (n, *shape), dtype=f16), {0: 0, 1: 0, 2: 0}, f"attention {shape}"
    )


def drawn_norm(draw: np.random.Generator, most: int = 20000) -> OverRows:
    """One op over rows of up to so many elements, odd lengths among them: a softmax, a norm, a sum or a logarithm of sums."""
    kind, dtype = (
        str(draw.choice(["softmax", "layer_norm", "rms_norm", "logsumexp", "reduce_sum"])),
        (f16, f32)[draw.integers(2)],
    )
    length = int(2 ** draw.uniform(0, np.log2(most)))
    length = (length, length // 2 * 2 + 1, length // 8 * 8 or 8)[draw.integers(3)]
    axes = {"axes": (1,)} if kind == "reduce_sum" else {}

    def make(rows: int) -> RegionSpec:
        weights = [desc((length,), dtype)] * (2 if kind == "layer_norm" else 0)
        return region(kind, desc((rows, length), dtype), *weights, **axes)

    return OverRows(make, {0: 0}, f"{kind} {dtype} {length}")


# --- what is compared -------------------------------------------------------------------------------------------------


def declaring(region: RegionSpec, device: DeviceSpec) -> list[KernelVariant]:
    """The kernels that take the region and declare a class, or why there is none."""
    begun = default_registry().variants(region.kind)
    return [v for v in begun if v.numerics and v.supported(region, device) is None]


def classes(region: RegionSpec, device: DeviceSpec) -> dict[str, NumericClass]:
    """Of each kernel that takes the region and has a class."""
    found = {v.id: v.numeric_class(region, device) for v in declaring(region, device)}
    return {id: c for id, c in found.items() if isinstance(c, NumericClass)}


def orders(draw: np.random.Generator, count: int) -> Iterator[list[int]]:
    """All rows in another order; one row alone; two; the last ones after a copy of the first."""
    yield draw.permutation(count).tolist()
    yield [int(draw.integers(count))]
    yield draw.integers(0, count, 2).tolist()
    yield [0, *range(count // 2, count)]


def differing(
    rows: OverRows, kernels: Mapping[str, NumericClass], device: DeviceSpec, run: Runner, draw: np.random.Generator, count: int,
    reordered: Callable[[np.random.Generator, int], Iterable[list[int]]] = orders,
) -> list[str]:  # fmt: skip
    """Kernels whose rows differ, in a bit, from those of the first kernel of their class at `count` rows: at that number of rows, or
    in one of the orders of `reordered`."""
    operands, wanted, found = rows.operands(count, int(draw.integers(2**32))), {}, []
    for id, numeric in kernels.items():
        got = run(Case(id, rows.make(count)), operands)
        want = wanted.setdefault(numeric, got)
        if any(a.tobytes() != b.tobytes() for a, b in zip(got, want)):
            found.append(f"{id} with {count} rows")
        for order in reordered(draw, count):
            region = rows.make(len(order))
            if classes(region, device).get(id) is None:
                continue
            got = run(Case(id, region), rows.take(operands, order))
            if any(a.tobytes() != b[order].tobytes() for a, b in zip(got, want)):
                found.append(f"{id} with {len(order)} rows: {order[:4]}")
    return found


def strict(rows: OverRows) -> OverRows:
    return OverRows(lambda m: replace(rows.make(m), strict=True), rows.axes, f"strict {rows.name}")


def invariant(rows: OverRows) -> OverRows:
    return OverRows(
        lambda m: replace(rows.make(m), strict=True, invariant=True), rows.axes, f"invariant {rows.name}"
    )
