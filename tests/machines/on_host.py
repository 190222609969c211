"""Kernels run on the host: what numba makes of a body, before NVIDIA's compiler has it.

Unlike the simulator this runs the intrinsics: every load, store, conversion and index as LLVM. Blocks come one after
another, and so do a block's threads unless they meet, at barriers or in shuffles; then they take turns (fibers.py). Blocks of a cluster
take turns too, each with code of its own, whose shared memory is that block's. Of instructions that LLVM does not know there are mma.sync
m16n8k16 and shuffles, done as the PTX manual says, where a warp's threads meet, conversions of halves and fp8, approximate powers of
two, and what blocks of a cluster write into each other's memory before they meet.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from aicf.cuda_kernels.compiler.compile import kernel_name, numba_signature, signature_of
from aicf.cuda_kernels.compiler.table import tables_of
from aicf.cuda_kernels.dsl import materialise
from aicf.registry.variant import In, Launch, Num, Table, Work
from aicf.rows import RegionSpec
from aicf.types import bf16, f16
from machines.fibers import Fiber, Meeting, getcurrent, take_turns

CAPABILITY = 8, 0  # that is compiled for

REGISTERS = ("tid", "ctaid", "ntid", "nctaid")  # by which a thread knows its place; along x
_blocks: dict[int, Meeting] = {}  # that run now
_NUMBERS = {"f32": ctypes.c_float, "i32": ctypes.c_int32, "i64": ctypes.c_int64}


def _meet() -> None:
    _blocks[getcurrent().ctaid].wait()


class _Warp:
    """Threads that multiply together: what each brought."""

    def __init__(self) -> None:
        self.barrier = Meeting(32)
        self.words = np.zeros((32, 6), np.uint32)
        self.values = np.zeros(32, np.int32)


_warps: dict[tuple[int, int], _Warp] = {}  # by block, and number in it


def _warp() -> _Warp:
    here = getcurrent()
    return _warps[here.ctaid, here.tid // 32]


def _multiply(dtype: Any, *given: Any) -> None:
    """A thread's four sums of m16n8k16: rows g and g + 8, columns 2c and 2c + 1, where its lane is 4g + c."""
    *words, c0, c1, c2, c3, result = given
    warp, lane = _warp(), getcurrent().tid % 32
    warp.words[lane] = words
    warp.barrier.wait()
    halves = (
        warp.words.view(np.uint16).reshape(8, 4, 6, 2).view(dtype).astype(np.float32)
    )  # (g, c, register, half)
    g, c = divmod(lane, 4)
    rows = halves[g, :, :4].reshape(
        4, 2, 2, 2
    )  # (c, pair of k, upper row, half): registers 0 and 2 are row g
    columns = halves[2 * c : 2 * c + 2, :, 4:]  # (column, c, pair of k, half)
    with np.errstate(all="ignore"):
        sums = np.einsum("cpuh,ncph->un", rows.astype(np.float64), columns.astype(np.float64))
    out = (ctypes.c_float * 4).from_address(result)
    with np.errstate(all="ignore"):
        out[:] = [float(x) for x in np.array([c0, c1, c2, c3]) + sums.reshape(-1)]
    warp.barrier.wait()


def _shuffle(_: int, mode: int, value: int, apart: int, __: int) -> int:
    """shfl.sync.bfly: what the lane has whose number differs in these bits."""
    assert mode == 3, "only butterflies"
    warp, lane = _warp(), getcurrent().tid % 32
    warp.values[lane] = value
    warp.barrier.wait()
    other = int(warp.values[lane ^ apart])
    warp.barrier.wait()
    return other


def _narrow(dtype: Any, low: float, high: float) -> int:
    """cvt.rn.satfinite.e4m3x2.f32 and e5m2x2: any NaN is 0x7F, what is too large is the greatest number."""
    x, most = np.array([low, high], np.float32), np.float32(ml_dtypes.finfo(dtype).max)
    with np.errstate(all="ignore"):
        codes = np.clip(x, -most, most).astype(dtype).view(np.uint8)
    return int(np.where(np.isnan(x), np.uint8(0x7F), codes).view(np.uint16)[0])


def _widen(dtype: Any, pair: int) -> int:
    """cvt.rn.f16x2.e4m3x2 and e5m2x2."""
    with np.errstate(all="ignore"):
        return int(np.array([pair], np.uint16).view(dtype).astype(np.float16).view(np.uint32)[0])


