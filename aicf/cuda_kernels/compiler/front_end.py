"""numba's front end, faster: the same LLVM IR in less than half the time. Imported only where a kernel is compiled.

numba compiles an inlined function anew for each of its calls, copies it twice with all that surrounds it, and computes after each pass
what is alive where. Some of its functions have others in their places while a kernel of aicf's is compiled, and their own again
afterwards. A replacement is written for certain texts of numba's modules (`TEXTS`); with any other text numba's own function runs.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from numba.core.types import functions
from numba.cuda import cgutils, lowering
from numba.cuda.core import (
    analysis,
    base,
    bytecode,
    compiler_machinery,
    errors,
    inline_closurecall,
    ir,
    ir_utils,
    postproc,
    ssa,
    transforms,
    untyped_passes,
)
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.np import linalg

# Digests of the modules of numba that replacements are written for, by name. A new release of numba's: read what has changed in the
# module, then add its digest (tests/cuda/test_front_end.py prints it).
TEXTS = {
    "numba.core.types.functions": {"d5a2e9d4e29a"},
    "numba.cuda.core.analysis": {"1dd2e177a88b"},
    "numba.cuda.core.base": {"cdade18aa351"},
    "numba.cuda.core.bytecode": {"c0f68f74f928"},
    "numba.cuda.core.compiler_machinery": {"17d8e57d7779"},
    "numba.cuda.core.inline_closurecall": {"6185f31baefc"},
    "numba.cuda.core.ir": {"0d459ca67517"},
    "numba.cuda.core.postproc": {"bb2a65edd666"},
    "numba.cuda.core.ssa": {"c56c5d65dad4"},
    "numba.cuda.core.transforms": {"561ad5624299"},
    "numba.cuda.core.untyped_passes": {"747b3bb85d76"},
    "numba.cuda.lowering": {"cd5c068c7b2c"},
    "numba.cuda.np.arraymath": {"8181d6a35af9"},
}


class Replacement(NamedTuple):
    """`make(original)` in the place of an attribute. `modules`: whose texts it depends on."""

    owner: Any
    name: str
    modules: tuple[ModuleType, ...]
    make: Callable[[Any], Any]


_REPLACEMENTS: list[Replacement] = []


def _replaces(
    owner: Any, name: str, *modules: ModuleType
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def note(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        _REPLACEMENTS.append(Replacement(owner, name, modules, make))
        return make

    return note


@cache
def text_of(module: str) -> str:
    """The digest of a module's source, imported or not."""
    spec = importlib.util.find_spec(module)
    text = Path(spec.origin).read_bytes() if spec and spec.origin else b""
    return blake2b(text, digest_size=6).hexdigest()


def unknown() -> dict[str, str]:
    """Modules of this numba that no replacement is written for, with the digests of their texts."""
    return {module: text_of(module) for module in TEXTS if not _known(module)}


def _known(*modules: str) -> bool:
    return all(text_of(module) in TEXTS[module] for module in modules)


@cache
def replacements() -> tuple[tuple[Any, str, Any], ...]:
    """(owner, attribute, what goes there), of those that are written for this numba."""
    return tuple(
        (r.owner, r.name, r.make(vars(r.owner)[r.name]))
        for r in _REPLACEMENTS
        if _known(*(module.__name__ for module in r.modules))
    )


@contextmanager
def faster() -> Iterator[None]:
    """The replacements in their places, for one kernel; under numba's lock, so that no other thread meets them."""
    with global_compiler_lock:
        before = [(owner, name, vars(owner)[name]) for owner, name, _ in replacements()]
        try:
            for owner, name, function in replacements():
                setattr(owner, name, function)
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)
            for known in (_INLINED, _CALLS, _LOCS):
                known.clear()


# --- inlining -----------------------------------------------------------------------------------------------------------

