"""A program of its own for an op on given arrays: it runs every kernel of the device that accepts them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import numpy as np

from aicf.rows import RegionSpec
from aicf.types import DType

from .layouts import Laid

SHOWN = 300  # elements that are written out

ON = {
    "cpu": '''\
device = host()


def run(variant):
    variant.build(region, device).function([o for o in map(view, operands, region.operands)], list(map(view, results, region.results)))
''',
    "cuda": '''\
from aicf.cuda_kernels.compiler import engine
from aicf.device.runtime import runtime

cuda = runtime("cuda")
device = cuda.spec


def run(variant):
    memory = {id(m): cuda.allocate(m.nbytes + 1) for m, _ in operands + results}
    for m, _ in operands + results:
        cuda.copy(memory[id(m)].ptr, m.ctypes.data, m.nbytes)
    ins, outs = ([memory[id(m)].ptr + start * m.itemsize for m, start in ts] for ts in (operands, results))
    workspace = cuda.allocate(variant.query_workspace(region, device) + 1)
    with cuda.current():
        for launch in variant.build(region, device):
            engine.bind(engine.prepare(launch, region, variant.id), cuda.stream, ins, outs, workspace.ptr)()
    for m, _ in operands + results:
        cuda.copy(m.ctypes.data, memory[id(m)].ptr, m.nbytes)
    cuda.sync()
''',
}  # fmt: skip


def script_of(
    op: str,
    region: RegionSpec,
    operands: Sequence[Laid],
    exact: Sequence[np.ndarray],
    over: Mapping[int, int],
) -> str:
    """The program. Memory is as the case had it; results begin as bytes 0xFF, unless they are written over an operand."""
    given = "".join(f"    ({memory_text(o.memory)}, {o.start}),\n" for o in operands)
    positions = [n for n, tensor in enumerate(region.anchor.inputs) if tensor >= 0]
    places = {n: positions.index(o) for n, o in over.items()}
    made = "".join(f"        {_result(n, region, places)},\n" for n in range(len(region.outputs)))
    wanted = "".join(f"    {literal(w)},\n" for w in exact)
    return f"""import base64
import json

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided

import aicf
from aicf.device.spec import host
from aicf.dispatch import default_registry
from aicf.rows import RegionSpec

nan, inf = np.nan, np.inf
# {region}
region = RegionSpec.from_json(json.loads({_json(region)!r}))
exact = [
{wanted}]
{ON[region.tensors[0].device if region.tensors else "cpu"]}

def view(laid, desc):
    memory, start = laid
    steps = [s * memory.itemsize for s in desc.stride]
    return as_strided(memory.view(f"u{{memory.itemsize}}")[start:], desc.shape, steps).view(memory.dtype)


def bytes_of(text, dtype):
    return np.frombuffer(bytearray(base64.b64decode(text)), dtype)


for variant in default_registry().variants({op!r}):
    if variant.device != {(region.tensors[0].device if region.tensors else "cpu")!r} or variant.supported(region, device):
        continue
    # (memory, where the tensor starts in it)
    operands = [
{_indented(given)}    ]
    results = [
{made}    ]
    run(variant)
    for got, want in zip(map(view, results, region.results), exact):
        print(variant.id, "got", got.tolist(), "expected", np.asarray(want).tolist())
"""


def _json(region: RegionSpec) -> str:
    import json

    return json.dumps(region.to_json())


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _result(n: int, region: RegionSpec, places: Mapping[int, int]) -> str:
    if n in places:
        return f"operands[{places[n]}]"
    t = region.results[n]
    size = (1 + sum((d - 1) * s for d, s in zip(t.shape, t.stride))) * t.dtype.itemsize if t.numel else 0
    return f"(np.full({size + t.alignment % 256}, 0xFF, np.uint8).view({type_text(t.dtype)}), {t.alignment % 256 // t.dtype.itemsize})"


def type_text(dtype: DType) -> str:
    """A NumPy type as it is written."""
    name = dtype.numpy.name
    return f"np.dtype({'ml_dtypes.' + name if hasattr(np, name) is False else repr(name)})"


def literal(array: np.ndarray) -> str:
    """An array as it is written, or its shape where it is long."""
    if array.size > SHOWN:
        return f"np.empty({array.shape})  # too long to be written out"
    return f"np.array({array.tolist()!r}).reshape({array.shape})"


def memory_text(memory: np.ndarray) -> str:
    """Memory as it is written: numbers, or its bytes in base 64 where it is long."""
    kind = type_text(DType.of(memory.dtype))
    if memory.size <= SHOWN:
        return f"np.array({memory.tolist()!r}, {kind})"
    return f"bytes_of({base64.b64encode(memory.tobytes()).decode()!r}, {kind})"
