"""All that happens in a simulation, as a number that stands for it, and as lines to read where they are wanted."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b


class Trace:
    """Told of everything in the order in which it happens."""

    def __init__(self, *, is_kept: bool = False) -> None:
        self.lines: list[str] = []
        self.faults: Counter[str] = Counter()
        self.events = 0
        self._is_kept = is_kept
        self._hash = blake2b(digest_size=8)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def note(self, now_ms: int, text: str) -> None:
        """Something happened."""
        self.events += 1
        self._hash.update(b"%d %s\n" % (now_ms, text.encode()))
        if self._is_kept:
            self.lines.append(f"{now_ms / 1000:9.3f} {text}")

    def note_fault(self, now_ms: int, kind: str, text: str) -> None:
        """Something was done to somebody."""
        self.faults[kind] += 1
        self.note(now_ms, f"FAULT {kind}: {text}")
