"""Text that others wrote, such as names of layers and files, as people see it: nothing in it is obeyed, hidden or out of order."""

from __future__ import annotations

import re

# Control characters (C0, DEL, C1), which terminals obey; marks that end lines, have no width or turn the direction of text; and halves
# of surrogate pairs, which file names may have and no encoding takes.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]")


def visible(text: str, keep: str = "\n") -> str:
    r"""The text, with `\x1b` spelt out where that character is; what is to be kept, such as line ends, stays."""

    def spelt(found: re.Match[str]) -> str:
        return found[0] if found[0] in keep else found[0].encode("unicode_escape").decode()

    return _UNSEEN.sub(spelt, text)


def shortened(text: str, width: int) -> str:
    """At most so many characters."""
    return text if len(text) <= width else text[: width - 1] + "…"
