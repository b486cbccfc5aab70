"""Acks in transactions, at the shard that keeps the queues of a partition.

They are written into the companion log as a part of the transaction, and wait there for its marker. Memory follows the
log: what is written is held, and a marker ends that in the same turn. So whoever reads the log later knows the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.broker.coordination.journal import Decided, Journal
from penstock.broker.coordination.messages import Outcome
from penstock.broker.coordination.shard import Defer, Shard
from penstock.broker.queues.core.queue import Queue
from penstock.broker.queues.core.records import Change


class UndecidedAcks(Shard[Queue, Change]):
    """A shard of queues some of whose acks wait for the end of a transaction."""

    def __init__(
        self, journal: Journal[Change], now_ms: Callable[[], int], wall_ms: Callable[[], int], defer: Defer
    ) -> None:
        super().__init__(journal, now_ms, wall_ms, defer)
        self._ended_while_loading: list[Decided] = []

    def on_ended(self, queue: Queue) -> None:
        """A transaction that a queue held acks for has ended."""

    def read_log(self) -> dict[str, Queue]:
        queues: dict[str, Queue] = {}
        for entry in self._journal.replay():
            if isinstance(entry, Decided):
                for queue in queues.values():
                    queue.end_transaction(entry.producer_id, is_commit=entry.is_commit)
            elif entry.producer_id < 0:
                self.machine_of(entry.change, queues).apply(entry.change, entry.at_ms)
            else:
                self.machine_of(entry.change, queues).hold(entry.change, entry.at_ms, entry.producer_id)
        for queue in queues.values():
            queue.resume(self._now_ms())  # which may take long, and is quick when it is done again
        return {name: queue for name, queue in queues.items() if not queue.is_forgettable}

    def open(self, machines: dict[str, Queue]) -> None:
        # Whoever read the log may have been past these; and what was seen there already changes nothing now.
        for end in self._ended_while_loading if self.is_loading else ():
            for queue in machines.values():
                queue.end_transaction(end.producer_id, is_commit=end.is_commit)
        super().open(machines)

    def _apply(self, decisions: Sequence[tuple[Queue, Outcome[Change]]], at_ms: int) -> None:
        queue, outcome = decisions[0]
        if outcome.producer is None:
            super()._apply(decisions, at_ms)
            return
        for change in outcome.changes:
            queue.hold(change, at_ms, outcome.producer.producer_id)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """The end of a transaction has just been written to the companion."""
        if self.is_loading:
            self._ended_while_loading.append(Decided(producer_id, is_commit))
            return
        self._end = self._journal.end_offset
        for queue in tuple(self.machines.values()):
            if not queue.holds_for(producer_id):
                continue
            acked = queue.end_transaction(producer_id, is_commit=is_commit)
            if acked is not None:
                self.on_applied(queue, Change(queue.id, acked))
            self.on_ended(queue)
