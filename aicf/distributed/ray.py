"""Ray Train as the launcher: `trainer(train, num_workers=2).fit()`, where `train` compiles with `parallel=DataParallel()` as anywhere else."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import DistributedError


def trainer(
    train: Callable[..., Any], *, num_workers: int, use_gpu: bool = False, config: Mapping[str, Any] | None = None, **how: Any
) -> Any:  # fmt: skip
    """A Ray Train trainer whose workers are the ranks of `train`, a function of nothing, or of `config`.

    num_workers, use_gpu   as of Ray's ScalingConfig; with GPUs each worker has one
    how                    what else Ray's DataParallelTrainer takes: run_config, datasets, scaling_config in the place of the two

    Ray places, restarts and watches the workers; checkpoints are those of `fit`, in a folder that all of them reach.
    """
    try:
        from ray.train import ScalingConfig
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    except ImportError as error:
        raise DistributedError(
            f"Ray Train can't be imported: {error}", hint="pip install 'ray[train]'"
        ) from None
    how.setdefault("scaling_config", ScalingConfig(num_workers=num_workers, use_gpu=use_gpu))
    return DataParallelTrainer(
        train, train_loop_config=None if config is None else dict(config), backend_config=_backend(), **how
    )


def _backend() -> Any:
    """What tells each worker its rank before it trains: by the variables that torchrun sets."""
    from ray.train.backend import Backend, BackendConfig

    class RayBackend(Backend):
        def on_training_start(self, worker_group: Any, backend_config: Any) -> None:
            address, port = worker_group.execute_single(0, _address)
            worker_group.execute(_tell, address, port, secrets.token_hex(16))

    @dataclass
    class RayBackendConfig(BackendConfig):
        @property
        def backend_cls(self) -> type[Backend]:
            return RayBackend

    return RayBackendConfig()


def _address() -> tuple[str, int]:
    """Where rank 0 will listen, on its worker."""
    from ray.util import get_node_ip_address

    with socket.create_server(("", 0)) as found:
        return get_node_ip_address(), int(found.getsockname()[1])


def _tell(address: str, port: int, token: str) -> None:
    """On each worker. With GPUs Ray shows a worker its own alone, which is its first."""
    from ray.train import get_context

    context = get_context()
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    local = 0 if len(seen) == 1 else context.get_local_rank()
    os.environ.update(
        RANK=str(context.get_world_rank()), WORLD_SIZE=str(context.get_world_size()), LOCAL_RANK=str(local), MASTER_ADDR=address,
        MASTER_PORT=str(port), AICF_TOKEN=token,
    )  # fmt: skip
