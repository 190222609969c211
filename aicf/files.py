"""Text files that people name: read whole, or refused in words."""

from __future__ import annotations

from pathlib import Path

from .errors import AicfError

LIMIT = 1 << 28  # bytes: more is no file of ours, and /dev/zero has no end


def read_text(path: str | Path, what: str, hint: str, error: type[AicfError] = AicfError) -> str:
    """The text of a file that should be `what`, such as "a tuning file"; else an `error` with that hint, which says how one is made."""
    name = str(path)
    try:
        with open(path, "rb") as file:
            data = file.read(LIMIT + 1)
        if len(data) > LIMIT:
            raise error(f"{name} is not {what}: it has more than {LIMIT >> 20} MB", hint=hint)
        return data.decode("utf-8")
    except UnicodeDecodeError as refused:
        raise error(f"{name} is not {what}: it is not UTF-8", got=str(refused), hint=hint) from None
    except OSError as refused:
        raise error(f"{name} can't be read: {refused.strerror}", hint=hint) from None
    except ValueError:  # a NUL
        raise error(f"{name!r} can't be the name of a file", hint=hint) from None
