"""Random products, drawn by hypothesis: for each kernel a few forms, which are what is compiled, and any number of sizes of each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from kernel_cases import HALVES, Case, desc, fused
from wgmma_cases import OTHERS

from aicf.device.spec import DeviceSpec
from aicf.registry.variant import KernelVariant
from aicf.rows import RegionSpec
from aicf.types import ActKind, DType, Precision, TensorDesc, bf16, f16, f32

FORMS = 2  # of each kernel in one run: it is compiled for each of them anew
TRIES = 3000
ROW = 16  # bytes that the best rows begin at multiples of

TYPES = [
    *(((t, t, t), "exact") for t in (f16, bf16, f32)), ((f16, f16, f32), "exact"),
    ((f32, f32, f32), "tf32"), ((f32, f32, f32), "tf32x3"), *((types, "exact") for types in OTHERS[1:]),
]  # fmt: skip
BATCHES = {"": 0, "alone": 1, "shared a": 1, "shared b": 2, "heads": 2, "many": 3}  # axes
EPILOGUES = "plain", "scaled", "residual", "activated", "rows and columns", "widened", "backward"
COLUMNS = 8, 4, 2, 1  # that n is a multiple of, and of no more


@dataclass(frozen=True)
class Form:
    """What a kernel is compiled for.

    types    of a, b and the results
    then     what follows the product
    columns  one of COLUMNS
    rows     bytes that rows of a and b begin at multiples of; pointers, too, where it is less than 16
    batch    one of BATCHES
    """

    types: tuple[DType, DType, DType]
    precision: str
    trans_a: bool
    trans_b: bool
    then: str
    columns: int
    rows: int
    batch: str

    def complexity(self) -> tuple[Any, ...]:
        """Failures shrink to what is simpler."""
        return self.batch, EPILOGUES.index(self.then), self.trans_a, self.trans_b, -self.columns, -self.rows


@dataclass(frozen=True)
class Problem:
    """A product of a form.

    apart   units of `rows` between the rows of a, and those of b
    shift   elements by which pointers are moved from 256-byte boundaries
    seed    of the numbers
    """

    form: Form
    m: int
    n: int
    k: int
    batch: tuple[int, ...] = ()
    apart: tuple[int, int] = (0, 0)
    alpha: float = 0.5
    beta: float = 2.0
    shift: int = 0
    seed: int = 0

    def region(self, device: str = "cuda") -> RegionSpec:
        f, (a, b, out) = self.form, self.form.types
        lies = (
            (self.k, self.m) if f.trans_a else (self.m, self.k),
            (self.n, self.k) if f.trans_b else (self.k, self.n),
        )
        operands = {
            name: self._matrix(name, *shape, dtype, apart)
            for name, shape, dtype, apart in zip("ab", lies, (a, b), self.apart)
        }
        attrs = {
            "trans_a": f.trans_a, "trans_b": f.trans_b, "precision": Precision[f.precision],
            "out_dtype": out.id if out is not a else 0,
        }  # fmt: skip
        more, ops, keep, own = self._following()
        results = ("y", "z") if own else "y"
        c, bias = ("c", "row") if own else (None, None)
        product = (results, "gemm", "a", "b", c, bias, {**attrs, **own})
        made = fused({**operands, **more}, product, *ops, keep=keep)
        known = ROW if f.rows < ROW else 256
        return replace(made, tensors=tuple(
            replace(t, device=device, alignment=max(f.rows, t.dtype.itemsize) if known == ROW else known)
            for t in made.tensors
        ))  # fmt: skip

    def _matrix(self, name: str, rows: int, columns: int, dtype: DType, apart: int) -> TensorDesc:
        unit = max(1, self.form.rows // dtype.itemsize)
        pitch = max(1, -(-columns // unit) + apart)
        if unit * dtype.itemsize < ROW and pitch % 2 == 0:
            pitch += 1  # at multiples of no more
        pitch *= unit
        if name == "a" and self.form.batch == "heads":
            x, y = self.batch
            return desc((x, y, rows, columns), dtype, (rows * y * pitch, pitch, y * pitch, 1))
        batch = () if self.form.batch == f"shared {name}" else self.batch
        order = list(range(len(batch)))
        if name == "a" and self.form.batch == "many":
            order = [0, 2, 1]  # so that they can't be walked as one
        steps, step = [0] * len(batch), rows * pitch
        for axis in reversed(order):
            steps[axis] = step
            step *= batch[axis]
        return desc((*batch, rows, columns), dtype, (*steps, pitch, 1))

    def _following(
        self,
    ) -> tuple[dict[str, TensorDesc], list[tuple[Any, ...]], tuple[str, ...], dict[str, Any]]:
        """(operands, ops, what leaves, the product's own attributes)"""
        out = self.form.types[2]
        whole, row = desc((*self.batch, self.m, self.n), out), desc((self.n,), out)
        biased = ("u", "bias_add", "y", "row")
        own = {"act": ActKind.relu, "save_preact": True, "alpha": self.alpha, "beta": self.beta}
        return {
            "plain": ({}, [], (), {}),
            "scaled": ({"c": whole, "row": row}, [], (), own),
            "residual": ({"row": row, "x": whole}, [biased, ("r", "relu", "u"), ("d", "add", "x", "r")], (), {}),
            "activated": ({"row": row}, [biased, ("d", "gelu", "u")], ("d", "u"), {}),
            "rows and columns": (
                {"row": row, "column": desc((self.m,), out)}, [biased, ("v", "bias_add", "u", "column"), ("d", "relu", "v")], (), {},
            ),
            "widened": ({}, [("w", "convert", "y", {"dtype": f32.id})], ("y", "w"), {}),
            "backward": (
                {"x": whole}, [("d", "gelu_grad", "y", "x"), ("s", "reduce_sum", "d", {"axes": (0,)})], ("d", "s"), {},
            ),
        }[self.form.then]  # fmt: skip

    def case(self, variant: str) -> Case:
        a, _, out = self.form.types
        tolerance = HALVES.get(
            out, 4e-3 if a.itemsize == 1 else 5e-4 if self.form.precision == "tf32" else 2e-5
        )
        return Case(variant, self.region(), tolerance)


# --- forms ------------------------------------------------------------------------------------------------------------


def forms(
    variant: KernelVariant, device: DeviceSpec, seed: int, count: int = FORMS, on: str = "cuda"
) -> list[Form]:
    """So many that the kernel takes, drawn by the seed; the simplest first."""
    draw, made = random.Random(f"{seed} {variant.id}"), set[Form]()
    for _ in range(TRIES):
        if len(made) == count:
            break
        types, precision = draw.choice(TYPES)
        least = max(t.itemsize for t in types[:2])
        form = Form(
            types, precision, draw.random() < 0.5, draw.random() < 0.5, draw.choice(EPILOGUES), draw.choice(COLUMNS),
            draw.choice([r for r in (ROW, ROW, 8, 4, 2, 1) if r >= least]), draw.choice(["", "", *BATCHES]),
        )  # fmt: skip
        if (
            _sensible(form)
            and not (large(variant) and form.batch)
            and variant.supported(_typical(form, variant).region(on), device) is None
        ):
            made.add(form)
    return sorted(made, key=Form.complexity)


def _sensible(form: Form) -> bool:
    """Ops there are."""
    if form.batch and form.then in ("backward", "rows and columns"):
        return False  # biases and sums are of the first axis
    return not (form.then == "widened" and form.types[2] is f32)


def _typical(form: Form, variant: KernelVariant) -> Problem:
    m = min(few(variant), 8) or 136
    if large(variant):
        return Problem(form, LARGE[0], columns(LARGE[1], form.columns), 264)
    return Problem(form, m, columns(136, form.columns), 264, (2, 3, 2)[: BATCHES[form.batch]])


def few(variant: KernelVariant) -> int:
    """The most rows, or columns, that are tried of what takes few; 0 of others."""
    if {"deep", "two", "flat"} & {*variant.config.split()}:
        return 64
    return 4 if ".gemv_warps" in variant.id else 16 if ".gemv_" in variant.id else 0


def large(variant: KernelVariant) -> bool:
    """Whether it takes only products of more tiles than a GPU has multiprocessors."""
    return {"stream", "120"} & {*variant.config.split()} != set()


# --- sizes ------------------------------------------------------------------------------------------------------------

LARGE = 1104, 3848  # 9 x 16 tiles of 128 x 256, 9 x 31 of 128 x 128
EDGES = [edge + off for edge in (64, 128, 192, 256, 512) for off in (-1, 0, 1)]


def extents(most: int) -> st.SearchStrategy[int]:
    """None, one, tiny, odd, around what tiles end at, or anything."""
    return st.one_of(
        st.integers(0, 40), st.integers(1, min(300, most)), st.sampled_from([e for e in EDGES if e <= most]), st.integers(1, most),
    )  # fmt: skip


def columns(extent: int, multiple: int) -> int:
    """Near it, and a multiple of this, but of no more."""
    return -(-extent // 8) * 8 if multiple == 8 else extent // (2 * multiple) * 2 * multiple + multiple


def problems(
    variant: KernelVariant, device: DeviceSpec, given: list[Form], largest: int = 1500, on: str = "cuda"
) -> st.SearchStrategy[Problem]:
    """Those of these forms that the kernel takes."""

    @st.composite
    def drawn(draw: Callable[..., Any]) -> Problem:
        form = draw(st.sampled_from(given))
        axes = BATCHES[form.batch]
        most = min(largest, 300) if axes else largest
        n, k = draw(extents(most)), draw(extents(most))
        m = draw(st.integers(1, few(variant)) if few(variant) else extents(most))
        if large(variant):
            m, n, k = draw(st.integers(-6, 40)) + LARGE[0], draw(st.integers(-6, 800)) + LARGE[1], k % 300
        if variant.config.removesuffix(" packed").endswith(" split"):
            k += draw(st.sampled_from([0, 264, 1000, 4099]))
        scales = st.sampled_from([0.5, 2.0, -1.5])
        unit = max(1, form.rows // min(t.itemsize for t in form.types))
        return Problem(
            form, m, columns(n, form.columns), k, tuple(draw(st.integers(2, 4)) for _ in range(axes)),
            (draw(st.integers(0, 3)), draw(st.integers(0, 3))), draw(scales), draw(scales),
            draw(st.integers(0, 3)) * unit if form.rows < ROW else 0, draw(st.integers(0, 2**32 - 1)),
        )  # fmt: skip

    return drawn().filter(lambda p: variant.supported(p.region(on), device) is None)
