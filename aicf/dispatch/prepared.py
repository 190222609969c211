"""A question of `op_call`, answered: the selection, and launches that lack nothing but pointers and a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType

from ..device import streams
from ..device.tensor import ALIGNMENT, Runtime
from ..errors import AicfError, FeedError, KernelError, NoKernelError, VerifyError
from ..lazy import deferred
from ..ops import agreement
from ..ops.record import OpSchema
from ..ops.schema import ELEMENTWISE, schema_of
from ..printing import labelled
from ..registry import blame
from ..registry.registry import KernelRegistry
from ..registry.select import Selection, select
from ..registry.variant import Collective, HostCall, In, Launch, Table, TensorMap, Work
from ..rows import RegionSpec
from ..types import TensorDesc, TensorSpec
from .overlap import distances, overlaps_itself, share

if TYPE_CHECKING:
    from ..cuda_kernels.compiler.tensor_map import Descriptors

Descs = Sequence[TensorDesc | None]


@dataclass(frozen=True, repr=False)
class StagedSelection(Selection):
    """A choice for dense copies: no kernel took the tensors as they are. `staged` says which, and why."""

    staged: tuple[str, ...] = ()

    def _rendering(self) -> RenderableType:
        copies = [("staged" if n == 0 else "", "yellow", line) for n, line in enumerate(self.staged)]
        return Group(super()._rendering(), labelled(copies))

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "staged": list(self.staged)}


@dataclass(frozen=True)
class KernelStart:
    """One kernel launch. `fill`: (position among the arguments, which pointer, bytes to add). `maps`: (position, descriptors)
    of pointers in whose place the address of a descriptor goes."""

    kernel: Any
    config: Any
    args: list[Any]
    fill: tuple[tuple[int, int, int], ...]
    maps: tuple[tuple[int, Descriptors], ...] = ()


@dataclass(frozen=True)
class Pair:
    """A result and another tensor, by place among the call's tensors, and when their memory may overlap."""

    result: int
    other: int
    low: int
    high: int
    in_place: bool  # exactly the same storage is allowed


class Prepared:
    """What is known of a call before its pointers are: shared by all calls that are equal up to those.

    ordinal  of the CUDA device; None on the host
    """

    def __init__(
        self, schema: OpSchema, selection: Selection, operands: Descs, results: Sequence[TensorDesc],
        ordinal: int | None, host: HostCall | None, starts: Sequence[KernelStart] = (), scratch: int = 0,
    ) -> None:  # fmt: skip
        self.schema, self.selection, self.ordinal = schema, selection, ordinal
        self.host, self.starts, self.scratch = host, tuple(starts), scratch
        self.tensors, self.operands = (*operands, *results), len(operands)
        given = schema.declared(len(operands))[: len(operands)]
        self.names = (*(d.name for d in given), *schema.named_results(len(results))[: len(results)])
        self.pairs = tuple(_pairs(schema, operands, results))

    def check_overlap(self, pointers: Sequence[int]) -> None:
        """FeedError if a result lies over another tensor, unless the op may be computed in place and is."""
        for pair in self.pairs:
            distance = pointers[pair.result] - pointers[pair.other]
            if pair.low < distance < pair.high and not (distance == 0 and pair.in_place):
                self._refuse_overlap(pair, distance)

    def _refuse_overlap(self, pair: Pair, distance: int) -> None:
        a, b = self.tensors[pair.result], self.tensors[pair.other]
        assert a is not None and b is not None
        if not share(a, b, distance):
            return
        name, other = self.names[pair.result], self.names[pair.other]
        raise FeedError(
            f"{self.schema.name}: {name} overlaps {other}",
            expected="memory of its own" + f", or exactly that of {other}" * pair.in_place,
            got=f"{name} {a} starts {distance:+d} bytes from {other} {b}",
        )

    def run(self, tensors: Sequence[Any], stream: int = 0) -> None:
        """Compute on all of the call's tensors: pointers on CUDA, arrays on the host, anything for what was left out."""
        if self.host is not None:
            operands = [a for a, d in zip(tensors, self.tensors[: self.operands]) if d is not None]
            chosen = self.selection
            blame.run_on_host(
                chosen.kernel_id, chosen.region, self.host, operands, list(tensors[self.operands :])
            )
        elif self.starts:
            self._launch(tensors, stream)

    def _launch(self, pointers: Sequence[int], handle: int) -> None:
        assert self.ordinal is not None, "the host has no launches"
        stream, scratch = streams.stream_object(self.ordinal, handle), 0
        previous = streams.enter(self.ordinal)
        try:
            if self.scratch:
                scratch = streams.allocate(handle, self.scratch)
                pointers = [*pointers, scratch]
            launch_all(self.starts, pointers, stream)
        finally:
            if scratch:
                streams.free(handle, scratch)
            streams.leave(previous)


