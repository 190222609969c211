"""Models of other frameworks, read into aicf's graph. Nothing here imports a framework before it is asked for one of its models."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ..errors import FrontendError


def import_frontend(name: str) -> ModuleType:
    """The front end of a framework, such as "jax"; FrontendError where the framework is not installed."""
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "aicf":
            raise
        raise FrontendError(
            f"aicf.{name} needs the package {error.name}, which is not installed",
            hint=f"pip install {error.name}",
        ) from error
