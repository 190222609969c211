"""RegionSpec: the ordered ops of a region with their tensors and attributes; the whole question that selection answers.

It holds no pointers, no names and no devices' state, so it hashes by value, can be written to JSON, and selection can be
asked for a GPU that isn't here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any, NamedTuple

from ..lazy import lazy
from ..types import AttrPack, DType, OpKind, TensorDesc
from .form import NUMBERED, Form, form_of, sorts
from .rows import LENGTH_LIMIT

SHOWN = 16  # tensors in a region's text


class RegionOp(NamedTuple):
    """One op of a region; `inputs` and `outputs` index the region's tensors, -1 is an operand that was left out."""

    kind: OpKind
    attrs: AttrPack
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class RegionSpec:
    """Ops in program order. `inputs`: tensors that come from outside; `outputs`: tensors that outlive the region.

    strict  values are rounded at every op boundary, and no multiplication is contracted with an addition
    invariant  strict, and equal rows have equal bits whatever the number of rows: sums may have any order that is fixed
    before  the region that this one was grown from by its last step, if it was: what is known of that need not be found again
    """

    ops: tuple[RegionOp, ...]
    tensors: tuple[TensorDesc, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    strict: bool = False
    invariant: bool = False
    before: RegionSpec | None = field(init=False, default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """The question alone: what was found out about it, functions among it, stays in this process."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @classmethod
    def single(
        cls, kind: OpKind, attrs: AttrPack, inputs: list[TensorDesc | None], outputs: list[TensorDesc]
    ) -> RegionSpec:
        """One op over its own operands, as `op_call` asks for it."""
        tensors: list[TensorDesc] = []
        ins = []
        for desc in inputs:
            ins.append(-1 if desc is None else len(tensors))
            if desc is not None:
                tensors.append(desc)
        first = len(tensors)
        outs = tuple(range(first, first + len(outputs)))
        op = RegionOp(kind, attrs, tuple(ins), outs)
        return cls((op,), (*tensors, *outputs), tuple(range(first)), outs)

    def grown(
        self, ops: tuple[RegionOp, ...], tensors: tuple[TensorDesc, ...], outputs: tuple[int, ...]
    ) -> RegionSpec:
        """With one step more: an op, or several side by side, which bring these tensors; `outputs` are those of the whole."""
        first = len(self.tensors)
        inputs = self.inputs + tuple(dict.fromkeys([t for op in ops for t in op.inputs if t >= first]))
        grown = RegionSpec(
            self.ops + ops, self.tensors + tensors, inputs, outputs, self.strict, self.invariant
        )
        object.__setattr__(grown, "before", self)
        return grown

    def __hash__(self) -> int:
        return self._hash

    @lazy
    def _hash(self) -> int:
        return hash((*self._words, self.inputs, self.outputs, self.strict, self.invariant))

    @lazy
    def _words(self) -> tuple[int, int]:
        """Of ops and of tensors, one after the other: a grown region's take a few steps more."""
        ops, tensors, known = self.ops, self.tensors, (0, 0)
        if self.before is not None:
            known = self.before._words
            ops, tensors = ops[len(self.before.ops) :], tensors[len(self.before.tensors) :]
        return _folded(known[0], ops), _folded(known[1], tensors)

    @lazy
    def form(self) -> Form:
        """Shared by regions that differ in sizes alone; one that grew has another than the same made at once."""
        if self.before is None:
            new = sorts(self.tensors, self._numbered)
            return form_of(None, self.ops, new, self.inputs, self.outputs, self.strict, self.invariant)
        before = self.before.form  # its sizes come first
        new = sorts(self.tensors[len(self.before.tensors) :], self._numbered)
        return form_of(before, self.ops[len(self.before.ops) :], new, self.outputs)

    @lazy
    def _numbered(self) -> dict[int, int]:
        """Numbers of the sizes in its form."""
        return dict(NUMBERED) if self.before is None else dict(self.before._numbered)

    @property
    def anchor(self) -> RegionOp:
        """The first op: it decides which variants are asked."""
        return self.ops[0]

    @property
    def one_sum(self) -> bool:
        """Whether each sum has to be one, in f32: strict numerics take no parts and no operands that are rounded on the way."""
        return self.strict and not self.invariant

    @property
    def kind(self) -> OpKind:
        return self.ops[0].kind

    @property
    def attrs(self) -> AttrPack:
        return self.ops[0].attrs

    @lazy
    def signature(self) -> str:
        """The ops' names joined by ` + `, `adam_step ×148` for more neighbours of one kind than a region has steps. The order is the meaning: gemm + relu +
        bias_add is another program."""
        runs = [(name, len(list(run))) for name, run in groupby(op.kind.name for op in self.ops)]
        return " + ".join(f"{name} ×{n}" if n > LENGTH_LIMIT else " + ".join([name] * n) for name, n in runs)

    @lazy
    def operands(self) -> tuple[TensorDesc, ...]:
        before = self.before
        known = (
            before.operands if before is not None else ()
        )  # a region's inputs stay where they are as it grows
        return known + tuple([self.tensors[i] for i in self.inputs[len(known) :]])

    @lazy
    def results(self) -> tuple[TensorDesc, ...]:
        return tuple([self.tensors[i] for i in self.outputs])

    @lazy
    def nbytes(self) -> int:
        """Fewest bytes of device memory the region can move: each operand read once, each result written once."""
        return sum([t.nbytes for t in (*self.operands, *self.results)])

    def only(self, *ops: RegionOp, outputs: tuple[int, ...] | None = None) -> RegionSpec:
        """Some of its ops as a region of their own, which leave these of its tensors, by default all that they make."""
        made = dict.fromkeys([t for op in ops for t in op.outputs])
        ins = tuple(dict.fromkeys([t for op in ops for t in op.inputs if t >= 0 and t not in made]))
        tensors = (*ins, *made)
        local = {-1: -1, **{t: n for n, t in enumerate(tensors)}}

        def renumbered(indices: tuple[int, ...]) -> tuple[int, ...]:
            return tuple([local[i] for i in indices])

        alone = [RegionOp(op.kind, op.attrs, renumbered(op.inputs), renumbered(op.outputs)) for op in ops]
        descs = tuple([self.tensors[t] for t in tensors])
        outs = tuple(made) if outputs is None else outputs
        return RegionSpec(tuple(alone), descs, renumbered(ins), renumbered(outs), self.strict, self.invariant)

    def __str__(self) -> str:
        return f"{self.signature}({_listed(self.operands)}) -> {_listed(self.results)}"

    # --- JSON: plans are saved with their regions ---------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "ops": [
                {
                    "kind": o.kind.name,
                    "attrs": o.attrs.blob.hex(),
                    "in": list(o.inputs),
                    "out": list(o.outputs),
                }
                for o in self.ops
            ],
            "tensors": [
                {
                    "dtype": t.dtype.name,
                    "shape": list(t.shape),
                    "stride": list(t.stride),
                    "device": t.device,
                    "alignment": t.alignment,
                }
                for t in self.tensors
            ],
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            **({"strict": True} if self.strict else {}),
            **({"invariant": True} if self.invariant else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RegionSpec:
        ops = tuple(
            RegionOp(
                OpKind(o["kind"]),
                AttrPack.from_blob(bytes.fromhex(o["attrs"])),
                tuple(o["in"]),
                tuple(o["out"]),
            )
            for o in data["ops"]
        )
        tensors = tuple(
            TensorDesc(DType[t["dtype"]], tuple(t["shape"]), tuple(t["stride"]), t["device"], t["alignment"])
            for t in data["tensors"]
        )
        numerics = data.get("strict", False), data.get("invariant", False)
        return cls(ops, tensors, tuple(data["inputs"]), tuple(data["outputs"]), *numerics)

    @lazy
    def canonical(self) -> RegionSpec:
        """The same region in the one order that all orders of its ops share."""
        from .canonical import canonical

        return canonical(self)

    @lazy
    def key(self) -> str:
        """The canonical region as JSON: what tuning data is keyed by."""
        return json.dumps(self.canonical.to_json(), sort_keys=True, separators=(",", ":"))


def _listed(tensors: tuple[TensorDesc, ...]) -> str:
    more = f" and {len(tensors) - SHOWN} more" if len(tensors) > 2 * SHOWN else ""
    return ", ".join(map(str, tensors[: SHOWN if more else None])) + more


def _folded(known: int, items: tuple[Any, ...]) -> int:
    for item in items:
        known = hash((known, item))
    return known
