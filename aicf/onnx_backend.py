"""aicf as a backend of ONNX's, as `onnx.backend` describes it: `aicf.onnx_backend.prepare(model).run(inputs)`."""

from typing import TYPE_CHECKING

from .frontends import import_frontend

if TYPE_CHECKING:
    from .frontends.onnx.backend import OnnxBackend
else:
    OnnxBackend = import_frontend("onnx.backend", __name__).OnnxBackend

__all__ = ["is_compatible", "prepare", "run_model", "run_node", "supports_device"]

is_compatible = OnnxBackend.is_compatible
prepare = OnnxBackend.prepare
run_model = OnnxBackend.run_model
run_node = OnnxBackend.run_node
supports_device = OnnxBackend.supports_device
