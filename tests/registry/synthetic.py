"""Made-up variants: a cost, a condition, and the regions they take. They run any region by its ops' references."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aicf.ops.schema import schema_of
from aicf.registry.cost import Cost
from aicf.registry.registry import KernelRegistry
from aicf.registry.variant import HostCall, KernelVariant, Reject, one_op
from aicf.rows import RegionSpec
from aicf.types import OpKind, TensorDesc, TensorSpec

STRUCTURES = (
    "map", "gemm", "gemm+map", "gemm+map+reduce", "gemm+reduce", "reduce", "map+reduce", "reduce+map", "map+reduce+map", "maps",
)  # fmt: skip


def kernel(
    id: str, *kinds: str, us: float | Callable[[RegionSpec], float] = 1.0, signatures: Iterable[str] | None = None,
    reject: Callable[[RegionSpec], Reject | None] = lambda region: None, **more,
) -> KernelVariant:  # fmt: skip
    """A variant that takes one op, or, with `signatures`, exactly the regions of these (and their prefixes, on the way)."""
    taken = None if signatures is None else frozenset(signatures)

    def accepts(region):
        yield one_op(region) if taken is None else _among(region, taken)
        yield reject(region)

    def viable(region):
        prefixes = {s[: len(region.signature)] for s in taken or ()}
        yield one_op(region) if taken is None else _among(region, prefixes)

    def cost(region, device):
        return Cost({"made up": us(region) if callable(us) else us})

    return KernelVariant(id, kinds or ("*",), id.split(".")[0], accepts, cost, interpret, viable, **more)


def _among(region, signatures):
    return None if region.signature in signatures else Reject("ops", f"does not take {region.signature}")


def structured(
    id: str, *kinds: str, takes=STRUCTURES, us=1.0, reject=lambda region: None, asked=None, **more
) -> KernelVariant:
    """A variant that takes regions of these structures. `asked` collects (function, id) of each question."""
    asked = [] if asked is None else asked

    def accepts(region):
        asked.append(("accepts", id))
        yield reject(region)

    def cost(region, device):
        asked.append(("cost", id))
        return Cost({"made up": us(region) if callable(us) else us})

    return KernelVariant(id, kinds or ("*",), id.split(".")[0], accepts, cost, interpret, takes=takes, **more)


IN_PLACE = {
    "reshape",
    "rng_advance",
}  # of the ops that are no maps: those that read each element where they write it


def scattered(region: RegionSpec) -> set[int]:
    """Operands that a kernel may still read after it has begun to write: by a core, on the way to one, or broadcast."""
    found, before = set(), True
    for op in reversed(region.ops):
        core = not schema_of(op.kind).is_map and op.kind.name not in IN_PLACE
        before = before and not core
        shape = region.tensors[op.outputs[0]].shape
        found.update(t for t in op.inputs if t >= 0 and (not before or region.tensors[t].shape != shape))
    return found


def interpret(region, device) -> HostCall:
    """Run a region op by op with NumPy. As a kernel may, it writes to its results while it still reads what is read elsewhere."""
    late = scattered(region)

    def run(operands, results):
        known = {t: a if t in late else a.copy() for t, a in zip(region.inputs, operands)}
        for target in results if late else ():
            target[...] = -7
        for op in region.ops:
            arrays = [known[i] if i >= 0 else None for i in op.inputs]
            known.update(zip(op.outputs, schema_of(op.kind).call_reference(arrays, op.attrs)))
        for target, i in zip(results, region.outputs):
            target[...] = known[i]

    return HostCall(run)


def registry_of(*variants: KernelVariant) -> KernelRegistry:
    return KernelRegistry(variants)


def region(
    kind: str, *shapes: tuple[int, ...] | None, device: str = "cpu", dtype="f32", **attrs
) -> RegionSpec:
    """One op over dense operands of these shapes."""
    schema = schema_of(kind)
    specs = [None if s is None else TensorSpec(s, dtype, device) for s in shapes]
    pack = schema.pack(schema.normalized(specs, attrs))
    results = schema.infer(specs, pack)
    return RegionSpec.single(
        OpKind(kind), pack, [s and TensorDesc.dense(s) for s in specs], [TensorDesc.dense(s) for s in results]
    )
