"""A Turing or Ampere multiprocessor on the host, as far as mma.sync kernels can tell: their LLVM runs as it is, and the assembly in it is
done as the PTX manual says it is.

A block's threads take turns, and meet where they must. Shared memory is the block's own, poisoned. Copies to it happen at
any time between where they are asked for and where they are waited for. Beside the numbers, it is held who wrote and who
read each two bytes, and between which barriers: what is read before a barrier has told that it is here, or overwritten
before one has told that it was read, is an error, whichever thread happens to be first.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aicf.registry.variant import Launch
from aicf.rows import RegionSpec
from machines.fibers import Fiber, Meeting, Stuck, getcurrent, take_turns
from machines.on_host import ALONE, engine_of, host_arguments, host_code, new_warps, place_thread, prepare

_ASM = re.compile(
    r'call ([^\n]*?) ?asm +(?:sideeffect )?"([^"]*)", "[^"]*"\(([^\n]*?)\)( convergent)?$', re.MULTILINE
)
_SMEM = re.compile(r'(@"_cudapy_smem\w*") = external addrspace\(3\) global (\[0 x i(8|32)\]), align \d+')
_STORE = re.compile(r"st\.shared(\.v(\d))?\.b(16|32)$")
_LOAD = re.compile(r"@p ld\.global(\.v(\d))?\.b32")
_LOAD_HALF = re.compile(r"setp\.gt\.s32 p, \$2, (\d+);.*@p ld\.global\.u16")
_PRODUCT = re.compile(r"mma\.sync\.aligned\.(m16n8k\d+)\.row\.col\.f32\.(\w+)\.\2\.f32$")
_BITS = {"i16": 16, "i32": 32, "i64": 64, "float": 32}
NOTHING = np.empty(0, np.uint8)  # of workspace
PENDING = 1 << 30  # an epoch that never comes
# Bits that tensor cores add, and that they keep of the sum. So those of an H200 behave: of 4096 positive TF32 products, 2.70e-5 of
# the sum is gone, and by this 2.75e-5.
ADDED, KEPT = 26, 24


class Wrong(Exception):
    """What a kernel may not do."""


# --- from assembly to calls -------------------------------------------------------------------------------------------


def _wrapper(number: int, result: str, kinds: list[str]) -> str:
    """LLVM of a function that hands arguments to `on_mma_asm`, widened to 64 bits, and takes its results from there."""
    lines = [
        f"define internal {result} @asm_{number}({', '.join(f'{k} %a{i}' for i, k in enumerate(kinds))}) {{"
    ]
    lines += ["%args = alloca [16 x i64]", "%got = alloca [4 x i64]"]
    for i, kind in enumerate(kinds):
        value = f"%a{i}"
        if kind == "float":
            lines.append(f"%b{i} = bitcast float %a{i} to i32")
            value = f"%b{i}"
        if kind != "i64":
            lines.append(f"%w{i} = zext i{_BITS[kind]} {value} to i64")
            value = f"%w{i}"
        lines.append(f"%p{i} = getelementptr [16 x i64], [16 x i64]* %args, i32 0, i32 {i}")
        lines.append(f"store i64 {value}, i64* %p{i}")
    lines.append("%from = getelementptr [16 x i64], [16 x i64]* %args, i32 0, i32 0")
    lines.append("%to = getelementptr [4 x i64], [4 x i64]* %got, i32 0, i32 0")
    lines.append(f"call void @on_mma_asm(i32 {number}, i64* %from, i64* %to)")
    if result == "void":
        return "\n".join([*lines, "ret void", "}"])
    parts, made = [p.strip() for p in result.strip("{} ").split(",")], "undef"
    for i, kind in enumerate(parts):
        lines.append(f"%q{i} = getelementptr [4 x i64], [4 x i64]* %got, i32 0, i32 {i}")
        lines.append(f"%g{i} = load i64, i64* %q{i}")
        lines.append(f"%t{i} = trunc i64 %g{i} to i{_BITS[kind]}")
        value = f"%t{i}"
        if kind == "float":
            lines.append(f"%f{i} = bitcast i32 %t{i} to float")
            value = f"%f{i}"
        if not result.startswith("{"):
            return "\n".join([*lines, f"ret {kind} {value}", "}"])
        lines.append(f"%s{i} = insertvalue {result} {made}, {kind} {value}, {i}")
        made = f"%s{i}"
    return "\n".join([*lines, f"ret {result} {made}", "}"])


@dataclass
class Rewriter:
    """LLVM with calls in the place of assembly; `texts[i]` is what call i does. `faults`: text to put other text for."""

    faults: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    smem: str = ""

    def __call__(self, text: str) -> str:
        made: dict[tuple[str, str, tuple[str, ...]], int] = {}

        def call(found: re.Match) -> str:
            result, assembly, args, _ = found.groups()
            if assembly.startswith(ALONE):
                return found.group(0)  # for `host_code`
            kinds = tuple(a.split(" ")[0] for a in args.split(", ")) if args else ()
            for what, other in self.faults.items():
                assembly = assembly.replace(what, other)
            number = made.setdefault((result, assembly, kinds), len(self.texts))
            if number == len(self.texts):
                self.texts.append(assembly)
            return f"call {result} @asm_{number}({args})"

        text = _ASM.sub(call, text)
        for name, _, bits in _SMEM.findall(
            text
        ):  # all of them the same memory there; here only the bytes are used
            self.smem = name.strip('@"') if bits == "8" else self.smem
        text = _SMEM.sub(r"\1 = addrspace(3) global \2 zeroinitializer, align 16", text)
        text = text.replace("llvm.nvvm.barrier0", "on_mma_barrier")
        functions = [_wrapper(number, result, list(kinds)) for (result, _, kinds), number in made.items()]
        return "\n".join([text, *(["declare void @on_mma_asm(i32, i64*, i64*)"] if made else []), *functions])


# --- the machine ------------------------------------------------------------------------------------------------------


class Together:
    """One instruction that a warp does at once."""

    def __init__(self) -> None:
        self.given: list[Any] = [None] * 32
        self.arrived, self.results = 0, None


class Warp:
    def __init__(self) -> None:
        self.current = Together()

    def do(self, lane: int, given: Any, compute: Any) -> Any:
        """compute(what each lane gave), a result for each lane."""
        op = self.current
        op.given[lane] = given
        op.arrived += 1
        if op.arrived == 32:
            self.current, op.results = Together(), compute(op.given)
        else:
            getcurrent().wait(lambda: op.results is not None)
        if op.results is None:
            raise Wrong("a warp's threads part")
        return op.results[lane]


class Block:
    """Shared memory, and who did what to it: of each two bytes, who wrote last, in which epoch it was asked for and in which
    it was waited for, and in which epoch it was last read. A barrier ends an epoch."""

    def __init__(self, nbytes: int, threads: int) -> None:
        self.bytes = np.full(nbytes, 255, np.uint8)
        self.writer, self.read = np.full(nbytes // 2, -1), np.full(nbytes // 2, -1)
        self.there = np.full(nbytes // 2, PENDING)
        self.warps = [Warp() for _ in range(threads // 32)]
        self.barrier = Meeting(threads)


@dataclass
class Thread:
    index: int
    block: Block
    random: random.Random
    epoch: int = 0
    groups: list[list[tuple[int, bytes, bool]]] = field(
        default_factory=lambda: [[]]
    )  # copies; the last is open


class Machine:
    """Runs a launch of an mma kernel. `faults`: see Rewriter; `barriers`: False for one whose barriers do nothing."""

    def __init__(
        self, launch: Launch, region: RegionSpec, faults: dict[str, str] | None = None, barriers: bool = True
    ):
        from llvmlite import binding

        prepare()
        self.launch, self.barriers, rewriter = launch, barriers, Rewriter(faults or {})
        self.callbacks = [
            ctypes.CFUNCTYPE(
                None, ctypes.c_int32, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint64)
            )(self._asm),
            ctypes.CFUNCTYPE(None)(self._meet),
        ]
        for name, callback in zip(("on_mma_asm", "on_mma_barrier"), self.callbacks):
            binding.add_symbol(name, ctypes.cast(callback, ctypes.c_void_p).value)
        module, name, _ = host_code(launch, region, rewriter)
        self.engine, self.texts = engine_of(module), rewriter.texts
        smem = self.engine.get_global_value_address(rewriter.smem) if rewriter.smem else 0
        self.base = smem & 0xFFFFFFFF
        self.address = self.engine.get_function_address(name)

    def __call__(
        self,
        ins: Sequence[np.ndarray],
        outs: Sequence[np.ndarray],
        seed: int = 0,
        workspace: np.ndarray = NOTHING,
    ) -> None:
        """On the memory behind each pointer; results are written in place."""
        args = host_arguments(self.launch, ins, outs, workspace)
        kernel = ctypes.CFUNCTYPE(None, *map(type, args))(self.address)
        self.failure: BaseException | None = None
        self.memory = [(x.ctypes.data, x.ctypes.data + x.nbytes) for x in (*ins, workspace)]
        threads = self.launch.block[0]

        def run(block: Block, number: int, index: int) -> None:
            place_thread(number, index, self.launch)
            thread = getcurrent().thread = Thread(index, block, random.Random(f"{seed} {number} {index}"))
            kernel(*args)
            if any(thread.groups):
                self._fail(Wrong("a thread leaves before its copies have come"))

        for number in range(self.launch.grid[0]):
            block = Block(self.launch.shared, threads)
            new_warps(number, threads)
            fibers = [Fiber(functools.partial(run, block, number, index)) for index in range(threads)]
            with contextlib.suppress(Stuck):
                take_turns(fibers, self._fail)
            if self.failure:
                raise self.failure

    def _fail(self, failure: BaseException) -> None:
        """Threads go on to their end, but meet no more."""
        self.failure = self.failure or failure

    def _meet(self) -> None:
        thread = getcurrent().thread
        if self.barriers and not self.failure:
            thread.block.barrier.wait()
            thread.epoch += 1

    def _asm(self, number: int, args: Any, results: Any) -> None:
        if self.texts[number].startswith("mov.b32"):
            results[0] = args[0]
            return
        for i in range(4):
            results[i] = 0
        if self.failure:
            return
        try:
            made = self._do(getcurrent().thread, self.texts[number], args)
            for i, value in enumerate(made):
                results[i] = int(value)
        except BaseException as failure:
            self._fail(failure)

    def _do(self, thread: Thread, text: str, args: Any) -> Sequence[int]:
        name, *_ = text.split(" ")
        lane = thread.index % 32
        warp = thread.block.warps[thread.index // 32]
        if name.startswith("mma.sync"):
            count = sum(_words_of(name)) + 4
            return warp.do(lane, args[:count], lambda given: multiply(name, np.array(given, np.uint64)))
        if name.startswith("ldmatrix"):
            transposed = ".trans" in name
            return warp.do(lane, args[0], lambda at: self._matrices(thread, at, transposed))
        if name.startswith("cp.async.c") and "shared.global" in name:
            return self._copy(thread, args[0], args[1], int(text.split(",")[2]), args[2])
        if name.startswith("cp.async.commit_group"):
            thread.groups.append([])
        elif name.startswith("cp.async.wait_group"):
            self._wait(thread, int(text.rstrip(";").split(" ")[1]))
        elif stored := _STORE.match(name):
            size = int(stored[3]) // 8
            values = b"".join(int(args[1 + i]).to_bytes(size, "little") for i in range(int(stored[2] or 1)))
            self._ask(thread, args[0], len(values))
            self._land(thread, args[0], values)
            self._settle(thread, args[0], len(values))
        elif loaded := _LOAD.search(text):
            return self._load(args[0], 4 * int(loaded[2] or 1), args[1])
        elif loaded := _LOAD_HALF.search(text):
            return self._load(args[0] + int(loaded[1]), 2, args[1] > int(loaded[1]))
        elif name == "ld.shared.b32":
            return [int(self._take(thread, args[0], 4).view(np.uint32)[0])]
        elif name in ("ld.shared.v4.f32", "ld.shared.v4.b32"):
            return [int(x) for x in self._take(thread, args[0], 16).view(np.uint32)]
        elif name == "cvt.rna.tf32.f32":
            return [rounded(args[0])]
        elif name == "mov.u32" and "%dynamic_smem_size" in text:
            return [self.launch.shared]
        else:
            raise Wrong(f"no such instruction here: {text}")
        return []

    # --- shared memory --------------------------------------------------------------------------------------------------

    def _span(self, thread: Thread, at: int, nbytes: int) -> tuple[slice, slice]:
        first = (at - self.base) % 2**32
        if first + nbytes > len(thread.block.bytes) or at % min(nbytes, 16):
            raise Wrong(f"{nbytes} bytes of shared memory at {first}, of {len(thread.block.bytes)}")
        return slice(first, first + nbytes), slice(first // 2, (first + nbytes) // 2)

    def _ask(self, thread: Thread, at: int, nbytes: int) -> None:
        """For these bytes to be written."""
        _, halves = self._span(thread, at, nbytes)
        block = thread.block
        written = (block.writer[halves] >= 0) & (block.there[halves] >= thread.epoch)
        if written.any() or (block.read[halves] >= thread.epoch).any():
            raise Wrong("what no barrier says is done with is overwritten")
        block.writer[halves], block.there[halves] = thread.index, PENDING

    def _land(self, thread: Thread, at: int, values: bytes) -> None:
        span, _ = self._span(thread, at, len(values))
        thread.block.bytes[span] = np.frombuffer(values, np.uint8)

    def _settle(self, thread: Thread, at: int, nbytes: int) -> None:
        _, halves = self._span(thread, at, nbytes)
        thread.block.there[halves] = thread.epoch

    def _take(self, thread: Thread, at: int, nbytes: int) -> np.ndarray:
        span, halves = self._span(thread, at, nbytes)
        block = thread.block
        if (block.there[halves] >= thread.epoch).any():
            raise Wrong("what no barrier says has come is read")
        block.read[halves] = np.maximum(block.read[halves], thread.epoch)
        return block.bytes[span].copy()

    def _load(self, source: int, nbytes: int, exists: int) -> Sequence[int]:
        """Words from memory, or half a word, or zeros."""
        if not exists:
            return [0] * (nbytes // 4 or 1)
        if source % nbytes or not any(
            first <= source and source + nbytes <= end for first, end in self.memory
        ):
            raise Wrong(f"{nbytes} bytes from {source:#x}, outside of every operand")
        values = ctypes.string_at(source, nbytes).ljust(4, b"\0")
        return [int(x) for x in np.frombuffer(values, np.uint32)]

    def _copy(self, thread: Thread, to: int, source: int, width: int, given: int) -> Sequence[int]:
        if given > width or (source % width or to % width):
            raise Wrong(f"{given} of {width} bytes from {source:#x} to {to:#x}")
        if given and not any(first <= source and source + given <= end for first, end in self.memory):
            raise Wrong(f"{given} bytes from {source:#x}, outside of every operand")
        values = ctypes.string_at(source, given).ljust(width, b"\0")
        self._ask(thread, to, width)
        early = thread.random.random() < 0.5
        if early:
            self._land(thread, to, values)
        thread.groups[-1].append((to, values, early))
        return []

    def _wait(self, thread: Thread, pending: int) -> None:
        *committed, last = thread.groups
        for group in committed[: max(0, len(committed) - pending)]:
            for to, values, early in group:
                if not early:
                    self._land(thread, to, values)
                self._settle(thread, to, len(values))
        thread.groups = [*committed[max(0, len(committed) - pending) :], last]

    def _matrices(self, thread: Thread, at: list[int], transposed: bool) -> np.ndarray:
        """(lane, register) of ldmatrix.x4: lane 8 j + i gives the address of row i of matrix j."""
        made = np.empty((32, 4, 2), np.uint16)
        lanes = np.arange(32)
        for j in range(4):
            rows = at[8 * j : 8 * j + 8]
            if len({row % 128 // 16 for row in rows}) < 8:
                raise Wrong("rows of a matrix lie in the same banks")
            matrix = np.stack([self._take(thread, row, 16).view(np.uint16) for row in rows])
            matrix = matrix.T if transposed else matrix
            made[:, j] = matrix[lanes // 4].reshape(32, 4, 2)[lanes, lanes % 4]
        return np.ascontiguousarray(made).view(np.uint32)[..., 0]


def rounded(word: int) -> int:
    """cvt.rna.tf32.f32: ten bits of fraction, halves away from zero."""
    return word if word & 0x7F800000 == 0x7F800000 else word + 0x1000 & 0xFFFFE000


def _words_of(name: str) -> tuple[int, int]:
    """Registers of a and of b that a product's instruction takes."""
    shape, kind = _PRODUCT.match(name).groups()
    return (2, 1) if shape == "m16n8k8" and kind == "f16" else (4, 2)


