"""A page for each op, from its record: what `aicf info OP` says, with element types, the kernel an example gets, and the op's own code."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from aicf.device.spec import PRESETS
from aicf.dispatch import default_registry
from aicf.errors import NoKernelError
from aicf.graph.composed import planned
from aicf.ops.schema import ELEMENTWISE, LINEAR, MAP, VIEW, OpSchema, schemas
from aicf.registry.select import select
from aicf.registry.variant import kernels_of
from aicf.rows import RegionSpec
from aicf.types import DType, TensorDesc, TensorSpec

from .house_style import inline, to_rst

DEVICES = "h200", "cpu"
MOST = 12  # kernels of a graph that are listed
SIDE = 1024  # elementwise ops are shown on squares; the others' samples are small
KINDS = {
    ELEMENTWISE: "elementwise: it fuses with what stands before and behind it",
    MAP: "a map: it fuses with what stands before and behind it",
    VIEW: "a view: where a plan can say so, nothing runs",
}


def pages() -> Iterator[tuple[str, str]]:
    """(path without its ending, text) of the index and of all ops."""
    found = list(schemas())
    yield "ops/index", _index(found)
    for schema in found:
        yield f"ops/{schema.name}", page(schema)


def page(schema: OpSchema) -> str:
    where = f":doc:`All ops <index>`, :ref:`{_subject(schema)} <ops-{_subject(schema)}>`"
    lines = [
        ":orphan:",
        "",
        *title(schema.name),
        where,
        "",
        *code(signature(schema), "text"),
        *to_rst(schema.doc),
    ]
    lines += [*_facts(schema), *_kernels(schema), *_example(schema)]
    for heading, function in (
        ("Reference, in NumPy", schema.reference_fn),
        ("Gradient", schema.gradient_fn),
        ("Expands to", schema.expand_fn),
        ("In a graph these ops stand in its place", schema.instead_fn),
    ):
        lines += _source(heading, function)
    return "\n".join(lines) + "\n"


def title(text: str, under: str = "=") -> list[str]:
    return [text, under * len(text), ""]


def code(text: str, language: str) -> list[str]:
    return [f".. code-block:: {language}", "", *textwrap.indent(text, "    ").split("\n"), ""]


def table(*rows: Iterable[str], header: bool = True) -> list[str]:
    """A list-table of cells of reStructuredText; nothing if there are no rows below the header."""
    if len(rows) <= header:
        return []
    lines = [".. list-table::", *(["   :header-rows: 1"] if header else []), ""]
    for row in rows:
        lines += [f"   {'* -' if n == 0 else '  -'} {cell}".rstrip() for n, cell in enumerate(row)]
    return [*lines, ""]


def signature(schema: OpSchema) -> str:
    """As `aicf info` prints it; what is too long for a line has a parameter on each."""
    takes = [f"{d}: {d.type}" for d in schema.operands]
    takes += ["*"] if schema.attrs and not schema.variadic else []
    takes += [str(a) for a in schema.attrs]
    results = ", ".join(schema.results)
    line = f"{schema.name}({', '.join(takes)}) -> {results}"
    if len(line) <= 90:
        return line
    return f"{schema.name}(\n" + "".join(f"    {t},\n" for t in takes) + f") -> {results}"


def _types(types: Iterable[DType]) -> str:
    return ", ".join(f"``{t}``" for t in sorted(types, key=lambda t: t.id))


def _facts(schema: OpSchema) -> list[str]:
    rows = []
    for decl in schema.operands:
        how = (
            "each of any number of operands" if decl.variadic else "may be left out" if decl.optional else ""
        )
        how = ", ".join(filter(None, [how, "" if decl.type.shared else "of a type of its own"]))
        rows.append((f"``{decl}``", _types(decl.type.dtypes), how))
    columns = 3 if any(how for *_, how in rows) else 2
    shown = (row[:columns] for row in [("operand", "element types", ""), *rows])
    lines = [*title("Types and traits", "-"), *table(*shown)]
    if sum(d.type.shared for d in schema.operands) > 1:
        lines += ["Operands without a type of their own share one: nothing is converted silently.", ""]
    facts = [("Gradient", _gradient(schema))]
    facts += [("Kind", text) for text in [next((KINDS[t] for t in KINDS if t in schema.traits), "")] if text]
    if LINEAR in schema.traits:
        facts.append(("Linear", "in its first operand"))
    for result, (operand, how) in schema.alias.items():
        wording = "is written over" if how == "must" else "may take over the memory of"
        facts.append(
            ("Memory", f"``{schema.results[result]}`` {wording} ``{schema.operands[operand].name}``")
        )
    if schema.origin != "aicf":
        facts.append(("From", schema.origin))
    return [*lines, *(f":{name}: {text}" for name, text in facts), ""]


def _gradient(schema: OpSchema) -> str:
    if schema.gradient_fn is None:
        return "that of the ops that stand in its place" if schema.instead_fn else "none"
    asked = [p for p in inspect.signature(schema.gradient_fn).parameters if p != "emit"]
    return "a rule of " + ", ".join(f"``{p}``" for p in asked)


def _kernels(schema: OpSchema) -> list[str]:
    variants = default_registry().variants(schema.kind)
    rows = [
        (k.variants[0].device, f":ref:`{k.id} <kernel-{k.id}>`", inline(_first_sentence(k.doc)))
        for k in kernels_of(variants)
    ]
    lines = [*title("Kernels that may begin with it", "-")]
    lines += table(("device", "kernel", "how it works"), *rows)
    if schema.instead_fn:
        lines += [
            "In a graph :ref:`simpler ops may stand in its place <ops-replaced>`, which have more kernels.",
            "",
        ]
    return lines


def _first_sentence(doc: str) -> str:
    """Of a docstring whose lines are broken anywhere."""
    first = " ".join(doc.split("\n\n")[0].split())
    end = first.find(". ")
    return first if end < 0 else first[: end + 1]


def example(schema: OpSchema, device: str) -> tuple[RegionSpec, Any]:
    """A region of one of the op's samples, with as many operands as there are, and the choice for it; None where no kernel takes it."""
    sample = max(schema.sample_specs, key=lambda s: sum(shape is not None for shape in s["shapes"]))
    shapes = sample["shapes"]
    if ELEMENTWISE in schema.traits:
        shapes = [(SIDE, SIDE)] * len(shapes)
    spec = PRESETS[device]
    specs = [
        None if shape is None else TensorSpec(shape, _example_type(decl.type.dtypes), spec.kind)
        for decl, shape in zip(schema.declared(len(shapes)), shapes)
    ]
    attrs = schema.pack(schema.normalized(specs, sample["attrs"]))
    results = schema.infer(specs, attrs, spec.kind)
    dense = [None if s is None else TensorDesc.dense(s) for s in specs]
    region = RegionSpec.single(schema.kind, attrs, dense, [TensorDesc.dense(r) for r in results])
    try:
        return region, select(region, spec, default_registry())
    except NoKernelError:
        return region, None


