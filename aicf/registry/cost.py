"""Predicted time of a kernel, as named terms in microseconds, so that a choice can be explained by them.

    launch                launches, each as a node of a replayed graph
    latency               the first trip to memory of each launch: nothing can be done before it is back
    memory, L2, compute   the greatest of the three: bytes over bandwidth, or useful flops over the unit's rate
    tile padding          arithmetic on edges that whole tiles add
    idle multiprocessors, wave tail   what the last wave of blocks leaves unused, if it is the only one, or of several
    epilogue              what blocks do, beside their arithmetic, that no other block of their multiprocessor hides
    dependent steps       what a block waits for one step after another and no block beside it hides (Little's law)

Terms add up to the whole; each is what its cause adds to those before it. Pure functions of the DeviceSpec.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from ..device.calibration import family
from ..device.spec import DeviceSpec, constants

EARLY_FROM = (9, 0)  # architectures whose launches may overlap


@family("machine")
@dataclass(frozen=True)
class MachineConstants:
    """Constants of the memory system and of launches, in microseconds and GB/s.

    trip_us        a trip to device memory and back under load: some 500 cycles idle and twice that near saturation on Ampere and Hopper
    cache_trip_us  a trip to the L2 cache, with the barrier that waits for it: 260 to 300 cycles at 1.7 GHz
    l2_per_sm      GB/s from the L2 cache to each multiprocessor, when all read from it: 13 TB/s in all on an H200
    early_us       of a launch and its first trip, what passes while the launch before it ends, where the two may overlap
    barrier_us     a barrier of a block and the stores to shared memory before it: a hundred cycles
    """

    trip_us: float = 0.65
    cache_trip_us: float = 0.2
    l2_per_sm: float = 100.0
    early_us: float = 0.35
    barrier_us: float = 0.05


def machine(device: DeviceSpec) -> MachineConstants:
    return constants(MachineConstants, device)


# A trip from one rank's memory to another's with NCCL's flags, in a node and through the network, in microseconds.
HOP_US, NETWORK_HOP_US = 5.0, 12.0
# How much faster than DRAM a CPU core reads what lies in its L2 cache.
HOST_CACHE_SPEEDUP = 4.0


class Cost(NamedTuple):
    """Terms add up to `us`. Built by `roofline`, or by hand: Cost({"launch": 1.0, "compute": 12.0})."""

    terms: Mapping[str, float] = MappingProxyType({})
    predicted: float | None = None  # of a measured time: what the model would have said
    noise: float = 0.0  # and how far off it may be, in microseconds

    @property
    def us(self) -> float:
        return max(
            math.fsum(self.terms.values()), 1e-3
        )  # exact: sum's last digit depends on Python's version

    @property
    def is_measured(self) -> bool:
        """Whether this is a measured time, as `measured` returns it."""
        return set(self.terms) == {"measured"}

    def plus(self, **terms: float) -> Cost:
        return Cost({**self.terms, **{k: self.terms.get(k, 0.0) + v for k, v in terms.items()}})

    def measured(self, us: float, noise: float = 0.0) -> Cost:
        """A measured time in the place of this prediction, which stays to be compared with."""
        return Cost({"measured": us}, self.us, noise)

    def __str__(self) -> str:
        return sum_of_terms(self.terms, self.us)


def sum_of_terms(terms: Mapping[str, float], total: float) -> str:
    """`launch 1 + compute 12 - nearby regions 0.3`: terms that matter; those under a thousandth of the total are left out."""
    shown = [(name, us) for name, us in terms.items() if not abs(us) < 1e-3 * total]
    text = "".join(f" {'-' if us < 0 else '+'} {name} {abs(us):.3g}" for name, us in shown)
    return text.removeprefix(" + ").lstrip()


def roofline(
    device: DeviceSpec,
    *,
    bytes: float,
    flops: float = 0.0,
    rate: str = "f32",
    efficiency: float = 1.0,
    memory_efficiency: float = 1.0,
    blocks: int | None = None,
    blocks_per_sm: int = 1,
    launches: int = 1,
    useful: float | None = None,
    cached: float = 0.0,
    chain: float = 0.0,
    finish: float = 0.0,
    in_step: bool = False,
) -> Cost:
    """Launches, and the greatest of memory, cache and arithmetic, the latter by waves of blocks.

    bytes, flops       moved through device memory, cold; done in the unit that `rate` names (2 per multiply-add)
    efficiency         of the peak arithmetic rate that this kernel's inner loop reaches with the chip full
    memory_efficiency  of the peak bandwidth that its access pattern reaches, with enough bytes in flight
    blocks             of the grid, each with an equal share of the flops; a grid-stride loop counts as one without
    blocks_per_sm      that are resident together and hide each other's latency
    useful             flops without those of padded tiles; all by default
    cached             bytes that multiprocessors read from the L2 cache, again and again: tiles of operands, second reads
    chain              microseconds that a block, beside its arithmetic, spends on dependent steps after its first trip to
                       memory; the loads of one step are in flight together
    finish             microseconds of a multiprocessor, for what each block does beside its arithmetic: results on their way out,
                       a reduction's tree
    in_step            blocks of a multiprocessor end together, so that the next ones are as many there, and the last wave is on
                       fewer multiprocessors than could share it
    """
    if device.kind != "cuda":
        return _on_host(device, bytes, flops, rate, efficiency, memory_efficiency, launches)
    terms = {"launch": device.launch_us * launches, "latency": (m := machine(device)).trip_us * launches}
    speed = device.tflops.get(rate, 0.0) * efficiency * 1e6  # flops per microsecond
    if flops and not speed:  # the device has no such unit: never the best choice
        return Cost({**terms, "compute": math.inf})
    even = flops / speed if flops else 0.0  # every multiprocessor as busy as the others
    needed = even if useful is None else min(useful, flops) / speed if flops else 0.0
    limit, reached = "memory", memory_us(device, bytes, memory_efficiency)
    if (reads := cached / (m.l2_per_sm * device.sms) * 1e-3) > reached:
        limit, reached = "L2", reads
    if needed > reached:
        limit, reached = "compute", needed
    terms[limit] = reached
    busy, ended, waited, last = even, even, even, "wave tail"
    if blocks:
        busy, ended, waited = _waves(
            device.sms, blocks, blocks_per_sm, even * device.sms / blocks, finish, chain, m.trip_us, in_step
        )
        last = "wave tail" if blocks > device.sms * blocks_per_sm else "idle multiprocessors"
    for name, total in (
        ("tile padding", even),
        (last, busy),
        ("epilogue", ended),
        ("dependent steps", waited),
    ):
        if total > reached * (1 + 1e-9):  # and not by a rounding error
            terms[name] = total - reached
            reached = total
    return Cost(terms)


def early_us(device: DeviceSpec) -> float:
    """What a kernel's second launch takes less than its first."""
    return machine(device).early_us if device.arch >= EARLY_FROM else 0.0


