"""In which threads large batches are looked into: the event loop's must not be one of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.features.queues.leading import sources
from penstock.records import BatchHeader, Record
from penstock.records import batch as batches

LARGE = 10_000  # records, or bytes of them


class Looks:
    """Which threads looked into large batches."""

    def __init__(self) -> None:
        self.on_loop: list[str] = []
        self.beside: list[str] = []

    def note(self, what: str) -> None:
        (self.on_loop if threading.current_thread() is threading.main_thread() else self.beside).append(what)

    def check(self) -> None:
        assert self.beside, "somebody had to look"
        assert not self.on_loop


def note_looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Note from now on in which threads large batches are looked into."""
    made, walk, positions_of = Looks(), batches._walk_trusting, sources.positions_of

    def noting_walk(header: BatchHeader, data: bytes) -> Iterator[tuple[Record, int]]:
        if len(data) > LARGE:
            made.note("decode")
        return walk(header, data)

    def noting_positions(header: BatchHeader, *arguments: Any) -> Any:
        if header.count > LARGE:
            made.note("positions")
        return positions_of(header, *arguments)

    monkeypatch.setattr(batches, "_walk_trusting", noting_walk)
    monkeypatch.setattr(sources, "positions_of", noting_positions)
    return made
