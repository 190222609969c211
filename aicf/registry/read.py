"""Reading a region as a Program: which ops are the core, what stands around it, how every value is walked, what is rounded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ..ops import record
from ..ops.reductions import normal_axes
from ..ops.schema import Access, schema_of
from ..rows import RegionOp, RegionSpec
from ..types import ActKind, AttrPack, DType, OpKind, Precision, TensorDesc, row_major
from .program import Apply, ColumnSums, Gemm, Load, Map, Program, Reduction, Shape, fold_rows
from .variant import Reject


def read(region: RegionSpec) -> Program | Reject:
    """The region as a Program; or at which op, and why, it is none."""
    known = region.__dict__.get("_program")  # every kernel asks: a region that was read remembers it
    if known is None or known[0] != record.removals:
        known = record.removals, _read(region, record.removals)
        object.__setattr__(region, "_program", known)
    return known[1]


@lru_cache(maxsize=8192)
def _read(region: RegionSpec, removals: int) -> Program | Reject:
    """`removals`: an op that was defined again has other functions."""
    cores = [i for i, op in enumerate(region.ops) if not schema_of(op.kind).is_map]
    tail = region.ops[-1] if len(cores) == 2 and _ends_in_sums(region, cores) else None
    if len(cores) > 1 and tail is None:
        first, second = (region.ops[i].kind for i in cores[:2])
        return Reject("core", f"{first} and {second} need a kernel each")
    if tail is not None and region.strict:
        return Reject("strict", f"{tail.kind} beside a product adds up in another order than alone")
    reader = _Reader(region)
    try:
        if not cores:
            shape = region.tensors[region.ops[-1].outputs[0]].shape
            return reader.checked(Program(None, None, reader.map(region.ops, shape)))
        at = cores[0]
        before, core = region.ops[:at], region.ops[at]
        after = region.ops[at + 1 :] if tail is None else region.ops[at + 1 : -1]
        sort = schema_of(core.kind).core
        if sort == "gemm":
            if before:
                return Reject("core", f"{before[0].kind} comes before the product")
            return reader.checked(reader.gemm(core, after, tail))
        if sort == "reduce":
            return reader.checked(reader.reduction(before, core, after))
        return Reject("core", f"{core.kind} has a kernel of its own")
    except _Unreadable as reason:
        return reason.reject


def sums_columns(op: RegionOp, tensors: Sequence[TensorDesc]) -> bool:
    """Whether an op adds up floats along all axes but the last."""
    if op.kind.name != "reduce_sum":
        return False
    x = tensors[op.inputs[0]]
    floats = x.rank >= 2 and x.dtype.kind == "float"
    return floats and normal_axes(x.rank, op.attrs["axes"]) == tuple(range(x.rank - 1))


def _ends_in_sums(region: RegionSpec, cores: Sequence[int]) -> bool:
    """A product, maps, and sums of columns: the kernel of the product adds them up on the way."""
    first, last = (region.ops[i] for i in cores)
    return (
        schema_of(first.kind).core == "gemm" and last is region.ops[-1] and sums_columns(last, region.tensors)
    )


def jumps(op: RegionOp, tensors: Sequence[TensorDesc]) -> bool:
    """Whether a rounding error of what the op reads may change its result by a jump."""
    operands, results = ([tensors[t].dtype for t in ts if t >= 0] for ts in (op.inputs, op.outputs))
    return schema_of(op.kind).jumps(operands, results)


def read_parts(region: RegionSpec) -> tuple[Map, ...] | Reject:
    """The region as independent maps of one op each, all of one kind: a horizontal region (A13)."""
    return _read_parts(region, record.removals)


@lru_cache(maxsize=8192)
def _read_parts(region: RegionSpec, removals: int) -> tuple[Map, ...] | Reject:
    first = region.ops[0]
    if not schema_of(first.kind).is_map:
        return Reject("ops", f"{first.kind} is no map")
    parts = list(_parts_before(region, removals))
    known, new = region.ops[: len(parts)], region.ops[len(parts) :]
    made = {t for op in known for t in op.outputs}
    for op in new:
        if (op.kind, op.attrs) != (first.kind, first.attrs):
            return Reject("ops", f"{op.kind} beside {first.kind}: takes ops of one kind and equal attributes")
        if made.intersection(op.inputs):
            return Reject("ops", f"{op.kind} reads another part's result")
        made.update(op.outputs)
    for op in new:
        alone = _read(region.only(op), removals)  # found again for other places of the same op
        if isinstance(alone, Reject):
            return alone
        part = _placed(alone.after, op, region)
        if parts and _computed(part) != _computed(parts[0]):
            return Reject("ops", f"{op.kind} on other element types, or with other results kept")
        parts.append(part)
    if sum(len(p.stores) for p in parts) != len(region.outputs):
        return Reject("results", "a result is stored twice")
    return tuple(parts)


def _parts_before(region: RegionSpec, removals: int) -> tuple[Map, ...]:
    """Parts of the region that this one was grown from, if its tensors have kept their places; else none."""
    before = region.before
    if before is None or region.outputs[: len(before.outputs)] != before.outputs:
        return ()
    parts = _read_parts(before, removals)
    return () if isinstance(parts, Reject) else parts


def _computed(part: Map) -> tuple[Any, ...]:
    """All that a part's expression is made from."""
    return part.dtypes, part.rounded, len(part.loads), part.applies, [slot for slot, _ in part.stores]


