"""The cost model: laws that hold for any kernel, and what each term stands for."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicf.device.spec import PRESETS, preset
from aicf.registry.cost import Cost, MachineConstants, roofline
from aicf.registry.select import Candidate
from aicf.registry.trace import lost_in_short

from .synthetic import kernel

H200 = preset("h200")

amounts = st.floats(0, 1e15)
shares = st.floats(0.01, 1.0)


@st.composite
def work(draw):
    """A kernel's arguments: padded flops not less than the useful ones."""
    flops = draw(amounts)
    return {
        "bytes": draw(amounts),
        "flops": flops,
        "useful": draw(st.none() | st.floats(0, 1).map(lambda share: share * flops)),
        "rate": draw(st.sampled_from(["f32", "f16"])),
        "efficiency": draw(shares),
        "memory_efficiency": draw(shares),
        "blocks": draw(st.none() | st.integers(1, 10**6)),
        "blocks_per_sm": draw(st.integers(1, 16)),
        "launches": draw(st.integers(1, 3)),
        "cached": draw(amounts),
        "chain": draw(st.floats(0, 1e4)),
    }


devices = st.sampled_from(sorted(PRESETS)).map(preset)


def us(device, args):
    return roofline(device, **args).us


@pytest.mark.spec("B8")
@given(device=devices, args=work())
def test_terms_are_finite_positive_and_add_up(device, args):
    args = {**args, "rate": args["rate"] if device.tflops.get(args["rate"]) else "f32"}
    cost = roofline(device, **args)
    assert all(math.isfinite(t) and t >= 0 for t in cost.terms.values())
    assert cost.us == pytest.approx(max(sum(cost.terms.values()), 1e-3))
    assert cost == roofline(device, **args)


GROWING = "bytes", "flops", "cached", "chain", "launches"


@pytest.mark.spec("B8")
@given(device=devices, args=work(), what=st.sampled_from(GROWING), by=st.floats(1, 100))
def test_more_work_is_never_cheaper(device, args, what, by):
    more = {**args, what: math.ceil(args[what] * by) if what == "launches" else args[what] * by}
    if what == "flops" and args["useful"] is not None:
        more["useful"] = args["useful"] * by
    assert us(device, more) >= us(device, args) * (1 - 1e-9)


@pytest.mark.spec("B8")
@given(device=devices, args=work(), what=st.sampled_from(["efficiency", "memory_efficiency"]), by=shares)
def test_a_less_efficient_kernel_is_never_cheaper(device, args, what, by):
    assert us(device, {**args, what: args[what] * by}) >= us(device, args) * (1 - 1e-9)


@pytest.mark.spec("B8")
@given(args=work(), more=st.integers(1, 1000))
def test_more_blocks_of_equal_work_are_never_cheaper(args, more):
    blocks = args["blocks"] or 1
    grown = {**args, "blocks": blocks + more, "flops": args["flops"] * (blocks + more) / blocks}
    assert us(H200, grown) >= us(H200, {**args, "blocks": blocks}) * (1 - 1e-9)


@pytest.mark.spec("B8")
@given(args=work())
def test_a_kernel_is_never_faster_than_memory_and_arithmetic_allow(args):
    memory = args["bytes"] / H200.bandwidth * 1e-3
    compute = args["flops"] / H200.tflops[args["rate"]] * 1e-6
    assert us(H200, args) >= max(memory, compute) * (1 - 1e-9)


# --- terms ------------------------------------------------------------------------------------------------------------


def test_a_long_stream_is_bytes_over_bandwidth():
    cost = roofline(H200, bytes=4.8e9, memory_efficiency=0.8)
    assert cost.terms == pytest.approx({"launch": 1.0, "latency": MachineConstants.trip_us, "memory": 1250.0})


