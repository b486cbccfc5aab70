"""How patient the members of a quorum are, and how much they send at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """An election begins after one to two election timeouts without a leader."""

    election_ms: int = 500
    heartbeat_ms: int = 100
    entries_at_once: int = 512
    bytes_at_once: int = 1024 * 1024
    messages_in_flight: int = 8
    piece_bytes: int = 256 * 1024

    @property
    def silence_ms(self) -> int:
        """How long a leader goes on without having heard of a majority. Answers wait for disks, so longer than others
        wait for it: it commits nothing meanwhile, and whoever is elected instead is obeyed at once.
        """
        return 2 * self.election_ms
