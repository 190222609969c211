"""These tests need PyTorch: `make test-torch` installs it. Elsewhere they are skipped."""

import os
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes that test side by side have a core each

try:
    import torchvision  # noqa: F401
except ImportError:
    pass
except RuntimeError:  # of another build than PyTorch: transformers does without, if there is none
    sys.modules["torchvision"] = None  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _fresh():
    """No graph of another test, and the same numbers each time."""
    import torch

    from aicf.frontends.torch import reset

    torch._dynamo.reset()
    reset()
    torch.manual_seed(0)