def _placed(alone: Map, op: RegionOp, region: RegionSpec) -> Map:
    """The map of `region.only(op)`, with its operands and results found among the region's."""
    ins = [region.inputs.index(t) for t in dict.fromkeys(op.inputs) if t >= 0]
    loads = tuple([
        load if load.operand is None else Load(ins[load.operand], load.dtype, load.strides, load.offset)
        for load in alone.loads
    ])  # fmt: skip
    places = [(p, t) for p, t in enumerate(region.outputs) if t in op.outputs]
    stores = tuple((slot, p) for slot, n in alone.stores for p, t in places if t == op.outputs[n])
    return Map(alone.shape, 0, loads, alone.applies, alone.dtypes, alone.rounded, stores)


# --- reading ----------------------------------------------------------------------------------------------------------


class _Unreadable(Exception):
    def __init__(self, condition: str, reason: str) -> None:
        self.reject = Reject(condition, reason)


class _Reader:
    """One region on the way to a Program. Tensors beyond the region's own stand between the parts of one op."""

    def __init__(self, region: RegionSpec) -> None:
        self.region = region
        self.tensors: list[TensorDesc] = list(region.tensors)
        self.position = {t: p for p, t in enumerate(region.inputs)}
        self.stored: dict[int, list[int]] = {}
        for p, t in enumerate(region.outputs):
            self.stored.setdefault(t, []).append(p)
        self.inner: set[int] = set()  # tensors that are no op's result: never rounded for being one
        self.rank = 0  # of the map's domain

    def checked(self, program: Program) -> Program:
        """Every result of the region is written by one of the maps."""
        written = {p for m in (program.before, program.after) if m for _, p in m.stores}
        if program.tail is not None:
            written.add(program.tail.result)
        for p, t in enumerate(self.region.outputs):
            if p not in written:
                raise _Unreadable(
                    "results", f"result {p} ({self.tensors[t]}) leaves the region before its last value"
                )
        return program

    def gemm(self, op: RegionOp, after: Sequence[RegionOp], last: RegionOp | None = None) -> Program:
        """`last`: sums of columns."""
        attrs = op.attrs
        a, b, c, bias = (*op.inputs, -1, -1)[:4]
        out = self.tensors[op.outputs[0]]
        *batch, m, n = out.shape
        act = ActKind(attrs["act"])
        ops: list[RegionOp] = []
        value = product = self._inner(out) if bias >= 0 or act else op.outputs[0]
        if bias >= 0:
            value = self._inner(out) if act else op.outputs[0]
            ops.append(RegionOp(OpKind("bias_add"), AttrPack(), (product, bias), (value,)))
        if attrs["save_preact"]:  # z is what the activation reads, or, without one, d itself
            self._same(op.outputs[1], value)
        if act:
            given = AttrPack({"slope": attrs["slope"]} if act is ActKind.leaky_relu else {})
            ops.append(RegionOp(OpKind(act.name), given, (value,), (op.outputs[0],)))
        for t in (a, b, c):
            if t >= 0 and t not in self.position:
                raise _Unreadable("core", "the product reads a value of the region")
        fed = None if last is None else last.inputs[0]
        if fed is not None and self.tensors[fed].shape != out.shape:
            found = self.tensors[fed].shape
            raise _Unreadable("domain", f"columns of {found} are added up, the product is {out.shape}")
        map = self.map([*ops, *after], out.shape, carried=product, fed=fed)
        a_steps, b_steps, c_steps = (
            self._matrix(t, trans, len(batch))
            for t, trans in ((a, attrs["trans_a"]), (b, attrs["trans_b"]), (c, False))
        )
        core = Gemm(
            m, n, self.tensors[a].shape[-2 if attrs["trans_a"] else -1], tuple(batch), self.position[a],
            self.position[b], self.position.get(c), a_steps, b_steps, c_steps, attrs["alpha"], attrs["beta"],
            attrs["trans_a"], attrs["trans_b"], self.tensors[a].dtype, self.tensors[b].dtype,
            Precision(attrs["precision"]),
        )  # fmt: skip
        core, map = fold_rows(core, map)
        if last is not None and core.batch:
            raise _Unreadable(
                "domain",
                f"{last.kind} is over a batch of {core.batch}, whose rows are not those of one matrix",
            )
        return Program(core, None, map, None if last is None else self._sums(last.outputs[0]))

    def _matrix(self, t: int, transposed: bool, batch: int) -> Shape:
        """Strides along a batch of so many axes, and along rows and columns of op(t); 0 where there is no tensor, or no axis."""
        if t < 0:
            return (0,) * (batch + 2)
        *outer, rows, columns = self.tensors[t].stride
        outer = outer or [0] * batch
        return (*outer, columns, rows) if transposed else (*outer, rows, columns)

    def reduction(self, before: Sequence[RegionOp], op: RegionOp, after: Sequence[RegionOp]) -> Program:
        (x,), (y,) = op.inputs, op.outputs
        axes = normal_axes(self.tensors[x].rank, op.attrs["axes"])
        core = Reduction(op.kind.name.removeprefix("reduce_"), axes, self.tensors[x].dtype)
        first = self.map(before, self.tensors[x].shape, fed=x)
        return Program(core, first, self.map(after, self.tensors[y].shape, carried=y))

    def _sums(self, y: int) -> ColumnSums:
        if len(self.stored.get(y, ())) != 1:
            raise _Unreadable(
                "results", f"sums of columns ({self.tensors[y]}) leave {len(self.stored.get(y, ()))} times"
            )
        return ColumnSums(self.stored[y][0], self.tensors[y].dtype)

    def _inner(self, like: TensorDesc) -> int:
        self.tensors.append(like)
        self.inner.add(len(self.tensors) - 1)
        return len(self.tensors) - 1

    def _same(self, tensor: int, as_: int) -> None:
        """Whoever stores one tensor stores the other's value."""
        self.stored.setdefault(as_, []).extend(self.stored.pop(tensor, []))
        self.inner.discard(as_)

    # --- one map --------------------------------------------------------------------------------------------------------

    def map(
        self, ops: Sequence[RegionOp], shape: Shape, carried: int | None = None, fed: int | None = None
    ) -> Map:
        """These ops over a domain of this shape. `carried`: the tensor that a core hands over; `fed`: that it takes."""
        self.rank = len(shape)
        walks = self._walks(ops, shape, carried, fed)
        slots: dict[Any, int] = {} if carried is None else {carried: 0}
        dtypes = [] if carried is None else [self.tensors[carried].dtype]
        loads: list[Load] = []
        arguments: list[list[Any]] = []
        own = {carried, *(t for op in ops for t in op.outputs)}
        for op in ops:
            keys = [self._argument(op, access, walks[op.outputs[0]]) for access in self._accesses(op)]
            for key in keys:
                if not isinstance(key, Load) and key not in own:
                    raise _Unreadable("core", f"{op.kind} reads a value from before the core")
                if isinstance(key, Load) and key not in slots:
                    slots[key] = len(dtypes)
                    loads.append(key)
                    dtypes.append(key.dtype)
            arguments.append(keys)
            # results are numbered after all loads; until then they are known by their tensors
        if fed is not None and fed not in own and fed not in self.position:
            raise _Unreadable("core", f"{self.tensors[fed]} is made before the maps that end in its sums")
        if fed is not None and fed in self.position:
            key = self._external(fed, walks[fed])
            if key not in slots:
                slots[key] = len(dtypes)
                loads.append(key)
                dtypes.append(key.dtype)
        applies = []
        for op, keys in zip(ops, arguments):
            ins = tuple(slots[key] for key in keys)
            for t in op.outputs:
                slots[t] = len(dtypes)
                dtypes.append(self.tensors[t].dtype)
            applies.append(Apply(op.kind, op.attrs, ins, tuple(slots[t] for t in op.outputs)))
        made = [t for op in ops for t in op.outputs] + ([] if carried is None else [carried])
        stores = tuple((slots[t], p) for t in made for p in self.stored.get(t, ()))
        last = None if fed is None else slots[fed] if fed not in self.position else slots[key]
        rounded = frozenset(slots[t] for t in made if self._is_rounded(t, ops, carried))
        return Map(
            shape,
            int(carried is not None),
            tuple(loads),
            tuple(applies),
            tuple(dtypes),
            rounded,
            stores,
            last,
        )

    def _accesses(self, op: RegionOp) -> tuple[Access, ...]:
        shapes = [self.tensors[t].shape if t >= 0 else None for t in op.inputs]
        return schema_of(op.kind).accesses(shapes, self.tensors[op.outputs[0]].rank, op.attrs)

    def _walks(
        self, ops: Sequence[RegionOp], shape: Shape, carried: int | None, fed: int | None
    ) -> dict[int, Shape]:
        """For each tensor, the axis of the domain that each of its axes follows, -1 for none; found from the last op back."""
        walks: dict[int, Shape] = {}

        def note(t: int, axes: Shape) -> None:
            if t in self.position:
                return
            axes = tuple([-1 if size == 1 else a for a, size in zip(axes, self.tensors[t].shape)])
            if walks.setdefault(t, axes) != axes:
                raise _Unreadable(
                    "access", f"{self.tensors[t]} is read in two ways: along axes {walks[t]} and {axes}"
                )

        whole = tuple(range(len(shape)))
        if fed is not None:
            note(fed, whole)
            walks.setdefault(fed, whole)
        for op in reversed(ops):
            for t in op.outputs:
                if t not in walks or self.stored.get(t):
                    if self.tensors[t].shape != shape:
                        raise _Unreadable(
                            "domain", f"{op.kind} makes {self.tensors[t].shape}, the domain is {shape}"
                        )
                    note(t, whole)
                if walks[t] != walks[op.outputs[0]]:
                    raise _Unreadable("access", f"results of {op.kind} are read in two ways")
            at = walks[op.outputs[0]]
            for access in self._accesses(op):
                if access.operand is not None:
                    t = op.inputs[access.operand]
                    note(t, tuple([at[a] if a >= 0 else -1 for a in access.axes]))
        if carried is not None:
            if self.tensors[carried].shape != shape:
                raise _Unreadable(
                    "domain", f"the core makes {self.tensors[carried].shape}, the domain is {shape}"
                )
            note(carried, whole)
        return walks

    def _argument(self, op: RegionOp, access: Access, at: Shape) -> Load | int:
        """What an op whose result walks the domain like `at` is called with: a Load, or a tensor that the map makes."""
        axes = tuple([at[a] if a >= 0 else -1 for a in access.axes])
        if access.operand is None:
            result = self.tensors[op.outputs[0]].shape
            return Load(None, DType.i64, self._strides(axes, row_major(result), result), access.element)
        t = op.inputs[access.operand]
        if t not in self.position:
            return t
        return self._external(t, axes, access.element)

    def _external(self, t: int, axes: Shape, element: int = 0) -> Load:
        desc = self.tensors[t]
        offset = element * (desc.stride[-1] if desc.stride else 1)
        return Load(self.position[t], desc.dtype, self._strides(axes, desc.stride, desc.shape), offset)

    def _strides(self, axes: Shape, strides: Shape, sizes: Shape) -> Shape:
        steps = [0] * self.rank
        for axis, stride, size in zip(axes, strides, sizes):
            if axis >= 0 and size != 1:
                steps[axis] += stride
        return tuple(steps)

    def _is_rounded(self, t: int, ops: Sequence[RegionOp], carried: int | None) -> bool:
        """Rounding points (A15): what is stored, what a convert made, what a jump reads; when strict, every op's result."""
        if self.tensors[t].dtype.compute is self.tensors[t].dtype:
            return False  # its compute type is its own
        if self.stored.get(t) or (self.region.strict and t not in self.inner):
            return True
        if any(t in op.outputs and op.kind.name == "convert" for op in ops):
            return True
        return any(t in op.inputs and jumps(op, self.tensors) for op in ops)
