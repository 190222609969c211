"""attention_grad on Hopper's tensor cores: three kernels.

    before   for each query delta = sum(dout * out); -lse log2(e) and -delta, in the order in which threads want them; flags of 0
    main     persistent blocks take tiles of 128 keys, 64 to a consumer warpgroup, over the tiles of queries that attend to them:

                 Sᵀ = K Qᵀ, Gᵀ = V dOᵀ               64 keys x queries, in registers
                 Pᵀ = exp2(S c - lse), dSᵀ = Pᵀ (Gᵀ - delta)
                 dV += Pᵀ dO, dK += dSᵀ Q            their first operands in registers, where they lie
                 dQ = dS K                           dS by way of shared memory; f32 sums in the workspace, of all tiles of keys

    after    the sums of dQ, scaled, as rows of halves

A warp of the producer's warpgroup adds dQ to memory. A tile of queries gets its sums in the order of the keys, by a flag: what each block adds is
added when those of the tiles before are there, so equal calls have equal bits. None waits for good: blocks take tiles in order, all are on the chip at
once, and tiles of keys that come first wait for nobody.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ..dsl import device, int32, uint32
from ..hopper.opening import opening
from ..hopper.roles import registers
from ..ptx import global_address, launch_dependents, warp_uniform
from .hopper_grad_copies import adder, producer
from .hopper_grad_products import consumer
from .hopper_grad_tiles import REGISTERS, GradientPlan
from .hopper_tiles import HopperForm


@functools.cache
def gradient(form: HopperForm) -> Callable[..., None]:
    """`kernel(maps, stats, sums, flags, counter, sizes, scales)`, and behind these, of something added to keys, `mask, bias, mask_steps, bias_steps`:
    see hopper_masks.py.

    maps    of q, k, v, dout, dk, dv
    stats   f32, by query head and tile of queries: as `before` leaves them
    sums    f32, likewise: dQ, in the order of accumulators
    flags   i32, one for each tile of queries of each head: tiles of keys that have been added, the first one's number counted in
    counter i32, 0: of tiles that are taken
    sizes   see hopper_tiles.py
    scales  scale log2(e), scale
    """
    plan = GradientPlan(form.tile)
    fewer, more = registers(REGISTERS)
    open, uniform, let_next, address = (
        opening(plan.shared.init()),
        warp_uniform(),
        launch_dependents(),
        global_address(),
    )
    produce, add, consume = producer(form, plan), adder(form, plan), consumer(form, plan)

    def run(maps, stats, sums, flags, counter, sizes, scales, added):
        base, thread, warpgroup = open(maps)
        if warpgroup == 0:
            fewer()
            warp = uint32(uniform(uint32(thread // uint32(32))))
            if warp == 0:
                if thread == 0:
                    produce(base, maps, stats, address(counter, np.int64(0)), sizes)
                    let_next()
            elif warp == 1:
                add(base, sums, flags, sizes)
        else:
            more()
            consume(int32(warpgroup - 1), base, maps, sizes, scales, added)

    run_all = device(run)

    def plain(maps, stats, sums, flags, counter, sizes, scales):
        run_all(maps, stats, sums, flags, counter, sizes, scales, ())

    def with_keys(maps, stats, sums, flags, counter, sizes, scales, mask, bias, mask_steps, bias_steps):
        run_all(maps, stats, sums, flags, counter, sizes, scales, (mask, bias, mask_steps, bias_steps))

    kernel: Callable[..., None] = with_keys if form.of_keys else plain
    kernel.__name__ = f"attention_grad_wgmma{form}"
    kernel.blocks_per_sm = 1
    kernel.waits = True
    return kernel
