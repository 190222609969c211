"""From a loop's description to an object file: LLVM IR with the bitcode of the functions that it calls, optimised and emitted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm

from .emit import LoopBuilder
from .fold_loop import emit_fold
from .map_loop import emit_map
from .spec import ENTRY, FoldSpec, MapSpec
from .target import optimise, processor, target_data, target_machine


def compile_loop(spec: MapSpec | FoldSpec) -> tuple[bytes, list[str], bool]:
    """(object file, symbols that it needs from elsewhere, whether another process may run it)."""
    loop = _written(spec)
    with _optimised(loop, vectors=isinstance(spec, MapSpec)) as module:
        outside = [v.name for v in (*module.functions, *module.global_variables) if v.is_declaration]
        needs = sorted(n for n in outside if not n.startswith("llvm."))
        return target_machine().emit_object(module), needs, loop.movable


def compiled_texts(spec: MapSpec | FoldSpec) -> tuple[str, str]:
    """(LLVM IR, assembly), for whoever wants to read them."""
    with _optimised(_written(spec), vectors=isinstance(spec, MapSpec)) as module:
        return str(module), target_machine().emit_assembly(module)


def _written(spec: MapSpec | FoldSpec) -> LoopBuilder:
    return emit_map(spec) if isinstance(spec, MapSpec) else emit_fold(spec)


@contextmanager
def _optimised(loop: LoopBuilder, vectors: bool) -> Iterator[Any]:
    """The module of one function, `run`. vectors: LLVM makes them; a fold has them already.

    Modules are closed before their context, which Python's collector of garbage would not do.
    """
    data_layout = target_data()
    with llvm.create_context() as context, llvm.parse_assembly(loop.finished(), context) as module:
        module.triple, module.data_layout = processor()[0], data_layout
        for bitcode in loop.bitcode.values():
            module.link_in(llvm.parse_bitcode(bitcode, context))
        for function in module.functions:
            if not function.is_declaration and function.name != ENTRY:
                function.linkage = llvm.Linkage.internal
                if not any(b"noinline" in kind for kind in function.attributes):
                    function.add_function_attribute("alwaysinline")
        module.verify()
        optimise(module, vectors)
        yield module