def launch_all(starts: Sequence[KernelStart], pointers: Sequence[int], stream: Any) -> None:
    """Start kernels in order on a `cuda.core.Stream` of the current device."""
    launch = _launcher()
    for start in starts:
        args = start.args.copy()
        for at, which, offset in start.fill:
            args[at] = pointers[which] + offset
        for at, described in start.maps:
            args[at] = described.at(args[at])
        launch(stream, start.config, start.kernel, *args)


@cache
def _launcher() -> Any:
    """An import costs each call what a tenth of a launch does."""
    from cuda.core import launch

    return launch


def _pairs(schema: OpSchema, operands: Descs, results: Sequence[TensorDesc]) -> Iterator[Pair]:
    tensors = (*operands, *results)
    for i, result in enumerate(results, len(operands)):
        for j, other in enumerate(tensors[:i]):
            if other is not None:
                in_place = j < len(operands) and _in_place(schema, i - len(operands), j, result, other)
                low, high = distances(result, other)
                if low < high:
                    yield Pair(i, j, low, high, in_place)


def _in_place(schema: OpSchema, result: int, operand: int, y: TensorDesc, x: TensorDesc) -> bool:
    """Each element of the result is made of the operand's element in the same place, or the op declares the alias."""
    if (
        schema.alias.get(result, (None,))[0] == operand
        and x.contiguous
        and y.contiguous
        and x.nbytes == y.nbytes
    ):
        return True
    layout = (x.dtype.itemsize, x.shape, x.stride) == (y.dtype.itemsize, y.shape, y.stride)
    return layout and (ELEMENTWISE in schema.traits or schema.alias.get(result, (None,))[0] == operand)


# An op that no kernel takes, of which a graph is made: (schema, attributes, operands, results, runtime) -> the answer, or None.
Compose = Callable[[OpSchema, Mapping[str, Any], Descs, Sequence[TensorDesc], Runtime], "Prepared | None"]
compose: Compose = deferred("aicf.graph.composed", "compose")

# --- preparing --------------------------------------------------------------------------------------------------------


