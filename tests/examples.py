"""How many examples hypothesis draws. They are other ones for each commit, so few of them in many runs are many."""

from __future__ import annotations

import os

from hypothesis import settings

EVERYTHING = bool(os.environ.get("AICF_TEST_ALL"))


def examples(count: int) -> settings:
    """So many in `make test-all`, a sixth of them in `make test`."""
    return settings(max_examples=count if EVERYTHING else max(2, count // 6), deadline=None)
