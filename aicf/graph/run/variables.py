"""Variables: the params and states of one model on one device, shared by all its programs, paths and plans."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...device.faults import times_told
from ...device.interop import adopt, conversion
from ...device.tensor import SMALL, Runtime, Tensor
from ...dispatch import op_call
from ...errors import FeedError, Immovable, StateError, VerifyError
from ...ir import KEPT, Graph, Initializer, Role, Value
from ...ops import numbers
from ...types import DType, TensorSpec, rounded
from ...weights import StoredArrays, UnreadArray
from ...whole import Uninterrupted, shared_lock
from ..emit.declare import Constant
from ..emit.step import ACCUMULATED
from .derived import Derived
from .plan import ExecPlan


@dataclass(frozen=True)
class Variable:
    """A tensor that outlives a run, and how it was declared."""

    tensor: Tensor
    role: Role
    constant: bool  # or a session's, or a record of faults, or derived of params: in no state dict
    meta: str  # short name of a meta-parameter
    check: Callable[[str, Any], Any] | None  # (name, value): raises for what it can't be


def stream(seed: int, name: str) -> np.random.Generator:
    """The random numbers of a tensor: of the model's seed and its own name."""
    return np.random.default_rng((seed, zlib.crc32(name.encode())))


class Variables(Immovable, Mapping[str, Tensor]):
    """Named tensors. Each is made once, by the first program that declares it, from its initializer and the seed.

    The random stream of a tensor comes from the model's seed and the tensor's name, so neither the order of declaration
    nor another layer changes it.

    shared   what the programs of a model have in common: its params and states. Meta-parameters are each program's own
             (`of_program`), so that compiling another changes nothing for those there are, but for a scale of the loss, which
             training programs share as they share what it follows
    session  what the programs of one generator have in common besides (`of_session`), such as a KV cache
    initial  initializers that take the place of those declared, by name
    """

    instead = "state_dict() is a dict of NumPy arrays, and load_state_dict takes it"

    def __init__(
        self, runtime: Runtime, seed: int = 0, shared: Variables | None = None, initial: Mapping[str, Initializer] | None = None,
        session: dict[str, Variable] | None = None,
    ) -> None:  # fmt: skip
        self.runtime, self.seed, self.initial = runtime, seed, initial or {}
        self.shared: Variables = self if shared is None else shared
        self._own: dict[str, Variable] = {}
        self.meta: dict[str, str] = {}  # short name -> name of each meta-parameter of the program
        self._session: dict[str, Variable] = {} if session is None else session
        self.derived = Derived()  # of the shared ones
        self._changed: dict[str, bool] = {}  # see `changed`
        self._accumulated, self._told = -1, -1  # of shared ones; what was known when so much had been told
        # held by a run: programs of one model share these tensors
        self.lock: Any = shared_lock() if shared is None else shared.lock

    def of_program(self) -> Variables:
        """These, and room for one program's meta-parameters."""
        return Variables(self.runtime, self.seed, self.shared, session=self._session)

    def of_session(self) -> Variables:
        """These, and room for what the programs of one generator share."""
        return Variables(self.runtime, self.seed, self.shared, session={})

    def declare(self, graph: Graph) -> None:
        """Make the params and states of a graph that are not there yet; the others must have the same type."""
        made = []
        for value in graph.externals(*KEPT):
            held = (
                self._own
                if value.meta and not value.shared
                else self._session
                if value.session
                else self.shared._own
            )
            if (known := held.get(value.name)) is None:
                made.append((held, value, self._made(value)))
            elif (known.tensor.shape, known.tensor.dtype) != (value.spec.shape, value.dtype):
                raise StateError(
                    f"{value.role} {value.name} is declared again with another type",
                    where=value.where,
                    expected=str(known.tensor.spec),
                    got=str(value.spec),
                    hint="one model has one parameter of a name",
                )
        for held, value, variable in made:
            held[value.name] = variable
        self._note(
            (v.name for _, v, _ in made if not (v.copy_of or v.session or v.role is Role.fault)), loaded=False
        )
        self.meta |= {v.meta: v.name for v in graph.externals(Role.state) if v.meta}
        self.shared.derived.add({v.name: v.copy_of for v in graph.externals(Role.state) if v.copy_of})

    def declare_derived(self, plan: ExecPlan) -> None:
        """Make room for what the plan's setup makes, unless another plan has the same."""
        if plan.setup is None:
            return
        for slot in plan.setup.outputs:
            if slot.name not in self.shared._own:
                tensor = self.runtime.empty(slot.spec)
                self.shared._own[slot.name] = Variable(tensor, Role.state, True, "", None)
        self.shared.derived.add_results(plan.setup)

    def _made(self, value: Value) -> Variable:
        init = self.shared.initial.get(value.name, value.init)
        assert init is not None
        rng = stream(self.seed, value.name)
        if isinstance(init, Constant):  # in its own type at once: a KV cache may be most of the memory
            start = np.full(value.spec.shape, _converted(np.asarray(init((), rng)), value))
        else:
            start = np.asarray(init(value.spec.shape, rng))
        if start.shape != value.spec.shape:
            raise StateError(
                f"the initializer of {value.name} made the wrong shape",
                expected=value.spec.shape,
                got=start.shape,
            )
        tensor = self.runtime.upload(_converted(start, value), value.spec)
        hidden = value.constant or value.session or value.role is Role.fault or bool(value.copy_of)
        return Variable(tensor, value.role, hidden, value.meta, value.check)

    def _variable(self, name: str) -> Variable:
        return next((held for held in self._held if name in held), self.shared._own)[name]

    @property
    def _held(self) -> tuple[dict[str, Variable], ...]:
        return self._own, self._session, self.shared._own

    def __getitem__(self, name: str) -> Tensor:
        return self._variable(name).tensor

    def __contains__(self, name: object) -> bool:
        return any(name in held for held in self._held)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def names(self, role: Role | None = None) -> list[str]:
        """Without constants, sorted."""
        known = {**self.shared._own, **self._session, **self._own}
        return sorted(n for n, v in known.items() if not v.constant and role in (None, v.role))

    def role(self, name: str) -> Role:
        return self._variable(name).role

    @property
    def accumulated(self) -> int:
        """Runs in the sums of gradients. The device knows; it is asked when the host can't."""
        known = self.shared
        if known._accumulated < 0 or known._told != times_told():
            there = ACCUMULATED in known
            known.accumulated = int(known[ACCUMULATED].numpy()) if there else 0
        return known._accumulated

    @accumulated.setter
    def accumulated(self, runs: int) -> None:
        self.shared._accumulated, self.shared._told = runs, times_told()

    def set(self, meta: Mapping[str, Any]) -> None:
        """Write meta-parameters by their short names, all or none."""
        known = self.meta
        for short in meta:
            if short not in known:
                raise StateError(
                    f"no meta-parameter is called {short!r}",
                    expected=", ".join(sorted(known)) or "none at all",
                )
        checked = {}
        for short, value in meta.items():
            check = self._variable(known[short]).check
            checked[known[short]] = value if check is None else check(short, value)
        self._write({n: self._fitting(n, value) for n, value in checked.items()})
        self._note(checked, loaded=True)

    def _note(self, names: Iterable[str], loaded: bool) -> None:
        """These have changed; a program's own are noted with it, the others with the model's."""
        for name in names:
            (self if name in self._own else self.shared)._changed[name] = loaded

    def changed(self, names: Collection[str]) -> dict[str, bool]:
        """Of these names what is new or was written by others than runs since `unchanged_now` named it; True of what was loaded or set."""
        return {n: loaded for n, loaded in {**self.shared._changed, **self._changed}.items() if n in names}

    def unchanged_now(self, names: Iterable[str]) -> None:
        """These are equal on all ranks."""
        for name in names:
            self.shared._changed.pop(name, None)
            self._changed.pop(name, None)

    def overwritten(self, names: Iterable[str]) -> None:
        """Others have written these in place: what the host knows of them and what is derived of them is out of date."""
        self.accumulated = -1
        self.shared.derived.outdate(names)

    def _write(self, ready: Mapping[str, np.ndarray | UnreadArray]) -> None:
        """New contents, in place: pointers never change. Ctrl-C waits for the end, so that nothing is half written. What is not read
        yet is read one after the other."""
        with self.lock, Uninterrupted():
            self.overwritten(ready)
            for name, given in ready.items():
                array = given.read() if isinstance(given, UnreadArray) else given
                self.runtime.write(self[name], array)
                del array  # before the next one is read

    @contextmanager
    def up_to_date(self, plan: ExecPlan, run: Callable[[ExecPlan], Any]) -> Iterator[None]:
        """Around a run of a plan: what it reads that is derived of params is that of now, and what it leaves behind is known.

        run   of a setup, which writes its results in their places
        """
        derived = self.shared.derived
        try:
            for copy, param in derived.outdated_copies(plan):
                op_call("convert", [self[param]], [self[copy]], {"dtype": self[copy].dtype})
            if (first := derived.outdated_setup(plan)) is not None:
                run(first)
            yield
        except BaseException:
            derived.outdate_all()  # whatever was written
            raise
        derived.ran(plan)

    @contextmanager
    def unchanged(self, plan: ExecPlan) -> Iterator[Callable[[], None]]:
        """Around runs of a plan that are to leave nothing behind: afterwards what they write holds what it held before.

        What is yielded puts back what is small, such as step counters and where sequences stand, so that each run is like the first.
        """
        names = sorted({*plan.written, *(slot.name for slot in plan.externals(Role.fault))})
        before = {name: self.runtime.download(self[name]) for name in names}
        kept = (n for n in names if self.role(n) is not Role.param and n not in self.shared.derived)
        small = {name: before[name] for name in kept if before[name].nbytes <= SMALL}
        try:
            yield lambda: self._write(small)
        finally:
            self._write(before)

    def state_dict(self, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
        """Params and states as host arrays, by name, all or those named; safetensors.numpy.save_file takes it as it is."""
        with self.lock:
            return {n: self[n].numpy() for n in self.names() if names is None or n in names}

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
                    *(f"missing: {n}: {self[n].spec}" for n in missing),
                    *(f"extra: {n}" for n in extra),
                ],
                hint=self._next_step([n for n in names if n in state], state),
            )
        given = {
            n: state.unread(n) if isinstance(state, StoredArrays) else state[n] for n in names if n in state
        }
        self._write({n: self._loadable(n, value) for n, value in given.items()})
        self._note(given, loaded=True)
        return missing

    def _next_step(self, common: Sequence[str], state: Mapping[str, Any]) -> str:
        """What to do with a state dict of other names: load what is common, if that can be loaded."""
        misfits = []
        for name in common:
            try:
                self._loadable(name, state.unread(name) if isinstance(state, StoredArrays) else state[name])
            except StateError:
                misfits.append(name)
        if common and not misfits:
            return "load_state_dict(..., strict=False) loads what is common"
        if misfits:
            some = ", ".join(misfits[:3]) + (", …" if len(misfits) > 3 else "")
            return f"it is of another model: {some} {'has' if len(misfits) == 1 else 'have'} other shapes or types; compile the model that it was saved of"
        return "it is of another model, with no name in common: compile the model that it was saved of, or rename its arrays"

    def _loadable(self, name: str, value: Any) -> np.ndarray | UnreadArray:
        """A host array that the variable may hold, or one that is not read yet; or StateError."""
        check = self._variable(name).check
        if isinstance(value, UnreadArray):
            own, there = self[name].spec, value.spec
            if check is None and (own.shape, own.dtype) == (there.shape, there.dtype):
                return value
            if own.shape != there.shape:
                raise _misfit(name, own, there)
            value = value.read()  # a number or two; or what is refused, or widened
        array = self._fitting(name, self._widened(name, value))
        if check is not None:
            try:
                check(name, array if array.ndim else array.item())
            except VerifyError as error:
                raise StateError(
                    f"{name} can't be loaded", expected=error.expected, got=array.tolist()
                ) from None
        return array

    def _fitting(self, name: str, value: Any) -> np.ndarray:
        return _fitting(name, value, self[name].spec)

    def _widened(self, name: str, value: Any) -> Any:
        """State that older checkpoints have in a half, such as moments of half parameters; it is f32 now."""
        if self.role(name) is not Role.state or self[name].dtype is not DType.f32:
            return value
        if isinstance(value, np.ndarray) and value.dtype == _FROM_VOID[DType.bf16]:
            value = value.view(DType.bf16.numpy)
        half = isinstance(value, np.ndarray) and value.dtype in (DType.f16.numpy, DType.bf16.numpy)
        return value.astype(np.float32) if half else value


