"""Products with maps fused to them: regions and cases for the GEMM kernels' tests."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernel_cases import GEMMS, HALVES, MMAS, Case, desc, fused, halves_of

from aicf.rows import RegionSpec
from aicf.types import ActKind, DType, TensorDesc, bf16, f8e4m3, f8e5m2, f16, f32, i32, i64

NAIVE, TILED = "cuda.gemm_naive.v1", "cuda.gemm_tiled.v1[32x32]"


@dataclass(frozen=True)
class Product:
    """y = op(a) op(b) of an m x k and a k x n matrix; what follows it is written as for `fused`.

    batch   before both, but for an operand that `shared` names
    heads   the batch's two axes lie inside the rows' in a, as heads of attention do
    out     the type of the results and of what follows, if it is not `dtype`
    b_dtype b's, if it is not `dtype`
    """

    m: int
    n: int
    k: int
    dtype: DType = f32
    trans_a: bool = False
    trans_b: bool = False
    alignment: int = 256
    batch: tuple[int, ...] = ()
    shared: str = ""
    heads: bool = False
    out: DType | None = None
    b_dtype: DType | None = None

    def matrix(self, *shape: int, stride: Sequence[int] | None = None) -> TensorDesc:
        """Of the results' type; and their shape, by default."""
        shape = shape or (*self.batch, self.m, self.n)
        return desc(shape, self.out or self.dtype, stride, self.alignment)

    def _factor(self, name: str, rows: int, columns: int, transposed: bool) -> TensorDesc:
        shape = (columns, rows) if transposed else (rows, columns)
        dtype = self.b_dtype or self.dtype if name == "b" else self.dtype
        if name == "a" and self.heads:
            x, y = self.batch
            stride = y * shape[0] * shape[1], shape[1], y * shape[1], 1
            return desc((x, y, *shape), dtype, stride, self.alignment)
        batch = () if name == self.shared else self.batch
        return desc((*batch, *shape), dtype, alignment=self.alignment)

    def then(
        self, given: dict[str, TensorDesc], *ops: tuple[Any, ...], keep: Sequence[str] = (), strict: bool = False,
        c: str | None = None, bias: str | None = None, **attrs: Any,
    ) -> RegionSpec:  # fmt: skip
        """`given`: operands of the ops; c and bias are names among them. With save_preact there is z beside y."""
        a = self._factor("a", self.m, self.k, self.trans_a)
        operands = {"a": a, "b": self._factor("b", self.k, self.n, self.trans_b), **given}
        out_dtype = self.out.id if self.out else 0
        attrs = {"trans_a": self.trans_a, "trans_b": self.trans_b, "out_dtype": out_dtype, **attrs}
        made = ("y", "z") if attrs.get("save_preact") else "y"
        return fused(operands, (made, "gemm", "a", "b", c, bias, attrs), *ops, keep=keep, strict=strict)


# --- what follows the product -----------------------------------------------------------------------------------------


def biased(p: Product, length: int, act: str = "", keep: bool = False) -> RegionSpec:
    ops = [("z", "bias_add", "y", "bias"), *([("d", act, "z")] if act else [])]
    return p.then({"bias": p.matrix(length)}, *ops, keep=("d", "z") if keep else ())


def residual(p: Product) -> RegionSpec:
    return p.then(
        {"bias": p.matrix(p.n), "x": p.matrix()},
        ("z", "bias_add", "y", "bias"), ("h", "gelu", "z"), ("s", "scale", "h", {"factor": -1.5}), ("d", "add", "x", "s"),
    )  # fmt: skip


def two_biases(p: Product) -> RegionSpec:
    ops = ("u", "bias_add", "y", "row"), ("v", "bias_add", "u", "column"), ("d", "relu", "v")
    return p.then({"row": p.matrix(p.n), "column": p.matrix(p.m)}, *ops)


def two_activations(p: Product) -> RegionSpec:
    return p.then({}, ("u", "tanh", "y"), ("v", "leaky_relu", "u", {"slope": 0.2}), ("d", "sigmoid", "v"))


