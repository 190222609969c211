"""StableHLO's own inference and verification through jaxlib's MLIR bindings, in a process of its own: MLIR aborts on some of what it is given.

Reads instances as lines of JSON, and writes for each a line: whether it is accepted, the result types, and the first line of the error.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

BODIES = {
    "reduce": 1,
    "sort": 1,
    "reduce_window": 1,
    "scatter": 1,
    "select_and_scatter": 2,
    "while": 2,
    "all_reduce": 1,
}


@dataclass
class Instance:
    """What `infer_op` is given."""

    name: str
    operands: list[str]
    attributes: dict[str, str] = field(default_factory=dict)
    results: list[str] | None = None
    bodies: list[str] | None = None

    def text(self) -> str:
        """A module of one function with the op in it, in MLIR's generic form."""
        operands = [f"%a{n}" for n in range(len(self.operands))]
        arguments = ", ".join(f"{name}: {type}" for name, type in zip(operands, self.operands))
        regions = ", ".join(f"{{{body}}}" for body in self.bodies or ())
        attributes = ", ".join(f"{key} = {value}" for key, value in self.attributes.items())
        results = self.results or []
        made = f"%r:{len(results)} = " if results else ""
        op = (
            f'{made}"stablehlo.{self.name}"({", ".join(operands)}) {f"({regions})" if regions else ""} {{{attributes}}} : '
            f"({', '.join(self.operands)}) -> ({', '.join(results)})"
        )
        function = f'"func.func"() <{{function_type = ({", ".join(self.operands)}) -> (), sym_name = "f"}}> ({{\n^bb0({arguments}):\n{op}\n"func.return"() : () -> ()\n}}) : () -> ()'
        return f'"builtin.module"() ({{\n{function}\n}}) : () -> ()'


@dataclass
class Answer:
    accepted: bool
    types: list[str] | None = None
    error: str = ""
    aborted: bool = False


def ask(instances: Sequence[Instance]) -> list[Answer]:
    """MLIR's answers. Where it takes the process down, it starts again behind that instance."""
    answers: list[Answer] = []
    while len(answers) < len(instances):
        left = instances[len(answers) :]
        lines = "".join(json.dumps(asdict(each)) + "\n" for each in left)
        ran = subprocess.run(
            [sys.executable, __file__], input=lines, capture_output=True, text=True, timeout=600
        )
        made = [Answer(**json.loads(line)) for line in ran.stdout.splitlines() if line.endswith("}")]
        answers += made
        if len(made) < len(left):
            said = ran.stderr.strip().splitlines()[:1]
            assert ran.returncode, said
            answers.append(Answer(False, None, f"aborted: {said}", True))
    return answers


class _Bindings:
    def __init__(self) -> None:
        from jaxlib.mlir import ir
        from jaxlib.mlir._mlir_libs import _jax_mlir_ext
        from jaxlib.mlir.dialects import chlo, stablehlo

        self.ir, self.context = ir, ir.Context()
        registry = ir.DialectRegistry()
        _jax_mlir_ext.register_dialects(registry)
        self.context.append_dialect_registry(registry)
        self.context.load_all_available_dialects()
        stablehlo.register_dialect(self.context)
        chlo.register_dialect(self.context)

    def answer(self, given: Instance) -> Answer:
        try:
            with self.context, self.ir.Location.unknown():
                types = self._inferred(given) if given.results is None else self._verified(given)
                return Answer(True, types)
        except Exception as error:
            said = [line for line in str(error).splitlines() if "error:" in line] or [str(error)]
            return Answer(False, None, said[0][:300])

    def _verified(self, given: Instance) -> list[str]:
        module = self.ir.Module.parse(given.text())
        (op,) = [
            op
            for op in module.body.operations[0].regions[0].blocks[0].operations
            if op.operation.name.startswith("stablehlo.")
        ]
        return [str(result.type) for result in op.operation.results]

    def _inferred(self, given: Instance) -> list[str]:
        ir = self.ir
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            operands = [
                ir.Operation.create(
                    "builtin.unrealized_conversion_cast", results=[ir.Type.parse(type)], operands=[]
                ).result
                for type in given.operands
            ]
            attributes = {key: ir.Attribute.parse(value) for key, value in given.attributes.items()}
            op = ir.Operation.create(
                f"stablehlo.{given.name}",
                operands=operands,
                attributes=attributes,
                regions=BODIES.get(given.name, 0),
                infer_type=True,
            )
        if given.name not in BODIES and not op.verify():  # which wants no empty bodies
            raise ValueError("not verified")
        return [str(result.type) for result in op.results]


def main() -> None:
    bindings = _Bindings()
    for line in sys.stdin:
        fields: dict[str, Any] = json.loads(line)
        print(json.dumps(asdict(bindings.answer(Instance(**fields)))), flush=True)


if __name__ == "__main__":
    main()
