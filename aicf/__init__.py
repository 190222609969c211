"""aicf: a pure-Python AI compiler framework that tells you why each kernel ran.

model = aicf.nn.Model({"x": aicf.TensorSpec(("batch", 64))}, batch=32).add(aicf.nn.Linear(64, 10))
program = aicf.compile(model, mode="train", loss=..., optimizer=...)
program({"x": x, "y": y}); print(program.explain())
"""

__version__ = "0.1.0"

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import distributed, errors, models, near, nn, training
from .channels import logs
from .device.runtime import current, runtime
from .device.spec import DeviceSpec
from .device.tensor import Tensor
from .dispatch import default_registry, op_call
from .errors import AicfError, MissingAttributeError, MissingPackageError
from .frontends import import_frontend, installed
from .generation import Generator, generate
from .graph import composed as _composed  # noqa: F401  (what op_call makes of ops without a kernel of their own)
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

if TYPE_CHECKING:
    from . import onnx_backend
    from .frontends.onnx import from_onnx

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


_MODULES = frozenset({"jax", "onnx_backend", "torch"})  # imported on first use: each imports its framework
_OF_FRONTENDS = {"from_onnx": "onnx", "from_torch": "torch"}


def __getattr__(name: str) -> Any:
    try:
        if name in _MODULES:
            return import_module(f"aicf.{name}")
        if name in _OF_FRONTENDS:
            return getattr(import_frontend(_OF_FRONTENDS[name], f"aicf.{name}"), name)
    except MissingPackageError as error:
        raise MissingAttributeError(error.what, got=error.got, hint=error.hint) from error
    raise near.no_attribute("aicf", name, near.AICF, __all__)