def gradient(p: Product, act: str) -> RegionSpec:
    """The product is dy; the other operand was stashed. gZ leaves, and so does dy, which a residual's gradient is."""
    return p.then({"x": p.matrix()}, ("d", f"{act}_grad", "y", "x"), keep=("d", "y"))


def dropped(p: Product) -> RegionSpec:
    ops = (
        ("z", "bias_add", "y", "bias"),
        ("h", "relu", "z"),
        ("d", "dropout", "h", "rng", {"rate": 0.4, "layer": 3}),
    )
    return p.then({"bias": p.matrix(p.n), "rng": desc((2,), i64)}, *ops)


def converted(p: Product, to: DType) -> RegionSpec:
    """Both types leave: the product in its own, its square in the other."""
    return p.then({}, ("w", "convert", "y", {"dtype": to.id}), ("d", "square", "w"), keep=("d", "y"))


def compared(p: Product) -> RegionSpec:
    """A mask leaves, and what it selects: a row, repeated, where the product is not greater than a column."""
    ops = ("mask", "greater", "y", "column"), ("u", "abs", "y"), ("d", "select", "mask", "u", "row")
    return p.then({"column": p.matrix(p.m, 1), "row": p.matrix(1, p.n)}, *ops, keep=("d", "mask"))


def pitched(p: Product) -> RegionSpec:
    """A residual whose rows lie apart, and a bias that was broadcast as an op of its own."""
    wide = {"shape": (p.m, p.n), "dims": (1,)}
    ops = ("w", "broadcast_in_dim", "bias", wide), ("u", "mul", "w", "y"), ("d", "sub", "u", "x")
    return p.then({"bias": p.matrix(p.n), "x": p.matrix(stride=(p.n + 8, 1))}, *ops)


def spread(p: Product) -> RegionSpec:
    """A column-major residual, and one on every second column of a wider matrix."""
    given = {"x": p.matrix(stride=(1, p.m)), "w": p.matrix(stride=(2 * p.n + 3, 2))}
    return p.then(given, ("u", "sub", "y", "x"), ("d", "maximum", "u", "w"))


def every_value(p: Product) -> RegionSpec:
    """Product, pre-activation and activation all leave."""
    ops = ("z", "bias_add", "y", "bias"), ("d", "tanh", "z")
    return p.then({"bias": p.matrix(p.n)}, *ops, keep=("y", "z", "d"))


def counted(p: Product) -> RegionSpec:
    """Integers in and out."""
    ops = ("n", "convert", "y", {"dtype": i32.id}), ("d", "add", "n", "row")
    return p.then({"row": desc((p.n,), i32)}, *ops)


def own(p: Product) -> RegionSpec:
    """What the product brings itself: c, a bias, an activation and its operand; then a residual."""
    given = {"c": p.matrix(), "bias": p.matrix(p.n), "x": p.matrix()}
    attrs = {"act": ActKind.gelu, "save_preact": True, "alpha": 0.5, "beta": -1.5}
    return p.then(given, ("d", "add", "y", "x"), keep=("d", "z"), c="c", bias="bias", **attrs)


def residuals(p: Product, count: int, kept: int = 1, **more: Any) -> RegionSpec:
    """So many in a row, of which the last results are kept; `more` says how the operands lie."""
    given = {f"x{i}": p.matrix(**more) for i in range(count)}
    ops = [(f"y{i}", "add", "y" if i == 0 else f"y{i - 1}", f"x{i}") for i in range(count)]
    return p.then(given, *ops, keep=[f"y{i}" for i in range(count - kept, count)])


def summed(p: Product, act: str = "relu", keep: Sequence[str] = ("d", "s"), c: bool = False) -> RegionSpec:
    """Backward: the product is dy, and the sums of gZ's columns are the gradient of a bias."""
    given = {"x": p.matrix(), **({"c": p.matrix()} if c else {})}
    ops = ("d", f"{act}_grad", "y", "x"), ("s", "reduce_sum", "d", {"axes": (0,)})
    if c:
        return p.then(given, *ops, keep=keep, c="c", alpha=0.5, beta=-1.5)
    return p.then(given, *ops, keep=keep)


