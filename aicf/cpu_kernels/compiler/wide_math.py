"""Python's `math` as loops of f64 have it: what numba knows of it, and fmod, which it does not."""

from __future__ import annotations

from math import *  # noqa: F403

import numpy as np


def fmod(x, y):
    return np.fmod(x, y)
