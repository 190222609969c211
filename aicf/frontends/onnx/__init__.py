"""ONNX models. The package `onnx` is imported when a model is read, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import MissingAttributeError, MissingPackageError
from .. import import_frontend, installed
from .model import from_onnx, load

if TYPE_CHECKING:
    from .backend import OnnxBackend

__all__ = ["from_onnx", "load"]
if installed("onnx"):
    __all__ += ["OnnxBackend"]


def __getattr__(name: str) -> Any:
    if name != "OnnxBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    try:  # a class of onnx's
        return import_frontend("onnx.backend", f"{__name__}.{name}").OnnxBackend
    except MissingPackageError as error:
        raise MissingAttributeError(error.what, got=error.got, hint=error.hint) from error