def prepare(
    schema: OpSchema, attrs: Mapping[str, Any], operands: Descs, results: Sequence[TensorDesc], runtime: Runtime,
    registry: KernelRegistry, invariant: bool = False,
) -> Prepared:  # fmt: skip
    """Infer, check the results, select, build, compile and load."""
    specs = [None if d is None else TensorSpec(d.shape, d.dtype, d.device) for d in operands]
    packed = schema.pack(schema.normalized(specs, attrs))
    _check_results(schema, schema.infer(specs, packed, runtime.kind), results)
    agreement.look_at(schema, packed)
    region = RegionSpec.single(schema.kind, packed, list(operands), list(results))
    region = replace(region, strict=invariant, invariant=invariant)
    ordinal = getattr(runtime, "ordinal", None)
    staged: tuple[str, ...] = ()
    dense = _dense(region)
    try:
        selection = select(region, runtime.spec, registry)
    except NoKernelError as error:
        try:
            selection = select(dense, runtime.spec, registry)
        except NoKernelError:
            composes = schema.instead_fn and runtime.kind != "cpu" and not invariant
            made = compose(schema, attrs, operands, results, runtime) if composes else None
            if made is None:
                raise error from None
            return made
        staged = tuple(_why_staged(region, schema))
        selection = StagedSelection(
            dense,
            runtime.spec,
            selection.chosen,
            selection.ranking,
            selection.refusals,
            selection.selector,
            (*staged, *error.details),
        )
    if all(r.numel == 0 for r in results):
        return Prepared(schema, selection, operands, results, ordinal, None)
    variant = selection.chosen.variant
    if runtime.kind == "cpu":
        built = blame.built(variant, dense if staged else region, runtime.spec)
        if isinstance(built, Collective):
            raise _of_a_program(schema.name)
        assert isinstance(built, HostCall), variant.id
        call = _by_dense_copies(built) if staged else built
        return Prepared(schema, selection, operands, results, ordinal, call)
    builder = StartBuilder(runtime, registry, len(operands) + len(results))
    builder.run(region, selection, _places(operands, results))
    return Prepared(schema, selection, operands, results, ordinal, None, builder.starts, builder.scratch)


def _by_dense_copies(call: HostCall) -> HostCall:
    """The call on dense copies of tensors with other strides; results are copied back."""

    def run(operands: list[Any], results: list[Any]) -> None:
        copies: dict[Any, Any] = {}  # an operand that is also a result has one

        def dense(array: Any) -> Any:
            if array.flags.c_contiguous:
                return array
            key = array.ctypes.data, array.dtype, array.shape, array.strides
            if key not in copies:
                copies[key] = array.copy(order="C")
            return copies[key]

        ins, outs = list(map(dense, operands)), list(map(dense, results))
        call.function(ins, outs)
        for result, made in zip(results, outs):
            if made is not result:
                result[...] = made

    return HostCall(run)


def _check_results(schema: OpSchema, inferred: Sequence[TensorSpec], results: Sequence[TensorDesc]) -> None:
    told = schema.named_results(len(inferred))
    names = ", ".join(told[: len(inferred)])
    if len(inferred) != len(results):
        raise AicfError(
            f"{schema.name} gives {len(inferred)} results: {names}", expected=f"{len(inferred)} outputs",
            got=str(len(results)),
        )  # fmt: skip
    for name, want, got in zip(told, inferred, results):
        if (want.shape, want.dtype) != (got.shape, got.dtype):
            spec = TensorSpec(got.shape, got.dtype, got.device)
            raise AicfError(f"{schema.name}: result {name} does not fit", expected=str(want), got=str(spec))
        if overlaps_itself(got):
            raise FeedError(
                f"{schema.name}: result {name} overlaps itself", expected="each element in memory of its own", got=str(got)
            )  # fmt: skip


# A place: which of the call's pointers (the scratch memory's comes after the tensors'), and bytes to add.
Place = tuple[int, int]


def _of_a_program(kind: str) -> VerifyError:
    return VerifyError(
        f"{kind} of several ranks is a step of a program",
        hint="compile(..., parallel=aicf.distributed.DataParallel())",
    )


def _places(operands: Descs, results: Sequence[TensorDesc]) -> tuple[list[Place], list[Place]]:
    """Places of the region's operands and results: an operand that was left out has none."""
    ins = [(i, 0) for i, d in enumerate(operands) if d is not None]
    return ins, [(len(operands) + i, 0) for i in range(len(results))]


def _dense(region: RegionSpec) -> RegionSpec:
    tensors = (
        t if t.contiguous else TensorDesc.dense(TensorSpec(t.shape, t.dtype, t.device))
        for t in region.tensors
    )
    return replace(region, tensors=tuple(tensors))


