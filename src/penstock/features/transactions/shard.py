"""The transactional ids of one partition of the transactions topic.

A decision to end a transaction is committed before the first partition is told of it, and completed after the last one
was. The caller that asked for the end is told then, without waiting for the completion to be committed: it only spares
the next coordinator from telling the partitions once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from penstock.config.settings import TransactionSettings
from penstock.errors import PenstockError
from penstock.features.transactions.markers import EndMarker, MarkerWriter
from penstock.features.transactions.records import Reason, TransactionChange
from penstock.features.transactions.states import DECIDED, TransactionState
from penstock.features.transactions.transaction import Transaction
from penstock.machines.journal import Journal
from penstock.machines.messages import Outcome, Rejected, Reply, Request
from penstock.machines.shard import Defer, Shard
from penstock.partitions.stats import TransactionStats

log = logging.getLogger(__name__)


class TransactionShard(Shard[Transaction, TransactionChange]):
    """Transactions by transactional id."""

    def __init__(
        self,
        journal: Journal[TransactionChange],
        config: TransactionSettings,
        markers: MarkerWriter,
        stats: TransactionStats,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        defer: Defer,
        *,
        epoch: int,
    ) -> None:
        """``epoch`` is that of the leadership under which this shard coordinates."""
        super().__init__(journal, now_ms, wall_ms, defer)
        self._config = config
        self._markers = markers
        self._stats = stats
        self.epoch = epoch

    def make(self, name: str) -> Transaction:
        return Transaction(name, self._config)

    def name_of(self, change: TransactionChange) -> str:
        return change.key.transactional_id

    def on_applied(self, machine: Transaction, change: TransactionChange) -> None:
        stored = change.value
        if stored is None:
            return
        if stored.state is TransactionState.PREPARE_COMMIT:
            self._stats.committed += 1
        elif stored.state is TransactionState.PREPARE_ABORT:
            reason = stored.reason or Reason.CLIENT
            self._stats.count_aborted(reason.value)
            if reason is not Reason.CLIENT:
                log.info("The transaction of %s is aborted: %s.", machine.id, reason.value)

    def open(self, machines: dict[str, Transaction]) -> None:
        is_wanted = self.is_loading
        super().open(machines)
        if is_wanted:
            for machine in machines.values():
                if machine.owes_markers():  # the log as it was read may not be safe yet: another node may lack its end
                    self.when_committed(self._end, partial(self._mark, machine))

    def perform(self, decisions: Sequence[tuple[Transaction, Outcome[TransactionChange]]]) -> None:
        super().perform(decisions)
        for machine, _ in decisions:
            self._follow_up(machine)

    def expire(self) -> None:
        """Forget transactional ids that no producer uses any more."""
        wall_ms = self._wall_ms()
        for machine in tuple(self.machines.values()):
            if machine.id in self.machines:
                self.perform([(machine, machine.expire(wall_ms))])

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _is_current(self, machine: Transaction) -> bool:
        return self.machines.get(machine.id) is machine

    def _follow_up(self, machine: Transaction) -> None:
        """Do what a decision leads to, beyond being written."""
        if not self._is_current(machine):
            return
        if machine.owes_markers():
            self.when_committed(self.written_to(machine), partial(self._mark, machine))
        if machine.state not in DECIDED:
            self._tell(machine)
        for request, reply in machine.take_waiting():
            self._ask_again(machine.id, request, reply)
        if self._is_current(machine):
            self.note_deadline(machine)

    def _tell(self, machine: Transaction) -> None:
        for reply, producer in machine.take_ending():
            reply(producer)

    def _ask_again(self, name: str, request: Request[Any], reply: Reply) -> None:
        try:
            self.ask(name, request, reply)
        except PenstockError as error:
            reply(Rejected(error))

    def _mark(self, machine: Transaction, error: PenstockError | None) -> None:
        stored = machine.stored
        if error is not None or not self._is_current(machine) or stored is None:
            return  # the shard is closed, and the next leader goes on from what is in the log
        marker = EndMarker(stored.producer, stored.state is TransactionState.PREPARE_COMMIT, self.epoch)
        partitions = [(topic, index) for topic, indexes in stored.partitions.items() for index in indexes]
        self._markers.write(marker, partitions, partial(self._is_current, machine), partial(self._on_marked, machine))

    def _on_marked(self, machine: Transaction) -> None:
        if not self._is_current(machine):
            return
        self.perform([(machine, machine.on_marked(self._now_ms()))])
        self._tell(machine)  # even if the completion could not be written: everybody sees the end
