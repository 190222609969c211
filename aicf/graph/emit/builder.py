"""Builder holds the graph under construction; GraphEmitter is the `ctx` that layers and gradient rules emit through.

A layer chooses values; the emitter infers types, makes the result values and fills in the invariant call spec: kind_id,
attr_schema, attr_blob.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...device.faults import RECORD
from ...errors import TypeInferenceError, VerifyError
from ...ir import KEPT, Check, Graph, Initializer, Op, Role, Value
from ...ops import agreement, numbers
from ...ops.constraints import RANDOM
from ...ops.schema import OpSchema, Valid, schema_of
from ...types import AttrPack, DType, Precision, TensorSpec, bool_, f32, i64
from .declare import Constant, Declarations
from .joining import Joining
from .loops import Loops
from .policy import PRESETS, Policy

_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep


def user_line() -> str:
    """file:line of the nearest caller outside aicf; in a notebook `Cell In[4]:2`."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not _is_inside(name):
            return f"{cell_of(name) or name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@lru_cache(maxsize=4096)
def _is_inside(name: str) -> bool:
    return name.startswith((_PACKAGE, "<frozen"))


def cell_of(name: str) -> str:
    """What IPython calls the cell that it compiled under a file's name; nothing for a file."""
    if "ipykernel" not in name and "<ipython" not in name:
        return ""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    named = shell.compile.format_code_name(name) if shell is not None else None
    return " ".join(named) if named else ""


