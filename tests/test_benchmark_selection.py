"""The selection suite: regions of every sort, kernels that are checked before they count, regret over all shards."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from draws import ops, seeds
from draws.devices import Host

import aicf
from aicf.device.spec import PRESETS, preset
from aicf.ops.schema import schema_of
from aicf.registry.select import Selection, Selector
from aicf.registry.variant import HostCall

pytest.importorskip("benchmarks", reason="a source distribution has no benchmarks")

from benchmarks import report, results
from benchmarks.__main__ import main
from benchmarks.harness import Bench, Suite, WrongResult
from benchmarks.instances import instances
from benchmarks.kernel_runs import KernelRuns, _Torch
from benchmarks.stats import Stats
from benchmarks.suites import SUITES
from benchmarks.suites.selection import TUNED, UNTUNED, held_to_one_op, summary


@pytest.mark.spec("B8")
def test_a_tiny_run_on_the_cpu(tmp_path):
    assert main(["selection", "--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 0
    data = json.loads(next(tmp_path.glob("cpu-*/selection.json")).read_text())
    assert not data["left_out"]
    found = [i for row in data["cases"] for i in row.get("instances", ())]
    assert len(found) >= 8
    for i in found:
        keys = {"regret", "tuned", "regret_with_ties", "tuned_with_ties"}
        assert set(i) == {"name", "chosen", "best", "us", "times", *keys}
        assert {i["chosen"], i["best"]} <= set(i["times"]) and min(i["times"].values()) == i["times"][
            i["best"]
        ]
        assert all(i[key] in (0, i[f"{key}_with_ties"]) and i[key] >= 0 for key in ("regret", "tuned"))
        assert i["chosen"] in i["us"] and i["best"] in i["us"]
    cases = {row["case"]: row for row in data["cases"]}
    assert any("each op" in name for name in cases) and any("over the optimum" in name for name in cases)
    (step,) = (row for name, row in cases.items() if name.startswith("train step"))
    assert step["peer_name"] == "one kernel per op"
    before, after = map(int, re.match(r"(\d+) kernels, .* before; (\d+),", step["note"]).groups())
    assert after < before, "kernels"


@pytest.mark.sample(2)
@pytest.mark.spec("B8")
@pytest.mark.parametrize("device", ["cpu", "h200", "t4"])
def test_every_region_has_a_kernel(device):
    spec, made = preset(device), instances()
    assert len(made) >= 300 and len({i.name for i in made}) == len(made)
    select = Selector(aicf.default_registry(), spec)
    counts = []
    for instance in made:
        selection = select.ask(instance.region(spec.kind))
        assert isinstance(selection, Selection), f"{instance.name}: {selection}"
        counts.append(len(selection.ranked))
    if spec.kind == "cuda":
        assert sum(n > 1 for n in counts) > 0.7 * len(counts), "regret needs a choice"


@pytest.mark.parametrize("fault", ["wrong", "beside"])
def test_a_wrong_kernel_is_not_timed(fault):
    """An element that is off, or one byte beside the result."""
    instance = next(i for i in instances() if i.name == "add f32 2^8+1")
    region = instance.region("cpu")
    runs = KernelRuns(Bench("cpu", tiny=True))
    good = aicf.select(region, preset("cpu"), runs.registry).chosen.variant
    assert runs.table(region).checked(good.id).seconds > 0

    def build(region, device):
        right = good.build(region, device)

        def run(operands, results):
            right.function(operands, results)
            if fault == "wrong":
                results[0][-1] += 0.01
            else:
                memory = results[0].ctypes.data + results[0].nbytes
                np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * 1).from_address(memory))[0] = 7

        return HostCall(run)

    runs.cold.registry = runs.cold.loader.registry = aicf.KernelRegistry(
        [replace(good, id="cpu.bad.v1", build=build)]
    )
    said = "1 elements are wrong" if fault == "wrong" else "written outside"
    with pytest.raises(WrongResult, match=said):
        runs.table(region).checked("cpu.bad.v1")


STEADY = (
    "add", "bitwise_and", "concatenate", "gemm", "less", "maximum", "reduce_max", "reduce_sum", "reverse", "slice", "transpose",
)  # fmt: skip


@pytest.mark.parametrize("op", STEADY)
def test_right_kernels_of_drawn_regions_pass_the_check(op, request):
    """With strided operands and results, and of any type."""
    runs, rng = KernelRuns(Bench("cpu", tiny=True)), seeds.rng(request.node.nodeid)
    for case in filter(None, (ops.draw(rng, op=op) for _ in range(12))):
        region = ops.Wanted(replace(case, over=False), Host()).region
        table = runs.table(region)
        for candidate in aicf.select(region, runs.spec, runs.registry).ranked:
            table.checked(candidate.variant.id)


def test_pytorchs_references_are_numpys(request):
    """Of drawn operands in f64."""
    torch = pytest.importorskip("torch", reason="its references are those of large regions")
    rng, references = seeds.rng(request.node.nodeid), _Torch(torch)
    for op in references.ops:
        for case in filter(None, (ops.draw(rng, op=op) for _ in range(12))):
            given = [
                None if o is None else o.array.astype(np.float64)
                for o in replace(case, values="plain").operands()
            ]
            attrs = schema_of(op).values(case.pack())
            if (
                any(a is not None for a in given[2:])
                or attrs.get("act")
                or any(a is not None and not a.size for a in given)
            ):
                continue  # the first two of a gemm: planned regions have them as ops of their own
            want = schema_of(op).call_reference(given, attrs)
            got = references.apply(op, [None if a is None else torch.from_numpy(a) for a in given], attrs)
            np.testing.assert_allclose(
                got[0], want[0], 1e-9, 1e-9, err_msg=f"seed {seeds.run_seed()}: {case}"
            )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_registry_that_is_held_to_one_op(device):
    spec, registry = preset("cpu" if device == "cpu" else "h200"), held_to_one_op(device)
    for instance in instances()[::3]:
        region = instance.region(device)
        selection = Selector(registry, spec).ask(region)
        assert isinstance(selection, Selection) == (len(region.ops) == 1), instance.name


def _row(values, tuned):
    found = [
        {"name": f"r{n}", "chosen": "a", "best": "b", "regret": v, "tuned": t, "us": ""}
        for n, (v, t) in enumerate(zip(values, tuned))
    ]
    return {**results.row("family", "%", Stats(1.0)), "instances": found}


def test_regret_is_summed_up_over_all_shards(tmp_path):
    meta = {
        **results.make_meta("cpu"),
        "gpu": "NVIDIA H200",
        "device": "cuda",
        "kernels_hash": results.kernels_hash(),
    }
    folder = tmp_path / "nvidia-h200"
    results.write(folder / "selection.shard-1-of-2.json", meta, [_row([0.0, 0.3], [0.0, 0.0])], [])
    results.write(folder / "selection.shard-2-of-2.json", meta, [_row([0.0] * 18, [0.0] * 17 + [0.2])], [])
    files = list(results.all_files(tmp_path))
    untuned, tuned = summary([row for file in files for row in file.cases])
    assert (untuned["case"], untuned["aicf"], untuned["n"]) == (f"all regions: {UNTUNED}", 1.5, 20)
    assert untuned["note"] == "95th percentile 0.0%, of 20; 95% are the best"
    assert tuned["aicf"] == 1.0
    page = report.pages(files, SUITES)["selection.md"]
    assert f"| all regions: {TUNED} | 1 | – |" in page
    head = report.headlines(files, {"selection": SUITES["selection"]})
    assert f"| all regions: {UNTUNED} | 1.5 % |  |  |  |" in head


@pytest.mark.spec("B8")
@pytest.mark.parametrize("device", sorted(PRESETS))
def test_more_of_the_same_is_never_predicted_to_take_less(device):
    spec = preset(device)
    select = Selector(aicf.default_registry(), spec)
    families: dict[str, list[float]] = {}
    for instance in instances():
        if instance.family.startswith("maps, ") and instance.name.split(" ")[-1].startswith("2^"):
            kind = instance.name.rsplit(" ", 1)[0]  # the program and the type; the length is left out
        elif instance.family.endswith("squares"):
            kind = instance.family
        else:
            continue
        if "+" not in instance.name:
            families.setdefault(kind, []).append(select(instance.region(spec.kind)).chosen.us)
    assert len(families) >= 8 and sum(map(len, families.values())) > 80
    for kind, us in families.items():
        for less, more in pairwise(us):
            assert more >= less * (1 - 1e-9), f"{kind}: {us}"


def test_a_summary_of_nothing_is_nothing():
    assert summary([results.failed("x", "y")]) == []
    assert list(Suite("s", "a suite", 1.0, lambda bench: []).summary([])) == []


def test_the_presets_are_those_of_the_cost_model():
    """The suite's regions are asked of every device: no cost may be NaN or infinite there, or less than what is said to be the least."""
    for name, spec in PRESETS.items():
        select = Selector(aicf.default_registry(), spec)
        for instance in instances()[::17]:
            region = instance.region(spec.kind)
            for candidate in select(region).ranked:
                assert candidate.variant.floor(region, spec) <= candidate.us * (1 + 1e-9), instance.name
                assert 0 < candidate.us < float("inf"), (name, instance.name, candidate.variant.id)
