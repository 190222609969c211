"""What one tree answers to the questions of replay.py: choices, times, refusals, launches, plans, machine code. It runs in that tree:

    PYTHONPATH=TREE python tools/replay_answers.py QUESTIONS ANSWERS N/JOBS        every JOBS-th question, from the N-th on

All that is read of a tree is read here, by names that last: `explain_for`, `select`, plans, and launches as data. Digests are computed by
the code_cache that stands next to this file, whatever tree answers.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import gzip
import hashlib
import importlib
import importlib.util
import json
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Json = dict[str, Any]


def answer(question: Json) -> Json:
    """To one question. What a tree can't answer, such as an op that it does not have, is an error by name."""
    kind = next(kind for kind in ANSWERS if kind in question)
    try:
        return ANSWERS[kind](question)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}


# --- regions ----------------------------------------------------------------------------------------------------------


def region_of(data: Json, kind: str) -> Any:
    """The region with its tensors on a device of this kind."""
    from aicf.rows import RegionSpec

    return RegionSpec.from_json({**data, "tensors": [{**t, "device": kind} for t in data["tensors"]]})


def choices(question: Json) -> Json:
    """For a region, on each device: the choice, all that led to it, and the launches of the chosen kernel and of a drawn one of the others."""
    import aicf
    from aicf.device.spec import preset

    found, regions = {}, {kind: region_of(question["region"], kind) for kind in ("cuda", "cpu")}
    for name in question["devices"]:
        device = preset(name)
        region = regions[device.kind]
        try:
            selection = aicf.select(region, device, aicf.default_registry())
        except aicf.errors.NoKernelError as error:
            reasons = [detail.partition(": ") for detail in error.details]
            found[name] = {"chosen": None, "verdicts": {id: reason for id, _, reason in reasons}}
            continue
        verdicts = {name_of(c): c.us for c in selection.ranked}
        verdicts |= {name_of(r): f"{r.reject.condition}: {r.reject.reason}" for r in selection.rejected}
        found[name] = {
            "chosen": name_of(selection.chosen),
            "terms": dict(selection.chosen.cost.terms),
            "verdicts": verdicts,
            "launches": {
                n: launches_text(c, region, device) for n, c in described(selection, question["text"]).items()
            },
        }
    return found


def described(selection: Any, text: str) -> Json:
    """By name the candidates whose launches are recorded: the chosen one, and one that the text of the region draws."""
    if selection.device.kind != "cuda":
        return {}
    number = zlib.crc32(f"{text} {selection.device.name}".encode())
    drawn = selection.ranked[number % len(selection.ranked)]
    return {name_of(c): c for c in (selection.chosen, drawn)}


def name_of(candidate: Any) -> str:
    """A kernel's id; with the config, where a kernel has several: `cuda.gemm_wgmma.v1[128x256 pingpong]`."""
    return _with_config(candidate.variant.id, candidate)


def _with_config(kernel_id: str, chosen: Any) -> str:
    config = getattr(chosen, "config", None)
    return kernel_id if config is None else f"{kernel_id}[{config}]"


def built(candidate: Any, region: Any, device: Any) -> tuple[Any, int]:
    """What a chosen kernel starts, and the bytes of workspace that it needs."""
    config = getattr(candidate, "config", None)
    more = () if config is None else (config,)
    variant = candidate.variant
    return variant.build(region, device, *more), variant.query_workspace(region, device, *more)


def launches_text(candidate: Any, region: Any, device: Any) -> list[Json]:
    """Of each launch a digest of its body, and all else as text."""
    calls, workspace = built(candidate, region, device)
    if not isinstance(calls, list):
        return [{"body": "", "with": text_of(calls)}]
    found = []
    for call in calls:
        fields = [f for f in dataclasses.fields(call) if f.name != "body"]
        how = [f"{f.name} {text_of(getattr(call, f.name))}" for f in fields if not _is_default(call, f)]
        found.append({"body": body_digest(call.body), "with": f"workspace {workspace}, {', '.join(how)}"})
    return found