def summed_alone(p: Product) -> RegionSpec:
    """The product's own columns, as a row."""
    return p.then({}, ("s", "reduce_sum", "y", {"axes": (0,), "keepdims": True}), keep=("y", "s"))


def summed_long(p: Product) -> RegionSpec:
    """What takes many registers, and leaves many results."""
    given = {"bias": p.matrix(p.n), "x": p.matrix(), "rng": desc((2,), i64)}
    ops = (
        ("z", "bias_add", "y", "bias"),
        ("h", "gelu_grad", "z", "x"),
        ("t", "dropout", "h", "rng", {"rate": 0.4, "layer": 3}),
    )
    last = ("d", "add", "x", "t"), ("s", "reduce_sum", "d", {"axes": (0,)})
    return p.then(given, *ops, *last, keep=("y", "h", "d", "s"))


@functools.cache
def sums(p: Product) -> dict[str, RegionSpec]:
    """Columns that are added up beside the product: of what leaves, and of what nobody else reads."""
    return {
        "relu_grad, sums": summed(p), "gelu_grad, sums": summed(p, "gelu"), "sums only": summed(p, "tanh", ("s",)),
        "c, sums": summed(p, c=True), "sums alone": summed_alone(p), "long, sums": summed_long(p),
    }  # fmt: skip


@functools.cache
def regions(p: Product) -> dict[str, RegionSpec]:
    """Everything that an epilogue is made of."""
    made = {f"bias[{length}]": biased(p, length) for length in sorted({1, p.m, p.n})}
    made |= {f"bias, {act}, z": biased(p, p.n, act, True) for act in ("relu", "gelu", "sigmoid", "tanh")}
    made |= {f"{act}_grad": gradient(p, act) for act in ("relu", "gelu", "gelu_erf", "tanh")}
    made |= {f"to {t}": converted(p, t) for t in (f32, f16, bf16) if t is not p.dtype}
    for then in (
        residual, two_biases, two_activations, dropped, compared, pitched, spread, every_value, counted, own
    ):  # fmt: skip
        made[then.__name__] = then(p)
    return made


def batched(m: int, n: int, k: int, dtype: DType = f32) -> dict[str, RegionSpec]:
    """Every way that a batch lies: with axes that are merged and those that are not, and operands that are shared."""
    p = partial(Product, m, n, k, dtype)
    plane = p(batch=(3,))
    made = {
        "alone": p(batch=(3,)).then({}),
        "c, z": own(p(batch=(2, 3))),
        "rows and columns": two_biases(p(batch=(3,), trans_a=True)),
        "dropped": dropped(p(batch=(2,), trans_b=True)),
        "shared a": residual(p(batch=(3,), shared="a")),
        "shared b": residual(p(batch=(2, 3), shared="b")),
        "shared b, rows": two_biases(p(batch=(2, 3), shared="b")),
        "heads": residual(p(batch=(2, 3), heads=True)),
        "heads, rows": two_biases(p(batch=(2, 3), heads=True, trans_b=True)),
        "repeated": plane.then({"x": plane.matrix(1, m, n)}, ("w", "broadcast_in_dim", "x", {"shape": (3, m, n), "dims": (0, 1, 2)}),
                               ("d", "sub", "y", "w")),
        "none": residual(p(batch=(0,))),
    }  # fmt: skip
    return made


TYPES = {f32: 2e-5, **HALVES}  # and what an epilogue in them may be off
ODD = (37, 53, 29)
EDGES = ((1, 1, 3), (1, 40, 8), (40, 1, 8), (5, 6, 0), (0, 5, 3), (5, 0, 3))
EVEN = (132, 136, 72)  # more than a tile both ways, in whole runs of columns


# Times that. What is rounded the other way, since its sum is a little off, is off by a unit, and its square by two and a half
SQUARED = 1.25