_INLINED: dict[Any, Any] = {}  # numba's IR by function and flags, of the kernel that is compiled
_FRESH: set[int] = set()  # ids of blocks that nobody else has


@_replaces(inline_closurecall.InlineWorker, "inline_function", inline_closurecall, bytecode, ir)
def _inline_function(original: Any) -> Any:
    """A function is brought to numba's IR once for all its calls, and copied once for each."""

    def inline_function(
        self: Any, caller_ir: Any, block: Any, i: int, function: Any, arg_typs: Any = None
    ) -> Any:
        if arg_typs is not None or function.__kwdefaults__:
            return original(self, caller_ir, block, i, function, arg_typs)
        key = function, self.flags.no_rewrites, self.flags.nrt
        if key not in _INLINED:
            _INLINED[key] = self.run_untyped_passes(function)
        self.flags.enable_ssa = False  # as run_untyped_passes leaves it
        callee = _copied(_INLINED[key])
        ours = {id(b) for b in callee.blocks.values()}
        _FRESH.update(ours)
        try:
            return self.inline_ir(caller_ir, block, i, callee, function.__code__.co_freevars)
        finally:
            _FRESH.difference_update(ours)

    return inline_function


@_replaces(inline_closurecall, "copy", inline_closurecall)
def _copy(original: Any) -> Any:
    """For inline_ir: a block that nobody else has is not copied."""

    def deepcopy(block: Any) -> Any:
        return block if id(block) in _FRESH else original.deepcopy(block)

    return SimpleNamespace(deepcopy=deepcopy)


def _copied(function: Any) -> Any:
    """numba's IR of a function, whose names are those of no other copy, to be changed at will."""
    scopes: dict[int, Any] = {}
    made = copy.copy(function)
    made.func_id = copy.copy(function.func_id)
    made.func_id.unique_id = next(bytecode.FunctionIdentity._unique_ids)
    made.func_id.unique_name = f"{made.func_id.func_qualname}${made.func_id.unique_id}"
    made.block_entry_vars = {}
    made.blocks = {label: _copied_block(block, scopes) for label, block in function.blocks.items()}
    return made


def _copied_block(block: Any, scopes: dict[int, Any]) -> Any:
    scope = block.scope
    if id(scope) not in scopes:
        scopes[id(scope)] = _copied_scope(scope)
    new = ir.Block(scopes[id(scope)], block.loc)
    variables = new.scope.localvars._con
    new.body = [_copied_node(statement, variables) for statement in block.body]
    return new


def _copied_scope(scope: Any) -> Any:
    new = ir.Scope(scope.parent, scope.loc)
    new.redefined.update(scope.redefined)
    for name, versions in scope.var_redefinitions.items():
        new.var_redefinitions[name] |= versions
    new.localvars._con = {name: ir.Var(new, var.name, var.loc) for name, var in scope.localvars._con.items()}
    return new


_ATOMS = (str, int, float, bool, type(None), ir.Loc)


def _copied_node(node: Any, variables: Mapping[str, Any]) -> Any:
    """A statement or a value. Variables are never changed, only exchanged, so the copies share those of their scope."""
    kind = type(node)
    if kind is ir.Var:
        return variables.get(node.name, node)
    if isinstance(node, ir.Inst) or kind in (ir.Const, ir.Global, ir.FreeVar, ir.Arg):
        new = object.__new__(kind)
        constant = not isinstance(node, ir.Inst)  # whose value is Python's
        new.__dict__.update(
            {
                name: value if constant or isinstance(value, _ATOMS) else _copied_node(value, variables)
                for name, value in vars(node).items()
            }
        )
        return new
    if kind in (tuple, list):
        return kind([_copied_node(value, variables) for value in node])
    if kind is dict:
        return {name: _copied_node(value, variables) for name, value in node.items()}
    return node


# --- passes -------------------------------------------------------------------------------------------------------------


