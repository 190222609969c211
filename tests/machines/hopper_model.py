"""A Hopper multiprocessor or two, as far as a warp-specialised kernel can tell: kernel bodies as they are, run thread by
thread in Python, with every instruction of aicf/cuda_kernels/ptx done as the PTX manual says it is.

What is asynchronous there happens here at a random moment between where it may begin and where it is waited for, in a random
order: copies, products, stores, and the steps of threads. What is written is what is read: an operand that is overwritten
too early, a result that is read too early, or a byte that goes astray, gives wrong numbers. Shared memory holds numbers as f64, each
at the address of its first byte, NaN to begin with; what a thread writes there reaches the copy engine only by a fence.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aicf.cuda_kernels.ptx.register_operand import PLACES
from aicf.cuda_kernels.ptx.wgmma import k_tile_text
from aicf.registry.variant import Launch
from machines.fibers import Fiber, Stuck
from machines.hopper_bodies import Cuda, argument, bodies
from machines.hopper_copies import RANK_AT, START, Copies, moved, offset
from machines.wgmma_model import k_tile, swizzle

NOTHING = np.empty(0, np.uint8)


@dataclass
class Barrier:
    """An mbarrier."""

    count: int
    pending: int
    phase: int = 0
    nbytes: int = 0

    def settle(self) -> None:
        assert self.pending >= 0, "more arrivals than a phase takes"
        if self.pending == 0 and self.nbytes == 0:
            self.phase, self.pending = self.phase + 1, self.count


class Sums:
    """Registers that products are under way to."""

    def __init__(self, count: int) -> None:
        self.registers = np.full((128, count), np.nan)


class Words(list):
    """Registers of one thread that products read when they are done, and not when they are asked for."""


@dataclass
class Asked:
    """Products that threads of a warpgroup asked for: the arguments, the sums, and each thread's own words of a."""

    given: tuple
    sums: Sums
    words: dict[int, tuple] = field(default_factory=dict)


@dataclass
class Warpgroup:
    """Products that its 128 threads asked for, in order."""

    asked: list[Asked] = field(default_factory=list)
    done: int = 0


class Block:
    def __init__(self, rank: int, index: int, nbytes: int) -> None:
        self.rank, self.index = rank, index
        self.start = START | rank << RANK_AT
        self.shared = np.full(nbytes, np.nan)
        self.barriers: dict[int, Barrier] = {}
        self.groups: dict[int, Warpgroup] = {}
        self.meetings: dict[Any, list] = {}
        self.counts: dict[Any, int] = {}
        self.running = 0

    def at(self, addresses: Any) -> Any:
        """Where in `shared`, an array or a few in a list; of this block's addresses, or of places that are the same in all."""
        if isinstance(addresses, list):  # NumPy takes longer for a few
            within = [a - self.start for a in addresses]
            least, most = min(within), max(within)
        else:
            within = np.subtract(addresses, self.start, dtype=np.int64)
            least, most = within.min(initial=0), within.max(initial=0)
        if least >= 0 and most < len(self.shared):
            return within
        addresses = np.asarray(addresses)
        home, within = addresses >> RANK_AT, offset(addresses) - START
        assert ((home == 0) | (home == self.rank)).all(), "an address in another block"
        assert ((within >= 0) & (within < len(self.shared))).all()
        return within

    def words(self) -> np.ndarray:
        """All of it, by words from where it begins."""
        return self.shared[::4]

    def barrier(self, at: int) -> Barrier:
        return self.barriers[offset(at)]


class Thread(Fiber):
    """One thread of a block."""

    def __init__(self, block: Block, index: int, run: Callable[[], None]) -> None:
        super().__init__(run)
        self.block, self.index = block, index
        self.written: list[tuple[np.ndarray, Any]] = []  # to shared memory, since the last fence
        self.asked = self.committed = 0  # products, and those of them in groups
        self.groups: list[int] = []  # products asked for, at each commit
        self.stores: list[list[dict]] = [[]]  # groups of stores; the last is open
        self.visits: dict[Any, int] = {}


