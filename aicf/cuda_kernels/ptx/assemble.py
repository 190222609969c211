"""Inline assembly: one instruction as an intrinsic. LLVM knows nothing of it but its constraints and that it has effects."""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any

from ..dsl import intrinsic, ir, types


def assemble(
    b: Any,
    text: str,
    constraints: str,
    result: Any,
    args: list[Any],
    effects: bool = False,
    together: bool = False,
) -> Any:
    """One instruction, as LLVM's inline assembly.

    effects   it does more than compute its result
    together  threads of a warp do it at once: LLVM may not copy it to where some of them come by another way
    """
    kind = ir.FunctionType(result, [a.type for a in args])
    how = ("convergent",) if together else ()
    return b.call(ir.InlineAsm(kind, text, constraints, side_effect=effects), args, attrs=how)


def instruction(
    text: str, *parameters: Any, result: Any = None, effects: bool = True, together: bool = False
) -> Any:
    """An intrinsic of one instruction, or of a few in braces. Call it in a factory: it needs numba.

    text        $0 is the result, if there is one, or $0, $1, … the results; arguments follow
    parameters  numba's types of the arguments, numbers all of them: others are converted
    result      a type, or a tuple of them: then a tuple is returned
    effects     it stays where it is among others with effects, and memory is read and written on its side of it
    together    see `assemble`
    """
    results = () if result is None else result if isinstance(result, tuple) else (result,)
    made = types.void if not results else types.Tuple(results) if isinstance(result, tuple) else result
    constraints = ",".join(
        [*("=" + letter(r) for r in results), *map(letter, parameters), *["~{memory}"] * effects]
    )

    def typed(typing, *given):
        def codegen(ctx, b, sig, args):
            kinds = [ctx.get_value_type(r) for r in results]
            kind = (
                ir.VoidType() if not kinds else kinds[0] if len(kinds) == 1 else ir.LiteralStructType(kinds)
            )
            value = assemble(b, text, constraints, kind, list(args), effects, together)
            if not isinstance(result, tuple):
                return value if results else ctx.get_dummy_value()
            extracted = [b.extract_value(value, i) for i in range(len(kinds))] if len(kinds) > 1 else [value]
            return ctx.make_tuple(b, made, extracted)

        return made(*parameters), codegen

    # numba asks for each argument's name
    names = ("typing", *(f"a{i}" for i in range(len(parameters))))
    typed.__signature__ = Signature([Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in names])
    return intrinsic(typed)


def letter(kind: Any) -> str:
    """Of a register for a number of this type, in constraints."""
    letters = {types.int32: "r", types.uint32: "r", types.int64: "l", types.uint64: "l", types.float32: "f"}
    return letters[kind]
