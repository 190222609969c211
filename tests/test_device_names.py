"""Devices by the names that people and drivers give them."""

import pytest

from aicf.device.calibration import DEFAULT, shipped
from aicf.device.spec import PRESETS, from_properties, measured_on, preset

# (name as nvidia-smi prints it, compute capability, multiprocessors, the preset, its bandwidth)
REPORTED = [
    ("Tesla T4", (7, 5), 40, "t4", 320),
    ("NVIDIA A10", (8, 6), 72, "a10", 600),
    ("NVIDIA A10G", (8, 6), 80, "a10g", 600),
    ("NVIDIA A40", (8, 6), 84, "a40", 696),
    ("NVIDIA A100-SXM4-40GB", (8, 0), 108, "a100", 1555),
    ("NVIDIA A100-SXM4-80GB", (8, 0), 108, "a100", 2039),
    ("NVIDIA A100-PCIE-40GB", (8, 0), 108, "a100", 1555),
    ("NVIDIA A100 80GB PCIe", (8, 0), 108, "a100", 2039),
    ("A100-SXM4-40GB", (8, 0), 108, "a100", 1555),
    ("NVIDIA L4", (8, 9), 58, "l4", 300),
    ("NVIDIA L40S", (8, 9), 142, "l40s", 864),
    ("NVIDIA GeForce RTX 3090", (8, 6), 82, "rtx3090", 936),
    ("GeForce RTX 3090", (8, 6), 82, "rtx3090", 936),
    ("NVIDIA GeForce RTX 4090", (8, 9), 128, "rtx4090", 1008),
    ("NVIDIA GeForce RTX 5090", (12, 0), 170, "rtx5090", 1792),
    ("NVIDIA H20", (9, 0), 78, "h20", 4000),
    ("NVIDIA H100 80GB HBM3", (9, 0), 132, "h100", 3350),
    ("NVIDIA H100 PCIe", (9, 0), 114, "h100", 2000),
    ("NVIDIA H100 NVL", (9, 0), 132, "h100", 3900),
    ("NVIDIA H200", (9, 0), 132, "h200", 4800),
    ("NVIDIA H200 NVL", (9, 0), 132, "h200", 4800),
    ("NVIDIA GH200 480GB", (9, 0), 132, "gh200", 4000),
    ("NVIDIA GH200 120GB", (9, 0), 132, "gh200", 4000),
    ("NVIDIA GH200 144G HBM3e", (9, 0), 132, "gh200", 4900),
    ("NVIDIA B200", (10, 0), 148, "b200", 8000),
]
# other chips, or a part of one: what they do is reckoned from their properties
UNKNOWN = [
    ("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9), 76),
    ("NVIDIA GeForce RTX 4090 D", (8, 9), 114),
    ("NVIDIA GeForce RTX 3090 Ti", (8, 6), 84),
    ("NVIDIA L40", (8, 9), 142),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", (8, 0), 14),
    ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", (9, 0), 60),
    ("NVIDIA RTX 6000 Ada Generation", (8, 9), 142),
    ("NVIDIA GeForce GTX 1660", (7, 5), 22),
    ("NVIDIA H20", (8, 0), 78),  # no such chip: the capability counts, too
]


def found(name, arch, sms):
    return from_properties(name, arch, sms, 50 * 2**20, 227 * 1024, 2**36, 1.7, 1234.0)


@pytest.mark.spec("F6")
@pytest.mark.parametrize("name, arch, sms, known, bandwidth", REPORTED, ids=[row[0] for row in REPORTED])
def test_names_that_drivers_report_are_known(name, arch, sms, known, bandwidth):
    spec, base = found(name, arch, sms), PRESETS[known]
    assert (spec.name, spec.arch, spec.sms, spec.bandwidth) == (known, arch, sms, bandwidth)
    assert spec.tflops["f16"] == pytest.approx(base.tflops["f16"] * sms / base.sms)
    measured = shipped(known) if (sms, bandwidth) == (base.sms, base.bandwidth) else DEFAULT
    assert spec.calibration.measured == measured.measured, "regions that were measured on another board"
    assert sms != base.sms or preset(name).calibration == spec.calibration
    assert spec.calibration.errors == measured.errors
    assert measured_on(spec) == (measured.gpu or None)


@pytest.mark.parametrize("name, arch, sms", UNKNOWN)
def test_other_chips_and_parts_of_one_go_by_their_properties(name, arch, sms):
    spec = found(name, arch, sms)
    assert spec.name not in PRESETS or PRESETS[spec.name].arch != arch
    assert (spec.sms, spec.bandwidth) == (sms, 1234.0)


@pytest.mark.parametrize(
    "said", ["h100", "H100", "NVIDIA H100", "rtx 4090", "RTX-4090", "rtx_4090", "GeForce RTX 5090"]
)
def test_presets_are_found_as_people_write_them(said):
    assert preset(said).name in said.lower().replace(" ", "").replace("-", "").replace("_", "")


@pytest.mark.parametrize("name, arch, sms, known, bandwidth", REPORTED, ids=[row[0] for row in REPORTED])
def test_presets_are_found_as_drivers_report_them(name, arch, sms, known, bandwidth):
    assert (preset(name).name, preset(name).bandwidth) == (known, bandwidth)
