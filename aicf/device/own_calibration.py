"""The calibration of this machine's GPU: what `aicf calibrate` wrote, or what AICF_CALIBRATION names, in the place of the package's."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

from .. import channels, config
from ..errors import DeviceError
from .calibration import Calibration
from .spec import DeviceSpec


def calibrated(spec: DeviceSpec) -> DeviceSpec:
    """A GPU's spec with its own calibration; as it is where there is none, or where its file is refused with a warning."""
    path = config.calibration_file(spec.name)
    named = path != config.own_calibration_file(spec.name)
    found = None if path is None else _read(path, spec.name, spec.sms, named)
    return spec if found is None else replace(spec, calibration=found)


@cache
def _read(path: Path, gpu: str, sms: int, named: bool) -> Calibration | None:
    """Once per process, so that a warning comes once. named: by AICF_CALIBRATION, so that the file has to be there."""
    if not named and not os.path.isfile(path):  # False of a folder that may not be read, too
        return None
    try:
        found = Calibration.load(path, sms)
        if found.gpu != gpu:
            raise DeviceError(
                f"{path} is a calibration of another GPU", expected=gpu, got=found.gpu or "none"
            )
    except DeviceError as error:
        advice = "aicf calibrate writes one; AICF_CALIBRATION=off uses the constants of the package"
        text = f"the calibration is ignored: {error.what}" + (f", got {error.got}" if error.got else "")
        channels.warn("select", "calibration", f"{text} (next: {advice})", file=str(path), gpu=gpu)
        return None
    channels.tell(
        "select", "calibration", f"constants of predictions are those of {path}", file=str(path), gpu=gpu
    )
    return found
