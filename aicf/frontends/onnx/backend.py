"""aicf as a backend of ONNX's: `aicf.onnx_backend.prepare(model).run(inputs)`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import SkipTest

import numpy as np
from onnx.backend.base import Backend, BackendRep, namedtupledict

from ...device.runtime import cuda_missing
from ...errors import FrontendError, UnsupportedOpsError
from ...graph.run.program import Program
from .graph import Document
from .model import from_onnx
from .reading import bad, library, read

KEPT = 16  # programs of one model, each for other values of the inputs on which shapes depend


class NotImplementedHere(UnsupportedOpsError, SkipTest):
    """Ops that aicf can't express; ONNX's own test runner counts it as skipped."""


def _told(error: UnsupportedOpsError) -> NotImplementedHere:
    told = NotImplementedHere(error.what, details=error.details, hint=error.hint)
    told.ops, told.needs = error.ops, error.needs
    return told


class OnnxBackendRep(BackendRep):
    """A model made ready. Where shapes depend on the values of inputs, such as the shape of a Reshape, each value has its own program."""

    def __init__(self, model: Any, device: str, options: Mapping[str, Any]) -> None:
        self.model, self.device, self.options = model, device, dict(options)
        self.document = Document.of(read(model))
        self.fixed: frozenset[str] = frozenset()
        self.programs: OrderedDict[Any, Program] = OrderedDict()
        try:
            self._compiled({})
        except UnsupportedOpsError as error:
            if not error.needs:
                raise _told(error) from None

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, as arrays; `inputs` are arrays in their order, or by name."""
        if kwargs:
            raise bad(f"run takes no {next(iter(kwargs))!r}", expected="inputs")
        feed = self._feed(inputs)
        while True:
            constants = {name: feed[name] for name in self.fixed}
            try:
                program = self._compiled(constants, {n: a for n, a in feed.items() if n not in constants})
                break
            except UnsupportedOpsError as error:
                more = error.needs - self.fixed
                if not more:
                    raise _told(error) from None
                self.fixed |= more
        made = program({n: a for n, a in feed.items() if n not in self.fixed})
        arrays = [made[name].numpy() for name in program.outputs]
        names = [*self.document.outputs]
        outputs: tuple[Any, ...] = namedtupledict("Outputs", names)(*arrays)
        return outputs

    def _feed(self, inputs: Any) -> dict[str, np.ndarray]:
        names = [*self.document.inputs]
        if not isinstance(inputs, Mapping):
            given: Sequence[Any] = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            if len(given) > len(names):
                raise bad(f"{len(given)} inputs are fed", expected=f"{len(names)}: {', '.join(names)}")
            inputs = dict(zip(names, given))
        return {name: np.asarray(value) for name, value in inputs.items()}

    def _compiled(
        self, constants: Mapping[str, np.ndarray], feed: Mapping[str, np.ndarray] | None = None
    ) -> Program:
        key = tuple((n, a.shape, a.tobytes()) for n, a in sorted(constants.items()))
        program = self.programs.get(key)
        if program is None:
            sizes = {
                dim: size for name, array in (feed or {}).items() if name in self.document.inputs
                for dim, size in zip(self.document.inputs[name].shape, array.shape) if isinstance(dim, str)
            }  # fmt: skip
            program = from_onnx(self.model, self.device, sizes=sizes, constants=constants, **self.options)
            self.programs[key] = program
            if len(self.programs) > KEPT:
                self.programs.popitem(last=False)
        return program


class OnnxBackend(Backend):
    """ONNX's interface of backends. What a model has that aicf lacks is refused by name when it is prepared, or, if shapes depend on what is
    fed, when it is run."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **options: Any) -> OnnxBackendRep:
        """options  of `aicf.from_onnx`"""
        return OnnxBackendRep(model, _place(device), options)

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **options: Any) -> tuple[Any, ...]:
        """The model's outputs for these inputs: `prepare`, and one run."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str = "CPU", outputs_info: Any = None, **options: Any
    ) -> tuple[Any, ...]:
        """One node, of the newest version of the ops unless `opset_version` says which."""
        onnx = library()
        version = options.pop("opset_version", min(onnx.defs.onnx_opset_version(), 28))
        arrays = [np.asarray(x) for x in (inputs.values() if isinstance(inputs, Mapping) else inputs)]
        info = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in zip(filter(None, node.input), arrays)
        ]
        results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", info, results)
        opset = [onnx.helper.make_opsetid(node.domain, version)]
        return cls.run_model(onnx.helper.make_model(graph, opset_imports=opset), arrays, device, **options)

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **options: Any) -> bool:
        """Whether there is a chance that the model runs: False is certain."""
        try:
            cls.prepare(model, device, **options)
        except FrontendError:
            return False
        return True

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """CPU, and CUDA where there is a GPU; CUDA:1 is the second."""
        kind = device.partition(":")[0].upper()
        return kind == "CPU" or (kind == "CUDA" and not cuda_missing())


def _place(device: str) -> str:
    return device.lower()
