"""One op with what it is given: the checks that its declaration implies, and what its rule asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ....errors import TypeInferenceError
from .bodies import TypedBody
from .declare import Attr, Kind, Misfit, OperandRule, Rule
from .types import MAX_SIZE, Dim, RankedTensor, Type, all_fit, compatible, tensor
from .values import Attribute


class OpTyping:
    """What a rule sees. `results` are the types that the op is said to have, or None; so are `bodies`."""

    def __init__(
        self,
        name: str,
        rule: Rule,
        operands: Sequence[Type],
        attributes: Mapping[str, Attribute],
        results: Sequence[Type] | None,
        bodies: Sequence[TypedBody | None] | None,
    ) -> None:
        self.name, self.rule = name, rule
        self.operands, self.attributes = list(operands), attributes
        self.results, self.bodies = None if results is None else list(results), bodies

    def fail(self, constraint: str, message: str) -> NoReturn:
        raise refusal(self.name, constraint, message, self.operands)

    def require(self, condition: bool, constraint: str, message: str) -> None:
        if not condition:
            self.fail(constraint, message)

    def body(self, index: int) -> TypedBody | None:
        """A body, where bodies are given: one that has no block is refused by whoever needs its types."""
        return None if self.bodies is None else self.bodies[index]

    def said(self, index: int = 0) -> RankedTensor:
        """A result type that can't be inferred."""
        if self.results is None:
            self.fail("result", "its result types do not follow from its operands; give result_types")
        found = self.results[index]
        assert isinstance(found, RankedTensor)
        return found

    def given(self, inferred: RankedTensor) -> RankedTensor:
        """The result's type: the one that it is said to have, else the inferred one."""
        return inferred if self.results is None else self.said()

    def size(self, number: int, constraint: str, what: str) -> int:
        """A computed size, which 64 bits must hold."""
        self.require(
            -MAX_SIZE <= number <= MAX_SIZE, constraint, f"{what} is {number}, more than 64 bits hold"
        )
        return number

    def shaped(
        self, shape: Sequence[Dim], element: str, constraint: str, bounds: Sequence[Dim] | None = None
    ) -> Type:
        """A result whose shape is inferred and whose element type is the module's to choose; without one it is `element`."""
        if self.results is None:
            return tensor(shape, element, bounds)
        found = self.said()
        self.require(
            all_fit([shape, found.shape]),
            constraint,
            f"the result is {found}, but its shape is inferred as {tensor(shape, element)}",
        )
        return found

    # --- what the declaration implies -------------------------------------------------------------------------------------

    def run(self) -> list[Type]:
        values = self._operands() | self._attributes()
        self._bodies()
        given = self.results
        if given is not None and isinstance(self.rule.results, tuple):
            expected = len(self.rule.results)
            self.require(
                len(given) == expected, "result", f"has {len(given)} result types, expected {expected}"
            )
        elif given is not None and self.one_result:
            self.require(len(given) == 1, "result", f"has {len(given)} result types, expected 1")
        if given is not None:
            self._kinds(given)
        made = self.rule.infer(self, *(values[each.name] for each in self.rule.given))
        inferred: list[Type] = list(made) if isinstance(made, (list, tuple)) else [made]
        final = inferred if given is None else given
        if given is not None:
            self.require(
                len(given) == len(inferred),
                "result",
                f"has {len(given)} result types, expected {len(inferred)}",
            )
            for n, (want, got) in enumerate(zip(inferred, given)):
                self.require(
                    compatible(want, got),
                    self._results_constraint(),
                    f"result {n} is {got}, which does not fit the inferred {want}",
                )
        else:
            self._kinds(inferred)
        self._traits([*self.operands, *final])
        for n, each in enumerate(final):
            if isinstance(each, RankedTensor) and each.static and each.count > MAX_SIZE:
                self.fail("result", f"result {n} is {each}, which has more elements than 64 bits count")
        return final

    @property
    def one_result(self) -> bool:
        return not any(each.many for each in self.rule.operands) and self.rule.bodies == ()

    def _results_constraint(self) -> str:
        return self.rule.made or self.rule.same_shape or "result"

    def _operands(self) -> dict[str, Any]:
        declared, operands = self.rule.operands, self.operands
        variadic = [each for each in declared if each.many]
        fixed = len(declared) - len(variadic)
        left = len(operands) - fixed
        fair = left == 0 if not variadic else left >= 0 and left % len(variadic) == 0
        self.require(
            fair,
            "operands",
            f"takes {', '.join(map(_named, declared)) or 'none'}; got {len(operands)} operands",
        )
        each_has = left // len(variadic) if variadic else 0
        found: dict[str, Any] = {}
        place = 0
        for decl in declared:
            count = each_has if decl.many else 1
            taken = operands[place : place + count]
            for n, type in enumerate(taken):
                label = f"{decl.name}[{n}]" if decl.many else decl.name
                self._operand(self.rule.number(decl), label, type, decl.kind)
            found[decl.name] = taken if decl.many else taken[0]
            place += count
        return found

    def _operand(self, number: str, label: str, type: Type, kind: Kind) -> None:
        self.require(kind.accepts(type), number, f"{label} is {type}, expected {kind.said}")
        if isinstance(type, RankedTensor) and type.static:
            self.require(
                type.count <= MAX_SIZE,
                number,
                f"{label} is {type}, which has more elements than 64 bits count",
            )

    def _attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for decl in self.rule.attributes:
            number = self.rule.number(decl)
            given = self.attributes.get(decl.name)
            if given is None:
                self.require(not decl.needed, number, f"needs the attribute {decl.name}")
                found[decl.name] = decl.default
                continue
            try:
                found[decl.name] = decl.value(given)
            except Misfit as misfit:
                self.fail(misfit.constraint or number, f"{decl.name} {misfit}")
        return found

    def _bodies(self) -> None:
        names, bodies = self.rule.bodies, self.bodies
        if bodies is None:
            return
        if names is not None:
            self.require(
                len(bodies) == len(names),
                "bodies",
                f"has {len(bodies)} bodies, expected {len(names)}{': ' if names else ''}{', '.join(names)}",
            )
        if self.results is not None:
            for n, body in enumerate(bodies):
                self.require(body is not None, "bodies", f"body {n} is empty")

    def _kinds(self, types: Sequence[Type]) -> None:
        kinds = self.rule.results
        each = kinds if isinstance(kinds, tuple) else (kinds,) * len(types)
        for n, (type, kind) in enumerate(zip(types, each)):
            self.require(kind.accepts(type), "result", f"result {n} is {type}, expected {kind.said}")

    def _traits(self, types: Sequence[Type]) -> None:
        tensors = [type for type in types if isinstance(type, RankedTensor)]
        if self.rule.same_shape:
            self.require(
                all_fit([t.shape for t in tensors]),
                self.rule.same_shape,
                "operands and results have different shapes",
            )
        if self.rule.same_elements:
            self.require(
                len({t.element for t in tensors}) <= 1,
                self.rule.same_elements,
                f"element types differ: {', '.join(t.element for t in tensors)}",
            )


def _named(decl: OperandRule | Attr) -> str:
    return f"{decl.name}…" if isinstance(decl, OperandRule) and decl.many else decl.name


def refusal(name: str, constraint: str, message: str, operands: Sequence[Type] = ()) -> TypeInferenceError:
    """The error that an op breaks a constraint."""
    message = _short(message, 1000)
    return TypeInferenceError(
        f"{name} {constraint}: {message}" if constraint else f"{name}: {message}",
        details=[f"operand {n}: {_short(str(type))}" for n, type in enumerate(operands[:16])],
        op=name,
        constraint=constraint,
        message=message,
    )


def _short(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"
