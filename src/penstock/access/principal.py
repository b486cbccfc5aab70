"""A principal: the name that a caller has proved to have, as ``User:alice``.

A principal that came with an API key carries the key's id, because the key may be narrower than its owner, and the
time at which its credential ends, which is no part of who it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.errors import InvalidPrincipal

KIND: Final = "User"
NAME_CHARS_MAX: Final = 255
ANYONE: Final = "User:*"  # in a rule: every principal


@dataclass(frozen=True, slots=True)
class Principal:
    """A proved identity. ``expires_ms`` is wall-clock time; None means that its credential does not end by itself."""

    name: str
    kind: str = KIND
    key_id: str = ""
    expires_ms: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """The principal that ``User:alice`` names; `InvalidPrincipal` says what is wrong with anything else."""
        kind, colon, name = text.partition(":")
        if not colon or not kind.isascii() or not kind.isalnum():
            raise InvalidPrincipal(f"{text[:NAME_CHARS_MAX]!r} is no principal. Write a kind and a name: User:alice.")
        check_name(name)
        return cls(name, kind)


def check_name(name: str) -> str:
    """Return the name if it may name a principal."""
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable() or name != name.strip():
        raise InvalidPrincipal(
            f"The name of a principal has 1 to {NAME_CHARS_MAX} printable characters, with no space at either end."
        )
    return name


ANONYMOUS: Final = Principal("ANONYMOUS")