def _why_staged(region: RegionSpec, schema: OpSchema) -> Iterator[str]:
    inputs = region.anchor.inputs
    given = [d.name for d, i in zip(schema.declared(len(inputs)), inputs) if i >= 0]
    for name, t in zip(
        [*given, *schema.named_results(len(region.results))], (*region.operands, *region.results)
    ):
        if not t.contiguous:
            yield f"{name} {t} in a dense copy: no kernel takes these strides"


class StartBuilder:
    """Collects the launches of a call and lays out its scratch memory."""

    def __init__(self, runtime: Runtime, registry: KernelRegistry, scratch_pointer: int) -> None:
        self.runtime, self.registry, self.scratch_pointer = runtime, registry, scratch_pointer
        self.starts: list[KernelStart] = []
        self.scratch = 0

    def reserve(self, nbytes: int) -> Place:
        place = self.scratch_pointer, self.scratch
        self.scratch += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return place

    def run(self, region: RegionSpec, selection: Selection, places: tuple[list[Place], list[Place]]) -> None:
        """The chosen kernel; around it the copies of what it does not take as it is."""
        dense, (ins, outs) = selection.region, places
        after = []
        for i, (given, wanted) in enumerate(zip(region.operands, dense.operands)):
            if given != wanted:
                place = self.reserve(wanted.nbytes)
                self.copy(given, wanted, ins[i], place)
                ins[i] = place
        for i, (given, wanted) in enumerate(zip(region.results, dense.results)):
            if given != wanted:
                place = self.reserve(wanted.nbytes)
                after.append((wanted, given, place, outs[i]))
                outs[i] = place
        self.start(selection, ins, outs)
        for copy in after:
            self.copy(*copy)

    def copy(self, source: TensorDesc, target: TensorDesc, at: Place, to: Place) -> None:
        schema = schema_of("copy")
        region = RegionSpec.single(schema.kind, schema.pack({}), [source], [target])
        if source.numel:
            self.start(select(region, self.runtime.spec, self.registry), [at], [to])

    def start(self, selection: Selection, ins: list[Place], outs: list[Place]) -> None:
        variant, region, device = selection.chosen.variant, selection.region, self.runtime.spec
        work = self.reserve(variant.query_workspace(region, device))
        built = blame.built(variant, region, device)
        if isinstance(built, Collective):
            raise _of_a_program(region.kind.name)
        assert isinstance(built, list), variant.id
        for launch in built:
            self.starts.append(start_of(launch, region, variant.id, ins, outs, work))
        if any(_points_at_work(launch.args) for launch in built):
            self.scratch = max(self.scratch, ALIGNMENT)  # a pointer to none of it is a pointer all the same


def _points_at_work(arg: Any) -> bool:
    if isinstance(arg, tuple):
        return any(map(_points_at_work, arg))
    return isinstance(arg.source if isinstance(arg, TensorMap) else arg, Work)


def start_of(
    launch: Launch, region: RegionSpec, kernel_id: str, ins: list[Place], outs: list[Place], work: Place
) -> KernelStart:
    """A launch compiled and loaded for the current device, which lacks pointers alone."""
    from ..cuda_kernels.compiler import engine

    start = engine.prepare(launch, region, kernel_id)
    fill, maps = [], []
    for at, arg in start.pointers:
        if isinstance(arg, Table):
            raise KernelError(
                f"{kernel_id} has a table, which is filled when a launch is bound", where=region.signature,
                expected="a kernel for calls, whose pointers are its parameters", got=f"a Table of {len(arg.entries)} entries",
                hint="let its `accepts` refuse regions of one op, or pass In, Out and Work",
            )  # fmt: skip
        if isinstance(arg, TensorMap):
            maps.append((at, engine.describe(arg)))
        tensor = arg.source if isinstance(arg, TensorMap) else arg
        which, offset = (
            work if isinstance(tensor, Work) else (ins if isinstance(tensor, In) else outs)[tensor.index]
        )
        fill.append((at, which, offset + tensor.offset))
    return KernelStart(start.kernel, start.on_streams, list(start.args), tuple(fill), tuple(maps))
