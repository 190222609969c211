"""op_call: one op on anybody's tensors, on the caller's stream.

The choice for a call depends on the op, the attributes, and each tensor's type, strides, device and alignment. Two
tables remember it. The first is keyed by what the libraries' own tensors say of themselves, read as cheaply as each
allows; a call found there only checks overlaps, fills in the pointers and launches. The second is keyed by descriptors, so
that equal tensors of any library share one answer. Both hold values, never tensors, and forget the oldest entries.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ..device import runtime as runtimes
from ..device import streams
from ..device.foreign import Foreign
from ..device.interop import adopt
from ..device.reading import READERS, UNREADABLE, remember
from ..device.tensor import Runtime
from ..errors import AttrError, CaptureError, DeviceError, FeedError
from ..ops import record
from ..ops.schema import OpSchema, schema_of
from ..registry.select import Selection, log, log_choice
from ..types import ActKind, AttrPack, DType, OpKind, Precision, TensorSpec
from . import annotate
from .extensions import default_registry
from .prepared import Prepared, prepare

QUICK_LIMIT, PREPARED_LIMIT = 4096, 1024

_quick: dict[
    Any, tuple[Prepared, str]
] = {}  # what the tensors say of themselves -> the answer, and whose they are
_prepared: dict[Any, Prepared] = {}  # op, attributes, descriptors, device -> the answer


def op_call(
    kind: OpKind | str, inputs: Sequence[Any], outputs: Sequence[Any], attrs: Mapping[str, Any] | None = None,
    stream: Any = None, invariant: bool = False,
) -> Selection:  # fmt: skip
    """Run one op on tensors of PyTorch, CuPy, JAX, Numba, NumPy or aicf; `print` what it returns to see why that kernel.

    kind      which op: `OpKind.add` or "add"; never which kernel
    inputs    the op's operands, None for one that is left out
    outputs   tensors of the op's result types, which are written; an elementwise op may be given an input again
    attrs     the op's attributes by name
    stream    any library's stream, or its handle; ordering it with other streams is then the caller's
    invariant a row's bits do not depend on how many rows there are, nor on its index; NoKernelError if no kernels can give that

    Without `stream`, work runs on PyTorch's current stream if a tensor is PyTorch's, else on CuPy's if one is CuPy's, else
    on aicf's own; the streams of all other tensors are waited for, and wait in turn. The host does not wait, except for
    libraries that can't be told when memory is free again (JAX). Nothing here is seen by autograd.
    """
    if inputs.__class__ not in _LISTS or outputs.__class__ not in _LISTS:
        inputs, outputs = _listed("inputs", inputs), _listed("outputs", outputs)
    registry = default_registry()
    parts: list[Any] = [kind, registry.generation, record.schema_epoch, len(inputs)]
    if attrs:
        parts.append(_attrs_key(attrs))
    if invariant:
        parts.append(invariant)
    pointers = []
    try:
        for tensor in (*inputs, *outputs):
            part, pointer = READERS[tensor.__class__](tensor)
            parts.append(part)
            pointers.append(pointer)
        key = tuple(parts)
        found = _quick.get(key)
    except UNREADABLE:
        key, found = None, None
    if found is None:
        return _call(kind, inputs, outputs, attrs or {}, stream, key, invariant)
    prepared, library = found
    prepared.check_overlap(pointers)
    if prepared.ordinal is None:
        _run(prepared, [t if t is None or library == "numpy" else t.array for t in (*inputs, *outputs)], 0)
    else:
        handle = _current(library, prepared.ordinal) if stream is None else streams.handle_of(stream)
        _run(prepared, pointers, handle)
    return prepared.selection


def cache_clear() -> None:
    """Forget every answer."""
    _quick.clear()
    _prepared.clear()


# --- keys -------------------------------------------------------------------------------------------------------------

_LISTS = (list, tuple)
_PLAIN = frozenset({bool, int, float, str, type, type(None), ActKind, Precision, DType})


def _listed(what: str, tensors: Any) -> Sequence[Any]:
    if isinstance(tensors, _LISTS):
        return tensors
    raise FeedError(f"{what} is a {type(tensors).__name__}", expected=f"a list of tensors: {what}=[x]")


def _attrs_key(attrs: Mapping[str, Any]) -> Any:
    """Equal for equal attributes only: True, 1 and 1.0 differ, and so do 0.0 and -0.0. Their order does not matter much."""
    for value in attrs.values():
        if value.__class__ not in _PLAIN and not (
            value.__class__ is tuple and all(v.__class__ in _PLAIN for v in value)
        ):
            try:
                return AttrPack(attrs).blob
            except (
                AttrError
            ):  # what another library calls an element type; nothing else of this kind is taken
                return repr(attrs)
    return repr(attrs)


# --- running ----------------------------------------------------------------------------------------------------------


def _run(prepared: Prepared, tensors: Sequence[Any], stream: int, first: bool = False) -> None:
    """Start on pointers (arrays on the host), inside an NVTX range, and log the choice under AICF_LOGS=select."""
    if first or log.isEnabledFor(logging.INFO):  # the setting is read where there is time
        log_choice(prepared.selection, hex(stream))
    ranges = annotate.domain()
    if ranges is None:
        prepared.run(tensors, stream)
        return
    text = annotate.label(prepared.selection.kernel_id, prepared.selection.region, stream)
    annotate.annotated(prepared.run, text)(tensors, stream)


def _current(library: str, ordinal: int) -> int:
    """The stream that a library runs on now."""
    if library == "torch":
        return streams.torch_stream(ordinal)
    if library == "cupy":
        return streams.cupy_stream(ordinal)
    return _runtime(f"cuda:{ordinal}").stream_id


@cache
def _runtime(place: str) -> Runtime:
    """The runtime of a place; opening one leaves the thread's current device as it was."""
    if place == "cpu":
        return runtimes.runtime("cpu")
    runtimes.refuse_forked(place)
    previous = streams.current_context()
    try:
        return runtimes.runtime(place)
    finally:
        streams.leave(previous)


