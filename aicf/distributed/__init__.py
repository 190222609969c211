"""Several processes, one for each GPU, that train one model: `compile(..., parallel=aicf.distributed.DataParallel())`.

Who starts the processes is another matter: torchrun, mpirun, srun, Ray, or `aicf run --processes N FILE`. NCCL moves the data of GPUs,
TCP that of the CPU device.
"""

from .parallel import DataParallel, ZeRO1
from .world import World, world

__all__ = ["DataParallel", "World", "ZeRO1", "world"]
