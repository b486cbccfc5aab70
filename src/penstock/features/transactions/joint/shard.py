"""The joint transactions of one partition of the transactions topic, and the series that they belong to.

A decision is committed before the first partition is told of it, and finished after the last one was. Markers carry an
epoch above that of the writers' batches: a batch that arrives after its transaction has ended is fenced by it, instead
of opening a transaction that no coordinator would end (KIP-890 does the same).

A series is numbered joint transactions, of which each number is committed once and one is open at a time. A job that
works in numbered batches and may be killed anywhere begins the batch again that it was at, perhaps beside the process
that it replaces. So for each number there is one winner, and for each series one run that may write: the last one that
came. There is no ledger beside the transactions: the last one of a series, its *head*, holds the last number that was
committed and the runs that were replaced, so the record that decides to commit is at the same time the ledger's entry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from itertools import islice
from typing import Final, Protocol

from penstock.config.settings import TransactionSettings
from penstock.errors import PenstockError, SeriesFenced
from penstock.features.transactions.joint.messages import Begin, Begun, Open
from penstock.features.transactions.joint.records import JointChange, StoredJoint, StoredPart, WriterPlace
from penstock.features.transactions.joint.states import JointState
from penstock.features.transactions.joint.transaction import JointTransaction, Marking
from penstock.features.transactions.markers import EndMarker, MarkerWriter
from penstock.features.transactions.records import Reason
from penstock.machines.journal import Journal
from penstock.machines.messages import Outcome, ProducerIdentity, Rejected, Reply
from penstock.machines.shard import Defer, Shard
from penstock.partitions.stats import TransactionStats

log = logging.getLogger(__name__)


# Runs that were replaced and are refused by name. Should one come back after this many others, it is taken for new;
# also then a number is committed once.
RUNS_REMEMBERED: Final = 32
_COMMITTED: Final = frozenset({JointState.COMMITTING, JointState.COMMITTED})
NOTHING: Final = -1  # is committed yet


class Turn(Enum):
    """What somebody hears who is about to write a number of a series."""

    DONE = "that number is committed"
    JOIN = "its transaction is open"
    OPEN = "a transaction is opened"


def last_committed(head: StoredJoint | None) -> int:
    """The last number of a series that is committed; nothing can change that any more."""
    if head is None or head.part is None:
        return NOTHING
    return head.part.number if head.state in _COMMITTED else head.part.committed_before


def turn_of(head: StoredJoint | None, number: int, run: str) -> Turn:
    """What to do for a run that comes with a number; `SeriesFenced` if another run has replaced it."""
    if head is None or head.part is None:
        return Turn.OPEN
    part = head.part
    if run in part.older_runs:
        raise SeriesFenced(
            f"Run {run} of series {part.series!r} was replaced by run {part.run}, which goes on with it. Stop this one."
        )
    if number <= last_committed(head):
        return Turn.DONE
    is_same = (part.number, part.run) == (number, run)
    return Turn.JOIN if is_same and head.state is JointState.OPEN else Turn.OPEN


def next_part(head: StoredJoint | None, wish: Begin) -> StoredPart:
    """What the next transaction of a series knows of it."""
    if head is None or head.part is None:
        return StoredPart(series=wish.series, number=wish.number, run=wish.run)
    part = head.part
    older = part.older_runs if part.run == wish.run else (*part.older_runs, part.run)
    return StoredPart(
        series=wish.series,
        number=wish.number,
        run=wish.run,
        ordinal=part.ordinal + 1,
        committed_before=last_committed(head),
        older_runs=older[-RUNS_REMEMBERED:],
    )


class KnownJoint(Protocol):
    """A transaction, as it is stored."""

    @property
    def id(self) -> str: ...
    @property
    def stored(self) -> StoredJoint | None: ...


class SeriesHeads:
    """The last transaction of each series."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[int, str]] = {}  # ordinal and id, by series
        self._series: dict[str, str] = {}  # by the id of its head

    @classmethod
    def of(cls, transactions: Iterable[KnownJoint]) -> SeriesHeads:
        heads = cls()
        for each in transactions:
            if each.stored is not None:
                heads.note(each.id, each.stored)
        return heads

    def note(self, transaction_id: str, stored: StoredJoint) -> None:
        """A transaction is stored; it is the head of its series unless a later one is."""
        part = stored.part
        if part is None:
            return
        ordinal, before = self._heads.get(part.series, (NOTHING, ""))
        if part.ordinal > ordinal:
            self._series.pop(before, None)
            self._heads[part.series] = part.ordinal, transaction_id
            self._series[transaction_id] = part.series

    def get(self, series: str) -> str | None:
        found = self._heads.get(series)
        return None if found is None else found[1]

    def has(self, transaction_id: str) -> bool:
        return transaction_id in self._series

    def drop(self, transaction_id: str) -> None:
        series = self._series.pop(transaction_id, None)
        if series is not None:
            del self._heads[series]


WRITER_EPOCH: Final = 0
_MARKER_EPOCH: Final = WRITER_EPOCH + 1
_WRITERS_A_TURN: Final = 20


class JointShard(Shard[JointTransaction, JointChange]):
    """Joint transactions by id. ``exists`` tells whether a place is still that of the topic it was."""

    def __init__(
        self,
        journal: Journal[JointChange],
        config: TransactionSettings,
        markers: MarkerWriter,
        exists: Callable[[WriterPlace], bool],
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
        # Those that have not ended: time matters to no other, and there may be a day's worth of others.
        self.open_ids: set[str] = set()
        self._heads = SeriesHeads()

    def make(self, name: str) -> JointTransaction:
        return JointTransaction(name, self._config)

    def name_of(self, change: JointChange) -> str:
        return change.key.transaction

    def on_applied(self, machine: JointTransaction, change: JointChange) -> None:
        if machine.is_open:
            self.open_ids.add(machine.id)
        else:
            self.open_ids.discard(machine.id)
        stored = change.value
        if not isinstance(stored, StoredJoint):
            return
        self._heads.note(machine.id, stored)
        counted = (self._stats,) if stored.part is None else (self._stats, self._stats.series)
        if stored.state is JointState.COMMITTING:
            for each in counted:
                each.committed += 1
        elif stored.state is JointState.ABORTING:
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
            self._heads = SeriesHeads.of(machines.values())
            for machine in machines.values():
                self._follow_up(machine, self._end)  # not all of what was read need be committed

    def perform(self, decisions: Sequence[tuple[JointTransaction, Outcome[JointChange]]]) -> None:
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
            return  # the shard is closed, and the next leader goes on from what is in the log
        _WriterMarkers(markings, partial(self._write, machine), partial(self._on_marked, machine), self._defer).go_on()

    def _write(self, machine: JointTransaction, marking: Marking, done: Callable[[], None]) -> None:
        marker = EndMarker(ProducerIdentity(marking.producer_id, _MARKER_EPOCH), marking.is_commit, self._epoch)
        places = {(place.topic, place.partition) for place in marking.places if self._exists(place)}
        self._markers.write(marker, places, partial(self._is_current, machine), done)

    def _on_marked(self, machine: JointTransaction) -> None:
        if self._is_current(machine):
            self.perform([(machine, machine.on_marked(self._now_ms()))])


class _WriterMarkers:
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
