"""A scalar function as LLVM bitcode, compiled by numba. Imported only where no cache has it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from ...code_cache.digest import Description, Undescribable, globals_read
from . import vector_math, wide_math
from .target import optimise, target_data

# error_model="numpy": division by zero gives Inf or NaN, as on the GPU; no fastmath: NaN and Inf mean something, and
# nothing is contracted
_jit = numba.njit(error_model="numpy", nogil=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)

STATUS = ir.IntType(32)


def jitted(function: FunctionType, double: bool) -> Any:
    """A scalar function for numba: plain functions that it calls are jitted too; math is vector_math, of f64 wide_math."""
    try:
        described = Description().of(function)
    except Undescribable:
        described = b""
    return _jitted(function, double, described)


@lru_cache(maxsize=1024)
def _jitted(function: FunctionType, double: bool, described: bytes) -> Any:
    """`described`: of the function as it is now. What it calls may have been defined again since it was jitted."""
    names = {
        n: _for_host(v, double)
        for n in globals_read(function.__code__)
        if (v := function.__globals__.get(n)) is not None
    }
    cells = [_for_host(cell.cell_contents, double) for cell in function.__closure__ or ()]
    rebuilt = FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        None,
        tuple(map(CellType, cells)),
    )
    return _jit(rebuilt)


def _for_host(value: Any, double: bool) -> Any:
    """What a scalar function reads: math's functions, however they were imported, as the host's; plain ones jitted."""
    if isinstance(value, FunctionType):
        return jitted(value, double)
    if value is math:
        return _math(double)
    if isinstance(value, BuiltinFunctionType) and value is getattr(math, value.__name__, None):
        return getattr(_math(double), value.__name__)
    return value


@cache
def _math(double: bool) -> ModuleType:
    """What loops have in place of the module `math`."""
    made = ModuleType("math")
    public = {n: v for n, v in vars(wide_math if double else vector_math).items() if not n.startswith("_")}
    for name, value in public.items():
        setattr(made, name, jitted(value, double) if isinstance(value, FunctionType) else value)
    return made


def numba_type(name: str) -> Any:
    return types.boolean if name == "bool" else getattr(types, name)


@global_compiler_lock
def compile_function(
    function: FunctionType, arguments: Sequence[str], results: Sequence[str], constants: Mapping[int, Any], double: bool, symbol: str
) -> tuple[bytes, bool]:  # fmt: skip
    """(bitcode of one function, whether another process may use it); `{results} symbol(ptr status, arguments…)`, in which all that it
    calls is inlined or internal.

    arguments, results  NumPy's names of their types
    constants           of the function's parameters those that are no arguments, by position
    double              whether it computes in f64
    """
    names = iter(arguments)
    count = len(arguments) + len(constants)
    kinds = [numba.typeof(constants[n]) if n in constants else numba_type(next(names)) for n in range(count)]
    dispatcher = jitted(function, double)
    dispatcher.compile(tuple(kinds))
    compiled = dispatcher.overloads[tuple(kinds)]
    context = cpu_target.target_context
    library = context.codegen().create_library(symbol)
    with context.push_code_library(library):  # of what the casts call
        adapter = _adapter(compiled, kinds, constants, [numba_type(name) for name in results], symbol)
    # The module is closed before its context, which Python's collector of garbage would not do.
    with llvm.create_context() as context, llvm.parse_assembly(str(adapter), context) as module:
        for each in dict.fromkeys([compiled.library, *library._linking_libraries]):
            module.link_in(llvm.parse_bitcode(each._get_module_for_linking().as_bitcode(), context))
        # a large array that the function reads stays where it is: numba puts its address there
        movable = not any(v.name.startswith("numba.dynamic.globals") for v in module.global_variables)
        return _internal(module, symbol), movable


def _adapter(
    compiled: Any, kinds: Sequence[Any], constants: Mapping[int, Any], wanted: Sequence[Any], symbol: str
) -> ir.Module:
    """A call in numba's convention, whose results are cast to the types that are wanted."""
    context = cpu_target.target_context
    module = ir.Module(symbol)
    module.triple, module.data_layout = llvm.get_process_triple(), target_data()
    values = [context.get_value_type(kind) for n, kind in enumerate(kinds) if n not in constants]
    result = ir.LiteralStructType([context.get_value_type(kind) for kind in wanted])
    adapter = ir.Function(module, ir.FunctionType(result, [STATUS.as_pointer(), *values]), symbol)
    builder = ir.IRBuilder(adapter.append_basic_block("entry"))
    status_of, *parameters = adapter.args
    rest = iter(parameters)
    arguments = [
        context.get_constant_generic(builder, kind, constants[n]) if n in constants else next(rest)
        for n, kind in enumerate(kinds)
    ]
    callee, have = context.declare_function(module, compiled.fndesc), compiled.signature.return_type
    status, value = context.call_conv.call_function(builder, callee, have, kinds, arguments)
    with builder.if_then(status.is_error, likely=False):
        builder.store(status.code, status_of)
    several = isinstance(have, types.BaseTuple)
    types_of = list(have) if several else [have]
    parts = cgutils.unpack_tuple(builder, value, len(types_of)) if several else [value]
    made = ir.Constant(result, ir.Undefined)
    for n, (part, kind, want) in enumerate(zip(parts, types_of, wanted)):
        made = builder.insert_value(made, context.cast(builder, part, kind, want), n)
    builder.ret(made)
    return module


def _internal(module: Any, symbol: str) -> bytes:
    """Bitcode in which `symbol` alone has a name for others: numba's names repeat between processes, and of two functions of one
    name LLVM's linker takes the first."""
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name != symbol and not value.name.startswith("llvm."):
            value.linkage = llvm.Linkage.internal
    for function in module.functions:
        if not function.is_declaration and not any(b"noinline" in kind for kind in function.attributes):
            function.add_function_attribute("alwaysinline")
    optimise(module, vectors=False)
    module.verify()
    return module.as_bitcode()
