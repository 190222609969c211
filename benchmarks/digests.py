"""Which results belong to today's text of a kernel: by the digest of its variant, as `aicf/registry/text_digest.py` makes it."""

from __future__ import annotations

from aicf.dispatch import default_registry
from aicf.registry.text_digest import variant_digest


def digest_of(id: str) -> str | None:
    """Of the variant with this id; None if there is none any more."""
    registry = default_registry()
    return variant_digest(registry.by_id(id)) if id in registry else None