def _in_child() -> None:
    cache_clear()
    _runtime.cache_clear()  # asked again, it refuses CUDA


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_child)

# --- the first time, and libraries that are asked by protocol ---------------------------------------------------------


def _call(
    kind: OpKind | str, inputs: Sequence[Any], outputs: Sequence[Any], attrs: Mapping[str, Any], stream: Any, key: Any,
    invariant: bool,
) -> Selection:  # fmt: skip
    schema = schema_of(kind)
    names = _names(schema, inputs, outputs)
    tensors = [
        None if t is None else adopt(t, f"{schema.name}: {n}") for t, n in zip((*inputs, *outputs), names)
    ]
    operands, results = tensors[: len(inputs)], tensors[len(inputs) :]
    _check_places(schema, names, tensors)
    _check_results(schema, names[len(inputs) :], results)
    place = next((t.place for t in tensors if t is not None), "cpu")
    given = [t for t in tensors if t is not None]
    if place == "cpu":
        prepared = _find(schema, attrs, operands, results, place, None, invariant)
        prepared.check_overlap([0 if t is None else t.ptr for t in tensors])
        _run(prepared, [None if t is None else t.array for t in tensors], 0, first=True)
    else:
        ordinal = given[0].ordinal
        work = _work_stream(given, ordinal) if stream is None else streams.handle_of(stream)
        others = _other_streams(given, work) if stream is None else []
        prepared = _find(schema, attrs, operands, results, place, work, invariant)
        pointers = [0 if t is None else t.ptr for t in tensors]
        prepared.check_overlap(pointers)
        _ordered(prepared, pointers, given, others, work)
    libraries = {t.library for t in given}
    if key is not None and len(libraries) == 1 and (place != "cpu" or libraries <= {"numpy", "aicf"}):
        remember(_quick, key, (prepared, libraries.pop()), QUICK_LIMIT)
    return prepared.selection