_FP8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
_CONVERSIONS = {
    "narrow": (re.compile(r'asm +"cvt\.rn\.satfinite\.(e\dm\d)x2\.f32 [^"]*", "[^"]*"'), "i16 @{}(float, float)",
               _narrow, ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_float, ctypes.c_float)),
    "widen": (re.compile(r'asm +"cvt\.rn\.f16x2\.(e\dm\d)x2 [^"]*", "[^"]*"'), "i32 @{}(i16)", _widen,
              ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint16)),
}  # fmt: skip


class _Cluster:
    """Blocks that run together: where each has its shared memory, and how far each of their threads has come."""

    def __init__(self, bases: Sequence[int], threads: int) -> None:
        self.bases, self.meeting = bases, Meeting(len(bases) * threads)
        self.ended, self.met = dict.fromkeys(range(len(bases)), 0), set[Any]()
        self.threads = threads
        self.due: dict[Any, int] = {}


_cluster: _Cluster
PLACE = 24  # bits of an address in a cluster that are a place in a block's memory


def _map_to(address: int, rank: int) -> int:
    """mapa: the same place of another block."""
    place = (address - _cluster.bases[getcurrent().ctaid % len(_cluster.bases)]) & 0xFFFFFFFF
    assert place < 1 << PLACE, "no address of this block's shared memory"
    return rank << PLACE | place


def _store_to(address: int, value: float) -> None:
    rank, place = divmod(address, 1 << PLACE)
    assert _cluster.ended[rank] < _cluster.threads, "the block has left, and its memory is another's"
    assert getcurrent() in _cluster.met, "nobody knows yet whether that block has begun"
    ctypes.c_float.from_address(_cluster.bases[rank] + place).value = value