@_replaces(compiler_machinery.PassManager, "_runPass", compiler_machinery)
def _run_pass(original: Any) -> Any:
    """Without clocks, listeners and checks of what a pass has done."""

    def run_pass(self: Any, index: int, step: Any, state: Any) -> None:
        if self._print_after or self._print_before or self._print_wrap:
            return original(self, index, step, state)
        step.analysis = self._analysis
        with errors.new_error_context(f"Pass {step.name()}"):
            step.run_initialization(state)
            step.run_pass(state)
            step.run_finalizer(state)
        return None

    return run_pass


@_replaces(untyped_passes.InlineClosureLikes, "run_pass", untyped_passes, inline_closurecall, ir)
def _inline_closures(original: Any) -> Any:
    """Nothing to look for in a function without closures and lists."""

    def run_pass(self: Any, state: Any) -> bool:
        blocks = state.func_ir.blocks
        values = [s.value for block in blocks.values() for s in block.find_insts(ir.assign_types)]
        if any(map(_may_be_closure, values)):
            return bool(original(self, state))
        postproc.PostProcessor(state.func_ir).run()
        ir_utils.fixup_var_define_in_scope(state.func_ir.blocks)
        return True

    return run_pass


def _may_be_closure(value: Any) -> bool:
    if isinstance(value, ir.Expr):
        return value.op in ("make_function", "build_list") or (
            value.op == "getattr" and value.attr == "reduce"
        )
    return isinstance(value, (ir.Global, ir.FreeVar)) and value.value is functools.reduce


