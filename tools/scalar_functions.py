"""Compile the scalar functions of aicf's ops for the host into the file that comes with aicf: aicf/cpu_kernels/compiler/functions.bin.

    .venv/bin/python tools/scalar_functions.py [--check]

Run it after a change of an op's scalar function or of what compiles them; until then numba compiles what changed on first use. It compiles what
is new alone. --check compiles nothing, and says what is missing or out of date; exit code 1 if anything is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

from aicf.cpu_kernels import elementwise, reduce, rows
from aicf.cpu_kernels.compiler import halves, shipped
from aicf.cpu_kernels.compiler.functions import plain, signature
from aicf.cpu_kernels.compiler.shown import expressions, loops_of
from aicf.device.spec import host
from aicf.errors import TypeInferenceError
from aicf.ops.schema import OperandDecl, OpSchema, schemas
from aicf.registry.variant import KernelVariant
from aicf.rows import RegionOp, RegionSpec
from aicf.types import DType, TensorDesc, TensorSpec

TYPES = DType.f32, DType.f16, DType.f64, DType.i32, DType.i64, DType.u8, DType.bool
KERNELS = [v for m in (elementwise, reduce, rows) for v in vars(m).values() if isinstance(v, KernelVariant)]
BITS = {"uint16": ("f16", "bf16"), "uint8": ("e4m3", "e5m2")}


class Called(NamedTuple):
    """A scalar function, and NumPy's names of the types of its operands and results."""

    function: Any
    operands: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def request(self) -> tuple[Any, ...]:
        arguments, _, constants = signature(self.function, self.operands)
        return arguments, self.results, constants, "float64" in self.operands

    @property
    def key(self) -> str | None:
        return shipped.shipped_key(plain(self.function), *self.request)


def called() -> Iterator[Called]:
    """What the host's loops call for the samples of aicf's own ops, in all of TYPES, and for conversions."""
    for bits, names in BITS.items():
        for name in names:
            yield Called(getattr(halves, f"widen_{name}"), (bits,), ("float32",))
            yield Called(getattr(halves, f"narrow_{name}"), ("float32",), (bits,))
    for region in dict.fromkeys(_regions()):
        for kernel in KERNELS:
            if kernel.supported(region, host()) is not None:
                continue
            for spec in loops_of(kernel.build(region, host())):
                for e in expressions(spec):
                    types = [dtype.compute.numpy.name for dtype in e.dtypes]
                    for function, ins, outs in e.steps:
                        yield Called(
                            function, tuple([types[i] for i in ins]), tuple([types[o] for o in outs])
                        )


def _regions() -> Iterator[RegionSpec]:
    for schema in schemas():
        if schema.origin == "aicf":
            for sample in schema.sample_specs:
                declared = schema.declared(len(sample["shapes"]))
                shared: set[DType] = set().union(*[d.type.dtypes for d in declared if d.type.shared])
                for dtype, other in product(TYPES, (DType.i32, DType.i64)):
                    if dtype in (shared or {DType.f32}):
                        with suppress(TypeInferenceError):  # a sample of other types
                            yield _region(schema, declared, sample, dtype, other)


def _region(
    schema: OpSchema, declared: Any, sample: dict[str, Any], dtype: DType, other: DType
) -> RegionSpec:
    """Of one op. Operands that can't have `dtype`, such as indices, have `other`, or the first type that they may have."""
    specs = [
        None if shape is None else TensorSpec(shape, _type(decl, dtype, other))
        for decl, shape in zip(declared, sample["shapes"])
    ]
    attrs = schema.pack(schema.normalized(specs, sample["attrs"]))
    operands = [TensorDesc.dense(spec) for spec in specs if spec is not None]
    results = [TensorDesc.dense(spec) for spec in schema.infer(specs, attrs)]
    index = iter(range(len(operands)))
    ins = tuple([-1 if spec is None else next(index) for spec in specs])
    outs = tuple(range(len(operands), len(operands) + len(results)))
    op = RegionOp(schema.kind, attrs, ins, outs)
    return RegionSpec((op,), (*operands, *results), tuple(range(len(operands))), outs)


def _type(decl: OperandDecl, *wanted: DType) -> DType:
    known = decl.type.dtypes
    return next((t for t in wanted if t in known), min(known, key=lambda t: t.id))


def by_key() -> dict[str, Called]:
    """Each function once. Those whose code depends on more than files have no key."""
    found = {each.key: each for each in dict.fromkeys(called())}
    return {key: each for key, each in found.items() if key is not None}


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the scalar functions that come with aicf.")
    parser.add_argument("--check", action="store_true")
    checks = parser.parse_args().check
    wanted, known, path = by_key(), dict[str, bytes](), shipped.in_package(shipped.FILE)
    if path.exists():
        platform, entries = shipped.read()
        known = entries if platform == shipped.platform() else {}
    new, old = wanted.keys() - known.keys(), known.keys() - wanted.keys()
    names = sorted({wanted[key].function.__name__ for key in new})
    print(
        f"{len(wanted)} functions; {len(new)} are missing: {', '.join(names) or 'none'}; {len(old)} are out of date"
    )
    if not checks:
        entries = {key: known.get(key) or compiled(key, each) for key, each in wanted.items()}
        shipped.write(entries)
        print(f"{path}: {path.stat().st_size:,} bytes")
    return int(checks and bool(new or old))


def compiled(key: str, called: Called) -> bytes:
    """Its bitcode, by numba."""
    from aicf.cpu_kernels.compiler.numba_functions import compile_function

    bitcode, movable = compile_function(called.function, *called.request, f"aicf.{key}")
    assert movable, f"{called.function} has an address of this process"
    return bitcode


if __name__ == "__main__":
    raise SystemExit(main())