def _names(schema: OpSchema, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[str]:
    def named(known: Sequence[str], count: int, what: str) -> list[str]:
        return [known[i] if i < len(known) else f"{what} {i}" for i in range(count)]

    return named([d.name for d in schema.declared(len(inputs))], len(inputs), "input") + named(
        schema.named_results(len(outputs)), len(outputs), "output"
    )


def _check_places(schema: OpSchema, names: Sequence[str], tensors: Sequence[Foreign | None]) -> None:
    places = {t.place for t in tensors if t is not None}
    if len(places) > 1:
        raise DeviceError(
            f"{schema.name}: tensors live on {' and '.join(sorted(places))}", expected="all on one device",
            details=[f"{n}: {t.desc} on {t.place}" for n, t in zip(names, tensors) if t is not None],
        )  # fmt: skip


def _check_results(schema: OpSchema, names: Sequence[str], results: Sequence[Foreign | None]) -> None:
    for name, result in zip(names, results):
        if result is None:
            raise FeedError(f"{schema.name}: result {name} is None", expected="a tensor to write to")
        if result.readonly:
            hint = (
                "write to a tensor of another library, or compute with jax"
                if "JAX" in result.readonly
                else None
            )
            raise FeedError(
                f"{schema.name}: result {name} can't be written: {result.readonly}", expected="a writable tensor",
                hint=hint,
            )  # fmt: skip


def _find(
    schema: OpSchema, attrs: Mapping[str, Any], operands: Sequence[Foreign | None], results: Sequence[Foreign | None],
    place: str, stream: int | None, invariant: bool,
) -> Prepared:  # fmt: skip
    registry = default_registry()
    ins, outs = ([None if t is None else t.desc for t in tensors] for tensors in (operands, results))
    specs = [None if d is None else TensorSpec(d.shape, d.dtype, d.device) for d in ins]
    key = (
        schema.kind,
        registry.generation,
        record.schema_epoch,
        schema.pack(schema.normalized(specs, attrs)).blob,
        tuple(ins),
        tuple(outs),
        place,
        invariant,
    )
    made = [d for d in outs if d is not None]
    found = _prepared.pop(key, None)
    if found is None and place == "cpu":
        found = prepare(schema, attrs, ins, made, _runtime(place), registry, invariant)
    elif found is None:
        assert stream is not None
        previous = streams.enter(int(place.partition(":")[2]))
        try:
            if streams.is_capturing(stream):
                raise CaptureError(
                    f"the first {schema.name} of this kind falls into a capture, where nothing can be compiled or loaded",
                    got=", ".join(str(d) for d in (*ins, *outs)), where=f"stream {stream:#x}",
                    hint="make the same call once before the capture begins",
                )  # fmt: skip
            found = prepare(schema, attrs, ins, made, _runtime(place), registry, invariant)
        finally:
            streams.leave(previous)
    remember(_prepared, key, found, PREPARED_LIMIT)
    return found


def _work_stream(given: Sequence[Foreign], ordinal: int) -> int:
    libraries = {t.library for t in given}
    return _current(next((name for name in ("torch", "cupy") if name in libraries), "aicf"), ordinal)


def _other_streams(given: Sequence[Foreign], work: int) -> list[int]:
    """The streams on which tensors were made and will be used; what came by DLPack was ordered when it was handed over."""
    found: list[int] = []
    for home in (streams.home_of(t) for t in given if not t.handed_over):
        if not any(streams.same(home, known) for known in (work, *found)):
            found.append(home)
    return found


def _ordered(
    prepared: Prepared, pointers: Sequence[int], given: Sequence[Foreign], others: Sequence[int], work: int
) -> None:
    """Run after what the other streams have done, and let them go on after it."""
    handed_over = [t for t in given if t.handed_over]
    ordinal = given[0].ordinal
    previous = streams.enter(ordinal)
    try:
        if (others or handed_over) and streams.is_capturing(work):
            raise CaptureError(
                f"{prepared.schema.name} can't be captured: its tensors are ordered by several streams",
                got=f"tensors of {', '.join(sorted({t.library for t in given}))}",
                expected="tensors of the library whose stream is captured",
            )
        for t in handed_over:
            adopt(t.owner.exporter, t.library, stream=work)  # its producer makes the stream wait
        for other in others:
            streams.wait(ordinal, work, other)
        _run(prepared, pointers, work, first=True)
        for other in others:
            streams.wait(ordinal, other, work)
        if handed_over:
            streams.stream_object(ordinal, work).sync()
    finally:
        streams.leave(previous)
