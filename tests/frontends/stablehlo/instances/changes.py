"""One thing changed."""

from __future__ import annotations

import re

from ..mlir_worker import Instance
from .making import ALL, OTHERS, Maker

_SIZES = re.compile(r"(\d+|\?)(?=x)")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?![\w.])")
_ELEMENT = re.compile(r"(?:(?<=x)|(?<=tensor<))(?:complex<f\d+>|[a-z]+\d+[A-Z\d]*[A-Z]*)")


def changed(m: Maker, given: Instance) -> Instance:
    """The instance with one thing changed, which it may or may not allow."""
    whole = given.results is None  # MLIR's inference looks for operands and attributes that are not there
    what = m.of(
        ["operand", "operand", "attribute", "attribute", "attribute", "result", "body"]
        + ["drop", "more"] * (not whole)
    )
    operands, attributes, results, bodies = (
        list(given.operands),
        dict(given.attributes),
        given.results and list(given.results),
        given.bodies and list(given.bodies),
    )
    if what == "operand" and operands:
        n = m.rng.randrange(len(operands))
        operands[n] = other_type(m, operands[n])
    elif what == "result" and results:
        n = m.rng.randrange(len(results))
        results[n] = other_type(m, results[n])
    elif what == "attribute" and attributes:
        name = m.of(attributes)
        attributes[name] = other_attribute(m, attributes[name])
    elif what == "body" and bodies:
        n = m.rng.randrange(len(bodies))
        bodies[n] = other_body(m, bodies[n])
    elif what == "drop" and m.chance() and attributes:
        del attributes[m.of(attributes)]
    elif what == "drop" and len(operands) > 1:
        operands.pop(m.rng.randrange(len(operands)))
    elif what == "more" and operands and m.chance(0.3):
        operands.append(m.of(operands))
    elif what == "more" and results and m.chance(0.3):
        results.append(m.of(results))
    return Instance(given.name, operands, attributes, results, bodies)


def other_type(m: Maker, text: str) -> str:
    head, mark, bounds = text.partition(", #")
    way = m.rng.randrange(6)
    sizes = list(_SIZES.finditer(head))
    if way <= 2 and sizes:
        at = m.of(sizes)
        return (
            head[: at.start()]
            + str(m.of([0, 1, 2, 3, 4, 7, "?"]))
            + head[at.end() :]
            + (mark + bounds if m.chance(0.3) else "" if not mark else ">")
        )
    if way == 3 and sizes:
        return head.replace(sizes[0].group() + "x", "", 1) + (">" if mark else "")
    if way == 4:
        return head.replace("tensor<", f"tensor<{m.of([1, 2, '?'])}x", 1) + (">" if mark else "")
    return _ELEMENT.sub(lambda _: m.of(ALL + OTHERS), text, count=1)


def other_attribute(m: Maker, text: str) -> str:
    numbers = list(_NUMBER.finditer(text))
    way = m.rng.randrange(8)
    if way == 0:
        return text.replace(": i64", ": i32").replace("<i64", "<i32")
    if way == 1:
        return m.of(["1 : i64", "unit", "array<i64: 0>", "dense<0> : tensor<1xi64>", "true", '"text"', "[]"])
    if way == 2 and numbers:
        at = m.of(numbers)
        return text[: at.start()] + f"{at.group()}, {m.rng.randint(0, 3)}" + text[at.end() :]
    if way == 3 and ", " in text:
        parts = text.split(", ")
        at = m.rng.randrange(1, len(parts))
        return (
            ", ".join(parts[:at] + parts[at + 1 :])
            if parts[at][:1].isdigit() and parts[at][-1:].isdigit()
            else text
        )
    if numbers:
        at = m.of(numbers)
        value = int(at.group())
        return text[: at.start()] + str(m.of([-1, 0, 1, 2, 3, value + 1, value - 1, 10])) + text[at.end() :]
    return text


def other_body(m: Maker, text: str) -> str:
    types = sorted(set(re.findall(r"tensor<[^>]*>+", text)))
    if not types:
        return text
    way = m.rng.randrange(3)
    if way == 0:  # everywhere
        return text.replace(m.of(types), other_type(m, m.of(types)))
    if way == 1:  # in arguments
        head, colon, tail = text.partition("): ")
        return head.replace(m.of(types), other_type(m, m.of(types)), 1) + colon + tail
    return re.sub(r"\^bb0\(([^)]*)\)", lambda found: f"^bb0({found.group(1)}, %more: {m.of(types)})", text)