def multiply(name: str, given: np.ndarray) -> np.ndarray:
    """(lane, accumulator) of an mma.sync, from (lane, words of a, of b, 4 sums). PTX ISA, "Matrix Fragments"."""
    words, lanes = given.astype(np.uint32), np.arange(32)
    group, member = lanes // 4, lanes % 4
    shape, kind = _PRODUCT.match(name).groups()
    of_a, of_b = _words_of(name)
    both = of_a + of_b
    if kind == "tf32":
        if shape != "m16n8k8" or (words[:, :6] & 0x1FFF).any():
            raise Wrong("an operand is no tf32")
        values = words[:, :6].view(np.float32).astype(np.float64)[..., None]
    else:
        halves = np.ascontiguousarray(words[:, :both]).view(np.uint16).reshape(32, both, 2)
        wide = halves.view(np.float16) if kind == "f16" else (halves.astype(np.uint32) << 16).view(np.float32)
        values = wide.astype(np.float64)
    each = values.shape[-1]
    a, b = np.empty((16, 4 * of_b * each)), np.empty((4 * of_b * each, 8))
    for i in range(each):
        for r in range(of_a):
            a[group + r % 2 * 8, (member + r // 2 * 4) * each + i] = values[:, r, i]
        for r in range(of_b):
            b[(member + r * 4) * each + i, group] = values[:, of_a + r, i]
    rows = np.stack([group, group, group + 8, group + 8], -1)
    columns = np.stack([member * 2, member * 2 + 1] * 2, -1)
    before = np.empty((16, 8))
    before[rows, columns] = np.ascontiguousarray(words[:, both:]).view(np.float32)
    with np.errstate(all="ignore"):
        sums = cut_sum(np.concatenate([a[:, :, None] * b, before[:, None]], axis=1))
    return np.ascontiguousarray(sums.astype(np.float32)[rows, columns]).view(np.uint32)


def cut_sum(terms: np.ndarray) -> np.ndarray:
    """Over the second axis, as tensor cores add: of each, what lies below the upper bits of the greatest is cut off, and so are
    the lower bits of the sum."""
    total = _cut(terms, np.abs(terms).max(axis=1, keepdims=True), ADDED).sum(axis=1)
    return _cut(total, np.abs(total), KEPT)


def _cut(x: np.ndarray, greatest: np.ndarray, bits: int) -> np.ndarray:
    unit = np.ldexp(1.0, np.frexp(greatest)[1] - bits)
    return np.where(np.isfinite(x / unit), np.trunc(x / unit) * unit, x)
