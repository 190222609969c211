"""ONNX models. The package `onnx` is imported when a model is read, not before."""

from __future__ import annotations

from typing import Any

from .model import from_onnx, load

__all__ = ["OnnxBackend", "from_onnx", "load"]


def __getattr__(name: str) -> Any:
    if name == "OnnxBackend":  # is a class of onnx's
        from .backend import OnnxBackend

        return OnnxBackend
    raise AttributeError(name)
