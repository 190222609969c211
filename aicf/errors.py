"""Every error aicf raises on purpose: what happened, where, expected, got, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from .text import printable


class AicfError(Exception):
    """Base of all aicf errors. `what` is one sentence; the other parts are printed below it."""

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: object = None,
        got: object = None,
        hint: str | None = None,
        details: Iterable[str] = (),
    ) -> None:
        self.what, self.where, self.expected, self.got, self.hint = what, where, expected, got, hint
        self.details = tuple(details)
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        lines += [f"  {line}" for line in self.details]
        for label, value in (("expected", self.expected), ("got", self.got), ("at", self.where)):
            if value is not None:
                lines.append(f"  {label}: {value}")
        if self.hint:
            lines.append(f"  next: {self.hint}")
        return printable("\n".join(lines))


class Immovable:
    """What is bound to a device or to code: neither a copy nor a pickle of it means anything. `instead` says what does."""

    __slots__ = ()
    instead = ""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:  # pickle's, and that of copy and deepcopy
        raise StateError(f"a {type(self).__name__} can't be pickled or copied", hint=self.instead)


class TypeInferenceError(AicfError):
    """An op's operands or attributes break one of its numbered constraints.

    op          its name, where it is an op's
    constraint  the number of the constraint, such as "C3"; a word, such as "operands", for what has no number
    message     what is wrong, without op and number
    """

    def __init__(
        self, what: str, *, op: str = "", constraint: str = "", message: str = "", **more: Any
    ) -> None:
        super().__init__(what, **more)
        self.op, self.constraint, self.message = op, constraint, message or what


class AttrError(AicfError):
    """An attribute is unknown, missing, or of a type that AttrPack can't hold."""


class CallSpecError(AicfError):
    """An op carries no call spec, or one of another schema version."""


class CacheError(AicfError):
    """A model can't go on with its sequences by a KV cache."""


class VerifyError(AicfError):
    """A graph or plan breaks an invariant of its stage."""


class AliasError(AicfError):
    """An output that must be written in place can't be, because something still reads the old value."""


class FeedError(AicfError):
    """A fed tensor is missing, extra, or has the wrong shape, dtype, place or layout."""

    library: str | None = None  # whose tensor has the wrong element type, where that is what is wrong


class StateError(AicfError):
    """A state dict does not fit the program: names, shapes or dtypes."""


class FrontendError(AicfError):
    """A model of another framework can't be read: what it is written in is damaged, or aicf lacks some of its ops, which the details list."""


class MissingPackageError(FrontendError, ImportError):
    """`import aicf.jax`, `aicf.torch` or `aicf.onnx_backend` where the framework is not installed, or can't be imported."""


class MissingAttributeError(FrontendError, AttributeError):
    """The same for an attribute, such as `aicf.jax`: `hasattr(aicf, "jax")` is False."""


class UnsupportedOpsError(FrontendError):
    """A model of another framework has ops that aicf can't express; the details list each, how often and where.

    ops    how often each is there, by its name
    needs  inputs on whose values shapes depend: with those fixed there may be less to refuse
    """

    ops: Mapping[str, int] = {}
    needs: frozenset[str] = frozenset()


class DistributedError(AicfError):
    """Processes of one run disagree, or one of them is gone, hangs, or was never there.

    rank  which, where one is to blame
    """

    rank: int | None = None


class NoKernelError(AicfError):
    """No registered variant accepts a region; the details list each variant and its reason."""


class MismatchError(AicfError):
    """An op's reference and its scalar function compute different numbers."""


class KernelError(AicfError):
    """A kernel's own Python failed: while its call was built, or while it ran on the host."""


class MissingKernelError(AicfError):
    """A plan names a kernel id that no registered variant has."""


class RegistryError(AicfError):
    """Two registrations collide, or an extension package is broken."""


class TuningError(AicfError):
    """A tuning file or its data is damaged, stale, or of another device; or a device failed while it was tuned."""


class SettingError(AicfError):
    """An environment variable of aicf's has a value that is none of its own."""


class DeviceError(AicfError):
    """A device is unknown, absent or unusable."""


class KernelCompileError(AicfError):
    """A kernel body did not compile or link."""


class LabelError(AicfError, IndexError):
    """A label is no class. The run that met it has changed nothing; on a GPU the next read of a result says so."""


class OutOfBoundsError(AicfError, IndexError):
    """An index is out of range for its axis. The run that met it has changed nothing; on a GPU the next read of a result says so."""


class CaptureError(AicfError):
    """A call can't be part of a CUDA graph, or failed while it was captured."""


class NanError(AicfError):
    """AICF_CHECK=nan found the first op that made a NaN."""
