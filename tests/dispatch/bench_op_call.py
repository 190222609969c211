"""Host time of op_call, in microseconds: `python tests/dispatch/bench_op_call.py`. A GPU and PyTorch are used if there.

Each number is the best of several rounds; a round's launches are waited for outside its time.
"""

from __future__ import annotations

import ctypes
import timeit
from collections.abc import Callable

import numpy as np

import aicf
from aicf.dispatch import call


def microseconds(
    run: Callable[[], object], sync: Callable[[], object] = lambda: None, number: int = 500
) -> float:
    """Of one call. Few enough calls that the launch queue never fills."""
    times = []
    for _ in range(15):
        sync()
        times.append(timeit.timeit(run, number=number) / number * 1e6)
    sync()
    return min(times)


def host() -> dict[str, float]:
    a, b = np.ones((2, 64), np.float32)
    c = np.empty_like(a)
    aicf.op_call("add", [a, b], [c])
    prepared, _ = next(iter(call._quick.values()))
    return {
        "numpy.add(out=)": microseconds(lambda: np.add(a, b, out=c)),
        "the kernel alone": microseconds(lambda: prepared.run([a, b, c])),
        "op_call add": microseconds(lambda: aicf.op_call("add", [a, b], [c])),
        "op_call scale, with an attribute": microseconds(
            lambda: aicf.op_call("scale", [a], [c], {"factor": 2.0})
        ),
    }


def torch_cuda() -> dict[str, float]:
    import torch

    sync = torch.cuda.synchronize
    a, b = torch.ones((2, 1024), device="cuda")
    c = torch.empty_like(a)
    call.cache_clear()
    aicf.op_call("add", [a, b], [c])
    (prepared, _), stream = next(iter(call._quick.values())), torch.cuda.current_stream().cuda_stream
    pointers = [a.data_ptr(), b.data_ptr(), c.data_ptr()]
    return {
        "torch.add(out=)": microseconds(lambda: torch.add(a, b, out=c), sync),
        "op_call add": microseconds(lambda: aicf.op_call("add", [a, b], [c]), sync),
        "op_call add on a named stream": microseconds(
            lambda: aicf.op_call("add", [a, b], [c], stream=stream), sync
        ),
        "reading three tensors": microseconds(lambda: [call._read_torch(t) for t in (a, b, c)], sync),
        "checking overlaps": microseconds(lambda: prepared.check_overlap(pointers), sync),
        "filling in and launching": microseconds(lambda: prepared.run(pointers, stream), sync),
        **launches(prepared, pointers, stream, sync),
    }


def launches(prepared, pointers: list[int], stream: int, sync: Callable[[], object]) -> dict[str, float]:
    """The two ways to launch, with everything packed before."""
    from cuda.bindings import driver
    from cuda.core import launch

    from aicf.device.streams import stream_object

    start, on = prepared.starts[0], stream_object(prepared.ordinal, stream)
    args = start.args.copy()
    for at, which, offset in start.fill:
        args[at] = pointers[which] + offset
    values = [a if isinstance(a, np.generic) else np.uint64(a) for a in args]
    memory = [np.array([v]) for v in values]  # keeps the arguments where the addresses say
    addresses = (ctypes.c_void_p * len(memory))(*(m.ctypes.data for m in memory))
    function = driver.CUfunction(int(start.kernel.handle))
    handle, where = driver.CUstream(stream), ctypes.addressof(addresses)
    grid, block = (*start.config.grid, 1, 1)[:3], (*start.config.block, 1, 1)[:3]

    def bare():
        driver.cuLaunchKernel(function, *grid, *block, start.config.shmem_size, handle, where, 0)

    return {
        "bare cuda.core.launch": microseconds(lambda: launch(on, start.config, start.kernel, *args), sync),
        "bare cuLaunchKernel": microseconds(bare, sync),
    }


def main() -> None:
    from aicf.device.runtime import cuda_missing

    for title, measure, missing in (("NumPy", host, None), ("PyTorch on CUDA", torch_cuda, cuda_missing())):
        print(title if missing is None else f"{title}: {missing}")
        measured = {} if missing else measure()
        for name, us in measured.items():
            print(f"  {us:8.2f} us  {name}")


if __name__ == "__main__":
    main()
