"""Python's `math` as loops of f64 have it: what numba knows of it, and fmod, which it does not."""

from __future__ import annotations

from math import *  # noqa: F403

import numba
import numpy as np


@numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def fmod(x, y):
    return np.fmod(x, y)
