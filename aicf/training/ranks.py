"""What a training loop does together with other ranks; nothing, where there are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .batches import Feed
from .shard import Shard


class Ranks:
    """parallel  of a program: see aicf.distributed (DataParallel); None on one rank"""

    def __init__(self, parallel: Any) -> None:
        self._parallel = parallel if parallel is not None and parallel.ranks > 1 else None
        self.rank = self._parallel.rank if self._parallel else 0
        self._shard = Shard((), self.rank, self._parallel.ranks) if self._parallel else None

    def rows(self, feed: Feed) -> Feed:
        """This rank's rows of a batch of all."""
        return feed if self._shard is None else self._shard.of(feed)

    def mean(self, numbers: Sequence[float]) -> list[float]:
        """Over all ranks."""
        return list(numbers) if not self._parallel or not numbers else self._parallel.mean(numbers)

    def alone(self, title: str, work: Callable[[], object]) -> None:
        """What rank 0 does while the others wait."""
        if self._parallel is None:
            work()
        else:
            self._parallel.alone(title, work)

    def agree(self, title: str, lines: Sequence[str]) -> None:
        """All ranks say the same, or all are told who does not."""
        if self._parallel is not None:
            self._parallel.agree(title, lines)

    def whole(self, program: Any) -> Mapping[str, Any]:
        """The state of a program, with what only other ranks have."""
        state = program.state_dict()
        return state if self._parallel is None else self._parallel.whole_state(state)
