"""Cores: what kernels are built around, besides maps. Each is declared once; how regions with it grow, read, are ordered and told
follows from that.

An op names its core (`@op(..., core="reduce")`, by default its own name). One that is not declared fuses with nothing. Beside an op of
one's own:

    declare(Core("sums", prologue=0, epilogue=True))

Then regions `map+sums+map` form, where a variant `takes` them; it finds the maps and the core in the region's RegionProgram.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import RegistryError
from ..ops import record
from ..ops.reductions import normal_axes
from ..ops.schema import OpSchema, schema_of
from ..types import OpKind, TensorDesc
from .outline import CodesOutline, ConvolutionOutline, CoreOutline, DataGradientOutline, Factor, GemmOutline
from .program import CoreOp, Reduction
from .region import RegionOp
from .rows import OVER_ROWS, REDUCE

Tensors = Sequence[TensorDesc]
Places = tuple[int | None, ...]
Leaving = tuple[tuple[int, int], ...]


def as_op(op: RegionOp, tensors: Tensors, places: Places, leaving: Leaving) -> CoreOp:
    return CoreOp(op.kind, op.attrs, places, leaving)


@dataclass(frozen=True)
class Core:
    """name      as ops say it, and as structures do: `map+reduce+map`
    prologue  the operand, by its number, that maps before the core may make: its kernel inlines them. None: all come from memory
    epilogue  whether maps may go on with its first result; the others leave as they are
    reduces   ops of it are reductions: any number along the same axes, with maps around them, is the structure `rows`
    wide      as such a region: its result has whole rows again
    epilogue_reduction  which op may be fused behind its maps, such as column sums: (op, tensors) -> bool
    said      in reasons; "" is the op's name
    outline   what a RegionProgram's core is made from: (op, tensors, and `operands` and `results` as a CoreOp has them)
    """

    name: str
    prologue: int | None = None
    epilogue: bool = False
    reduces: bool = False
    wide: bool = False
    epilogue_reduction: Callable[[RegionOp, Tensors], bool] | None = None
    said: str = ""
    outline: Callable[[RegionOp, Tensors, Places, Leaving], CoreOutline] = as_op

    def called(self, kind: OpKind) -> str:
        return self.said or kind.name


_DECLARED: dict[str, Core] = {}


def declare(core: Core) -> Core:
    """Known from now on. Once for a name: the same again is fine, another is refused."""
    known = _DECLARED.setdefault(core.name, core)
    if known != core:
        raise RegistryError(
            f"core {core.name!r} is already declared",
            expected=str(known),
            got=str(core),
            hint="choose another name for the new one",
        )
    return known


def undeclare(name: str) -> None:
    """Forget a core; for tests and notebooks that declare one again."""
    _DECLARED.pop(name, None)
    record.schema_epoch += 1


def core_of(op: OpKind | OpSchema) -> Core | None:
    """Of a map, or of an op that fuses with nothing: None."""
    return _DECLARED.get((op if isinstance(op, OpSchema) else schema_of(op)).core)


def declared(name: str) -> Core | None:
    return _DECLARED.get(name)


def epilogue_reduction_of(op: RegionOp, tensors: Tensors) -> frozenset[str]:
    """The cores whose fused epilogue reduction it may be."""
    return frozenset(
        [c.name for c in _DECLARED.values() if c.epilogue_reduction and c.epilogue_reduction(op, tensors)]
    )


# --- aicf's own -------------------------------------------------------------------------------------------------------


def reduction(op: RegionOp, tensors: Tensors, places: Places = (), leaving: Leaving = ()) -> Reduction:
    x = tensors[op.inputs[0]]
    return Reduction(op.kind.name.removeprefix("reduce_"), normal_axes(x.rank, op.attrs["axes"]), x.dtype)


def _gemm(op: RegionOp, tensors: Tensors, places: Places, leaving: Leaving) -> GemmOutline:
    given = zip((*op.inputs, -1), (*places, None), (op.attrs["trans_a"], op.attrs["trans_b"], False))
    a, b, c = (Factor(*factor) for factor in given)
    return GemmOutline(op.outputs[0], a, b, c, op.attrs)


def _convolution(op: RegionOp, tensors: Tensors, places: Places, leaving: Leaving) -> ConvolutionOutline:
    x, w = (Factor(*factor) for factor in zip(op.inputs, places))
    return ConvolutionOutline(op.outputs[0], x, w, op.attrs)


def _data_gradient(op: RegionOp, tensors: Tensors, places: Places, leaving: Leaving) -> DataGradientOutline:
    dy, w = (Factor(*factor) for factor in zip(op.inputs, places))
    return DataGradientOutline(op.outputs[0], dy, w, op.attrs)


def _codes(op: RegionOp, tensors: Tensors, places: Places, leaving: Leaving) -> CodesOutline:
    x, w = (Factor(*factor) for factor in list(zip(op.inputs, places))[:2])
    return CodesOutline(op.outputs[0], x, w, op.attrs["bits"])


def sums_columns(op: RegionOp, tensors: Tensors) -> bool:
    """Whether an op adds up floats along all axes but the last, and there are some: of none, sums are zeros, which no tile of a
    product is there to write."""
    if op.kind.name != "reduce_sum":
        return False
    x = tensors[op.inputs[0]]
    floats = x.rank >= 2 and x.dtype.kind == "float" and 0 not in x.shape[:-1]
    return floats and normal_axes(x.rank, op.attrs["axes"]) == tuple(range(x.rank - 1))


declare(Core("gemm", epilogue=True, epilogue_reduction=sums_columns, said="the product", outline=_gemm))
declare(Core("convolution", epilogue=True, said="the convolution", outline=_convolution))
declare(
    Core(
        "convolution_data_gradient", epilogue=True, said="the convolution's gradient", outline=_data_gradient
    )
)
declare(Core("gemm_codes", epilogue=True, said="the product", outline=_codes))
declare(Core(REDUCE, prologue=0, epilogue=True, reduces=True, outline=reduction))
declare(Core(OVER_ROWS, prologue=0, epilogue=True, reduces=True, wide=True))
