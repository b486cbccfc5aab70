"""A snapshot that comes in pieces, gathered until it is whole."""

from __future__ import annotations

from dataclasses import replace

from penstock.cluster.raft.messages import SendSnapshot, Snapshot


class Intake:
    """The pieces of one snapshot at a time. A piece that does not follow on is left to be sent again."""

    def __init__(self) -> None:
        self._of: tuple[int, int, int] | None = None
        self._data = bytearray()

    @property
    def position(self) -> int:
        """How much is there."""
        return len(self._data)

    def take(self, piece: SendSnapshot) -> Snapshot | None:
        """The whole snapshot, if this piece completes it."""
        snapshot = piece.snapshot
        # Two leaders' snapshots of the same state need not be the same bytes.
        of = (piece.term, snapshot.index, snapshot.term)
        if self._of != of:
            self._of = of
            self._data.clear()
        if piece.position == len(self._data):
            self._data += snapshot.data
        return replace(snapshot, data=bytes(self._data)) if len(self._data) == piece.size else None