class Builder:
    """Adds Values and Ops to a Graph. Names of inputs, params, states and outputs are unique."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.line = ""  # where a layer was added, while it is emitted again; else the caller's line counts
        self.layer = ""  # the name of the one that is emitted
        self.fence = False  # before the next op: see `GraphEmitter.sync`
        self._names: dict[str, Value] = {}
        self.emitter: GraphEmitter | None = None  # what operators on its values emit through
        self.valid: Value | None = (
            None  # 0-D: whether this run may be kept; None while nothing can make it invalid
        )
        self.layers: dict[int, tuple[Any, tuple[str, ...]]] = {}  # by id: each emitted layer and its scope

    def value(
        self,
        name: str,
        spec: TensorSpec,
        role: Role,
        init: Initializer | None = None,
        constant: bool = False,
        meta: str = "",
        check: Check | None = None,
        use: str = "",
        copy_of: str = "",
        shared: bool = False,
        session: bool = False,
        where: str | None = None,
    ) -> Value:
        if spec.dims:
            raise VerifyError(
                f"{name} has unbound dimensions",
                got=str(spec),
                hint="give each its size: Model(..., batch=32)",
            )
        if role in (Role.param, Role.state) and init is None:
            raise VerifyError(f"{role} {name} declares no initial value")
        value = Value(
            len(self.graph.values),
            name,
            spec,
            role,
            init,
            constant,
            meta,
            use,
            copy_of,
            check,
            shared,
            session,
            where=self.here() if where is None else where,
            emitter=self.emitter,
        )
        if role is not Role.tmp:
            self._claim(name, value)
        self.graph.values.append(value)
        return value

    def _claim(self, name: str, value: Value) -> None:
        if name in self._names:
            raise VerifyError(f"two values are called {name!r}", got=f"{self._names[name]!r} and {value!r}")
        self._names[name] = value

    def find(self, name: str) -> Value | None:
        return self._names.get(name)

    def here(self) -> str:
        """The user's line that messages give."""
        return self.line or user_line()

    def owns(self, value: Value) -> bool:
        return value.vid < len(self.graph.values) and self.graph.values[value.vid] is value

    def emit(
        self,
        kind: str,
        inputs: tuple[Value | None, ...],
        specs: tuple[TensorSpec, ...],
        attrs: Mapping[str, Any],
        constraints: Mapping[str, Any],
        call_spec: tuple[int, str, bytes],
    ) -> tuple[Value, ...]:
        """Append an op and its result values. A left-out operand is vid -1."""
        where = self.here()
        outputs = tuple(
            [self.value(f"{kind}.{len(self.graph.values)}", s, Role.tmp, where=where) for s in specs]
        )
        if self.fence:
            constraints, self.fence = {**constraints, "sync": True}, False
        op = Op(
            len(self.graph.ops),
            kind,
            tuple(-1 if v is None else v.vid for v in inputs),
            tuple(v.vid for v in outputs),
            attrs,
            *call_spec,
            constraints=constraints,
            where=where,
            layer=self.layer,
        )
        for value in inputs:
            if value is not None:
                value.users.append(op)
        for value in outputs:
            value.producer = op
        self.graph.ops.append(op)
        return outputs

    def extended(self, op: Op, specs: Sequence[TensorSpec], pack: AttrPack) -> tuple[Value, ...]:
        """More results of an op that is there, which has these attributes now; the results, old and new."""
        schema = schema_of(op.kind)
        made = [
            self.value(f"{op.kind}.{len(self.graph.values)}", spec, Role.tmp)
            for spec in specs[len(op.outputs) :]
        ]
        for value in made:
            value.producer = op
        op.outputs += tuple(v.vid for v in made)
        op.attrs, op.attr_blob = schema.values(pack), pack.blob
        return tuple(self.graph.values[vid] for vid in op.outputs)

    @contextmanager
    def because_of(self, op: Op) -> Iterator[None]:
        """What is emitted inside, such as its gradient, comes from where the op does."""
        before = self.line, self.layer
        self.line, self.layer = op.where, op.layer
        try:
            yield
        finally:
            self.line, self.layer = before

    def mark(self) -> tuple[int, int, int, bool, Value | None]:
        """Where the graph stands, for `rewind`."""
        return len(self.graph.values), len(self.graph.ops), len(self.layers), self.fence, self.valid

    def rewind(self, mark: tuple[int, int, int, bool, Value | None]) -> None:
        """Forget everything that came after a mark."""
        values, ops, layers, self.fence, self.valid = mark
        while len(self.layers) > layers:
            self.layers.popitem()
        gone = self.graph.ops[ops:]
        del self.graph.values[values:], self.graph.ops[ops:]
        self.graph.returned = [vid for vid in self.graph.returned if vid < values]
        self.graph.updates = {o: n for o, n in self.graph.updates.items() if o < values and n < values}
        self._names = {n: v for n, v in self._names.items() if v.vid < values}
        for value in self.graph.values:
            value.users = [op for op in value.users if op not in gone]

    def output(self, name: str, value: Value) -> Value:
        """Return a value to the caller under a name."""
        if value.role is not Role.tmp:
            raise VerifyError(
                f"output {name} is {value!r}", hint="emit.copy(value) makes a value that can be returned"
            )
        self._claim(name, value)
        value.role, value.name = Role.output, name
        self.graph.returned.append(value.vid)
        return value

    def update(self, old: Value, new: Value, again: bool = False) -> None:
        """At the end of a run `new` is the content of the param or state `old`; of one that has an update already, if `again`."""
        if old.role not in KEPT:
            raise VerifyError(f"{old!r} can't be updated", expected="a param or a state")
        if old.vid in self.graph.updates and not again:
            raise VerifyError(f"{old.name} is updated twice in one step")
        if (old.spec.shape, old.dtype) != (new.spec.shape, new.dtype):
            raise VerifyError(
                f"the update of {old.name} does not fit", expected=str(old.spec), got=str(new.spec)
            )
        self.graph.updates[old.vid] = new.vid


