"""PyTorch's models: `torch.compile(model, backend="aicf")`, and `aicf.from_torch(module, args)`. Importing this imports torch.

backend    one graph of TorchDynamo's, forward and backward, cut into parts that aicf computes and ops that PyTorch does
rules      what emits each ATen op: `aten/` has them, by family
partition  which ops are taken: those with a rule whose types `infer` and selection accept, asked before anything runs
part       a part as a model, compiled for its sizes, run on PyTorch's tensors and stream
report     what was taken and what was left, and why: `aicf.torch.report()`
export     a module as a Program, or as a model, free of PyTorch, through torch.export
"""

from importlib.metadata import entry_points

from torch._dynamo import register_backend

from .backend import backend
from .export import from_torch, load
from .report import compilations, graphs, report, reset

__all__ = ["backend", "compilations", "from_torch", "graphs", "load", "report", "reset"]

# Where aicf runs from its folder, uninstalled, no entry point tells PyTorch of the backend.
if not [
    p for p in entry_points(group="torch_dynamo_backends", name="aicf") if p.value == f"{__name__}:backend"
]:
    register_backend(backend, name="aicf")
