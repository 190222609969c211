"""NumericClass: what decides the bits of a result row, whatever number of rows there is and wherever the row is.

A kernel declares it with `numerics(region, device)`: a function of the kernel, its config, K or the length of a row, and the form of the
operands. A kernel whose bits also depend on the number of rows, on a row's index or on the number of multiprocessors has no class, and
says why. Kernels of one class give equal bits for equal rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ..device.spec import DeviceSpec
from ..rows import RegionSpec
from ..rows.program import Gemm, RegionProgram
from ..rows.read import read
from ..rows.reject import Reject


@dataclass(frozen=True)
class NumericClass:
    """
    compute   the instruction, its operand types and the type of the accumulators
    length    terms of a sum: K, or the length of a row
    order     in which they are added, "" where each element is a result of its own
    operands  their form, where it matters: through registers, as vectors of a certain width
    maps      the kernel whose compiler may contract what follows the sum to fused multiply-adds; "" where there is nothing to contract,
              and with strict numerics
    """

    compute: str
    length: int = 1
    order: str = ""
    operands: str = ""
    maps: str = ""

    def __str__(self) -> str:
        terms = f"{self.length} terms {self.order}" if self.order else ""
        maps = f"maps contracted by {self.maps}" if self.maps else ""
        return ", ".join(filter(None, (self.compute, terms, self.operands, maps)))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def no_class(reason: str) -> Reject:
    """The answer of a kernel whose rows have other bits among other rows."""
    return Reject("numerics", reason)


ALONE = NumericClass("each element alone")
EXACT = NumericClass("exact: copies, integers and bools")
UNDECLARED = no_class("the kernel declares no numeric class")
OVER_ROWS = no_class("a result adds up over rows")


def alone(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
    """What kernels of maps declare: each element is computed by itself."""
    return ALONE


def exact(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
    """What kernels declare that copy elements, or whose results are integers and bools that do not depend on the order of a sum of floats."""
    return EXACT


def of_region(declared: NumericClass | Reject, region: RegionSpec, id: str) -> NumericClass | Reject:
    """What a kernel declares, of a region with all that it fuses: its own compiler may contract maps; sums over rows have no class."""
    if isinstance(declared, Reject) or declared == EXACT:
        return declared
    program = read(region)
    if isinstance(program, RegionProgram) and program.epilogue_reduction is not None:
        return OVER_ROWS
    return replace(declared, maps=id) if not region.strict and _has_maps(program) else declared


def _has_maps(program: RegionProgram | Reject) -> bool:
    """Whether there is something that a compiler may contract: a map, a scale, an addend, or steps between reductions."""
    if not isinstance(program, RegionProgram) or not isinstance(program.core, Gemm | None):
        return True
    scaled = program.core is not None and (program.core.c is not None or program.core.alpha != 1.0)
    return bool(program.after.applies) or scaled