def _example_type(types: Iterable[DType]) -> DType:
    return min(types, key=lambda t: (t is not DType.f32, t.is_fp8, t.id))


def _example(schema: OpSchema) -> list[str]:
    if not schema.sample_specs:
        return []
    rows, called, traces = [], "", []
    for device in DEVICES:
        region, selection = example(schema, device)
        (op,) = region.ops
        called = f"{schema.name}({', '.join(_shown(region, op.inputs))}) -> {', '.join(_shown(region, op.outputs))}"
        if selection is None:
            traces += _composed(schema, region, device)
            continue
        traces += [f"On {device}:", "", *code(str(selection), "text")]
        chosen = selection.chosen
        kernel = f":ref:`{chosen.variant.id} <kernel-{chosen.variant.id}>`"
        rows.append(
            (device, kernel, f"{chosen.us:.3g} us", inline(str(chosen.cost)), str(len(selection.ranked)))
        )
    if not rows and not traces:
        return []
    attrs = ", ".join(f"{name}={value!r}" for name, value in schema.values(op.attrs).items())
    head = ("device", "chosen", "predicted", "of which", "kernels that take it")
    return [
        *title("The kernel an example gets", "-"),
        *code(called + (f"\n    {attrs}" if attrs else ""), "text"),
        *table(head, *rows),
        *title("The choice, as it is told", "-"),
        *traces,
    ]  # fmt: skip