def text_of(value: Any) -> str:
    """Data as text: records by their fields, without those that have their default."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple | list):
        return f"({', '.join(map(text_of, value))})"
    if dataclasses.is_dataclass(value):
        fields = [f for f in dataclasses.fields(value) if not _is_default(value, f)]
        return f"{type(value).__name__}({', '.join(f'{f.name}={text_of(getattr(value, f.name))}' for f in fields)})"  # fmt: skip
    return repr(value)


def _is_default(record: Any, field: Any) -> bool:
    return field.default is not dataclasses.MISSING and getattr(record, field.name) == field.default


# --- digests of bodies ------------------------------------------------------------------------------------------------


@functools.cache
def digests() -> ModuleType:
    """code_cache/digest.py from next to this file, under another name than that of the tree that answers."""
    folder = ROOT / "aicf" / "code_cache"
    init = folder / "__init__.py"
    spec = importlib.util.spec_from_file_location("replay_code_cache", init, submodule_search_locations=[str(folder)])  # fmt: skip
    package = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[spec.name] = package  # type: ignore[union-attr]
    spec.loader.exec_module(package)  # type: ignore[union-attr]
    return importlib.import_module("replay_code_cache.digest")


@functools.cache
def description() -> Any:
    """Describes functions by their source without names; records by their values, those of kernels with the source of their class."""

    class Nameless(digests().Portable):
        def of(self, value: Any) -> bytes:
            libraries = isinstance(value, frozenset) and value >= sys.stdlib_module_names
            return digests().pack("libraries") if libraries else super().of(value)  # others in another Python

        def name(self, kind: type) -> bytes:
            if kind.__module__.split(".")[0] in digests().LIBRARIES:
                return super().name(kind)
            return self.function(kind) if _is_record_of_kernels(kind) else b""

        def callable(self, value: Any) -> bytes:
            return self.function(value) if _is_record_of_kernels(value) else super().callable(value)

        def function(self, fn: Any) -> bytes:
            digesting = fn.__module__.startswith(
                "aicf.code_cache."
            )  # no part of a kernel, and reads bytecode
            return digests().pack("digests") if digesting else super().function(fn)

    return Nameless()


def _is_record_of_kernels(value: Any) -> bool:
    inside = f"{getattr(value, '__module__', '')}.".startswith("aicf.cuda_kernels.")
    return inside and isinstance(value, type) and dataclasses.is_dataclass(value)


def body_digest(body: Any) -> str:
    return digests().digest(description().another().of(body)).hex()[:16]


# --- graphs -----------------------------------------------------------------------------------------------------------


class DrawnModel:
    """A drawn program as a model that is planned and never run: states are zeros."""

    def __init__(self, data: Json) -> None:
        from aicf import DType, TensorSpec

        self.seed, self.sizes, self.data = 0, {}, data
        self.inputs = {name: TensorSpec(tuple(shape), DType[dtype]) for name, shape, dtype in data["inputs"]}

    def emit(self, ctx: Any, inputs: Mapping[str, Any]) -> Any:
        import numpy as np

        from aicf import DType, schema_of

        pool = dict(inputs)
        for name, shape, dtype in self.data["states"]:
            pool[name] = ctx.state(name, tuple(shape), lambda shape, rng: np.zeros(shape), DType[dtype])
        for name, kind, operands, attrs in self.data["steps"]:
            values = [pool[o] if isinstance(o, str) else o for o in operands]
            results = ctx.op(kind, *values, **{k: _tuples(v) for k, v in attrs.items()})
            results = results if isinstance(results, tuple) else (results,)
            pool[name] = results[0]
            for result, (operand, _) in schema_of(kind).alias.items() if name in self.data["writes"] else ():
                ctx.update(values[operand], results[result])
        for name in self.data["outputs"][1:]:
            ctx.builder.output(name, pool[name])
        return pool[self.data["outputs"][0]]


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def explanation(question: Json) -> Any:
    """What `aicf.explain_for` returns for a graph: its plan, and the regions that were formed."""
    import aicf

    numerics, device = question["numerics"], question["device"]
    if "program" in question["graph"]:
        return aicf.explain_for(DrawnModel(question["graph"]["program"]), device, numerics=numerics)
    name = question["graph"]["example"]
    spec = importlib.util.spec_from_file_location(f"replay_{name}", ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    model = module.build(**{k: _tuples(v) for k, v in question["graph"]["build"].items()})
    trained = {"loss": module.loss(), "optimizer": module.optimizer()} if question["mode"] == "train" else {}
    return aicf.explain_for(
        model, device, question["mode"], policy=question["policy"], numerics=numerics, **trained
    )


def plan(question: Json) -> Json:
    """The steps of a graph's plan, and where its values are stored; values are numbered as steps use them."""
    result = explanation(question).plan
    steps, slots, arena = [], [], []
    for part in (result, result.setup):
        if part is not None:
            number: dict[int, int] = {}
            steps += list(_steps(part, number))
            slots += list(_slots(part, number))
            arena.append(part.arena_bytes)
    return {"steps": steps, "slots": slots, "arena": arena}


