"""The metadata as the quorum's entries make it: what is applied, up to which index, and which futures that completes.

A proposal is reported committed only if the entry at its index is of the term it was proposed in; another leader may
have put something else there.
"""

from __future__ import annotations

import heapq
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Sequence
from itertools import count

from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.raft.core import Effects
from penstock.consensus.raft.log import RaftLog
from penstock.consensus.raft.messages import Entry, EntryKind, Snapshot
from penstock.consensus.records import MetadataRecord, decode_records, encode_records
from penstock.errors import ControllerUnavailable, PenstockError


class QuorumWaiters:
    """Futures by what they wait for. Those that were cancelled are passed over."""

    def __init__(self) -> None:
        self._proposals: dict[int, tuple[int, Future[int]]] = {}
        self._readers: list[tuple[int, int, Future[int]]] = []
        self._reads: dict[int, Future[int]] = {}
        self._numbers = count()

    def for_entry(self, loop: AbstractEventLoop, index: int, term: int) -> Future[int]:
        """Done once the entry of that index and term is applied."""
        future: Future[int] = loop.create_future()
        self._proposals[index] = term, future
        return future

    def for_index(self, loop: AbstractEventLoop, index: int) -> Future[int]:
        """Done once everything up to an index is applied, whichever node led."""
        future: Future[int] = loop.create_future()
        heapq.heappush(self._readers, (index, next(self._numbers), future))
        return future

    def for_read(self, loop: AbstractEventLoop) -> tuple[int, Future[int]]:
        """A token to pass to the core, and what is done with the index once a majority has confirmed it."""
        future: Future[int] = loop.create_future()
        token = next(self._numbers)
        self._reads[token] = future
        return token, future

    def on_applied(self, index: int, term: int) -> None:
        proposal = self._proposals.pop(index, None)
        if proposal is not None:
            if proposal[0] == term:
                _finish(proposal[1], index)
            else:
                _fail(proposal[1], _lost(index))
        self.on_reached(index)

    def on_reached(self, index: int) -> None:
        """Everything up to an index is applied."""
        while self._readers and self._readers[0][0] <= index:
            _finish(heapq.heappop(self._readers)[2], index)

    def on_read(self, token: object, index: int) -> None:
        assert isinstance(token, int)
        future = self._reads.pop(token, None)
        if future is not None:
            _finish(future, index)

    def on_lead_lost(self, term: int | None) -> None:
        """Whatever was asked for in another term than ``term`` may still come true, but not to our knowledge."""
        lost = [index for index, (of_term, _) in self._proposals.items() if of_term != term]
        for index in lost:
            _fail(self._proposals.pop(index)[1], _lost(index))
        if term is None:
            reads, self._reads = self._reads, {}
            for future in reads.values():
                _fail(future, ControllerUnavailable("The lead of the quorum was lost. Try again."))

    def fail_all(self, error: PenstockError) -> None:
        """Nothing will come any more."""
        self.on_lead_lost(None)
        readers, self._readers = self._readers, []
        for _, _, future in readers:
            _fail(future, error)


def _lost(index: int) -> ControllerUnavailable:
    return ControllerUnavailable(
        f"The lead of the quorum was lost before entry {index} was committed; it may or may not be. Look before you "
        "try again."
    )


def _finish(future: Future[int], index: int) -> None:
    if not future.done():
        future.set_result(index)


def _fail(future: Future[int], error: PenstockError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # its caller may be gone


OnApplied = Callable[[int, Sequence[MetadataRecord]], None]
OnReset = Callable[[], None]


class MetadataMachine:
    """Applies committed entries in order, all records of one entry in one step."""

    def __init__(self, waiting: QuorumWaiters) -> None:
        self.metadata = ClusterMetadata()  # the same object for ever
        self.applied_index = 0
        self._waiting = waiting
        self._listeners: list[tuple[OnApplied, OnReset]] = []

    def listen(self, on_applied: OnApplied, on_reset: OnReset) -> None:
        self._listeners.append((on_applied, on_reset))

    def apply(self, effects: Effects) -> None:
        """Take over an installed snapshot and what is committed behind it."""
        if effects.installed is not None and effects.installed.index > self.applied_index:
            self.restore(effects.installed)
            for _, on_reset in self._listeners:
                on_reset()
        for entry in effects.committed:
            if entry.index > self.applied_index:
                self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        assert entry.index == self.applied_index + 1, "entries are applied in order"
        records = decode_records(entry.data) if entry.kind is EntryKind.COMMAND else []
        for record in records:
            self.metadata.apply(record)
        self.applied_index = entry.index
        for on_applied, _ in self._listeners:
            on_applied(entry.index, records)
        self._waiting.on_applied(entry.index, entry.term)

    def restore(self, snapshot: Snapshot) -> None:
        """Begin anew with a snapshot."""
        self.metadata.reset()
        for record in decode_records(snapshot.data or b"[]"):
            self.metadata.apply(record)
        self.applied_index = snapshot.index
        self._waiting.on_reached(snapshot.index)

    def snapshot(self, log: RaftLog) -> Snapshot:
        """The metadata as it is now, in place of all entries that were applied."""
        index = self.applied_index
        term = log.term_at(index)
        assert term is not None, "what is applied is in the log"
        return Snapshot(index, term, log.members_at(index), encode_records(self.metadata.to_records()))
