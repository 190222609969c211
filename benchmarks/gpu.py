"""The GPU with aicf and PyTorch on one stream: graphs of either, times by events, cold caches, checks on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aicf.device.runtime import cuda_missing, runtime

from .harness import NotHere, WrongResult
from .stats import Sample, enough

LAUNCHES = 20  # in a graph of one short kernel
SAMPLE_S, GUESS = 4e-4, 4e14  # a graph has as many products as take about so long, at so many flops a second
WARM_FLOPS, WARM_S = 1e11, 0.5  # products of so many flops are sampled after so long of the same work
CHUNK = 2**24  # elements that are compared at once


class Lab:
    """PyTorch's current stream is aicf's, so that the work of both is in order and no side waits for the other."""

    def __init__(self, device: str, seed: int) -> None:
        if missing := cuda_missing():
            raise NotHere(missing)
        try:
            import torch
        except ImportError:
            raise NotHere("the peer, PyTorch, is not installed") from None
        if not torch.cuda.is_available():
            raise NotHere("this PyTorch sees no GPU")
        self.torch, self.runtime, self.device = torch, runtime(device), device
        self.stream = torch.cuda.ExternalStream(self.runtime.stream_id)
        torch.cuda.set_stream(self.stream)
        torch.manual_seed(seed)
        torch.set_float32_matmul_precision("highest")  # f32 is f32 on both sides, not TF32
        self.l2_bytes = torch.cuda.get_device_properties(self.stream.device).L2_cache_size
        self._wash = torch.ones(2 * self.l2_bytes // 4, device=device)

    def sync(self) -> None:
        self.torch.cuda.synchronize()

    # --- graphs -------------------------------------------------------------------------------------------------------

    def aicf_graph(self, calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
        """aicf's bound kernels as one graph; returns its launch. Each ran once before."""
        from aicf.graph.run.capture import capture

        for call in calls:
            call()
        self.sync()
        return capture(self.runtime, calls).launch  # type: ignore[arg-type]

    def torch_graph(self, work: Callable[[], Any]) -> Callable[[], None]:
        """What PyTorch launches in `work` as one graph; returns its replay."""
        torch = self.torch
        self.sync()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            work()
        self.sync()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    # --- time ---------------------------------------------------------------------------------------------------------

    def device_time(
        self, call: Callable[[], Any], per: int, cold: bool = False, calls: int = 1, ahead: int = 100_000
    ) -> Sample:
        """Seconds of device time for each of the `per` things that a call does, by events around `calls` calls.

        cold   the L2 cache holds other data at the start
        ahead  clocks that the device waits first, so that the host gets ahead and its launches are not what is timed
        """
        torch = self.torch

        def sample() -> float:
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if cold:
                self._wash.sum()  # read, not written: nothing is left to be written back in the time that counts
            torch.cuda._sleep(ahead)
            a.record()
            for _ in range(calls):
                call()
            b.record()
            torch.cuda.synchronize()
            return a.elapsed_time(b) * 1e-3 / (per * calls)

        return sample

    def warm(self, flops: float, calls: Sequence[Callable[[], Any]]) -> None:
        """Large products are at the power limit: clocks come down in the first half second, by a seventh, and then samples that the sides
        take in turn differ by 1 to 6 %, where without they differed by up to 15. (Samples of 60 ms of one side each, after 20 ms of it that did
        not count, differed by 5 to 15 %: whoever follows the other has its clock for a while.)"""
        if flops < WARM_FLOPS:
            return
        for call in calls:
            for _ in range(enough(call, WARM_S / len(calls), sync=self.sync)):
                call()
        self.sync()

    def launch_sets(self, flops: float, nbytes: int) -> list[int]:
        """For each launch of a graph of GEMMs the index of its set of operands."""
        launches = max(1, min(LAUNCHES, int(SAMPLE_S * GUESS / flops)))
        count = self.sets(nbytes, launches)
        return [i % count for i in range(launches)]

    def sets(self, nbytes: int, launches: int = LAUNCHES) -> int:
        """Number of sets of buffers for the launches of a graph, so that none finds its data in the L2 cache."""
        return max(1, min(launches, -(-4 * self.l2_bytes // nbytes)))

    # --- checks -------------------------------------------------------------------------------------------------------

    def verify(self, what: str, got: Any, want: Callable[[slice], Any], tolerance: float) -> None:
        """As harness.verify, on the device and in parts: `want` gives the reference for a slice, in f32 or f64."""
        for start in range(0, got.numel(), CHUNK):
            where = slice(start, min(start + CHUNK, got.numel()))
            expected = want(where)
            bad = ~((got[where].to(expected.dtype) - expected).abs() <= tolerance * (1 + expected.abs()))
            if bad.any():
                at = int(bad.int().argmax())
                raise WrongResult(
                    f"{what}: {int(bad.sum())} of {bad.numel()} elements differ by more than {tolerance:g}; the first, "
                    f"{start + at}, is {float(got[where][at])}, expected {float(expected[at])}"
                )

    def untouched(self, what: str, memory: Any) -> None:
        """The poison before and behind a result is still there."""
        if not bool(memory.isnan().all()):
            raise WrongResult(f"{what}: written outside of the result")
