"""Value, Op, LoweredOp, Graph, and the Emitter protocol that gradient rules and layers write against."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..text import printable
from ..types import AttrPack, DType, OpKind, TensorSpec
from .not_numbers import Emits
from .operators import Operators


class Role(str, enum.Enum):
    """How a value comes to be. Declared by whoever makes it, never guessed from its name."""

    input = "input"  # fed for each run
    param = "param"  # bound once; trained
    state = "state"  # bound once; optimizer state, step counters, meta-parameters, constants
    fault = "fault"  # bound once; what a run found wrong with its data, told when a result is read
    tmp = "tmp"  # made and used inside a run
    output = "output"  # made inside a run and returned

    def __str__(self) -> str:
        return self.value


FED = frozenset({Role.input, Role.param, Role.state})  # what a feed may have
KEPT = frozenset({Role.param, Role.state, Role.fault})  # what stays from run to run
EXTERNAL = FED | KEPT


class Initializer(Protocol):
    """Gives a param or state its first value. `rng` is seeded from the model's seed and the value's name."""

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray: ...


Check = Callable[
    [str, Any], Any
]  # (name, value) -> the value made plain; raises VerifyError for what it can't be


@dataclass(eq=False)
class Value(Operators):
    """One tensor of the graph. `vid` is also the index of its slot."""

    vid: int
    name: str
    spec: TensorSpec
    role: Role
    init: Initializer | None = None  # params and states only
    constant: bool = False  # a state that nothing writes and no state dict carries
    meta: str = ""  # short name of a meta-parameter: a 0-D state that `program.set` changes
    use: str = ""  # what a param is for: "weight", "bias", "norm", "embedding"; optimizers group by it
    copy_of: str = (
        ""  # of a state that is a param in another type: the param's name. No state dict carries it
    )
    check: Check | None = None  # what a meta-parameter may be set to, and a state dict may bring
    shared: bool = False  # of a meta-parameter: the model's, not of one program alone
    session: bool = False  # a state of one generator, such as its KV cache, not of the model
    producer: Op | None = None
    users: list[Op] = field(default_factory=list)
    where: str = ""  # the user's file:line
    emitter: Emits | None = field(default=None, repr=False)  # what operators emit through

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def rank(self) -> int:
        return self.spec.rank

    def __repr__(self) -> str:
        return printable(f"%{self.vid} {self.name}: {self.spec} ({self.role})")


@dataclass(eq=False)
class Op:
    """One operation, with the invariant call spec its emitter filled in."""

    oid: int
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    kind_id: int | None = None
    attr_schema: str | None = None
    attr_blob: bytes | None = None
    constraints: Mapping[str, Any] = field(
        default_factory=dict
    )  # "alias": {output position: (input position, how)}; "sync": True after a fence; "view": True where strides say all; "free": True beyond invariant rows
    hints: Mapping[str, Any] = field(default_factory=dict)
    saved: tuple[int, ...] = ()  # values kept for this op's gradient
    where: str = ""
    layer: str = ""  # that emitted it, or whose op it is a gradient of: `blocks.0.attn`

    def __repr__(self) -> str:
        outs, ins = (", ".join(f"%{v}" for v in vids) for vids in (self.outputs, self.inputs))
        attrs = "".join(f" {k}={v.name if isinstance(v, enum.Enum) else v}" for k, v in self.attrs.items())
        return f"{outs} = {self.kind}({ins}){attrs}"


@dataclass(frozen=True)
class LoweredOp:
    """An op as the run time knows it: the call spec and slot numbers. `oid`, `where` and `layer` are for messages."""

    kind_id: int
    attr_schema: str
    attr_blob: bytes
    in_vids: tuple[int, ...]
    out_vids: tuple[int, ...]
    constraints: Mapping[str, Any] = field(default_factory=dict)
    oid: int = -1
    where: str = ""
    layer: str = ""

    @property
    def kind(self) -> OpKind:
        return OpKind.from_id(self.kind_id)

    @property
    def attrs(self) -> AttrPack:
        return AttrPack.from_blob(self.attr_blob)


@dataclass(frozen=True)
class StridedView:
    """Where a value lies in the storage of another one: from element `start` of it on, with these strides in elements."""

    base: int  # a vid
    start: int
    stride: tuple[int, ...]


@dataclass(frozen=True)
class Recognised:
    """What was found spelt out, and stands as one op now; or what came close.

    what   the op
    where  the user's line, or the node, of the last op of it
    told   what of the op it has; of what came close, what was in the way
    ops    how many ops it was; 0 of what came close
    """

    what: str
    where: str
    told: str
    ops: int


@dataclass(eq=False)
class Graph:
    """Values and ops in emission order, which is a topological order. `updates` maps a state's vid to its new value, `views` the vids of
    values that need no storage of their own to where they lie: see graph/fuse/strided.py. `recognised`: see graph/recognise. `fixed` has
    values that need not be computed in each run, if that is asked: see graph/fuse/once.py."""

    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    updates: dict[int, int] = field(default_factory=dict)
    views: dict[int, StridedView] = field(default_factory=dict)
    returned: list[int] = field(default_factory=list)  # vids of the outputs, in their order
    aligned: dict[int, int] = field(
        default_factory=dict
    )  # inputs and outputs that lie at places of less alignment than memory has, in bytes
    recognised: list[Recognised] = field(default_factory=list)
    fixed: frozenset[int] = frozenset()

    def externals(self, *roles: Role) -> list[Value]:
        wanted = frozenset(roles) or EXTERNAL
        return [v for v in self.values if v.role in wanted]

    @property
    def outputs(self) -> list[Value]:
        return [self.values[vid] for vid in self.returned]

    def __str__(self) -> str:
        lines = [f"{value}" for value in self.externals()]
        lines += [f"{op}   : {', '.join(str(self.values[v].spec) for v in op.outputs)}" for op in self.ops]
        return "\n".join(lines)


Results = Value | tuple[Value, ...]


class Emitter(Protocol):
    """Emits ops by name: `emit.add(x, y)`, `emit.reduce_sum(x, axes=(0,))`. Python numbers become constants."""

    def __getattr__(self, kind: str) -> Any: ...

    def op(self, kind: str, *operands: Value | None, **attrs: Any) -> Results: ...

    def constant(self, value: float, dtype: Any = ...) -> Value: ...
