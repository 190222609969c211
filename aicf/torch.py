"""`import aicf.torch`: this name stands for the module `aicf.frontends.torch`, so that `import` finds what the attribute `aicf.torch` is."""

import sys
from typing import TYPE_CHECKING

from .frontends import import_frontend

if TYPE_CHECKING:
    from .frontends.torch import *  # noqa: F403

sys.modules[__name__] = import_frontend("torch")