class Machine(Copies):
    """Runs a launch. Its methods named as the factories of aicf/cuda_kernels/ptx make what those make."""

    left: frozenset[Any] = frozenset()  # barriers that threads may leave half way

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.threads: list[Thread] = []
        self.blocks: list[Block] = []
        self.events: list[Callable[[], None]] = []  # copies under way
        # stores among them, or by themselves and as late as can be
        self.leaving = self.random.choice((self.events, []))
        self.current: Any = None
        self.cuda = Cuda(self)

    # --- launching ----------------------------------------------------------------------------------------------------

    def in_order(self, blocks: range) -> Iterable[int]:
        """The first of the blocks that run together, and then the others: as a GPU starts them."""
        return blocks

    def awake(self, threads: int) -> Sequence[int]:
        """Those of a block that do anything: of a producer's warpgroup only the first thread."""
        return [0, *range(128, threads)] if threads > 128 else range(threads)

    def launch(
        self, launch: Launch, ins: list[np.ndarray], outs: list[np.ndarray], grid: int = 0,
        workspace: np.ndarray = NOTHING, at_once: int = 0,
    ) -> None:  # fmt: skip
        """On flat arrays; `grid`: fewer blocks than the launch says; a workspace is of bytes; `at_once`: blocks that run together, if
        more than a cluster's."""
        body = bodies(self).of(launch.body)
        args = tuple(argument(arg, ins, outs, workspace) for arg in launch.args)
        self.grid = grid or launch.grid[0]
        at_once = at_once or launch.cluster
        for first in self.in_order(range(0, self.grid, at_once)):
            self.blocks = [Block(r, first + r, launch.shared) for r in range(min(at_once, self.grid - first))]
            self.events.clear()
            indices = self.awake(launch.block[0])
            self.threads = [Thread(b, i, lambda: body(*args)) for b in self.blocks for i in indices]
            self.everyone = len(indices)
            for block in self.blocks:
                block.running = len(indices)
            self._run()

    def _run(self) -> None:
        alive = list(self.threads)
        eagerness = self.random.choice(
            (0.0, 0.001, 0.1)
        )  # of engines; at 0 they do what they must, and no sooner
        while alive or self.events or self.leaving:
            if self.events and self.random.random() < eagerness:
                self._event()
            if self.random.random() < eagerness:
                self._multiply()
            thread = next((t for t in self.random.choices(alive, k=8) if t.ready()), None) if alive else None
            if thread is None:
                if not (ready := [t for t in alive if t.ready()]):
                    self._hurry(alive)
                    continue
                thread = self.random.choice(ready)
            self.current = thread
            thread.switch()
            if thread.dead:
                alive.remove(thread)
                thread.block.running -= 1
        for block in self.blocks:
            for name, count in block.counts.items():
                assert name in self.left or len(block.meetings[name]) % count == 0, (
                    f"barrier {name} is left half way"
                )

    def _hurry(self, alive: list[Thread]) -> None:
        """No thread can go on: something asynchronous happens."""
        first, second = self.random.sample([self._event, self._multiply], 2)
        if not first() and not second() and not self._event(self.leaving):
            raise Stuck(f"{len(alive)} threads wait; {[(t.block.rank, t.index) for t in alive][:4]}")

    def _event(self, events: list | None = None) -> bool:
        """Some copy is done."""
        if events := self.events if events is None else events:
            events.pop(self.random.randrange(len(events)))()
            return True
        return False

    def _multiply(self) -> bool:
        """The next products of some warpgroup that all its threads have asked for."""
        waiting = [
            (block, group) for block in self.blocks for group in block.groups.values()
            if group.done < len(group.asked) and len(group.asked[group.done].words) == 128
        ]  # fmt: skip
        if not waiting:
            return False
        block, group = self.random.choice(waiting)
        asked = group.asked[group.done]
        text, a, b, more = asked.given
        if a is None:
            a = np.array([asked.words[member] for member in range(128)])
        sums = asked.sums
        sums.registers = k_tile(text, sums.registers, a, b, more, lambda at: block.shared[block.at(at)])
        group.done += 1
        return True

    def _group(self) -> Warpgroup:
        return self.current.block.groups.setdefault(self.current.index // 128, Warpgroup())

    def _meet(self, name: Any, count: int, blocks: list[Block], wait: bool = True) -> None:
        """A barrier of so many threads, all or some of which wait for the others."""
        thread, home = self.current, blocks[0]
        visit = thread.visits[name] = thread.visits.get(name, 0) + 1
        arrived, home.counts[name] = home.meetings.setdefault(name, []), count
        arrived.append(thread.index)
        if wait:
            thread.wait(lambda: len(arrived) >= visit * count)

    # --- barriers -----------------------------------------------------------------------------------------------------

    def barrier_init(self) -> Any:
        def init(at: int, count: int) -> None:
            assert at % 8 == 0 and offset(at) not in self.current.block.barriers
            self.current.block.barriers[offset(at)] = Barrier(count, count)

        return init

    def barrier_end(self) -> Any:
        def end(at: int) -> None:
            del self.current.block.barriers[offset(at)]

        return end

    def publish_barriers(self) -> Any:
        return lambda: None

    def expect(self) -> Any:
        return lambda at, nbytes: self._arrive(self.current.block, at, nbytes)

    def expect_more(self) -> Any:
        return lambda at, nbytes: self._arrive(self.current.block, at, nbytes, arrivals=0)

    def expect_remote(self) -> Any:
        return lambda there, nbytes: self._arrive(self._block(there), there, nbytes)

    def arrive(self) -> Any:
        return lambda at: self._arrive(self.current.block, at)

    def in_block(self) -> Any:
        return lambda at, rank: offset(at) | int(rank) << RANK_AT

    def arrive_remote(self) -> Any:
        return lambda there: self._arrive(self._block(there), there)

    def _block(self, there: int) -> Block:
        """Of an address that `in_block` made."""
        return self.blocks[there >> RANK_AT]

    def _arrive(self, block: Block, at: int, nbytes: int = 0, arrivals: int = 1) -> None:
        assert block.running, "the block has left"
        barrier = block.barrier(at)
        barrier.nbytes += nbytes
        barrier.pending -= arrivals
        barrier.settle()

    def phase_over(self) -> Any:
        return lambda at, parity: int(self.current.block.barrier(at).phase % 2 != parity)

    def wait_phase(self) -> Any:
        def wait(at: int, parity: int) -> None:
            barrier = self.current.block.barrier(at)
            self.current.wait(lambda: barrier.phase % 2 != parity)

        return wait

    def sync_threads(self, barrier: int, threads: int) -> Any:
        return lambda: self._meet(barrier, threads, [self.current.block])

    def arrive_threads(self, barrier: int, threads: int) -> Any:
        return lambda: self._meet(barrier, threads, [self.current.block], wait=False)

    def cluster_rank(self) -> Any:
        return lambda: self.current.block.rank

    def cluster_size(self) -> Any:
        return lambda: len(self.blocks)

    def cluster_arrive(self) -> Any:
        return lambda: self._meet("cluster", self.everyone * len(self.blocks), self.blocks, wait=False)

    cluster_arrive_only = cluster_arrive

    def cluster_wait(self) -> Any:
        def wait() -> None:
            thread, everyone = self.current, self.everyone * len(self.blocks)
            arrived = self.blocks[0].meetings["cluster"]
            visit = thread.visits["cluster"]
            thread.wait(lambda: len(arrived) >= visit * everyone)

        return wait

    def load_remote(self) -> Any:
        return lambda there: self._block(there).shared[self._block(there).at(np.array(there))]

    def store_remote(self) -> Any:
        return lambda there, x: self._block(there).shared.__setitem__(
            self._block(there).at(np.array(there)), x
        )

    def load_acquire(self, dtype: Any = None) -> Any:
        """Who asks again for what a word was goes on when it is another."""
        seen: dict[Any, Any] = {}

        def load(address: np.ndarray) -> Any:
            key = self.current, address.ctypes.data
            if key in seen:
                self.current.wait(lambda: address[0] != seen[key])
            seen[key] = address[0]
            return address[0]

        return load

    # --- warps --------------------------------------------------------------------------------------------------------

    def _warp(self, name: str, value: Any) -> list:
        """What the lanes of this warp give, when all have."""
        thread, lane = self.current, self.current.index % 32
        warp = (name, thread.index // 32)
        visit = thread.visits[warp] = thread.visits.get(warp, 0) + 1
        given = thread.block.meetings.setdefault((*warp, visit), [None] * 32)
        given[lane] = value
        thread.wait(lambda: None not in given)
        return given

    def reduce_warp(self, op: str) -> Any:
        ufunc = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
                 "xor": np.bitwise_xor}[op]  # fmt: skip
        return lambda x: int(ufunc.reduce(self._warp("redux", np.int32(x)), dtype=np.int32))

    def scatter_sums(self, count: int) -> Any:
        """In the order of the shuffles: rows 16 lanes apart first."""

        def add(tile: tuple) -> tuple:
            lane = self.current.index % 32
            given = np.array(self._warp("sums", tile), np.float32).reshape(2, 2, 2, 4, 8, count // 8)
            added = given.sum(0).sum(0).sum(0)
            return tuple(added[lane % 4, lane // 4])

        return add

    def warp_uniform(self) -> Any:
        """Also of the one thread that there is of a producer's."""

        def of(x: Any) -> Any:
            alone = self.current.index == 0 and not any(thread.index == 1 for thread in self.threads)
            return x if alone else self._warp("first", x)[0]

        return of

    def elect(self) -> Any:
        return lambda: int(self._warp("elect", self.current.index)[0] == self.current.index)

    # --- products -----------------------------------------------------------------------------------------------------

    def multiply_k_tiles(self, elements: Any, n: int, blocks: int, *config: Any) -> Any:
        text, apart = k_tile_text(elements, n, blocks, *config), config[2:]
        count = blocks * (apart[0] if apart else n // 2)

        def multiply_k_tile(acc: Any, a: int, b: int, more: int) -> Sums:
            """acc: numbers, or sums that are under way."""
            group, thread = self._group(), self.current
            own = a if isinstance(a, tuple | Words) else ()
            given = (text, None if own else a, b, more)
            if thread.asked == len(group.asked):
                group.asked.append(Asked(given, acc if isinstance(acc, Sums) else Sums(count)))
            asked = group.asked[thread.asked]
            assert asked.given == given, "threads of a warpgroup ask for different products"
            if not isinstance(acc, Sums):
                asked.sums.registers[thread.index % 128] = acc
            asked.words[thread.index % 128] = own
            thread.asked += 1
            return asked.sums

        return multiply_k_tile

    def load_register_operand(self) -> Any:
        """Into the same registers, which a product that is under way may read now or then."""

        def load(words: Any, address: int) -> Words:
            block, words = self.current.block, words if isinstance(words, Words) else Words()
            assert address % 8 == 0
            at = [moved(address, place) + 4 * e for place in PLACES for e in range(2)]
            words[:] = ((x,) for x in block.shared[block.at(at)])
            return words

        return load

    def load_flat_operand(self, eights: bool) -> Any:
        """The same of few rows: half by half, or by what lanes of a warp say where rows of matrices begin."""

        def load(words: Any, address: int, pitch: int, left: int) -> Words:
            block, words = self.current.block, words if isinstance(words, Words) else Words()
            made = []
            for i in range(16):
                step, j = divmod(i, 4)
                if eights:
                    rows = self._warp("ldmatrix", int(swizzle(int(address) + step * 16 * int(pitch))))
                    assert not any(a % 16 for a in rows)
                    made.append(tuple(block.shared[block.at(self._pair(rows, j, True))]))
                    continue
                low = int(address) + (step * 16 + j // 2 * 8) * int(pitch) + j % 2 * 16
                here = block.at([swizzle(low), swizzle(low + int(pitch))]) if left > j % 2 * 8 else None
                made.append((0.0, 0.0) if here is None else tuple(block.shared[here]))
            words[:] = made
            return words

        return load

    def fence_products(self) -> Any:
        return lambda: None

    def commit_products(self) -> Any:
        return lambda: self.current.groups.append(self.current.asked)

    def wait_products(self, pending: int) -> Any:
        def wait() -> None:
            group, thread = self._group(), self.current
            finished = thread.groups[: len(thread.groups) - pending]
            thread.wait(lambda: group.done >= (finished[-1] if finished else 0))

        return wait

    def finish_products(self, count: int, pending: int = 0) -> Any:
        wait = self.wait_products(pending)

        def finish(acc: Any) -> tuple:
            wait()
            return tuple(acc.registers[self.current.index % 128]) if isinstance(acc, Sums) else acc

        return finish

    def setmaxnreg_dec(self, count: int) -> Any:
        return lambda: None

    setmaxnreg_inc = setmaxnreg_dec
