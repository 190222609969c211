"""Equal parameters and states on all ranks: what was declared, loaded or set since the last run is rank 0's on all of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..device import collectives
from ..device.collectives import BROADCAST, Exchanged
from ..device.tensor import Runtime, Tensor
from ..errors import DistributedError
from ..graph.run.variables import Variables
from ..types import u8
from .mesh import MOST, Mesh

CHUNK = 2**28  # bytes that leave together


@dataclass
class _Said:
    """What one rank says of its variables.

    names     all of them
    changed   those that are new or were written since all ranks were equal; `True` if they were loaded or set
    numbers   of the meta-parameters among them
    runs      how many runs there were
    parts     whether it has states that other ranks lack
    """

    names: Sequence[str]
    changed: Mapping[str, bool]
    numbers: Mapping[str, float] = field(default_factory=dict)
    runs: int = 0
    parts: bool = False


def share(mesh: Mesh, runtime: Runtime, variables: Variables, names: Collection[str], changed: Mapping[str, bool], runs: int, parts: bool) -> int:  # fmt: skip
    """Rank 0's values of all that has changed, on all ranks. Returns the number of runs of rank 0.

    names    the variables of the program; parts: whether ranks have states of which others know nothing
    changed  see _Said. DistributedError on all ranks if another rank has loaded or set what rank 0 has not
    """
    numbers = {n: variables[n].item() for n in changed if n in variables.meta.values()}
    said = json.dumps(asdict(_Said(sorted(names), dict(changed), numbers, runs, parts))).encode()
    answer = json.loads(mesh.together("what has changed", said, _judged, MOST, MOST))
    if answer["error"]:
        raise mesh.refused(DistributedError(**answer["error"]), answer["rank"])
    sent = [variables[name] for name in answer["sent"]]
    communicator = collectives.joined(runtime.place, mesh.world.size)
    runtime.sync()
    for chunk in _chunks([_bytes_of(tensor) for tensor in sent if tensor.spec.nbytes]):
        communicator.run(chunk, None if runtime.stream is None else runtime.stream.handle)
    if mesh.world.rank:
        variables.overwritten(answer["sent"])
    return int(answer["runs"])


def _bytes_of(tensor: Tensor) -> Exchanged:
    """Any type as bytes: what is broadcast is not computed with."""
    array = None if tensor.array is None else tensor.array.reshape(-1).view(np.uint8)
    return Exchanged(BROADCAST, tensor.ptr, tensor.spec.nbytes, u8, array=array)


def _chunks(parts: Sequence[Exchanged]) -> Iterator[list[Exchanged]]:
    chunk: list[Exchanged] = []
    for part in parts:
        if chunk and sum(p.nbytes for p in chunk) + part.nbytes > CHUNK:
            yield chunk
            chunk = []
        chunk.append(part)
    if chunk:
        yield chunk


def _judged(bodies: Sequence[bytes]) -> bytes:
    """On rank 0: the names that it sends, or what is wrong."""
    ranks = [_Said(**json.loads(body)) for body in bodies]
    first = ranks[0]
    known = set(first.names).intersection(*(said.names for said in ranks[1:]))
    error, rank = next(
        ((e, n) for n, said in enumerate(ranks) if (e := _wrong(first, said, n))), (None, None)
    )
    sent = sorted(known.intersection(first.changed))
    return json.dumps({"error": error, "rank": rank, "sent": sent, "runs": first.runs}).encode()


def _wrong(first: _Said, said: _Said, rank: int) -> dict[str, Any] | None:
    """Why the state of a rank can't follow that of rank 0."""
    loaded, there = ({n for n, loaded in one.changed.items() if loaded} for one in (said, first))
    both = [n for n in sorted(said.changed) if said.changed[n] == first.changed.get(n)]
    other = [
        n for n in both if repr(said.numbers.get(n)) != repr(first.numbers.get(n))
    ]  # NaN is equal to itself
    if other:
        return {
            "what": f"rank {rank} has another {other[0]} than rank 0", "expected": first.numbers.get(other[0]), "got": said.numbers.get(other[0]),
            "hint": "load and set the same on all ranks, or before the first run on rank 0 alone",
        }  # fmt: skip
    if lacking := sorted((loaded - there).intersection(first.names)):
        return {
            "what": f"rank {rank} has loaded or set {lacking[0]}, and rank 0 has not", "expected": "state that rank 0 has, too",
            "got": f"{len(lacking)} of {len(loaded)} names", "hint": "load and set on all ranks, or before the first run on rank 0 alone, which sends it to the others",
        }  # fmt: skip
    if (first.parts or said.parts) and bool(loaded - set(first.numbers)) != bool(there - set(first.numbers)):
        return {
            "what": f"rank {rank} has {'' if loaded else 'not '}loaded a state, and rank 0 has{' not' if loaded else ''}",
            "expected": "a state on all ranks", "got": f"{len(loaded)} names on rank {rank}, {len(there)} on rank 0",
            "hint": "with ZeRO1 each rank has optimizer states that others lack: call load_state_dict on all ranks with the same checkpoint",
        }  # fmt: skip
    return None
