"""Variables: the params and states of one model on one device, shared by all its programs, paths and plans."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from ...device.interop import adopt
from ...device.runtime import Runtime
from ...device.tensor import Tensor
from ...errors import FeedError, StateError
from ...ir import Graph, Role, Value
from ...ops import numbers
from ...types import DType, TensorSpec, rounded


class Variables(Mapping[str, Tensor]):
    """Named tensors. Each is made once, by the first program that declares it, from its initializer and the seed.

    The random stream of a tensor comes from the model's seed and the tensor's name, so neither the order of declaration
    nor another layer changes it.
    """

    def __init__(self, runtime: Runtime, seed: int = 0) -> None:
        self.runtime, self.seed = runtime, seed
        self._tensors: dict[str, Tensor] = {}
        self._roles: dict[str, Role] = {}
        self._constants: set[str] = set()
        self.lock = threading.RLock()  # held by a run: programs of one model share these tensors
        self.meta: dict[str, str] = {}  # short name -> name of each meta-parameter
        self.checks: dict[str, Callable[[str, Any], float]] = {}  # short name -> what it may be set to

    def declare(self, graph: Graph, renew: bool = False) -> None:
        """Make the params and states of a graph that are not there yet; the others must have the same type.

        renew  give meta-parameters that are there the values that this graph declares
        """
        for value in graph.externals(Role.param, Role.state):
            known = self._tensors.get(value.name)
            if known is not None:
                if (known.shape, known.dtype) != (value.spec.shape, value.dtype):
                    raise StateError(
                        f"{value.role} {value.name} is declared again with another type",
                        where=value.where,
                        expected=str(known.spec),
                        got=str(value.spec),
                        hint="one model has one parameter of a name",
                    )
                if not (renew and value.meta):
                    continue
            assert value.init is not None
            rng = np.random.default_rng((self.seed, zlib.crc32(value.name.encode())))
            start = np.asarray(value.init(value.spec.shape, rng))
            if start.shape != value.spec.shape:
                raise StateError(
                    f"the initializer of {value.name} made the wrong shape",
                    expected=value.spec.shape,
                    got=start.shape,
                )
            start = _converted(start, value)
            if known is not None:
                self.runtime.write(known, start)
                continue
            self._tensors[value.name] = self.runtime.upload(start, value.spec)
            self._roles[value.name] = value.role
            if value.constant:
                self._constants.add(value.name)
            if value.meta:
                self.meta[value.meta] = value.name
                self.checks[value.meta] = value.check or _as_it_is

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def names(self, role: Role | None = None) -> list[str]:
        """Without constants, sorted."""
        return sorted(n for n, r in self._roles.items() if n not in self._constants and role in (None, r))

    def role(self, name: str) -> Role:
        return self._roles[name]

    def assign(self, values: Mapping[str, Any]) -> None:
        """Write new contents into variables, all or none, in place; their pointers never change."""
        ready = {n: _fitting(n, self._widened(n, v), self._tensors[n].spec) for n, v in values.items()}
        for name, array in ready.items():
            self.runtime.write(self._tensors[name], array)

    def _widened(self, name: str, value: Any) -> Any:
        """State that older checkpoints have in a half, such as moments of half parameters; it is f32 now."""
        if self._roles[name] is not Role.state or self._tensors[name].dtype is not DType.f32:
            return value
        if isinstance(value, np.ndarray) and value.dtype == _FROM_VOID[DType.bf16]:
            value = value.view(DType.bf16.numpy)
        half = isinstance(value, np.ndarray) and value.dtype in (DType.f16.numpy, DType.bf16.numpy)
        return value.astype(np.float32) if half else value

    def state_dict(self, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
        """Params and states as host arrays, by name, all or those named; safetensors.numpy.save_file takes it as it is."""
        with self.lock:
            return {n: self._tensors[n].numpy() for n in self.names() if names is None or n in names}

    def load_state_dict(
        self, state: Mapping[str, Any], strict: bool = True, names: Collection[str] | None = None
    ) -> list[str]:
        """Check everything, then write everything; nothing is half loaded. Returns the names that were not in `state`.

        names   what to load; all if none are given
        strict  every name of the program, and no other, must be there; else what is common is loaded
        """
        names = [n for n in self.names() if names is None or n in names]
        missing, extra = [n for n in names if n not in state], sorted(set(state) - set(names))
        if strict and (missing or extra):
            raise StateError(
                "the state dict does not fit this program",
                details=[
                    *(f"missing: {n}: {self._tensors[n].spec}" for n in missing),
                    *(f"extra: {n}" for n in extra),
                ],
                hint="load_state_dict(..., strict=False) loads what is common",
            )
        self.assign({n: state[n] for n in names if n in state})
        return missing


def _converted(start: np.ndarray, value: Value) -> np.ndarray:
    """What an initializer made, in the element type of its variable: rounded at most."""
    with np.errstate(invalid="ignore"):
        made = rounded(start, value.dtype)
        if value.dtype.kind == "float":
            fits = np.isfinite(made.astype(np.float32)) | ~np.isfinite(start.astype(np.float64))
        else:
            fits = made == start
    if not fits.all():
        first = start[~fits].flat[0].item()
        raise StateError(
            f"the initializer of {value.name} makes {first!r}: {numbers.why_not(first, value.dtype)}", where=value.where,
            expected=f"numbers of {value.dtype}", hint="give it another dtype, or make numbers that fit",
        )  # fmt: skip
    return made


_FROM_VOID = {DType.bf16: np.dtype("V2"), DType.f8e4m3: np.dtype("V1")}  # what np.savez makes of them


def _fitting(name: str, value: Any, spec: TensorSpec) -> np.ndarray:
    """A host array of the variable's type, or StateError. Python numbers take its element type."""
    if isinstance(value, np.ndarray) and spec.dtype in _FROM_VOID and value.dtype == _FROM_VOID[spec.dtype]:
        value = value.view(spec.dtype.numpy)
    if isinstance(value, (bool, int, float)):
        if reason := numbers.why_not(value, spec.dtype):
            raise StateError(f"{name} can't be {numbers.told(value)}: {reason}", expected=str(spec))
        array = rounded(np.asarray(numbers.constant(value, spec.dtype)), spec.dtype)
    else:
        try:
            foreign = adopt(value, name)
        except FeedError as error:
            raise StateError(error.what, expected=str(spec), hint=error.hint) from None
        array = foreign.array if foreign.array is not None else _download(value)
    if array.shape != spec.shape or array.dtype != spec.dtype.numpy:
        raise StateError(
            f"{name} does not fit",
            expected=str(spec),
            got=f"{'x'.join(map(str, (*array.shape, array.dtype)))}",
        )
    return array


def _as_it_is(name: str, value: Any) -> Any:
    return value


def _download(value: Any) -> np.ndarray:
    return (
        value.numpy()
        if isinstance(value, Tensor)
        else np.asarray(value.cpu() if hasattr(value, "cpu") else value)
    )
