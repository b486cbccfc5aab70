"""The joint transactions of one partition of the transactions topic.

A decision is committed before the first partition is told of it, and finished after the last one was. Markers carry an
epoch above that of the writers' batches: a batch that arrives after its transaction has ended is fenced by it, instead
of opening a transaction that nobody would end (KIP-890 does the same).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final

from penstock.config.settings import TransactionSettings
from penstock.errors import PenstockError
from penstock.features.transactions.joint.messages import Begin, Begun, Open
from penstock.features.transactions.joint.records import Change, Place, StoredJoint
from penstock.features.transactions.joint.series import Heads, Turn, next_part, turn_of
from penstock.features.transactions.joint.states import State
from penstock.features.transactions.joint.transaction import JointTransaction, Marking
from penstock.features.transactions.markers import Marker, MarkerWriter
from penstock.features.transactions.records import Reason
from penstock.machines.journal import Journal
from penstock.machines.messages import Outcome, ProducerIdentity, Rejected, Reply
from penstock.machines.shard import Defer, Shard
from penstock.partitions.stats import TransactionStats

log = logging.getLogger(__name__)

WRITER_EPOCH: Final = 0
_MARKER_EPOCH: Final = WRITER_EPOCH + 1
_WRITERS_A_TURN: Final = 20


class JointShard(Shard[JointTransaction, Change]):
    """Joint transactions by id. ``exists`` tells whether a place is still that of the topic it was."""

    def __init__(
        self,
        journal: Journal[Change],
        config: TransactionSettings,
        markers: MarkerWriter,
        exists: Callable[[Place], bool],
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
        self._exists = exists
        self._stats = stats
        self._epoch = epoch
        # Those that have not ended: time matters to nobody else, and there may be a day's worth of others.
        self.open_ids: set[str] = set()
        self._heads = Heads()

    def make(self, name: str) -> JointTransaction:
        return JointTransaction(name, self._config)

    def name_of(self, change: Change) -> str:
        return change.key.transaction

    def on_applied(self, machine: JointTransaction, change: Change) -> None:
        if machine.is_open:
            self.open_ids.add(machine.id)
        else:
            self.open_ids.discard(machine.id)
        stored = change.value
        if not isinstance(stored, StoredJoint):
            return
        self._heads.note(machine.id, stored)
        counted = (self._stats,) if stored.part is None else (self._stats, self._stats.series)
        if stored.state is State.COMMITTING:
            for each in counted:
                each.committed += 1
        elif stored.state is State.ABORTING:
            reason = (stored.reason or Reason.CLIENT).value
            for each in counted:
                each.count_aborted(reason)
            if stored.reason is not Reason.CLIENT:
                log.info("Joint transaction %s is aborted: %s.", machine.id, reason)

    def open(self, machines: dict[str, JointTransaction]) -> None:
        is_wanted = self.is_loading
        super().open(machines)
        if is_wanted:
            self.open_ids = {machine.id for machine in machines.values() if machine.is_open}
            self._heads = Heads.of(machines.values())
            for machine in machines.values():
                self._follow_up(machine, self._end)  # not all of what was read need be committed

    def perform(self, decisions: Sequence[tuple[JointTransaction, Outcome[Change]]]) -> None:
        super().perform(decisions)
        for machine, _ in decisions:
            self._follow_up(machine, self.written_to(machine))

    def expire(self) -> None:
        """Forget how transactions ended, where that was long ago."""
        wall_ms = self._wall_ms()
        for machine in tuple(self.machines.values()):
            if machine.id in self.machines:
                self.perform([(machine, machine.expire(wall_ms, self._retention_ms(machine)))])
                if machine.id not in self.machines:
                    self._heads.drop(machine.id)

    def _retention_ms(self, machine: JointTransaction) -> int:
        config, stored = self._config, machine.stored
        if stored is None or stored.part is None or not self._heads.has(machine.id):
            return config.joint_results_retention_ms
        longer_ms = config.series_retention_ms if stored.part.ordinal else config.single_retention_ms
        return max(longer_ms, config.joint_results_retention_ms)

    # -- series -------------------------------------------------------------------------------------------------------

    def open_series_count(self) -> int:
        """How many series have a transaction that has not ended."""
        return sum(self._heads.has(name) for name in self.open_ids)

    def head_of(self, series: str) -> JointTransaction | None:
        """The last transaction of a series, which knows of all before it what has to be known."""
        name = self._heads.get(series)
        return None if name is None else self.machines.get(name)

    def begin(self, request: Begin, fresh: str, reply: Reply) -> None:
        """Open the transaction of a number of a series, as ``fresh``, unless it is open or committed already.

        What an older run left open is aborted in the same write: there is one open transaction of a series at most.
        """
        self.check()
        self.flush()
        head = self.head_of(request.series)
        stored = None if head is None else head.stored
        turn = turn_of(stored, request.number, request.run)
        if head is not None and turn is not Turn.OPEN:
            begun = Begun(head.id if turn is Turn.JOIN else None)
            self.perform([(head, Outcome(replies=[(reply, begun)]))])
            return

        def opened(answer: object) -> None:
            reply(answer if isinstance(answer, Rejected) else Begun(fresh))

        opening = Open(request.timeout_ms, self._wall_ms(), next_part(stored, request))
        machine, outcome = self.decide(fresh, opening, opened)
        replaced = [] if head is None else [(head, head.replace())]
        self.perform([*replaced, (machine, outcome)])

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _is_current(self, machine: JointTransaction) -> bool:
        return self.machines.get(machine.id) is machine

    def _follow_up(self, machine: JointTransaction, until: int) -> None:
        """Tell partitions of a decision, as soon as the log is committed up to there."""
        if self._is_current(machine):
            markings = machine.take_markings()
            if markings is not None:
                self.when_committed(until, partial(self._mark, machine, markings))

    def _mark(self, machine: JointTransaction, markings: list[Marking], error: PenstockError | None) -> None:
        if error is not None or not self._is_current(machine):
            return  # the shard is closed, and whoever leads next goes on from what is in the log
        _Round(markings, partial(self._write, machine), partial(self._on_marked, machine), self._defer).go_on()

    def _write(self, machine: JointTransaction, marking: Marking, done: Callable[[], None]) -> None:
        marker = Marker(ProducerIdentity(marking.producer_id, _MARKER_EPOCH), marking.is_commit, self._epoch)
        places = {(place.topic, place.partition) for place in marking.places if self._exists(place)}
        self._markers.write(marker, places, partial(self._is_current, machine), done)

    def _on_marked(self, machine: JointTransaction) -> None:
        if self._is_current(machine):
            self.perform([(machine, machine.on_marked(self._now_ms()))])


class _Round:
    """The markers of all writers on their way."""

    def __init__(
        self,
        markings: list[Marking],
        write: Callable[[Marking, Callable[[], None]], None],
        done: Callable[[], None],
        defer: Defer,
    ) -> None:
        self._waiting = iter(markings)
        self._left = len(markings) + 1  # the last one is ours, so that nothing is done before all are on their way
        self._write = write
        self._done = done
        self._defer = defer

    def go_on(self) -> None:
        """Begin some, and the others soon: everybody else on the node wants a turn in between."""
        some = list(islice(self._waiting, _WRITERS_A_TURN))
        for marking in some:
            self._write(marking, self._on_written)
        if some:
            self._defer(self.go_on)
        else:
            self._on_written()

    def _on_written(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._done()