def _steps(plan: Any, number: dict[int, int]) -> Iterator[str]:
    for step in plan.steps:
        ins, outs = ([number.setdefault(v, len(number)) for v in vids] for vids in (step.in_vids, step.out_vids))  # fmt: skip
        scratch = f", workspace {step.workspace.nbytes} at {step.workspace.offset}" if step.workspace else ""
        attrs = hashlib.blake2b(
            step.region.key.encode(), digest_size=4
        ).hexdigest()  # those are not in its text
        kernel = _with_config(step.kernel_id, step) or "view"
        yield f"{kernel}: {outs} = {step.region} {attrs} of {ins}{scratch}"


def _slots(plan: Any, number: dict[int, int]) -> Iterator[str]:
    for vid in plan.slots:
        number.setdefault(vid, len(number))
    for vid, slot in sorted(plan.slots.items(), key=lambda item: number[item[0]]):
        where = "external" if slot.offset is None else f"at {slot.offset}"
        where = where if slot.alias_of is None else f"alias of {number.get(slot.alias_of)}{slot.strided}"
        update = f", becomes {number.get(plan.updates[vid])}" if vid in plan.updates else ""
        yield f"{number[vid]}: {slot.spec} {slot.role.value} {where}{update}"


# --- machine code -----------------------------------------------------------------------------------------------------

# Sections of a cubin that a kernel runs with; the others have symbols, debug information and notes for tools.
RUN = ".text.", ".nv.constant", ".nv.global", ".nv.shared."


def machine_code(question: Json) -> Json:
    """Of each launch of a kernel: registers, stack, shared memory, and a digest of each section, without symbols' names."""
    import aicf
    from aicf.cuda_kernels.compiler import engine
    from aicf.device.spec import preset

    device = preset(question["device"])
    region = region_of(question["compile"], device.kind)
    selection = aicf.select(region, device, aicf.default_registry())
    candidate = list(described(selection, question["text"]).values())[question["number"]]
    found: Json = {}
    for n, launch in enumerate(built(candidate, region, device)[0]):
        code = engine.compile_launch(launch, region, device.target, candidate.variant.id)
        facts = {
            name: getattr(code, name) for name in ("registers", "stack_bytes", "spill_bytes", "shared_bytes")
        }
        found[f"launch {n}"] = {**facts, "sections": sections(code.cubin)}
    return found


def sections(cubin: bytes) -> list[str]:
    """Name without the kernel's, flags, size and digest of each section that runs."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + n * entry) for n in range(count)]
    strings = headers[names][4]
    found = []
    for name, kind, flags, _, offset, size, *_ in headers:
        text = cubin[strings + name : cubin.index(b"\0", strings + name)].decode()
        prefix = next((p for p in RUN if text.startswith(p)), None)
        if prefix is None:
            continue
        short = text[: text.index(".", len(prefix))] if prefix == ".nv.constant" else prefix.rstrip(".")
        content = (
            b"" if kind == 8 else cubin[offset : offset + size]
        )  # 8: memory that the file has no bytes of
        digest = hashlib.blake2b(content, digest_size=8).hexdigest()
        found.append(f"{short} flags {flags:#x} size {size} {digest}")
    return sorted(found)


ANSWERS = {"region": choices, "graph": plan, "compile": machine_code}


def main() -> None:
    source, target, share = sys.argv[1:]
    first, jobs = map(int, share.split("/"))
    import aicf

    tree = Path(aicf.__file__).parents[1]
    with gzip.open(source, "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    with gzip.open(target, "wt", compresslevel=4, encoding="utf-8") as file:
        file.write(json.dumps({"tree": str(tree)}) + "\n")
        gc.disable()  # what is cached is walked again and again otherwise: a fourth of the time
        for n, line in enumerate(lines[first::jobs]):
            if n % 250 == 249:
                gc.collect()
            file.write(json.dumps(answer(json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
