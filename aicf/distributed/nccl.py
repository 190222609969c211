"""Collectives of GPUs: NCCL through nccl4py, on a stream of their own, so that a captured graph has them as it has kernels."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from ..device.collectives import ALL_REDUCE, Exchanged
from ..device.runtime import CudaRuntime
from ..errors import DistributedError
from ..types import DType, bf16, f16, f32, f64, i8, i32, i64, u8, u32, u64
from .mesh import Mesh

# ncclDataType_t and ncclRedOp_t, as nccl.h has them.
TYPES: dict[DType, int] = {i8: 0, u8: 1, i32: 2, u32: 3, i64: 4, u64: 5, f16: 6, f32: 7, f64: 8, bf16: 9}
SUM, MEAN = 0, 4


class NcclCommunicator:
    """The ranks of a run, each with a GPU of its own."""

    def __init__(self, mesh: Mesh, runtime: CudaRuntime) -> None:
        try:
            from nccl.bindings import nccl
            from nccl.core import Communicator, UniqueId, get_unique_id
        except (ImportError, OSError, RuntimeError) as error:
            raise DistributedError(
                f"NCCL can't be used: {error}", expected="nccl4py, and the library of NVIDIA's NCCL",
                hint="install aicf's extra: nccl-cu13, or nccl-cu12",
            ) from error  # fmt: skip
        self.mesh, self._nccl = mesh, nccl
        mine = base64.b64encode(get_unique_id().as_bytes).decode() if mesh.world.rank == 0 else ""
        told = base64.b64decode(mesh.all("NCCL's id", mine)[0])
        with runtime.current():
            self._communicator = Communicator.init(
                mesh.world.size, mesh.world.rank, UniqueId.from_bytes(told)
            )
            self._stream = runtime.device.create_stream()
        self._handle = nccl.Comm(int(self._communicator.ptr))

    @property
    def rank(self) -> int:
        return self.mesh.world.rank

    @property
    def size(self) -> int:
        return self.mesh.world.size

    def apart(self) -> Any:
        return self._stream.handle

    def run(self, parts: Sequence[Exchanged], stream: Any = None) -> None:
        nccl, comm = self._nccl, self._handle
        at = int(self._stream.handle if stream is None else stream)
        nccl.group_start()
        try:
            for p in parts:
                kind = TYPES[p.dtype]
                if p.kind == ALL_REDUCE:
                    nccl.all_reduce(p.ptr, p.ptr, p.numel, kind, MEAN if p.mean else SUM, comm, at)
                else:
                    nccl.broadcast(p.ptr, p.ptr, p.numel, kind, p.root, comm, at)
        finally:
            nccl.group_end()

    def abort(self) -> None:
        """End what hangs: its kernels return, and the communicator is of no use any more."""
        self._communicator.abort()
