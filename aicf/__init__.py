"""aicf: a pure-Python AI compiler framework that tells you why each kernel ran.

model = aicf.nn.Model({"x": aicf.TensorSpec(("batch", 64))}, batch=32).add(aicf.nn.Linear(64, 10))
program = aicf.compile(model, mode="train", loss=..., optimizer=...)
program({"x": x, "y": y}); print(program.explain())
"""

__version__ = "0.1.0"

from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING, Any

from . import errors, near
from .errors import MissingAttributeError, MissingPackageError
from .frontends import import_frontend, installed

if TYPE_CHECKING:
    from . import distributed, models, nn, onnx_backend, training
    from .channels import logs
    from .device.runtime import current, runtime
    from .device.spec import DeviceSpec
    from .device.tensor import Tensor
    from .dispatch import default_registry, op_call
    from .errors import AicfError
    from .frontends.onnx import from_onnx
    from .generation.generate import generate
    from .generation.generator import Generator
    from .graph.compile import compile, explain_for, tune_for
    from .graph.emit.policy import LossScale, Policy
    from .graph.over import explain_over
    from .graph.run.plan import ExecPlan
    from .graph.run.program import Program
    from .models.quantized import quantize
    from .ops.schema import schema_of, schemas
    from .registry.registry import KernelRegistry, OpKey
    from .registry.select import Selection, select
    from .registry.tuning import Tuning
    from .types import (
        ActKind,
        AttrPack,
        DType,
        OpKind,
        Precision,
        TensorDesc,
        TensorSpec,
        bf16,
        bool_,
        f8e4m3,
        f8e5m2,
        f16,
        f32,
        f64,
        i8,
        i16,
        i32,
        i64,
        u8,
        u16,
        u32,
        u64,
    )
    from .weights import load, save

__all__ = [
    "ActKind",
    "AicfError",
    "AttrPack",
    "DType",
    "DeviceSpec",
    "ExecPlan",
    "Generator",
    "KernelRegistry",
    "LossScale",
    "OpKey",
    "OpKind",
    "Policy",
    "Precision",
    "Program",
    "Selection",
    "Tensor",
    "TensorDesc",
    "TensorSpec",
    "Tuning",
    "__version__",
    "bf16",
    "bool_",
    "compile",
    "current",
    "default_registry",
    "distributed",
    "errors",
    "explain_for",
    "explain_over",
    "f8e4m3",
    "f8e5m2",
    "f16",
    "f32",
    "f64",
    "from_onnx",
    "generate",
    "i8",
    "i16",
    "i32",
    "i64",
    "load",
    "logs",
    "models",
    "nn",
    "op_call",
    "quantize",
    "runtime",
    "save",
    "schema_of",
    "schemas",
    "select",
    "training",
    "tune_for",
    "u8",
    "u16",
    "u32",
    "u64",
]  # fmt: skip


if installed("onnx"):
    __all__ += ["onnx_backend"]


def __dir__() -> list[str]:
    return __all__


# Where names are defined, each imported on first use: `import aicf` itself imports next to nothing.
_NAMES = {
    "channels": ("logs",),
    "device.runtime": ("current", "runtime"),
    "device.spec": ("DeviceSpec",),
    "device.tensor": ("Tensor",),
    "dispatch": ("default_registry", "op_call"),
    "errors": ("AicfError",),
    "generation": ("Generator", "generate"),
    "graph.compile": ("compile", "explain_for", "tune_for"),
    "graph.emit.policy": ("LossScale", "Policy"),
    "graph.over": ("explain_over",),
    "graph.run.plan": ("ExecPlan",),
    "graph.run.program": ("Program",),
    "models.quantized": ("quantize",),
    "ops.schema": ("schema_of", "schemas"),
    "registry.registry": ("KernelRegistry", "OpKey"),
    "registry.select": ("Selection", "select"),
    "registry.tuning": ("Tuning",),
    "types": (
        "ActKind", "AttrPack", "DType", "OpKind", "Precision", "TensorDesc", "TensorSpec", "bf16", "bool_", "f8e4m3", "f8e5m2",
        "f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64",
    ),
    "weights": ("load", "save"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = frozenset({
    "channels", "code_cache", "collection", "config", "cpu_kernels", "cuda_kernels", "device", "discover", "dispatch", "distributed", "files",
    "generation", "graph", "ir", "jax", "mapped", "models", "nn", "onnx_backend", "ops", "pages", "printing", "progress", "registry", "rows",
    "torch", "training", "types", "weights", "whole",
})  # fmt: skip
_OF_FRONTENDS = {"from_onnx": "onnx", "from_torch": "torch"}


# Modules import each other: threads that enter such a circle at several places get modules that are half executed.
_IMPORTING = RLock()


def __getattr__(name: str) -> Any:
    with _IMPORTING:
        return _imported(name)


def _imported(name: str) -> Any:
    if name in globals():
        return globals()[name]
    if (module := _MODULE_OF.get(name)) is not None:
        value = globals()[name] = getattr(import_module(f"aicf.{module}"), name)
        return value
    try:
        if name in _MODULES:
            return import_module(f"aicf.{name}")
        if name in _OF_FRONTENDS:
            return getattr(import_frontend(_OF_FRONTENDS[name], f"aicf.{name}"), name)
    except MissingPackageError as error:
        raise MissingAttributeError(error.what, got=error.got, hint=error.hint) from error
    raise near.no_attribute("aicf", name, near.AICF, __all__)
