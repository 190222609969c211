"""Inline assembly: one instruction as an intrinsic. LLVM knows nothing of it but its constraints and that it has effects."""

from __future__ import annotations

from typing import Any

from ...dsl import intrinsic, ir, types


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

    text        $0 is the result, if there is one; arguments follow
    parameters  numba's types of the arguments, numbers all of them: others are converted
    effects     it stays where it is among others with effects, and memory is read and written on its side of it
    together    see `assemble`
    """
    letters = {types.int32: "r", types.uint32: "r", types.int64: "l", types.uint64: "l", types.float32: "f"}
    made = [] if result is None else ["=" + letters[result]]
    constraints = ",".join([*made, *(letters[p] for p in parameters), *["~{memory}"] * effects])

    def typed(*given):
        def codegen(ctx, b, sig, args):
            kind = ir.VoidType() if result is None else ctx.get_value_type(result)
            value = assemble(b, text, constraints, kind, list(args), effects, together)
            return ctx.get_dummy_value() if result is None else value

        return (types.void if result is None else result)(*parameters), codegen

    # numba asks for each argument's name
    shapes = (
        lambda typing: typed(), lambda typing, a: typed(a), lambda typing, a, b: typed(a, b),
        lambda typing, a, b, c: typed(a, b, c), lambda typing, a, b, c, d: typed(a, b, c, d),
        lambda typing, a, b, c, d, e: typed(a, b, c, d, e),
    )  # fmt: skip
    return intrinsic(shapes[len(parameters)])
