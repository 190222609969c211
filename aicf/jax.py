"""`import aicf.jax`: this name stands for the module `aicf.frontends.jax`, so that `import` finds what the attribute `aicf.jax` is."""

import sys
from typing import TYPE_CHECKING

from .frontends import import_frontend

if TYPE_CHECKING:
    from .frontends.jax import *  # noqa: F403

sys.modules[__name__] = import_frontend("jax")
