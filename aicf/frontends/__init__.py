"""Models of other frameworks, read into aicf's graph. Nothing here imports a framework before it is asked for one of its models."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from ..errors import MissingPackageError


def import_frontend(name: str, attribute: str = "") -> ModuleType:
    """The module of a front end, such as "jax" or "onnx.backend"; MissingPackageError where its framework can't be imported.

    attribute  what it is for, as the error calls it: `aicf.jax`
    """
    try:
        return import_module(f"{__name__}.{name}")
    except (ImportError, OSError) as error:  # a library that PyTorch can't load is an OSError
        package = str(getattr(error, "name", None) or "").partition(".")[0]
        if package == "aicf":
            raise
        framework = name.partition(".")[0]
        what = f"{attribute or f'aicf.{name}'} needs the package {package or framework}"
        if isinstance(error, ModuleNotFoundError):
            raise MissingPackageError(
                f"{what}, which is not installed", hint=f"pip install {package}"
            ) from error
        raise MissingPackageError(
            f"{what}, which can't be imported", got=f"{type(error).__name__}: {error}", hint=f"pip install --force-reinstall {framework}"
        ) from error  # fmt: skip


def installed(package: str) -> bool:
    """Whether a package is found; imports nothing."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # a finder refuses it, or something without a spec has its name
        return False