class GraphEmitter(Joining, Loops, Declarations):
    """`emit.relu(x)`, `emit.gemm(a, b, bias=c, trans_b=True)`: any registered op by its name.

    Operands are Values, numbers (which become constants of the other operands' type) or None; they may be named.

    training  whether a loss will be differentiated: what layers such as dropout do only then
    attrs     of every op that has them and is not given them, such as {"precision": Precision.tf32}
    policy, declared, copies   see Narrowing
    """

    def __init__(
        self, builder: Builder, device: str, training: bool = False, attrs: Mapping[str, Any] | None = None,
        policy: Policy | None = None, declared: Mapping[str, DType] | None = None, copies: bool = False,
    ) -> None:  # fmt: skip
        self.builder, self.device, self.training, self.attrs = builder, device, training, attrs or {}
        super().__init__(policy or PRESETS["f32"], declared or {}, copies)
        builder.emitter = self

    def here(self) -> str:
        return self.builder.here()

    def transposed(self, x: Value) -> Value | None:
        """The Value of which x is the transpose in its last two axes; None if it is none."""
        op, axes = x.producer, tuple(range(x.rank))
        if (
            op is None
            or op.kind != "transpose"
            or x.rank < 2
            or op.attrs["perm"] != (*axes[:-2], *axes[:-3:-1])
        ):
            return None
        return self.builder.graph.values[op.inputs[0]]

    def first_of_count(self, x: Value) -> int | None:
        """n where x is n, n + 1, n + 2, …: an iota along its one axis, or that and a constant; None if it is not. Nor where the graph goes
        on with sequences, whose places begin where each stands."""
        op, first, values = x.producer, 0, self.builder.graph.values
        if op is not None and op.kind == "add" and x.rank == 1:
            pair = [values[vid] for vid in op.inputs]
            constants = [v.init.value for v in pair if v.constant and isinstance(v.init, Constant)]
            steps = [v.producer for v in pair if v.producer is not None]
            if len(constants) != 1 or len(steps) != 1:
                return None
            op, first = steps[0], int(constants[0])
        counts = op is not None and op.kind == "iota" and len(op.attrs["shape"]) == x.rank == 1
        return first if counts and x.dtype.kind == "int" and self.sequences is None else None

    def product_of(self, y: Value) -> tuple[Value, Value, Precision] | None:
        """(rows, weight, precision) where y is rows @ weight.T and nothing more, maybe reshaped: an nn.Linear without a bias."""
        values, op = self.builder.graph.values, y.producer
        if op is not None and op.kind == "reshape":
            op = values[op.inputs[0]].producer
        plain = {
            "alpha": 1.0,
            "trans_a": False,
            "trans_b": True,
            "act": 0,
            "save_preact": False,
            "out_dtype": None,
        }
        if op is None or op.kind != "gemm" or {name: op.attrs[name] for name in plain} != plain:
            return None
        (a, b), added = op.inputs[:2], op.inputs[2:]
        if (
            any(v >= 0 for v in added)
            or values[a].rank != 2
            or values[b].rank != 2
            or y.shape[-1] != values[b].shape[0]
        ):
            return None
        return values[a], values[b], op.attrs["precision"]

    def __getattr__(self, kind: str) -> Any:
        if kind.startswith("_"):
            raise AttributeError(kind)
        schema_of(kind)  # an unknown op is named here, with the list of those there are
        return lambda *operands, **named: self.op(kind, *operands, **named)

    def op(self, kind: str, *operands: Value | float | None, **named: Any) -> Any:
        """Emit one op; one Value, or a tuple of them when the op has several results."""
        schema = schema_of(kind)
        kind = schema.name
        values = _arranged(schema, operands, named)
        for n, decl in enumerate(schema.operands[: len(values)]):
            if decl.type is Valid and values[n] is None:
                values[n] = self.valid
            elif decl.type is RANDOM and values[n] is None:
                values[n], named["layer"] = self.random()
        given = self._with_constants(schema, values)
        if self.attrs:
            named = {**{a.name: self.attrs[a.name] for a in schema.attrs if a.name in self.attrs}, **named}
        attrs = schema.normalized([None if v is None else v.spec for v in given], named)
        pack = schema.pack(attrs)
        specs = schema.infer_again(given, pack, self.device)
        agreement.look_at(schema, pack)
        alias = {"alias": dict(schema.alias)} if schema.alias else {}
        values_of = schema.values(pack)
        if schema.instead_fn is not None:
            made = schema.instead_fn(self, *given, **values_of)
            if made is not None:
                for value in made if isinstance(made, tuple) else (made,):
                    value.producer.constraints = {**value.producer.constraints, "instead": kind}
                return made
        if schema.guard_fn is not None and not self.in_body:
            schema.guard_fn(self, *given, **values_of)
        outs = self.builder.emit(
            kind, tuple(given), specs, values_of, alias, (schema.kind.id, schema.attr_schema, pack.blob)
        )
        outs = outs[: schema.public or None]
        return outs if schema.many or (len(schema.results) > 1 and len(outs) > 1) else outs[0]

    def _with_constants(self, schema: OpSchema, values: list[Any]) -> list[Value | None]:
        """Numbers as constants: of the other operands' type, or of the only one that their own operand may have."""
        declared = schema.declared(len(values))
        decls = [*declared, *[None] * (len(values) - len(declared))]
        shared = (
            v.dtype for d, v in zip(decls, values) if isinstance(v, Value) and (d is None or d.type.shared)
        )
        dtype = next(shared, f32)
        given: list[Value | None] = []
        for n, (decl, value) in enumerate(zip(decls, values)):
            if isinstance(value, Value):
                if not self.builder.owns(value):
                    self._check_owned(value, f"ctx.{schema.name}: {decl.name if decl else f'operand {n}'}")
            elif value is not None:
                own = decl is not None and not decl.type.shared and len(decl.type.dtypes) == 1
                kind = next(iter(decl.type.dtypes)) if own and decl else dtype
                beside = next((v for v in values if isinstance(v, Value) and v.dtype is kind), None)
                value = self._constant(
                    value, kind, f"{schema.name}: {decl.name if decl else f'operand {n}'}", beside
                )
            given.append(value)
        return given

    def constant(self, value: float, dtype: Any = f32) -> Value:
        """A 0-D constant: set once, shared, in no state dict. Its type must hold it, be it rounded."""
        return self._constant(value, DType.of(dtype), "constant: value")

    def _constant(self, value: Any, dtype: DType, what: str, beside: Value | None = None) -> Value:
        number = self._number(value, dtype, what, beside)
        name = f"const.{dtype}.{number!r}"
        known = self.builder.find(name)
        if known is not None:
            return known
        spec, init = TensorSpec((), dtype, self.device), Constant(numbers.constant(number, dtype))
        return self.builder.value(name, spec, Role.state, init, constant=True)

    def _number(self, value: Any, dtype: DType, what: str, beside: Value | None = None) -> float:
        """A Python or NumPy number that an element type holds; what the user meant instead is in the error."""
        where = self.builder.here()
        if not isinstance(value, numbers.NUMBERS):
            raise VerifyError(
                f"ctx.{what} is a {type(value).__name__}", expected="a Value or a number", where=where,
                hint='ctx.state("name", shape, lambda shape, rng: array) keeps an array; ctx.param also trains it',
            )  # fmt: skip
        number = numbers.plain(value)
        if reason := numbers.why_not(number, dtype):
            raise TypeInferenceError(
                f"{what} is {numbers.told(number)} where {dtype} is needed: {reason}", where=where, expected=f"a number of {dtype}",
                got=f"{numbers.told(number)} ({type(value).__name__})", hint=numbers.instead(number, dtype, "x" if beside is None else beside.name),
                details=() if beside is None else [f"beside {beside.name}: {beside.spec}" + f"  at {beside.where}" * bool(beside.where)],
            )  # fmt: skip
        return number

    def update(self, old: Value, new: Value, again: bool = False) -> None:
        """At the end of a run `new` is the content of the param or state `old`. What a layer that may be used twice updates, it updates
        `again`, from its `latest` value."""
        self.builder.update(old, new, again)

    def latest(self, kept: Value) -> Value:
        """What the run has made of a param or state so far: its update, if there is one."""
        return self.builder.graph.values[self.builder.graph.updates.get(kept.vid, kept.vid)]

    def _check_owned(self, value: Any, what: str) -> None:
        """A Value of this graph, not of another emission of the same layers."""
        if not isinstance(value, Value):
            empty = "n empty" * (isinstance(value, (tuple, list, dict)) and not value)
            got = "nothing" if value is None else f"a{empty} {type(value).__name__}"
            raise VerifyError(
                f"{what} is {got}", expected="a Value", hint="return ctx.relu(x)", where=self.builder.here()
            )
        if not self.builder.owns(value):
            raise VerifyError(
                f"{what} belongs to another graph", got=repr(value), where=self.builder.here(),
                hint="a layer is emitted anew for each size: keep no Value from one emit to the next",
            )  # fmt: skip

    # --- whether a run may be kept ------------------------------------------------------------------------------------

    @property
    def valid(self) -> Value:
        """0-D bool: whether what this run changes may be kept. Optimizer steps ask it, and change nothing if it is false."""
        return self.constant(True, bool_) if self.builder.valid is None else self.builder.valid

    def guard(self, flag: Value) -> None:
        """Keep nothing of this run unless `flag`, a 0-D bool, is true. What was emitted before does not ask it."""
        known = self.builder.valid
        self.builder.valid = flag if known is None else self.op("select", known, flag, known)

    @property
    def reports(self) -> bool:
        """Whether a run reports invalid labels and indices; where nothing does, an index out of range reads NaN."""
        return True

    def check_labels(self, labels: Value, *, classes: int, ignore_index: int = -100) -> Value:
        """How many labels there are beside `ignore_index`, as f32. One that is no class makes the run invalid and is told:
        on the CPU device by the run, on CUDA by the next read of a result."""
        asked = {"classes": classes, "ignore_index": ignore_index}
        return self._checked("check_labels", labels, asked)[0]

    def check_indices(self, indices: Value, *, size: int, negative: bool = True, of: str = "") -> None:
        """An index that is not one of [-size, size), or without `negative` of [0, size), makes the run invalid, and is an
        OutOfBoundsError as a label that is no class is a LabelError.

        of  the op and its operand, as the message names them: "embedding: index"
        """
        self._checked("check_indices", indices, {"size": size, "negative": negative, "of": of})

    def _checked(self, kind: str, data: Value, asked: dict[str, Any]) -> tuple[Value, ...]:
        """The results of a check of these data, which is emitted once: the last but one is whether the run is valid."""
        checks = [op for op in self.builder.graph.ops if op.kind in ("check_labels", "check_indices")]
        for op in checks:
            if op.kind == kind and op.inputs[0] == data.vid and _includes(op.attrs, asked):
                return tuple(self.builder.graph.values[vid] for vid in op.outputs)
        record = TensorSpec((RECORD,), i64, self.device)
        fault = self.builder.value(f"const.fault.{len(checks)}", record, Role.fault, Constant(0))
        results = self.op(kind, data, fault, **asked)
        *_, valid, told = results
        self.update(fault, told)
        self.guard(valid)
        return results

    def sync(self) -> None:
        """A fence before the next op: no op moves across it, and no kernel covers ops on both of its sides."""
        self.builder.fence = True


def _includes(attrs: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """Whether a check finds all that another one of the same data would find, whatever its message says."""
    stricter = not attrs.get("negative", True)
    return all(attrs[k] == v or k == "of" or (k == "negative" and stricter) for k, v in asked.items())


def _arranged(schema: OpSchema, operands: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """Operands in their declared order, None where one is left out. Those given by name are taken out of `named`; those of a
    variadic one may also be a list."""
    if not schema.variadic and named.keys().isdisjoint(schema.operand_names):
        return [*operands, *[None] * (len(schema.operands) - len(operands))]
    slots = {d.name: v for d, v in zip(schema.operands, operands)}
    for decl in schema.operands:
        if decl.name in named:
            if decl.name in slots:
                raise TypeError(f"{schema.name}() got operand {decl.name!r} by position and by name")
            slots[decl.name] = named.pop(decl.name)
    values = [slots.get(d.name) for d in schema.operands] + [*operands[len(schema.operands) :]]
    if not schema.variadic:
        return values
    *fixed, last = schema.operands
    more = values[len(fixed) :] if last.name in slots else []
    if len(more) == 1 and isinstance(more[0], (list, tuple)):
        more = [*more[0]]
    return [*values[: len(fixed)], *more]
