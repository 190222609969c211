"""numba's libraries of functions for loops: linked into the loop's module, which alone becomes machine code.

numba makes machine code of each function, in an engine that keeps it as long as the process lives, and looks through all that
the engine has whenever something is added. A loop is an object file; of what is inlined there nothing else is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import require_global_compiler_lock

FIRST = ", optimized first"  # ends the names of such functions


def optimized_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """Its loops become vectors where LLVM sees them alone, not inside the loops that they are linked into."""
    function.__qualname__ += FIRST
    return function


class _Library(JITCodeLibrary):
    def _optimize_final_module(self) -> None:
        """Not yet: what is linked into a loop is optimised there, but for what is better so before."""
        if self.name.endswith(FIRST):
            super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def whole(self) -> Any:
        """The module with all that it calls, optimised."""
        self._ensure_finalized()
        super()._optimize_final_module()
        return self._final_module

    def get_pointer_to_function(self, name: str) -> int:
        """Of somebody's own jitted function: its callers from Python find it here. Ours have none, which is 0."""
        self._ensure_finalized()
        if not any(f.name == name and not f.is_declaration for f in self._final_module.functions):
            return 0
        if not self.codegen._engine.is_symbol_defined(name):
            self.whole()
            super()._finalize_final_module()
        return super().get_pointer_to_function(name)


class _Codegen(JITCPUCodegen):
    _library_class = _Library

    def set_env(self, env_name: str, env: Any) -> None:
        if self._engine.is_symbol_defined(env_name):
            super().set_env(env_name, env)


@cache
def _codegen() -> _Codegen:
    return _Codegen("aicf.loops")


@contextmanager
def only_linked(target: Any) -> Iterator[None]:
    """What is compiled for numba's target meanwhile."""
    require_global_compiler_lock()
    usual, target._internal_codegen = target._internal_codegen, _codegen()
    try:
        yield
    finally:
        target._internal_codegen = usual
