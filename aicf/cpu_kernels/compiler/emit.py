"""LLVM IR of a loop of the host, written with llvmlite: numbers, loops, memory, calls of scalar functions and of other loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from .functions import ScalarCode, function_of
from .spec import ENTRY

INT, BIT, BYTE, STATUS = ir.IntType(64), ir.IntType(1), ir.IntType(8), ir.IntType(32)
FRAME, MEMORY = INT.as_pointer(), BYTE.as_pointer()
ENTRY_TYPE = ir.FunctionType(STATUS, [FRAME, MEMORY, INT, INT])  # of every loop: frame, scratch, first, count


def value_type(name: str) -> Any:
    """Of a number in a register, by NumPy's name of its type."""
    if name == "bool":
        return BIT
    if name.startswith("float"):
        return {"float32": ir.FloatType(), "float64": ir.DoubleType()}[name]
    return ir.IntType(int(name.lstrip("uint")))


def memory_type(name: str) -> Any:
    return BYTE if name == "bool" else value_type(name)


class LoopBuilder(ir.IRBuilder):
    """Writes the one function of a module: `i32 aicf_loop(ptr frame, ptr scratch, i64 first, i64 count)`.

    bitcode  of the scalar functions that it calls, by their symbols
    movable  whether other processes may run it: no function has an address of this one
    """

    def __init__(self) -> None:
        self.loop = ir.Function(ir.Module("loop"), ENTRY_TYPE, ENTRY)
        for argument, name in zip(self.loop.args, ("frame", "scratch", "first", "count")):
            argument.name = name
        super().__init__(self.loop.append_basic_block("entry"))
        self.frame, self.scratch, self.first, self.total = self.loop.args
        self.bitcode: dict[str, bytes] = {}
        self.movable = True
        self.status = self.variable(STATUS, STATUS(0))

    def finished(self) -> str:
        """The module's text: the loop ends here."""
        self.ret(self.load(self.status))
        return str(self.loop.module)

    # --- numbers ------------------------------------------------------------------------------------------------------

    def number(self, value: int) -> Any:
        return ir.Constant(INT, value)

    def least(self, a: Any, b: Any) -> Any:
        return self.select(self.icmp_signed("<", a, b), a, b)

    def variable(self, kind: Any, value: Any = None, count: int | None = None) -> Any:
        """A pointer at memory on the stack, of the loop's first block, so that it is there once."""
        with self.goto_entry_block():
            made = self.alloca(kind, None if count is None else self.number(count))
        if value is not None:
            self.store(value, made)
        return made

    # --- control ------------------------------------------------------------------------------------------------------

    @contextmanager
    def count_up(self, first: Any, end: Any, step: Any = None) -> Iterator[Any]:
        """The body for each number from `first` on, below `end`."""
        before, body, after = self.block, self.append_basic_block("body"), self.append_basic_block("after")
        self.cbranch(self.icmp_signed("<", first, end), body, after)
        self.position_at_end(body)
        index = self.phi(INT)
        index.add_incoming(first, before)
        yield index
        following = self.add(index, step or self.number(1), flags=["nsw"])
        index.add_incoming(following, self.block)
        self.cbranch(self.icmp_signed("<", following, end), body, after)
        self.position_at_end(after)

    @contextmanager
    def repeat(self, condition: Callable[[], Any]) -> Iterator[None]:
        """The body again and again, as long as the condition holds."""
        again, body, after = (
            self.append_basic_block("again"),
            self.append_basic_block("body"),
            self.append_basic_block("after"),
        )
        self.branch(again)
        self.position_at_end(again)
        self.cbranch(condition(), body, after)
        self.position_at_end(body)
        yield
        self.branch(again)
        self.position_at_end(after)

    def where(self, condition: Any, make: Callable[[], Any]) -> Any:
        """The value of `make`, called where the condition holds; elsewhere 0."""
        before = self.block
        with self.if_then(condition):
            value, made = make(), self.block
        chosen = self.phi(value.type)
        chosen.add_incoming(value, made)
        chosen.add_incoming(value.type(None), before)
        return chosen

    # --- memory -------------------------------------------------------------------------------------------------------

    def in_frame(self, index: int) -> Any:
        return self.load(self.gep(self.frame, [self.number(index)]))

    def pointer(self, address: Any, name: str) -> Any:
        """At elements of a type, from a number."""
        return self.inttoptr(address, memory_type(name).as_pointer())

    def read(self, pointer: Any, index: Any, name: str) -> Any:
        loaded = self.load(self.gep(pointer, [index]))
        return self.icmp_unsigned("!=", loaded, BYTE(0)) if name == "bool" else loaded

    def write(self, value: Any, pointer: Any, index: Any) -> None:
        stored = self.zext(value, BYTE) if value.type == BIT else value
        self.store(stored, self.gep(pointer, [index]))

    def copy(self, to: Any, source: Any, nbytes: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [MEMORY, MEMORY, INT, BIT])
        memcpy = self.module.declare_intrinsic("llvm.memcpy", [MEMORY, MEMORY, INT], kind)
        self.call(memcpy, [self.bitcast(to, MEMORY), self.bitcast(source, MEMORY), nbytes, BIT(0)])

    def zeros(self, nbytes: int) -> Any:
        """A pointer at so many bytes that are 0."""
        made = ir.GlobalVariable(self.module, ir.ArrayType(BYTE, nbytes), "zeros")
        made.initializer, made.global_constant, made.linkage, made.align = (
            made.value_type(None),
            True,
            "internal",
            64,
        )
        return made

    # --- calls --------------------------------------------------------------------------------------------------------

    def scalar(
        self, function: Any, operands: Sequence[str], results: Sequence[str], values: Sequence[Any]
    ) -> list[Any]:
        """The results of a scalar function, whose defaults are its last arguments. Where it raises, the loop ends: nothing computes with
        what it left. LLVM removes the branch of one that never raises."""
        code = function_of(function, tuple(operands), tuple(results))
        numbers = [
            ir.Constant(value_type(name), number)
            for name, number in zip(code.arguments[len(operands) :], code.numbers)
        ]
        made = self.call(self._declared(code, results), [self.status, *values, *numbers])
        self._end_if(self.load(self.status))
        return [self.extract_value(made, n) for n in range(len(results))]

    def _declared(self, code: ScalarCode, results: Sequence[str]) -> Any:
        if code.symbol not in self.bitcode:
            self.bitcode[code.symbol] = code.bitcode
            self.movable &= code.movable
            made = ir.LiteralStructType([value_type(name) for name in results])
            given = [STATUS.as_pointer(), *map(value_type, code.arguments)]
            ir.Function(self.module, ir.FunctionType(made, given), code.symbol)
        return self.module.get_global(code.symbol)

    def call_loop(self, address: Any, frame: Any, scratch: Any, first: Any, count: Any) -> None:
        """Another loop, at that address; where its status is one, this loop ends with it."""
        callee = self.inttoptr(address, ENTRY_TYPE.as_pointer())
        self._end_if(self.call(callee, [frame, scratch, first, count]))

    def _end_if(self, status: Any) -> None:
        with self.if_then(self.icmp_signed("!=", status, STATUS(0)), likely=False):
            self.ret(status)