def case_of(variant: str, r: RegionSpec) -> Case:
    """To the tolerance of its coarsest type."""
    squares = any(op.kind.name == "square" for op in r.ops)
    return Case(
        variant, r, tolerance=max(TYPES.get(t.dtype, 0.0) for t in r.tensors) * (SQUARED if squares else 1)
    )


def small() -> list[Case]:
    """For the simulator: seconds."""
    made = []
    for dtype in TYPES:
        for variant, sizes in ((NAIVE, (5, 7, 3)), (TILED, (6, 8, 4))):
            made += [case_of(variant, r) for r in regions(Product(*sizes, dtype)).values()]
    made += [case_of(v, residual(Product(*sizes))) for sizes in EDGES for v in (NAIVE, TILED)]
    made += [case_of(v, r) for v in (NAIVE, TILED) for r in batched(5, 6, 4).values()]
    fp8 = Product(5, 8, 12, f8e4m3, out=f16, b_dtype=f8e5m2), Product(5, 7, 3, f8e5m2, out=f32)
    made += [case_of(v, own(p)) for v in (NAIVE, TILED) for p in fp8]
    made += [case_of(TILED, batched(33, 18, 5)["heads"])]
    two_tiles = Product(33, 34, 5, trans_a=True, trans_b=True)
    made += [case_of(TILED, r) for r in (summed(two_tiles), summed_alone(Product(5, 7, 3)))]
    return [*made, case_of(TILED, biased(two_tiles, 33, "gelu", True))]


def simulated(cases: list[Case]) -> list[Case]:
    """Every sixth, unless all are wanted: numba's simulator has a thread of the host's for each of the block's."""
    return cases if os.environ.get("AICF_TEST_ALL") else cases[::6]


def lean(variant: str) -> bool:
    """Whether its threads hold so many sums that they have no registers for places of columns."""
    return "tiled.v1[128x128" in variant


def large() -> list[Case]:
    """For a GPU: every variant and type, at odd and even sizes."""
    made = []
    for v in (*GEMMS, *MMAS):
        for dtype in TYPES:
            if v in MMAS and dtype not in halves_of(v):
                continue
            each = regions(Product(*EVEN, dtype)) | batched(*EVEN, dtype)
            if v in GEMMS:
                odd = regions(Product(*ODD, dtype)) | batched(*ODD, dtype)
                each |= {f"odd {name}": r for name, r in odd.items()}
            if v != NAIVE:
                for sizes in (EVEN, (40, 24, 8), (300, 200, 72)):
                    each |= {f"{name} {sizes}": r for name, r in sums(Product(*sizes, dtype)).items()}
            made += [case_of(v, r) for name, r in each.items() if not (lean(v) and "spread" in name)]
            made.append(case_of(v, residual(Product(40, 53, 24, dtype, trans_b=True))))
            made += [case_of(v, own(Product(*EVEN, dtype, out=t))) for t in TYPES if t is not dtype]
    for v in GEMMS:
        made += [case_of(v, residual(Product(*sizes))) for sizes in EDGES]
        made += [case_of(v, summed(Product(*sizes))) for sizes in (*EDGES[:4], (300, 53, 29)) if v != NAIVE]
        made.append(case_of(v, biased(Product(*ODD, trans_a=True, trans_b=True), 1, "gelu")))
        made.append(case_of(v, residual(Product(*EVEN, alignment=4))))
    return made


def split_cases(variant: str, m: int = 5, n: int = 8) -> list[Case]:
    """Parts of equal length and not, in every type and order that the variant takes; no rows; one result."""
    types = HALVES if "mma" in variant else TYPES
    sizes = ((m, n, 256), (m, n, 136), (0, n, 136), (1, 8, 2048))
    made = [residual(Product(*size, dtype)) for size in sizes for dtype in types]
    made += [own(Product(m, n, 264, dtype, trans_a=True, trans_b=dtype is not f16)) for dtype in types]
    if "mma" not in variant:
        made += [
            biased(Product(m + 2, n + 3, 101, trans_b=True), n + 3, "tanh", True),
            residual(Product(1, 1, 301)),
        ]
    return [case_of(variant, r) for r in made]