def _arrive_in_cluster() -> None:
    meeting, here = _cluster.meeting, getcurrent()
    assert here not in _cluster.due, "arrived twice"
    meeting.arrived += 1
    _cluster.due[here] = -(-meeting.arrived // meeting.count) * meeting.count


def _wait_in_cluster() -> None:
    meeting, due = _cluster.meeting, _cluster.due.pop(getcurrent())
    if meeting.arrived < due:
        getcurrent().wait(lambda: meeting.arrived >= due)
    _cluster.met.add(getcurrent())


def _pair_of(dtype: Any, low: float, high: float) -> int:
    """cvt.rn.f16x2.f32 and bf16x2."""
    with np.errstate(all="ignore"):
        return int(np.array([low, high], np.float32).astype(dtype).view(np.uint32)[0])


def _logarithm_of_two(x: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.log2(np.float32(x)))


def _power_of_two(x: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.exp2(np.float32(x)))


def _greater(x: float, y: float) -> float:
    return float(np.maximum(np.float32(x), np.float32(y)))


def _fma2(dtype: Any, x: int, y: int, z: int) -> int:
    """fma.rn.f16x2 and bf16x2."""
    a, b, c = (np.array([v], np.uint32).view(dtype).astype(np.float64) for v in (x, y, z))
    with np.errstate(all="ignore"):
        return int((a * b + c).astype(np.float32).astype(dtype).view(np.uint32)[0])


_INT, _REAL, _WORD = ctypes.c_int32, ctypes.c_float, ctypes.c_uint32
# By name: the instruction, its signature in LLVM, what does it
_INSTRUCTIONS: dict[str, tuple[str, str, Any, Any]] = {
    "mapa": ("mapa.shared::cluster.u32 ", "i32 @{}(i32, i32)", ctypes.CFUNCTYPE(_INT, ctypes.c_uint32, _INT), _map_to),
    "store_to": ("st.shared::cluster.f32 ", "void @{}(i32, float)", ctypes.CFUNCTYPE(None, ctypes.c_uint32, _REAL), _store_to),
    "arrive": ("barrier.cluster.arrive.release.aligned;", "void @{}()", ctypes.CFUNCTYPE(None), _arrive_in_cluster),
    "arrive_only": ("barrier.cluster.arrive.relaxed.aligned;", "void @{}()", ctypes.CFUNCTYPE(None), _arrive_in_cluster),
    "wait": ("barrier.cluster.wait.acquire.aligned;", "void @{}()", ctypes.CFUNCTYPE(None), _wait_in_cluster),
    "exp2": ("ex2.approx.ftz.f32 ", "float @{}(float)", ctypes.CFUNCTYPE(_REAL, _REAL), _power_of_two),
    "log2": ("lg2.approx.ftz.f32 ", "float @{}(float)", ctypes.CFUNCTYPE(_REAL, _REAL), _logarithm_of_two),
    "max": ("max.NaN.f32 ", "float @{}(float, float)", ctypes.CFUNCTYPE(_REAL, _REAL, _REAL), _greater),
    "fmax": ("max.f32 ", "float @{}(float, float)", ctypes.CFUNCTYPE(_REAL, _REAL, _REAL), lambda x, y: float(np.fmax(x, y))),
    "tanh": ("{\n.reg .f32 x, t;", "float @{}(float)", ctypes.CFUNCTYPE(_REAL, _REAL), lambda x: float(np.tanh(np.float32(x)))),
    "erfc": ("{\n.reg .f32 a, t, p;", "float @{}(float)", ctypes.CFUNCTYPE(_REAL, _REAL), lambda x: math.erfc(x)),
    "f16x2": ("cvt.rn.f16x2.f32 ", "i32 @{}(float, float)", ctypes.CFUNCTYPE(ctypes.c_uint32, _REAL, _REAL),
              functools.partial(_pair_of, f16.numpy)),
    "two_f16": ("{ .reg .b16 low, high; cvt.rn.f16.f32 ", "i32 @{}(float, float)", ctypes.CFUNCTYPE(ctypes.c_uint32, _REAL, _REAL),
                functools.partial(_pair_of, f16.numpy)),
    "bf16x2": ("cvt.rn.bf16x2.f32 ", "i32 @{}(float, float)", ctypes.CFUNCTYPE(ctypes.c_uint32, _REAL, _REAL),
               functools.partial(_pair_of, bf16.numpy)),
    "fma_f16x2": ("fma.rn.f16x2 ", "i32 @{}(i32, i32, i32)", ctypes.CFUNCTYPE(*4 * [_WORD]), functools.partial(_fma2, f16.numpy)),
    "fma_bf16x2": ("fma.rn.bf16x2 ", "i32 @{}(i32, i32, i32)", ctypes.CFUNCTYPE(*4 * [_WORD]), functools.partial(_fma2, bf16.numpy)),
}  # fmt: skip
_MEETS = "arrive", "wait"
ALONE = tuple(
    text
    for name, (text, *_) in _INSTRUCTIONS.items()
    if name in ("exp2", "log2", "max", "fmax", "tanh", "erfc", "f16x2", "two_f16", "bf16x2")
)  # what a thread does by itself


def new_warps(block: int, threads: int) -> None:
    """For a block's shuffles, where no other one runs."""
    _warps.clear()
    _warps.update({(block, w): _Warp() for w in range(threads // 32)})


def _with_instructions(text: str) -> str:
    for name, (written, signature, _, _) in _INSTRUCTIONS.items():
        pattern = rf'asm +(?:sideeffect +)?"{re.escape(written)}[^"]*", "[^"]*"'
        text, count = re.subn(pattern, f"@on_host_{name}", text)
        text += f"declare {signature.format(f'on_host_{name}')}\n" if count else ""
    return text


def _with_conversions(text: str) -> str:
    for name, (written, signature, _, _) in _CONVERSIONS.items():
        text = written.sub(rf"@on_host_{name}_\1", text)
        called = (f"on_host_{name}_{kind}" for kind in _FP8)
        text += "".join(
            f"declare {signature.format(f)}\n" for f in called if f"@{f}(" in text or f"@{f} (" in text
        )
    return text


_SUMS = "{float, float, float, float}"
_MULTIPLY = re.compile(
    r'call {float, float, float, float} asm[^"]*"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(b?f16)[^"]*", "[^"]*"'
)


def _wrapper(name: str) -> str:
    """LLVM for `name`, which returns the sums that a function of Python leaves in memory."""
    types = 6 * ["i32"] + 4 * ["float"]
    params = ", ".join(f"{t} %{i}" for i, t in enumerate(types))
    made = "".join(
        f"%p{i} = getelementptr [4 x float], [4 x float]* %s, i32 0, i32 {i}\n%v{i} = load float, float* %p{i}\n"
        f"%r{i} = insertvalue {_SUMS} {f'%r{i - 1}' if i else 'undef'}, float %v{i}, {i}\n"
        for i in range(4)
    )
    return f"""
declare void @{name}_python({", ".join([*types, "i64"])})
define {_SUMS} @{name}({params}) {{
%s = alloca [4 x float]
%at = ptrtoint [4 x float]* %s to i64
call void @{name}_python({params}, i64 %at)
{made}ret {_SUMS} %r3
}}
"""


_SHUFFLE = f"""
declare i32 @on_host_shuffle_python({", ".join(5 * ["i32"])})
define internal {{i32, i1}} @on_host_shuffle({", ".join(f"i32 %{i}" for i in range(5))}) {{
%other = call i32 @on_host_shuffle_python({", ".join(f"i32 %{i}" for i in range(5))})
%made = insertvalue {{i32, i1}} {{i32 undef, i1 true}}, i32 %other, 0
ret {{i32, i1}} %made
}}
"""


@functools.cache
def _symbols() -> list[Any]:
    """What the code calls: registers, read from the fiber; and libdevice's functions, by libm. Kept alive here."""
    from llvmlite import binding

    kept: list[Any] = []
    for name in REGISTERS:
        kept.append(ctypes.CFUNCTYPE(ctypes.c_int32)(lambda name=name: getattr(getcurrent(), name)))
        binding.add_symbol(f"on_host_{name}", ctypes.cast(kept[-1], ctypes.c_void_p).value)
    kept.append(ctypes.CFUNCTYPE(None)(_meet))
    binding.add_symbol("on_host_barrier", ctypes.cast(kept[-1], ctypes.c_void_p).value)
    kept.append(ctypes.CFUNCTYPE(*6 * [ctypes.c_int32])(_shuffle))
    binding.add_symbol("on_host_shuffle_python", ctypes.cast(kept[-1], ctypes.c_void_p).value)
    for dtype in (f16, bf16):
        words, sums = 6 * [ctypes.c_uint32], 4 * [ctypes.c_float]
        kind = ctypes.CFUNCTYPE(None, *words, *sums, ctypes.c_int64)
        kept.append(kind(functools.partial(_multiply, dtype.numpy)))
        binding.add_symbol(f"on_host_{dtype}_python", ctypes.cast(kept[-1], ctypes.c_void_p).value)
    for name, (_, _, function, kind) in _CONVERSIONS.items():
        for element, dtype in _FP8.items():
            kept.append(kind(functools.partial(function, dtype)))
            binding.add_symbol(f"on_host_{name}_{element}", ctypes.cast(kept[-1], ctypes.c_void_p).value)
    for name, (_, _, kind, function) in _INSTRUCTIONS.items():
        kept.append(kind(function))
        binding.add_symbol(f"on_host_{name}", ctypes.cast(kept[-1], ctypes.c_void_p).value)
    libm = ctypes.CDLL("libm.so.6")
    for name in (
        "expf",
        "exp2f",
        "tanhf",
        "sqrtf",
        "logf",
        "erff",
        "erfcf",
        "fabsf",
        "fminf",
        "fmaxf",
        "isinff",
    ):
        binding.add_symbol(f"__nv_{name}", ctypes.cast(getattr(libm, name), ctypes.c_void_p).value)
    return kept


def host_code(
    launch: Launch, region: RegionSpec, rewrite: Callable[[str], str] = lambda text: text
) -> tuple[Any, str, bool]:
    """(a module for the host, the kernel's name in it, whether its threads meet). `rewrite`: of LLVM, before anything else."""
    from llvmlite import binding
    from numba.cuda.compiler import _compile_pyfunc_with_fixup
    from numba.cuda.descriptor import cuda_target

    cuda_target.target_context.cached_internal_func.clear()
    library, _ = _compile_pyfunc_with_fixup(
        materialise(launch.body), numba_signature(signature_of(launch, region)), device=False, abi="numba",
        abi_info={"abi_name": kernel_name(launch)}, cc=CAPABILITY,
    )  # fmt: skip
    modules, meets = [], False
    for text in map(rewrite, library.llvm_strs):
        text = re.sub(r"llvm\.nvvm\.read\.ptx\.sreg\.(\w+)\.x", r"on_host_\1", text)
        text, barriers = re.subn(r"llvm\.nvvm\.barrier0", "on_host_barrier", text)
        declared = r"^declare .*llvm\.nvvm\.shfl\.sync\.i32.*$"
        text, shuffles = re.subn(declared, _SHUFFLE, text, flags=re.MULTILINE)
        text = text.replace("llvm.nvvm.shfl.sync.i32", "on_host_shuffle")
        meets |= barriers + shuffles > 0
        text = re.sub(
            r'= (?:tail )?call i32 asm +"mov\.b32 \$0, \$1; [^"]*", "[^"]*"\(i32 (.*?)\)',
            r"= add i32 \1, 0",
            text,
        )
        text = _with_instructions(_with_conversions(text))
        text = _MULTIPLY.sub(rf"call {_SUMS} @on_host_\1", text)
        text += "".join(_wrapper(f"on_host_{t}") for t in (f16, bf16) if f"@on_host_{t}(" in text)
        text = re.sub(r"^target (triple|datalayout) = .*$", "", text, flags=re.MULTILINE)
        modules.append(binding.parse_assembly(f'target triple = "{binding.get_process_triple()}"\n{text}'))
    for other in modules[1:]:
        modules[0].link_in(other)
    modules[0].verify()
    return modules[0], library._entry_name, meets


def engine_of(module: Any) -> Any:
    """The module as machine code."""
    from llvmlite import binding

    features = binding.get_host_cpu_features().flatten()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features, opt=2
    )
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def host_arguments(
    launch: Launch, arrays_in: Sequence[np.ndarray], arrays_out: Sequence[np.ndarray], workspace: np.ndarray
) -> list[Any]:
    """Of the kernel, for ctypes. Each array is the memory behind a pointer."""

    def of(arg: Any) -> Any:
        if isinstance(arg, tuple):
            for part in arg:
                yield from of(part)
        elif isinstance(arg, Num):
            yield _NUMBERS[arg.dtype.name](arg.value)
        elif isinstance(arg, Work):
            yield ctypes.c_void_p(workspace.ctypes.data + arg.offset)
        elif isinstance(arg, Table):
            words = tables_of(arg).filled(
                *([a.ctypes.data for a in arrays] for arrays in (arrays_in, arrays_out))
            )
            pointer = ctypes.c_void_p(words.ctypes.data)
            pointer.words = words  # as long as it is pointed at
            yield pointer
        else:
            array = (arrays_in if isinstance(arg, In) else arrays_out)[arg.index]
            yield ctypes.c_void_p(array.ctypes.data + arg.offset)

    return list(of(launch.args))


def place_thread(block: int, thread: int, launch: Launch) -> None:
    """Says where the calling thread is."""
    here = getcurrent()
    here.ctaid, here.tid, here.ntid, here.nctaid = block, thread, launch.block[0], launch.grid[0]


def prepare() -> None:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    _symbols()


class OnHost:
    """A launch, compiled for the host."""

    def __init__(self, launch: Launch, region: RegionSpec) -> None:
        prepare()
        module, name, self.meets = host_code(launch, region)
        shared = (
            [v.name for v in module.global_variables if "addrspace(3)" in str(v)]
            if launch.cluster > 1
            else []
        )
        for v in shared:
            module.get_global_variable(v).linkage = "external"
        self.launch, self.engines = launch, [engine_of(module.clone()) for _ in range(launch.cluster)]
        self.addresses = [engine.get_function_address(name) for engine in self.engines]
        self.bases = [engine.get_global_value_address(v) for engine in self.engines for v in shared]

    def __call__(
        self, arrays_in: Sequence[np.ndarray], arrays_out: Sequence[np.ndarray], workspace: np.ndarray
    ) -> None:
        """Results are written in place."""
        global _cluster

        args = host_arguments(self.launch, arrays_in, arrays_out, workspace)
        kernels = [ctypes.CFUNCTYPE(None, *map(type, args))(address) for address in self.addresses]
        blocks, threads, cluster = self.launch.grid[0], self.launch.block[0], self.launch.cluster

        def run(block: int, thread: int) -> None:
            place_thread(block, thread, self.launch)
            kernels[block % cluster](*args)
            if cluster > 1:
                _cluster.ended[block % cluster] += 1

        if not self.meets:
            for block in range(blocks):
                for thread in range(threads):
                    run(block, thread)
            return
        for first in range(0, blocks, cluster):
            some = range(first, first + cluster)
            _cluster = _Cluster(self.bases, threads)
            _blocks.clear(), _warps.clear()
            _blocks.update({block: Meeting(threads) for block in some})
            _warps.update({(block, w): _Warp() for block in some for w in range(threads // 32)})
            take_turns(
                [Fiber(functools.partial(run, block, thread)) for block in some for thread in range(threads)]
            )