def one_launch(region: object, device: DeviceSpec) -> float:
    """What `roofline` never goes below."""
    return device.launch_us + (machine(device).trip_us if device.kind == "cuda" else 0.0)


def memory_us(device: DeviceSpec, bytes: float, efficiency: float = 1.0) -> float:
    """Of `roofline`: so many bytes through a GPU's memory."""
    return bytes / (device.bandwidth * efficiency) * 1e-3


def collective(device: DeviceSpec, kind: str, nbytes: int, ranks: int) -> Cost:
    """A collective of so many ranks, each with a device like this one: its start, trips from rank to rank, and bytes over links.

    By a ring each rank sends and receives (ranks - 1) / ranks of the bytes, twice for a sum. Within a node its link is the limit, across
    nodes each device's share of the network. Small ones go by a tree: trips grow with its depth, not with the ring's length.
    """
    share = (ranks - 1) / ranks * (2.0 if kind == "all_reduce" else 1.0)
    within = device.link if ranks <= device.peers else min(device.link, device.network)
    depth = math.ceil(math.log2(max(ranks, 2)))
    trips = HOP_US if ranks <= device.peers else NETWORK_HOP_US
    return Cost(
        {"launch": device.launch_us, "trips": 2 * depth * trips, "links": share * nbytes / within * 1e-3}
    )


def _waves(
    sms: int,
    blocks: int,
    per_sm: int,
    alone: float,
    finish: float,
    chain: float,
    trip: float,
    in_step: bool = False,
) -> tuple[float, float, float]:
    """Microseconds until the last block is done: by arithmetic only, with what it does at its end, and with dependent steps.

    alone  of a block's arithmetic with a multiprocessor to itself; r of them take r times as long together. Steps of one
           are hidden by the arithmetic of others, so a wave takes the longer of r * alone and alone + chain. The first
           wave's first trip to memory is a term of its own.
    """
    full, rest = divmod(blocks, sms * per_sm)
    # blocks on the busiest multiprocessor in the last wave
    crowd = min(rest, per_sm) if in_step and full else -(-rest // sms)
    turns = full * per_sm + crowd
    busy, alone = turns * alone, alone + finish
    ended, waited, steps = turns * alone, 0.0, alone + chain
    if full:
        together = per_sm * alone
        waited = max(together, steps) + (full - 1) * max(together, steps + trip)
        steps += trip
    if rest:
        waited += max(crowd * alone, steps)
    return busy, ended, waited


def host_memory_us(device: DeviceSpec, bytes: float, efficiency: float = 1.0) -> float:
    """What moving so many bytes takes: what fits into the L2 cache is likely to be there."""
    near = min(bytes, device.l2_bytes)
    moved = near / HOST_CACHE_SPEEDUP + (bytes - near)
    return moved / (device.bandwidth * efficiency) * 1e-3


def _on_host(
    device: DeviceSpec, bytes: float, flops: float, rate: str, efficiency: float, memory_efficiency: float,
    launches: int,
) -> Cost:  # fmt: skip
    """Calls, and the greater of memory and arithmetic."""
    memory = host_memory_us(device, bytes, memory_efficiency)
    speed = device.tflops.get(rate, 0.0) * efficiency * 1e6
    compute = (flops / speed if speed else math.inf) if flops else 0.0
    terms = {"launch": device.launch_us * launches}
    terms["memory" if memory >= compute else "compute"] = max(memory, compute)
    return Cost(terms)
