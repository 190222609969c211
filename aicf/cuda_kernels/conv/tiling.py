"""How blocks of the convolutions of channels last share the work: numbers that variants and bodies have in common."""

from __future__ import annotations

from dataclasses import dataclass

THREADS = 256
TILE = 128  # rows of a block of im2col, at most
FLIGHT = 4  # rows of a thread that are on their way at once
ROWS = 4  # windows of a thread, of a direct convolution
BLOCKS = 3  # on a multiprocessor, that the registers of a direct convolution are limited for
WEIGHTS = 6144  # f32 in shared memory
PAD = 4  # f32 between the weights of two channels of x: banks of their own, and aligned


@dataclass(frozen=True)
class DirectTiling:
    """depthwise  each channel of results is of its own channel of x; else of all channels of its group
    run        neighbouring channels of results, of one group, that a thread has
    depth      neighbouring channels of x that it reads at once; of a depthwise convolution the same run
    lanes      threads side by side along channels of results
    """

    depthwise: bool
    run: int
    depth: int
    lanes: int

    @property
    def channels(self) -> int:
        """Of results, of a block."""
        return self.run * self.lanes

    @property
    def across(self) -> int:
        """Threads along windows."""
        return THREADS // self.lanes

    @property
    def windows(self) -> int:
        """Of a block."""
        return ROWS * self.across

    @property
    def pitch(self) -> int:
        return self.channels + PAD

    @property
    def steps(self) -> int:
        """Weights of each channel of results that are in shared memory at once."""
        unit = 1 if self.depthwise else self.depth
        return WEIGHTS // self.pitch // unit * unit

    def __str__(self) -> str:
        return f"{'depthwise' if self.depthwise else 'grouped'}{self.run}x{self.depth}_{self.lanes}"
