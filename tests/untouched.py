"""A plugin: collecting tests opens no device. Where 20 processes share a GPU, each array that a module creates on import needs memory there
before any test runs, and one process too many fails all tests of that module."""

from __future__ import annotations

import sys

import pytest

from aicf.device import runtime


def _opened() -> set[str]:
    """The libraries that have opened a device in this process: JAX a backend, be it of the host, PyTorch a CUDA context."""
    bridge, torch = sys.modules.get("jax._src.xla_bridge"), sys.modules.get("torch.cuda")
    found = {"JAX"} if bridge is not None and bridge.backends_are_initialized() else set()
    return found | ({"PyTorch"} if torch is not None and torch.is_initialized() else set())


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """A module that opens a device when it is imported fails to be collected, by its name."""
    before, ours = _opened(), []
    create = runtime.CudaRuntime.__init__

    def recorded(self: runtime.CudaRuntime, ordinal: int = 0) -> None:
        ours.append("aicf")
        create(self, ordinal)

    with pytest.MonkeyPatch.context() as patch:
        # The class stays itself: a module of aicf's that is imported meanwhile binds it for good.
        patch.setattr(runtime.CudaRuntime, "__init__", recorded)
        report = yield
    if (new := sorted(_opened() - before) + ours[:1]) and report.passed:
        report.outcome = "failed"
        report.longrepr = (
            f"{collector.nodeid}: {', '.join(new)} opened a device while tests were collected\n"
            "  next: at module level use NumPy; create arrays on devices in fixtures, tests, and functions that tests call"
        )
    return report