@_replaces(postproc.PostProcessor, "run", postproc, transforms)
def _run(original: Any) -> Any:
    """What is alive where is computed when it is needed: `del` statements are, and generators, which kernels are not."""

    def run(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        if self.func_ir.is_generator:
            return original(self, emit_dels, extend_lifetimes)
        self.func_ir.blocks = transforms.canonicalize_cfg(self.func_ir.blocks)
        self.func_ir.variable_lifetime = postproc.VariableLifetime(self.func_ir.blocks)
        self.func_ir.generator_info = None
        if emit_dels:
            self._insert_var_dels(extend_lifetimes=extend_lifetimes)
        return None

    return run


_MENTIONED: dict[int, set[str]] = {}  # by label, the variables of a block, while SSA form is made


@_replaces(ssa, "_run_ssa", ssa, ir)
def _run_ssa(original: Any) -> Any:
    """One look at the variables of each block, for all variables that have to be split."""

    def run_ssa(blocks: Any) -> Any:
        for label, block in blocks.items():
            _MENTIONED[label] = {var.name for statement in block.body for var in statement.list_vars()}
        try:
            return original(blocks)
        finally:
            _MENTIONED.clear()

    return run_ssa


@_replaces(ssa, "_run_block_rewrite", ssa, ir)
def _run_block_rewrite(original: Any) -> Any:
    """A block in which the variable is neither set nor read stays as it is; what splitting adds has other names."""

    def run_block_rewrite(blocks: Any, states: Any, handler: Any) -> Any:
        made = {}
        for label, block in blocks.items():
            made[label] = new = ir.Block(scope=block.scope, loc=block.loc)
            if states["varname"] not in _MENTIONED[label]:
                new.body = block.body
                continue
            states["label"], states["block"] = label, block
            new.body = [
                handler.on_assign(states, statement)
                if isinstance(statement, ir.assign_types)
                else handler.on_other(states, statement)
                for statement in block.body
            ]
        return made

    return run_block_rewrite


@_replaces(lowering.Lower, "_find_singly_assigned_variable", lowering, analysis)
def _find_singly_assigned_variable(original: Any) -> Any:
    """Assignments are counted once for all variables of a block."""

    def find_singly_assigned_variable(self: Any) -> None:
        if self.func_ir.func_id.is_generator:
            return original(self)
        blocks = self.func_ir.blocks
        found = analysis.compute_use_defs(blocks)
        elsewhere = set(analysis.must_use_alloca(blocks)).union(*found.usemap.values())
        blocks_of = Counter(name for names in found.defmap.values() for name in names)
        assigned = {
            label: Counter(s.target.name for s in self.blocks[label].find_insts(ir.assign_types))
            for label in found.defmap
        }
        self._singly_assigned_vars = {
            name
            for label, names in found.defmap.items()
            for name in names
            if name not in elsewhere and blocks_of[name] == 1 and assigned[label][name] == 1
        }
        self._blk_local_varmap = {}
        return None

    return find_singly_assigned_variable


@_replaces(ir.Inst, "_rec_list_vars", ir)
def _rec_list_vars(original: Any) -> Any:
    """Types that are met most come first, and one list is filled."""

    def collect(self: Any, value: Any, found: list[Any]) -> list[Any]:
        kind = type(value)
        if kind is ir.Var:
            found.append(value)
        elif kind is dict:
            for part in value.values():
                collect(self, part, found)
        elif kind is tuple or kind is list:
            for part in value:
                collect(self, part, found)
        elif kind not in _ATOMS:
            found += original(self, value)
        return found

    def rec_list_vars(self: Any, value: Any) -> list[Any]:
        return collect(self, value, [])

    return rec_list_vars


@_replaces(lowering.Lower, "alloca_lltype", lowering)
def _alloca_lltype(original: Any) -> Any:
    """LLVM is asked for a type's size for a debugger alone."""

    def alloca_lltype(self: Any, name: str, lltype: Any, datamodel: Any = None) -> Any:
        if self.context.enable_debuginfo:
            return original(self, name, lltype, datamodel)
        return cgutils.alloca_once(self.builder, lltype, name=name, zfill=False)

    return alloca_lltype


_LOCS: dict[Any, bool] = {}  # by implementation, of the kernel that is compiled


@_replaces(base, "_has_loc", base)
def _has_loc(original: Any) -> Any:
    """A function's parameters are looked at once."""

    def has_loc(function: Any) -> bool:
        if function not in _LOCS:
            _LOCS[function] = original(function)
        return _LOCS[function]

    return has_loc


# --- types --------------------------------------------------------------------------------------------------------------

_CALLS: dict[
    Any, Any
] = {}  # signatures by function and the types of its arguments, of the kernel that is compiled


@_replaces(functions.BaseFunction, "get_call_type", functions)
def _get_call_type(original: Any) -> Any:
    """Templates are tried once for equal types: an operator's are ten, and it is typed once more when it is lowered."""

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws:
            return original(self, context, args, kws)
        key = self, context, args
        found = _CALLS.get(key)
        if found is None:
            found = _CALLS[key] = original(self, context, args, kws)
        return found

    return get_call_type


@_replaces(lowering, "_lit_or_omitted", lowering)
def _lit_or_omitted(original: Any) -> Any:
    """What is no constant is not looked at."""
    undefined = original(ir.UNDEFINED)

    def lit_or_omitted(value: Any) -> Any:
        return undefined if value is ir.UNDEFINED else original(value)

    return lit_or_omitted


# --- numba's start ------------------------------------------------------------------------------------------------------


class _Asked:
    """A truth that is found out when it is asked."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        self.ask = ask

    def __bool__(self) -> bool:
        return self.ask()


def _start() -> None:
    """numba imports SciPy for `np.dot`, which no kernel calls: a second of each process."""

    def missing() -> None:
        raise ImportError

    name = "numba.cuda.np.arraymath"
    if name in sys.modules or not _known(name):
        return
    ensure, linalg.ensure_blas = linalg.ensure_blas, missing
    try:
        arraymath: Any = importlib.import_module(name)
    finally:
        linalg.ensure_blas = ensure
    arraymath.ensure_blas = ensure
    arraymath._HAVE_BLAS = _Asked(cache(arraymath._check_blas))


_start()
