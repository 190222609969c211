"""bind_and_alloc_slots: externals from the feed by name, tmp and outputs from their specs, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...device.foreign import Foreign
from ...device.interop import adopt, conversion
from ...device.tensor import Memory, Runtime, Tensor
from ...dispatch import run_op
from ...errors import FeedError, StateError
from ...ir import FED, KEPT, Role
from ...types import TensorSpec
from .plan import ExecPlan, Slot

CONTIGUITY = ("copy", "raise")


def adopt_all(feed: Any, stream: int | None = None) -> dict[str, Foreign | FeedError]:
    """Every fed tensor looked at once; what is no tensor, as the error that says so. `stream` is going to use them."""
    if not isinstance(feed, Mapping):
        raise FeedError(
            f"the feed is a {type(feed).__name__}", expected="a dict from input names to tensors",
            hint='program({"x": x, "y": y})',
        )  # fmt: skip
    found: dict[str, Foreign | FeedError] = {}
    for name, given in feed.items():
        try:
            found[name] = adopt(given, name, stream)
        except FeedError as error:
            found[name] = error
        except (
            BufferError,
            ValueError,
            TypeError,
            RuntimeError,
        ) as error:  # what a library says of sparse or meta tensors
            found[name] = FeedError(f"{name} is a {type(given).__name__} that hands over no memory: {error}")
    return found


def check_feed(
    slots: Sequence[Slot],
    feed: Mapping[str, Any],
    device: str,
    ignored: frozenset[str] = frozenset(),
    because: str = "",
) -> dict[str, Foreign]:
    """Every named slot is fed, nothing else is, and each tensor has the slot's type and a place it can come from.

    All that is wrong is reported in one FeedError. A host array may be fed to any device; a CUDA tensor only to its own.
    `because` says where sizes come from, for the message.
    """
    found, problems = examine_feed(slots, feed, device, ignored)
    if problems:
        raise feed_error([(n, e + because if "tensor<" in g else e, g, hint) for n, e, g, hint in problems])
    return found


Problem = tuple[str, str, str, "str | None"]  # tensor, expected, got, what to do


def examine_feed(
    slots: Sequence[Slot], feed: Mapping[str, Any], device: str, ignored: frozenset[str] = frozenset()
) -> tuple[dict[str, Foreign], list[Problem]]:
    """The fed tensors by name, and everything that is wrong with the feed."""
    wanted = {s.name: s for s in slots}
    problems: list[Problem] = []
    strays, missing = sorted(set(feed) - set(wanted) - ignored), [name for name in wanted if name not in feed]
    for name in strays:
        hint = f"feed it as {missing[0]!r}" if len(missing) == len(strays) == 1 else None
        problems.append(
            (name, "nothing: no such input; inputs are " + (", ".join(wanted) or "none"), "a tensor", hint)
        )
    found: dict[str, Foreign] = {}
    for name, slot in wanted.items():
        if name not in feed:
            hint = None if strays else f"feed all of {', '.join(wanted)}"
            problems.append((name, str(slot.spec), "nothing", hint))
            continue
        foreign = (
            feed[name]
            if isinstance(feed[name], (Foreign, FeedError))
            else adopt_all({name: feed[name]})[name]
        )
        if isinstance(foreign, FeedError):
            hint = foreign.hint if foreign.library is None else _converting(name, slot, foreign.library)
            problems.append((name, str(slot.spec), foreign.what, hint))
            continue
        desc = foreign.desc
        if (desc.shape, desc.dtype) != (slot.spec.shape, slot.spec.dtype):
            got = f"tensor<{'x'.join(map(str, (*desc.shape, desc.dtype)))}>"
            hint = None
            if desc.shape == slot.spec.shape:
                hint = _converting(name, slot, foreign.library)
            elif desc.shape == (*slot.spec.shape, 1):
                hint = f"{name}[..., 0] drops the last dimension"
            elif slot.spec.shape == (*desc.shape, 1):
                hint = f"{name}[..., None] adds the last dimension"
            else:
                hint = _reshaping(name, slot.spec, foreign)
            problems.append((name, str(slot.spec), got, hint))
        elif foreign.place not in ("cpu", device):
            problems.append(
                (
                    name,
                    "a host array" + f" or a {device} tensor" * (device != "cpu"),
                    f"a {foreign.place} tensor",
                    None,
                )
            )
        found[name] = foreign
    return found, problems


def feed_error(problems: Sequence[Problem]) -> FeedError:
    name, expected, got, hint = problems[0]
    if len(problems) == 1:
        return FeedError(f"the feed of {name} is wrong", expected=expected, got=got, hint=hint)
    return FeedError(
        f"{len(problems)} tensors of the feed are wrong",
        details=[f"{n}: expected {e}; got {g}" for n, e, g, _ in problems],
        hint="; ".join(f"{n}: {hint}" for n, _, _, hint in problems if hint) or None,
    )


def _reshaping(name: str, wanted: TensorSpec, fed: Foreign) -> str | None:
    """What makes the wanted shape, where it is one of the usual slips."""
    shape, got = tuple(wanted.shape), fed.desc
    if got.shape[:-1] == shape and wanted.dtype.kind == "int":
        return f"{name}.argmax(-1), if these are one-hot: class numbers are fed"
    if got.shape == shape[1:] or (got.rank == wanted.rank - 1 and shape[0] == 1):
        return f"{name}[None] adds the first dimension, a batch of one"
    if (
        got.rank == wanted.rank > 2
    ):  # channels last for channels first, and the contrary; the batch stays in front
        for axes in ((0, got.rank - 1, *range(1, got.rank - 1)), (0, *range(2, got.rank), 1)):
            if tuple(got.shape[axis] for axis in axes) == shape:
                return f"{name}.{'permute' if fed.library == 'torch' else 'transpose'}{axes}"
    return None


def _converting(name: str, slot: Slot, library: str) -> str:
    return f"arrays are never converted silently: {conversion(name, slot.spec.dtype, library)}"


def bind_and_alloc_slots(
    plan: ExecPlan,
    feed: Mapping[str, Any],
    runtime: Runtime,
    variables: Mapping[str, Tensor] | None = None,
    contiguous: str = "copy",
    copied: frozenset[Role] | None = None,
    results: Mapping[str, Tensor] | None = None,
) -> tuple[dict[int, Tensor], Memory, list[str]]:
    """A tensor for every slot of the plan, the arena, and notes on what was staged.

    feed           inputs by name, and params and states that take the place of the variables
    contiguous     "copy" stages a strided or misaligned feed into a dense slot; "raise" refuses it by name
    copied         for replays: roles that get slots of their own. No slot is filled, as each replay does that
    results        where outputs are written; else each has memory of its own
    """
    replayed, copied = copied is not None, copied or frozenset()
    if contiguous not in CONTIGUITY:
        raise FeedError(f"contiguous={contiguous!r}", expected=" or ".join(map(repr, CONTIGUITY)))
    fed = [s for s in plan.externals(*FED) if variables is None or s.role is Role.input or s.name in feed]
    found = check_feed(fed, feed, runtime.place)
    tensors: dict[int, Tensor] = {}
    notes: list[str] = []
    by_name = {s.name: s for s in fed}
    for name, foreign in found.items():
        slot = by_name[name]
        why = _unfit(foreign, slot)
        if why and contiguous == "raise":
            raise FeedError(
                f"{name} can't be bound as it is: {why}",
                expected="a dense, aligned tensor",
                got=str(foreign.desc),
                hint="make it contiguous, or let aicf copy it: contiguous='copy'",
            )
        if why or slot.role in copied or foreign.device != runtime.kind:
            tensors[slot.vid] = runtime.empty(slot.spec)
            if not replayed:
                fill_slot(tensors[slot.vid], foreign, runtime)
            if why:
                notes.append(f"{name} was staged into a dense slot: {why}")
        else:
            tensors[slot.vid] = runtime.borrow(foreign)
    if variables is not None:
        for slot in plan.externals(*KEPT):
            if slot.vid in tensors:
                continue
            held = variables.get(slot.name)
            if held is None or held.spec != slot.spec:
                raise StateError(
                    f"the plan's {slot.role} {slot.name} is not among the variables", expected=str(slot.spec),
                    got="nothing of that name" if held is None else str(held.spec),
                    hint="run the plan with the variables of the program that it was saved of",
                )  # fmt: skip
            tensors[slot.vid] = runtime.empty(slot.spec) if slot.role in copied else held
    arena = runtime.allocate(max(plan.arena_bytes, 1))
    for slot in plan.slots.values():
        if slot.offset is not None:
            tensors[slot.vid] = runtime.view(arena, slot.offset, slot.spec)
    outputs = [s for s in plan.outputs if s.alias_of is None]
    if results is not None:
        tensors.update((s.vid, results[s.name]) for s in outputs)
        outputs = []
    tensors.update(zip((s.vid for s in outputs), runtime.empties([s.spec for s in outputs])))
    for slot in plan.slots.values():  # aliases share the storage of their root, under their own shape
        if slot.alias_of is not None:
            tensors[slot.vid] = _alias(slot, tensors[slot.alias_of], runtime)
    return tensors, arena, notes


def _alias(slot: Slot, root: Tensor, runtime: Runtime) -> Tensor:
    if slot.stride is None:
        array = None if root.array is None else root.array.reshape(slot.spec.shape)
        return Tensor(slot.spec, root.ptr, runtime, root, array=array)
    size, array = slot.spec.dtype.itemsize, root.array
    if array is not None:
        steps = tuple(step * size for step in slot.stride)
        array = np.lib.stride_tricks.as_strided(array.reshape(-1)[slot.start :], slot.spec.shape, steps)
    return Tensor(slot.spec, root.ptr + slot.start * size, runtime, root, slot.stride, array)


def _unfit(foreign: Foreign, slot: Slot) -> str | None:
    desc = foreign.desc
    if not desc.contiguous:
        return f"it has strides {desc.stride} for shape {desc.shape}"
    if foreign.device == slot.spec.device and desc.alignment < slot.alignment and desc.numel:
        return f"it is aligned to {desc.alignment} bytes, the plan assumed {slot.alignment}"
    return None


def fill_slot(target: Tensor, source: Foreign | Tensor, runtime: Runtime) -> None:
    """Copy a tensor into a dense slot; strided device memory goes through a copy kernel."""
    if isinstance(source, Tensor) or source.array is not None or source.contiguous:
        runtime.write(target, source)
    else:
        run_op("copy", [runtime.borrow(source)], [target], {}, runtime)