def test_little_s_law():
    """Whoever has 8 KB in flight per multiprocessor gets 8 KB for each trip, whatever the bandwidth."""
    blocks, per_block = 66_000, 1024
    cost = roofline(H200, bytes=blocks * per_block, blocks=blocks, blocks_per_sm=8)
    assert set(cost.terms) == {"launch", "latency", "memory", "dependent steps"}
    rate = blocks * per_block / (cost.us - cost.terms["launch"])  # bytes per microsecond
    assert rate == pytest.approx(H200.sms * 8 * per_block / MachineConstants.trip_us, rel=0.02)
    enough = roofline(H200, bytes=blocks * per_block, blocks=blocks // 4, blocks_per_sm=8)
    assert "dependent steps" not in enough.terms


def test_a_unit_that_is_read_again_from_the_cache():
    read_again = roofline(H200, bytes=1e6, cached=1e9).terms["L2"]
    assert read_again == pytest.approx(1e6 / (132 * MachineConstants.l2_per_sm))
    assert "L2" not in roofline(H200, bytes=1e9, cached=1e6).terms


def product(m, n, tile, **more):
    """128-deep f32 products in square tiles."""
    blocks = -(-m // tile) * -(-n // tile)
    return roofline(
        H200, bytes=4 * 128 * (m + n), flops=2.0 * blocks * tile * tile * 128, useful=2.0 * m * n * 128,
        blocks=blocks, **more,
    )  # fmt: skip


def test_whole_tiles_and_whole_waves_cost_nothing_beside_their_arithmetic():
    cost = product(132 * 64, 64, 64)
    assert set(cost.terms) == {"launch", "latency", "compute"}
    flops = 2.0 * 132 * 64 * 64 * 128
    assert cost.terms["compute"] == pytest.approx(flops / 66.9e6)


def test_edges_of_tiles_are_padding():
    cost = product(132 * 64, 63, 64)
    assert cost.terms["compute"] == pytest.approx(product(132 * 64, 64, 64).terms["compute"] * 63 / 64)
    assert cost.terms["tile padding"] == pytest.approx(cost.terms["compute"] / 63)
    assert cost.us == pytest.approx(product(132 * 64, 64, 64).us)


def test_one_block_more_than_a_wave_is_another_wave():
    one, two = product(132 * 64, 64, 64), product(133 * 64, 64, 64)
    assert two.us - one.us == pytest.approx(one.terms["compute"] + MachineConstants.trip_us, rel=1e-6)
    assert two.terms["wave tail"] == pytest.approx(one.terms["compute"] * (2 - 133 / 132), rel=1e-6)


def test_few_blocks_leave_multiprocessors_idle():
    cost = product(64, 64, 64)
    assert cost.terms["idle multiprocessors"] == pytest.approx(cost.terms["compute"] * 131)


def test_blocks_side_by_side_hide_each_other_s_steps():
    """Eight slices with 0.4 us of waiting each: one block per multiprocessor shows them, four hide them."""
    alone = product(132 * 64, 64, 64, blocks_per_sm=4, chain=3.2)
    assert alone.terms["dependent steps"] == pytest.approx(3.2)
    side_by_side = product(16 * 132 * 64, 64, 64, blocks_per_sm=16, chain=3.2)
    assert "dependent steps" not in side_by_side.terms


def test_a_small_product_takes_a_few_microseconds():
    """f32, 128 x 256 x 256 in tiles of 32: not the eleven that counting idle multiprocessors as lost work would say."""
    cost = roofline(
        H200, bytes=4 * (128 * 256 + 256 * 256 + 128 * 256), flops=2.0 * 128 * 256 * 256, efficiency=0.3,
        blocks=32, blocks_per_sm=3,
    )  # fmt: skip
    assert 2.5 < cost.us < 5.5


def test_the_host_reads_its_cache_faster():
    cpu = preset("cpu")
    small = roofline(cpu, bytes=cpu.l2_bytes).terms["memory"]
    large = roofline(cpu, bytes=10 * cpu.l2_bytes).terms["memory"]
    assert small == pytest.approx(cpu.l2_bytes / cpu.bandwidth * 1e-3 / 4)
    assert large > 10 * small
    assert set(roofline(cpu, bytes=1e6, blocks=3, chain=5.0).terms) == {"launch", "memory"}


def test_a_cost_tells_the_terms_that_matter():
    assert (
        str(Cost({"launch": 1.0, "memory": 12.5, "wave tail": 0.01, "compute": 0.0}))
        == "launch 1 + memory 12.5"
    )
    assert str(Cost({"launch": 1.0, "compute": math.inf})) == "compute inf"


@pytest.mark.spec("B13", "F6")
def test_a_measured_time_takes_the_place_of_the_terms():
    cost = Cost({"launch": 1.0, "memory": 2.0}).plus(call=0.5, memory=1.0)
    assert cost.terms == {"launch": 1.0, "memory": 3.0, "call": 0.5}
    assert (cost.measured(7.0).us, cost.measured(7.0).predicted) == (7.0, 4.5)


@given(
    terms=st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0, 1e3), min_size=1),
    share=st.floats(-0.3, 0.42),
)
def test_the_text_of_a_cost_adds_up_to_its_time(terms, share):
    """A correction may be negative, and is shown as what it takes off."""
    cost = Cost(terms)
    cost = cost.plus(**{"nearby regions": share * cost.us})
    words = f"+ {cost}".split()
    total, sign = 0.0, 1.0
    for word in words:
        if word in "+-":
            sign = 1.0 if word == "+" else -1.0
        elif word[0].isdigit():
            total += sign * float(word)
    assert total == pytest.approx(cost.us, rel=0.05, abs=2e-3), (str(cost), cost.us)


def test_a_runner_up_loses_by_what_a_correction_takes_off_the_best():
    costs = (
        Cost({"launch": 1.0, "compute": 9.0, "nearby regions": -3.0}),
        Cost({"launch": 1.1, "compute": 9.0}),
    )
    ranked = [Candidate(kernel(f"cpu.k{n}.v1"), cost, cost.us) for n, cost in enumerate(costs)]
    assert lost_in_short(SimpleNamespace(ranked=ranked)) == ("k1", "+3.10 us", "nearby regions")