def _composed(schema: OpSchema, region: RegionSpec, device: str) -> list[str]:
    """The graph that stands in the op's place, where no kernel takes the op itself."""
    if schema.instead_fn is None:
        return []
    (op,) = region.ops
    specs = [None if n < 0 else _spec(region.tensors[n]) for n in op.inputs]
    try:
        made = planned(schema, schema.values(op.attrs), specs, PRESETS[device])
    except NoKernelError:
        return []
    lines = [f"{r.spec.signature}  {r.kernel_id}  {r.selection.chosen.us:.3g} us" for r in made.regions]
    lines = [*lines[:MOST], f"and {len(lines) - MOST} more"] if len(lines) > MOST + 1 else lines
    return (
        [f"On {device} it is other ops, in these kernels:", "", *code("\n".join(lines), "text")]
        if lines
        else []
    )


def _spec(desc: TensorDesc) -> TensorSpec:
    return TensorSpec(desc.shape, desc.dtype, desc.device)


def _shown(region: RegionSpec, tensors: Iterable[int]) -> list[str]:
    return [str(region.tensors[n]) if n >= 0 else "None" for n in tensors]


def _source(heading: str, function: Callable[..., Any] | None) -> list[str]:
    if function is None:
        return []
    try:
        source = textwrap.dedent(inspect.getsource(function)).rstrip()
    except (OSError, TypeError):  # a function without a file, such as a partial's
        return []
    if "lambda" in source.partition("def ")[0] and not source.startswith(("def", "@")):
        return []  # a piece of a line elsewhere says little
    return [*title(heading, "-"), *code(source, "python")]


def _index(found: list[OpSchema]) -> str:
    lines = [
        *title("Ops"),
        "What a graph consists of. Each page is made from the op's record, which ``aicf info OP`` prints too: types and constraints, the kernels "
        "there are, which of them an example gets, and its definition. :doc:`/docs/add-an-op` tells how to add one.",
        "",
        "In a model they are methods of ``ctx`` or functions of Values: :doc:`layers of your own </docs/guide>`.",
        "",
    ]
    by_subject: dict[str, list[OpSchema]] = {}
    for schema in found:
        by_subject.setdefault(_subject(schema), []).append(schema)
    for subject, ops in sorted(by_subject.items()):
        rows = [
            (f":doc:`{s.name}`", inline(_first_sentence(s.doc)), "yes" if s.gradient_fn else "") for s in ops
        ]
        lines += [f".. _ops-{subject}:", "", *title(subject, "-"), *table(("op", "", "gradient"), *rows)]
    replaced = [f":doc:`{s.name}`" for s in found if s.instead_fn]
    lines += [".. _ops-replaced:", "", *title("Ops made of simpler ones", "-")]
    lines += [
        "In a graph simpler ops may stand in the place of "
        + ", ".join(replaced)
        + ". Their pages say which.",
        "",
    ]
    return "\n".join(lines) + "\n"


def _subject(schema: OpSchema) -> str:
    """The file it is in: of aicf/ops/linear_loss.py, "Linear loss"."""
    module = (schema.scalar or schema.rule).__module__
    return module.rpartition(".")[2].replace("_", " ").capitalize()
