"""From a loop's description to an object file, by numba. Imported only where nothing is in the cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba.core import types
from numba.core.compiler import Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from .compose import run_of
from .fold import folding
from .frame import FRAME, helper, local, offset, pointers
from .linked import only_linked
from .spec import FoldSpec, MapSpec


@global_compiler_lock
def compile_loop(spec: MapSpec | FoldSpec) -> tuple[bytes, str, list[str]]:
    """(object file, the symbol to call, symbols that it needs from elsewhere)."""
    module, made = _module_of(spec)
    outside = [v.name for v in (*module.functions, *module.global_variables) if v.is_declaration]
    code = _target_machine().emit_object(module)
    return code, made.fndesc.llvm_func_name, sorted(n for n in outside if not n.startswith("llvm."))


@global_compiler_lock
def compiled_texts(spec: MapSpec | FoldSpec) -> tuple[str, str]:
    """(LLVM IR, assembly), for whoever wants to read them."""
    module, _ = _module_of(spec)
    return str(module), _target_machine().emit_assembly(module)


def _module_of(spec: MapSpec | FoldSpec) -> tuple[Any, Any]:
    """Of LLVM, and numba's result that it is of."""
    entry = _walk_entry(spec) if isinstance(spec, MapSpec) else _fold_entry(spec)
    flags = Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True  # an object file is all
    flags.error_model = "numpy"
    typing, target = cpu_target.typing_context, cpu_target.target_context
    typing.refresh()
    target.refresh()
    with only_linked(target):
        made = compile_extra(typing, target, entry, (FRAME, FRAME), types.void, flags, {})
        module = made.library.whole()
    return module, made


@cache
def _target_machine() -> Any:
    """Of the processor that numba has made the code for; the code may lie anywhere."""
    triple, cpu, features = cpu_target.target_context.codegen().magic_tuple()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(cpu, features, opt=3, reloc="pic", codemodel="default", jit=True)


@helper
def _seek(plan, columns, arguments, position, at):
    """Which element each argument has at a position of the domain. plan: see MapLoop."""
    last = columns - 1
    for k in range(arguments):
        at[k] = plan[(k + 1) * columns + last]
    for axis in range(last - 1, -1, -1):
        size = plan[axis]
        coordinate = position % size if axis else position
        position //= size
        for k in range(arguments):
            at[k] += coordinate * plan[(k + 1) * columns + axis]


def _walk(spec: MapSpec) -> Callable[..., None]:
    """walk(arrays, targets, blocks, plan, columns, first, count): the expression at `count` positions of the domain from `first` on.

    Position p is stored at p in the targets, and at p - first in `blocks`.
    """
    run = run_of(spec.expression, spec.sources, spec.walks, spec.bounds)
    arguments = np.int64(spec.expression.arguments)  # no literal: `_seek` is compiled once for all
    numbers = local(max(spec.expression.arguments, 1))

    @helper
    def walk(arrays, targets, blocks, plan, columns, first, count):
        last = columns - 1
        at, strides = numbers(), numbers()
        size = plan[last - 1]
        for k in range(arguments):
            strides[k] = plan[(k + 1) * columns + last - 1]
        position, end = first, first + count
        while position < end:
            _seek(plan, columns, arguments, position, at)
            left, n = end - position, size - position % size
            n = left if left < n else n
            run(arrays, at, strides, targets, blocks, position, position - first, n)
            position += n

    return walk


def _walk_entry(spec: MapSpec) -> Callable[..., None]:
    """entry(frame, scratch). frame: arrays, targets, first position, count, columns of the plan, plan."""
    walk, (arrays_of, targets_of), at = _walk(spec), _pointers(spec), len(spec.arrays) + len(spec.targets)
    plan_of = offset(at + 3)

    def entry(frame, scratch):
        walk(arrays_of(frame), targets_of(frame), (), plan_of(frame), frame[at + 2], frame[at], frame[at + 1])

    return entry


def _fold_entry(spec: FoldSpec) -> Callable[..., None]:
    """entry(frame, scratch). frame: arrays, targets, out, first of outer, outer, reduced, width, columns of the plan, plan."""
    walk = None if spec.map is None else _walk(spec.map)
    number = spec.dtype.compute.numpy.name
    reads, writes = (spec.map.arrays, spec.map.targets) if spec.map else ((number,), ())
    arrays_of, targets_of = pointers(0, reads), pointers(len(reads), writes)
    at = len(reads) + len(writes)
    fold, out_of, plan_of = folding(spec, walk), pointers(at, (number,)), offset(at + 6)

    def entry(frame, scratch):
        begin, sizes = frame[at + 1], (frame[at + 2], frame[at + 3], frame[at + 4])
        arrays, targets, (out,) = arrays_of(frame), targets_of(frame), out_of(frame)
        fold(arrays, targets, plan_of(frame), frame[at + 5], out, begin, sizes, scratch)

    return entry


def _pointers(spec: MapSpec) -> tuple[Any, Any]:
    return pointers(0, spec.arrays), pointers(len(spec.arrays), spec.targets)
