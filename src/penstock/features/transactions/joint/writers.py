"""What writers of a joint transaction are called."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import InvalidRequest

_WRITER: Final = re.compile(r"[A-Za-z0-9._:@/+=-]{1,200}")


def check_writer(name: str) -> None:
    """Refuse what is no name for a writer."""
    if not _WRITER.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} is no name for a writer. Use 1 to 200 letters, digits and any of . _ : @ / + = -"
        )