def _converted(start: np.ndarray, value: Value) -> np.ndarray:
    """What an initializer made, in the element type of its variable: rounded at most."""
    if start.dtype == value.dtype.numpy:
        return start
    with np.errstate(invalid="ignore"):
        made = rounded(start, value.dtype)
        if value.dtype.kind == "float":
            fits = np.isfinite(made) | ~np.isfinite(start)
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
    """A host array of the variable's type, or StateError. Python numbers take its element type, if it has them."""
    if isinstance(value, np.ndarray) and spec.dtype in _FROM_VOID and value.dtype == _FROM_VOID[spec.dtype]:
        value = value.view(spec.dtype.numpy)
    if isinstance(value, (bool, int, float)):
        if reason := numbers.why_not(value, spec.dtype):
            raise StateError(
                f"{name} can't be {numbers.told(value)}: {reason}",
                expected=str(spec),
                got=numbers.told(value),
            )
        array = rounded(np.asarray(numbers.constant(value, spec.dtype)), spec.dtype)
    else:
        try:
            foreign = adopt(value, name)
        except FeedError as error:
            hint = error.hint if error.library is None else _converting(name, spec, error.library)
            raise StateError(error.what, expected=str(spec), hint=hint) from None
        array = foreign.array if foreign.array is not None else _download(value)
    if array.shape != spec.shape or array.dtype != spec.dtype.numpy:
        raise _misfit(name, spec, TensorSpec(array.shape, DType.of(array.dtype)))
    return array


def _misfit(name: str, spec: TensorSpec, got: TensorSpec) -> StateError:
    hint = _converting(name, spec) if got.shape == spec.shape else None
    return StateError(f"{name} does not fit", expected=str(spec), got=str(got), hint=hint)


def _converting(name: str, spec: TensorSpec, library: str = "numpy") -> str:
    value = f"state[{name!r}]"
    return f"{value} = {conversion(value, spec.dtype, library)}"


def _download(value: Any) -> np.ndarray:
    return (
        value.numpy()
        if isinstance(value, Tensor)
        else np.asarray(value.cpu() if hasattr(value, "cpu") else value)
    )
