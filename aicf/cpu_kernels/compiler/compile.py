"""From a loop's description to an object file: LLVM IR with the bitcode of the functions that it calls, optimised and emitted."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm

from .fold_loop import emit_fold
from .map_loop import emit_map
from .spec import ENTRY, FoldSpec, MapSpec
from .target import optimise, processor, target_data, target_machine


def compile_loop(spec: MapSpec | FoldSpec) -> tuple[bytes, list[str]]:
    """(object file, symbols that it needs from elsewhere)."""
    module = _module_of(spec)
    outside = [v.name for v in (*module.functions, *module.global_variables) if v.is_declaration]
    return target_machine().emit_object(module), sorted(n for n in outside if not n.startswith("llvm."))


def compiled_texts(spec: MapSpec | FoldSpec) -> tuple[str, str]:
    """(LLVM IR, assembly), for whoever wants to read them."""
    module = _module_of(spec)
    return str(module), target_machine().emit_assembly(module)


def _module_of(spec: MapSpec | FoldSpec) -> Any:
    """Of LLVM, optimised: one function, `aicf_loop`."""
    loop = emit_map(spec) if isinstance(spec, MapSpec) else emit_fold(spec)
    context = llvm.create_context()
    data_layout = target_data()
    module = llvm.parse_assembly(loop.finished(), context)
    module.triple, module.data_layout = processor()[0], data_layout
    for bitcode in loop.bitcode.values():
        module.link_in(llvm.parse_bitcode(bitcode, context))
    for function in module.functions:
        if not function.is_declaration and function.name != ENTRY:
            function.linkage = llvm.Linkage.internal
            if not any(b"noinline" in kind for kind in function.attributes):
                function.add_function_attribute("alwaysinline")
    module.verify()
    optimise(module, vectors=isinstance(spec, MapSpec))  # a fold has them already
    return module
