"""Receipts held against what is known: which deliveries are still a lease's own, and what became of the others.

Neighbouring receipts of one lease are joined first, so that five hundred of them cost one look.

What becomes of deliveries that failed: another one later, or a dead letter after the last.

A queue as a state machine: one group's deliveries of one partition, at the partition's leader.

Requests and the time come in; an `Outcome` goes out with the changes to persist and the replies to send. Only `apply`
changes what must survive, live as from the log. One request is at most one change. All times, those of records too,
are of one clock, which runs as a wall clock does but never jumps while a node leads.

To deliver, the shell asks for an `offer`, reads as much of it as fits into its answer, and has that granted, all in one
go. What else it performs: it writes `dead_letters` and confirms them, tells of gaps and of the log's start, ticks at
``wake_ms``, and writes a `snapshot` when one is due.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from penstock.consensus.queue_config import QueueSettings, check_own
from penstock.errors import GroupNotFound, InvalidConfig, InvalidRequest, PenstockError
from penstock.features.queues.core.deliveries import (
    ACKED,
    DYING,
    LEASED,
    NO_PRODUCER,
    WAITING,
    Deliveries,
    DeliveryRow,
    joined,
    joined_by_count,
)
from penstock.features.queues.core.intervals import Interval, IntervalSet
from penstock.features.queues.core.messages import (
    SECRET_BYTES,
    AckDeliveries,
    AssignDeadLetterProducer,
    BeginQueue,
    ConfigureQueue,
    ConfirmDeadLetters,
    DeliveryCounts,
    ExtendLeases,
    ForgetQueue,
    GrantedLease,
    GrantLease,
    JudgedReceipts,
    NackDeliveries,
    OfferedSpan,
    PauseQueue,
    PendingDeadLetter,
    PurgeBefore,
    Receipt,
    ReceiptOutcome,
    ReceiptPart,
    RejectDeliveries,
    ReleaseDeliveries,
    Seal,
    SeekQueue,
    SkipGaps,
    TrimBefore,
)
from penstock.features.queues.core.records import (
    EndCause,
    LeaseGranted,
    LeasesExtended,
    LeasesSettled,
    ProducerAssigned,
    QueueBegun,
    QueueChange,
    QueueConfigured,
    QueueEvent,
    QueueForgotten,
    QueueMoved,
    QueuePaused,
    QueueTrimmed,
)
from penstock.features.queues.core.shares import LabelRun
from penstock.features.queues.core.state import QueueState, QueueTally
from penstock.features.queues.core.supply import Supply
from penstock.machines.messages import Outcome, ProducerIdentity, Reply, Request


class Claims:
    """The receipts of one call. ``rows`` are the live deliveries they name, by offset; ``parts`` go to who asked.

    What a transaction holds is left alone, but for requests in its name, ``owner``, and who only wants more time.
    """

    def __init__(
        self, deliveries: Deliveries, seal: Seal, last_lease: int, *, owner: int = NO_PRODUCER, heeds_holds: bool = True
    ) -> None:
        self._deliveries = deliveries
        self._holds = deliveries.holds if heeds_holds and deliveries.holds else None
        self._owner = owner
        self._seal = seal
        self._last_lease = last_lease
        self._claimed: IntervalSet | None = None  # what was named already in this call, once that can matter
        self._claimed_to = -1
        self._rows: list[DeliveryRow] = []
        self.parts: list[tuple[ReceiptPart, ...]] = []

    @property
    def rows(self) -> list[DeliveryRow]:
        return sorted(self._rows)

    def add(self, receipts: Sequence[Receipt], topic: str, partition: int) -> None:
        """Judge the receipts of the call, all at once."""
        self.parts = [()] * len(receipts)
        for run in _runs(receipts):
            head, last = receipts[run[0]], receipts[run[-1]].last
            if (head.topic, head.partition) != (topic, partition):
                parts = [ReceiptPart(head.first, last, ReceiptOutcome.FOREIGN)]
            else:
                parts = self._judge(head, last)
            if len(parts) == 1:
                fate = parts[0].fate
                for at in run:
                    self.parts[at] = (ReceiptPart(receipts[at].first, receipts[at].last, fate),)
            else:
                for at, mine in zip(run, _share_out(parts, [receipts[at] for at in run]), strict=True):
                    self.parts[at] = mine

    def _judge(self, receipt: Receipt, last: int) -> list[ReceiptPart]:
        lease = self._seal.lease_of(receipt.nonce)
        if lease is None or lease > self._last_lease:
            return [ReceiptPart(receipt.first, last, ReceiptOutcome.UNKNOWN)]
        first, committed = receipt.first, self._deliveries.committed
        parts: list[ReceiptPart] = []
        if first < committed:
            parts.append(ReceiptPart(first, min(last, committed - 1), ReceiptOutcome.ALREADY_ACKED))
            first = committed
        for row in self._deliveries.within(first, last) if first <= last else ():
            if row.first > first:
                parts.append(ReceiptPart(first, row.first - 1, ReceiptOutcome.UNKNOWN))
            first = row.last + 1
            if row.kind == LEASED and row.number == lease and row.deliveries == receipt.delivery_count:
                if self._holds is None:
                    self._claim(row, parts)
                else:
                    self._claim_unheld(row, parts)
            else:
                parts.append(ReceiptPart(row.first, row.last, _fate_of(row, lease)))
        if first <= last:
            parts.append(ReceiptPart(first, last, ReceiptOutcome.UNKNOWN))
        return parts

    def _claim_unheld(self, row: DeliveryRow, parts: list[ReceiptPart]) -> None:
        """Claim what no transaction holds; what the asker's own holds is done already."""
        assert self._holds is not None
        claimed: list[ReceiptPart] = []
        for free in list(self._holds.free_parts(row)):
            self._claim(free, claimed)
        for first, last, owner in self._holds.within(row.first, row.last):
            claimed.append(
                ReceiptPart(first, last, ReceiptOutcome.DONE if owner == self._owner else ReceiptOutcome.IN_TRANSACTION)
            )
        parts += sorted(claimed, key=lambda part: part.first)

    def _claim(self, row: DeliveryRow, parts: list[ReceiptPart]) -> None:
        if row.first > self._claimed_to:  # as ever, since receipts come by offset and few are named twice
            self._rows.append(row)
            parts.append(ReceiptPart(row.first, row.last, ReceiptOutcome.DONE))
        else:
            self._claim_the_rest(row, parts)
        if self._claimed is not None:
            self._claimed.add(row.first, row.last)
        self._claimed_to = max(self._claimed_to, row.last)

    def _claim_the_rest(self, row: DeliveryRow, parts: list[ReceiptPart]) -> None:
        """Claim what was not named before in this call."""
        if self._claimed is None:
            self._claimed = IntervalSet()
            for claimed in self._rows:
                self._claimed.add(claimed.first, claimed.last)
        fresh = [
            ReceiptPart(first, last, ReceiptOutcome.DONE) for first, last in self._claimed.gaps(row.first, row.last)
        ]
        named = [
            ReceiptPart(first, last, ReceiptOutcome.REPEATED)
            for first, last, _ in self._claimed.within(row.first, row.last)
        ]
        self._rows += [row._replace(first=part.first, last=part.last) for part in fresh]
        parts += sorted(fresh + named, key=lambda part: part.first)


def _fate_of(row: DeliveryRow, lease: int) -> ReceiptOutcome:
    if row.kind == ACKED:
        return ReceiptOutcome.ALREADY_ACKED
    if row.kind == DYING:
        return ReceiptOutcome.DEAD_LETTERED
    if row.kind == LEASED:
        return (
            ReceiptOutcome.UNKNOWN if row.number == lease else ReceiptOutcome.REDELIVERED
        )  # no lease has two counts for a message
    return ReceiptOutcome.LEASE_OVER


def _runs(receipts: Sequence[Receipt]) -> Iterator[list[int]]:
    """Where those receipts are that follow each other by offset and differ in nothing else."""
    run: list[int] = []
    before = None
    for at in sorted(range(len(receipts)), key=receipts.__getitem__):
        receipt = receipts[at]
        if before is not None:
            if receipt[2] == before[3] + 1 and receipt[4:] == before[4:] and receipt[:2] == before[:2]:
                run.append(at)
                before = receipt
                continue
            yield run
        run = [at]
        before = receipt
    if run:
        yield run


def _share_out(parts: list[ReceiptPart], run: list[Receipt]) -> Iterator[tuple[ReceiptPart, ...]]:
    """The parts of joined receipts, given to each of them."""
    at = 0
    for receipt in run:
        mine: list[ReceiptPart] = []
        while at < len(parts):
            part = parts[at]
            mine.append(ReceiptPart(max(part.first, receipt.first), min(part.last, receipt.last), part.fate))
            if part.last > receipt.last:
                break
            at += 1
            if part.last == receipt.last:
                break
        yield tuple(mine)


# So many messages are one dead letter at most, so that it can be read and written at once.
_BURIED_TOGETHER: Final = 500

DeadLetterWriter = tuple[int, int, int, int, str]  # number, first, last, delivery count, reason


class Failures:
    """Deliveries that failed now for the same reason. Dead letters are numbered from after ``last_letter`` on."""

    def __init__(self, settings: QueueSettings, last_letter: int, cause: EndCause, reason: str) -> None:
        self._settings = settings
        self._last_letter = last_letter
        self._cause = cause
        self._reason = reason[: settings.reason_chars_max]

    def retried(self, rows: list[DeliveryRow], now_ms: int, delay_of: Callable[[int], int]) -> LeasesSettled:
        """Deliver again, after a delay that depends on how often it was, unless that was the last try."""
        again = [row for row in rows if not self._settings.is_last_try(row.deliveries)]
        over = [row for row in rows if self._settings.is_last_try(row.deliveries)]
        waiting = [(first, last, count, now_ms + delay_of(count)) for first, last, count in joined_by_count(again)]
        return LeasesSettled(waiting=waiting, dying=self._burials(over), cause=self._cause)

    def buried(self, rows: list[DeliveryRow]) -> LeasesSettled:
        """Give up at once."""
        return LeasesSettled(dying=self._burials(rows), cause=self._cause)

    def _burials(self, rows: list[DeliveryRow]) -> list[DeadLetterWriter]:
        spans = [
            (begin, min(begin + _BURIED_TOGETHER - 1, last), count)
            for first, last, count in joined_by_count(rows)
            for begin in range(first, last + 1, _BURIED_TOGETHER)
        ]
        return [(number, *span, self._reason) for number, span in enumerate(spans, self._last_letter + 1)]


# So many leases end in one tick: a change stays small, and others get their turn in between.
_ENDED_AT_ONCE: Final = 2_000
_ERA_BITS: Final = 32  # of a lease's number count leases of one era

EXPIRED: Final = "The lease ended without an answer."
GAVE_UP: Final = "The last try failed."
REJECTED: Final = "The consumer rejected it."


class Queue:
    """One partition as a queue of one group. ``settings`` are the topic's; the group may have its own over them."""

    def __init__(self, group: str, topic: str, partition: int, settings: QueueSettings, era: int = 0) -> None:
        self.id = group
        self.topic = topic
        self.partition = partition
        # Leases are written, but not synced, before they are told. Should all nodes lose power, what is left tells of
        # fewer than were given out; so that no receipt comes twice, each era of leading numbers its own.
        self._leases_from = era << _ERA_BITS
        self._topic_settings = self._settings = settings
        self._state = QueueState(settings)
        self._deliveries = self._state.deliveries

    def __repr__(self) -> str:
        where = f"{self.id!r} of {self.topic}-{self.partition}"
        return f"<Queue {where}, committed {self.committed}, {self.in_flight} in flight, {self.row_count} rows>"

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> QueueSettings:
        """What counts: the topic's settings with the group's own over them."""
        return self._settings

    @property
    def own_settings(self) -> Mapping[str, str]:
        return self._state.values

    @property
    def is_paused(self) -> bool:
        return self._state.is_paused

    @property
    def pause_reason(self) -> str:
        return self._state.pause_reason

    @property
    def producer(self) -> ProducerIdentity | None:
        """Who writes the dead letters; None until `AssignDeadLetterProducer`."""
        return self._state.producer

    def take_tally(self) -> QueueTally:
        """What was done since the last time somebody asked, or since this node leads."""
        tally, self._state.tally = self._state.tally, QueueTally()
        return tally

    @property
    def is_forgettable(self) -> bool:
        return self._state.seal is None

    @property
    def committed(self) -> int:
        """Everything before this is acked: the group's offset for tools that know only one."""
        return self._deliveries.committed

    @property
    def in_flight(self) -> int:
        return self._deliveries.count(LEASED)

    @property
    def row_count(self) -> int:
        """What memory grows with."""
        return len(self._deliveries.rows)

    @property
    def wake_ms(self) -> float:
        return self._deliveries.wake_ms

    def held_by(self, consumer: str) -> int:
        """How many messages a consumer has in flight."""
        return self._deliveries.consumers.held_by(consumer)

    def stats(self, end: int) -> DeliveryCounts:
        """What is there up to the log's end."""
        leased, waiting, dying, acked = (self._deliveries.count(kind) for kind in (LEASED, WAITING, DYING, ACKED))
        ready = max(0, end - self.committed - leased - waiting - dying - acked)
        oldest = self.committed if self.committed < end else None
        return DeliveryCounts(
            self.committed, ready, leased, waiting, dying, acked, self.is_paused, self.pause_reason, oldest
        )

    def rows_from(self, first: int, last: int) -> Iterator[DeliveryRow]:
        """What is known of messages between two offsets, by offset; those left out were never delivered."""
        return self._deliveries.within(first, last)

    def dead_letters(self, limit: int = 100) -> list[PendingDeadLetter]:
        """What has to be written to the dead letters and confirmed."""
        return self._deliveries.dead_letters(limit)

    # -- handing out --------------------------------------------------------------------------------------------------

    def offer(self, consumer: str, limit: int, end: int, now_ms: int) -> list[OfferedSpan]:
        """What could be granted to a consumer now, from what is before ``end``; nothing changes by asking."""
        self._check_begun()
        room = min(limit, self._room(consumer))
        if room <= 0:
            return []
        self._deliveries.wake(now_ms)
        return [
            offered
            for interval in self._deliveries.supply.choose(room, self.committed, end)
            for offered in self._with_counts(interval)
        ]

    def _with_counts(self, interval: Interval) -> list[OfferedSpan]:
        if not self._deliveries.rows.has_any(*interval):
            return [OfferedSpan(interval.first, interval.last, 1)]
        again = [OfferedSpan(row.first, row.last, row.deliveries + 1) for row in self._deliveries.within(*interval)]
        fresh = [OfferedSpan(gap.first, gap.last, 1) for gap in self._deliveries.rows.gaps(*interval)]
        return sorted(again + fresh)

    def unseen(self, limit: int, end: int) -> Interval | None:
        """What the shell has to look at, telling `see` of it, before it asks for an offer; only where order matters."""
        return self._deliveries.supply.unseen(limit, self.committed, end)

    def see(self, first: int, keys: Sequence[int | None], runs: Sequence[LabelRun] = ()) -> None:
        """Hear the keys of messages from ``first`` on, as hashes, None for one without a key; and their lanes."""
        self._deliveries.supply.see(first, keys, runs)

    @property
    def supply(self) -> Supply:
        """Who chooses what is handed out next."""
        return self._deliveries.supply

    # -- decisions ----------------------------------------------------------------------------------------------------

    def handle(self, request: Request[Any], now_ms: int, reply: Reply) -> Outcome[QueueChange]:
        """Decide on a request. The reply is in the outcome; an error instead changes nothing."""
        if isinstance(request, BeginQueue):
            event, answer = self._begin(request), None
        else:
            self._check_begun()
            event, answer = _RULES[type(request)](self, request, now_ms)
        outcome: Outcome[QueueChange] = Outcome()
        if event is not None:
            outcome.changes.append(QueueChange(self.id, event))
            outcome.producer = request.producer if isinstance(request, AckDeliveries) else None
        outcome.reply(reply, answer)
        return outcome

    def tick(self, now_ms: int) -> Outcome[QueueChange]:
        """Let time pass: leases end, retries become due."""
        outcome: Outcome[QueueChange] = Outcome()
        self._deliveries.wake(now_ms)
        ended = self._deliveries.ended(now_ms, _ENDED_AT_ONCE)
        if ended:
            # The lease was the wait: what it covered can be delivered again at once.
            event = self._failures(EndCause.EXPIRY, EXPIRED).retried(sorted(ended), now_ms, lambda _: 0)
            outcome.changes.append(QueueChange(self.id, event))
        return outcome

    def _check_begun(self) -> Seal:
        if self._state.seal is None:
            raise GroupNotFound(f"No queue group {self.id!r} reads {self.topic}-{self.partition}.")
        return self._state.seal

    def _begin(self, request: BeginQueue) -> QueueEvent | None:
        if len(request.secret) != SECRET_BYTES or request.start < 0:
            raise InvalidRequest(f"A group begins at an offset from 0 on, with a secret of {SECRET_BYTES} bytes.")
        return None if self._state.seal is not None else QueueBegun(request.start, request.secret)

    def _grant(self, request: GrantLease, now_ms: int) -> tuple[QueueEvent | None, GrantedLease]:
        until_ms = now_ms + self._timeout_ms(request.visibility_timeout_ms)
        room = self._room(request.consumer)
        taken = IntervalSet() if len(request.offered) > 1 else None
        deliveries: list[OfferedSpan] = []
        for offered in request.offered:
            if room <= 0:
                break
            if self._is_grantable(offered) and (taken is None or not taken.has_any(offered.first, offered.last)):
                if taken is not None:
                    taken.add(offered.first, offered.last)
                deliveries.append(offered._replace(last=min(offered.last, offered.first + room - 1)))
                room -= deliveries[-1].size
        gaps = self._deliveries.undone_parts(request.gaps)
        lease = max(self._state.last_lease, self._leases_from) + 1
        answer = GrantedLease(tuple(deliveries), self._check_begun().nonce(lease), until_ms)
        if not deliveries and not gaps:
            return None, answer
        spans = [(first, last, count) for first, last, count in deliveries]
        return LeaseGranted(lease, request.consumer, until_ms, spans, gaps), answer

    def _room(self, consumer: str) -> int:
        """How many messages a consumer may get now."""
        if self.is_paused:
            return 0
        of_group = self._settings.in_flight_group_max - self.in_flight
        if not consumer:  # an anonymous one has no limit of its own
            return of_group
        return min(of_group, self._settings.in_flight_consumer_max - self.held_by(consumer))

    def _is_grantable(self, offered: OfferedSpan) -> bool:
        """Whether what was offered still is as it was."""
        first, last, count = offered
        if not self.committed <= first <= last or not self._deliveries.supply.is_free(first, last):
            return False
        if not self._deliveries.rows.has_any(first, last):
            return count == 1
        rows = list(self._deliveries.within(first, last))
        return rows[0].first == first and rows[0].last == last and rows[0].deliveries == count - 1

    def _claim(
        self, receipts: Sequence[Receipt], *, owner: int = NO_PRODUCER, heeds_holds: bool = True
    ) -> tuple[list[DeliveryRow], JudgedReceipts]:
        claims = Claims(
            self._deliveries, self._check_begun(), self._state.last_lease, owner=owner, heeds_holds=heeds_holds
        )
        claims.add(receipts, self.topic, self.partition)
        return claims.rows, JudgedReceipts(tuple(claims.parts))

    def _ack(self, request: AckDeliveries, _now_ms: int) -> tuple[QueueEvent | None, JudgedReceipts]:
        owner = NO_PRODUCER if request.producer is None else request.producer.producer_id
        rows, judged = self._claim(request.receipts, owner=owner)
        return (LeasesSettled(acked=joined(rows)) if rows else None), judged

    def _nack(self, request: NackDeliveries, now_ms: int) -> tuple[QueueEvent | None, JudgedReceipts]:
        delay_ms, longest_ms = request.delay_ms, self._settings.retry_delay_max_ms
        if delay_ms is not None and not 0 <= delay_ms <= longest_ms:
            raise InvalidRequest(f"A delay is between 0 and {longest_ms} ms, not {delay_ms}.")
        rows, judged = self._claim(request.receipts)
        if not rows:
            return None, judged
        delay_of = self._settings.backoff_ms if delay_ms is None else lambda _: delay_ms
        return self._failures(EndCause.NACK, request.reason or GAVE_UP).retried(rows, now_ms, delay_of), judged

    def _release(self, request: ReleaseDeliveries, now_ms: int) -> tuple[QueueEvent | None, JudgedReceipts]:
        rows, judged = self._claim(request.receipts)
        if not rows:
            return None, judged
        waiting = [(first, last, count - 1, now_ms) for first, last, count in joined_by_count(rows)]
        return LeasesSettled(waiting=waiting, cause=EndCause.RELEASE), judged

    def _reject(self, request: RejectDeliveries, _now_ms: int) -> tuple[QueueEvent | None, JudgedReceipts]:
        rows, judged = self._claim(request.receipts)
        event = self._failures(EndCause.REJECT, request.reason or REJECTED).buried(rows) if rows else None
        return event, judged

    def _extend(self, request: ExtendLeases, now_ms: int) -> tuple[QueueEvent | None, JudgedReceipts]:
        until_ms = now_ms + self._timeout_ms(request.visibility_timeout_ms)
        rows, judged = self._claim(request.receipts, heeds_holds=False)
        return (LeasesExtended(until_ms, joined(rows)) if rows else None), judged

    def _failures(self, cause: EndCause, reason: str) -> Failures:
        return Failures(self._settings, self._state.last_dead_letter, cause, reason)

    def _confirm(self, request: ConfirmDeadLetters, _now_ms: int) -> tuple[QueueEvent | None, None]:
        rows = sorted(chain.from_iterable(self._deliveries.remains(number) for number in dict.fromkeys(request.ids)))
        return (LeasesSettled(acked=joined(rows), cause=EndCause.BURIAL) if rows else None), None

    def _skip(self, request: SkipGaps, _now_ms: int) -> tuple[QueueEvent | None, None]:
        gaps = self._deliveries.undone_parts(request.gaps)
        return (LeasesSettled(acked=gaps, cause=EndCause.GAP) if gaps else None), None

    def _trim(self, request: TrimBefore, _now_ms: int) -> tuple[QueueEvent | None, None]:
        return (QueueTrimmed(request.start) if request.start > self.committed else None), None

    def _pause(self, request: PauseQueue, _now_ms: int) -> tuple[QueueEvent | None, None]:
        reason = request.reason[: self._settings.reason_chars_max] if request.is_paused else ""
        is_as_before = (request.is_paused, reason) == (self.is_paused, self.pause_reason)
        return (None if is_as_before else QueuePaused(request.is_paused, reason)), None

    def _configure(self, request: ConfigureQueue, _now_ms: int) -> tuple[QueueEvent | None, None]:
        check_own(request.values)
        self._topic_settings.with_values(request.values)  # which refuses what makes no sense together
        values = dict(sorted(request.values.items()))
        return (None if values == self._state.values else QueueConfigured(values)), None

    def _assign(self, request: AssignDeadLetterProducer, _now_ms: int) -> tuple[QueueEvent | None, None]:
        return (None if request.producer == self.producer else ProducerAssigned(*request.producer)), None

    def _seek(self, request: SeekQueue, _now_ms: int) -> tuple[QueueEvent | None, None]:
        if request.offset < 0:
            raise InvalidRequest(f"Offsets begin at 0; {request.offset} is none.")
        return QueueMoved(request.offset), None

    def _purge(self, request: PurgeBefore, _now_ms: int) -> tuple[QueueEvent | None, None]:
        return (QueueTrimmed(request.end) if request.end > self.committed else None), None

    def _forget(self, _request: ForgetQueue, _now_ms: int) -> tuple[QueueEvent | None, None]:
        return QueueForgotten(), None

    def _timeout_ms(self, asked_ms: int | None) -> int:
        longest_ms = self._settings.visibility_timeout_max_ms
        if asked_ms is None:
            return self._settings.visibility_timeout_ms
        if not 1 <= asked_ms <= longest_ms:
            raise InvalidRequest(f"A visibility timeout is between 1 and {longest_ms} ms, not {asked_ms}.")
        return asked_ms

    def dismiss_all(self, error: PenstockError) -> Outcome[QueueChange]:  # noqa: ARG002
        """No caller waits in here."""
        return Outcome()

    # -- what survives ------------------------------------------------------------------------------------------------

    def apply(self, change: QueueChange, at_ms: int, now_ms: int = 0) -> None:  # noqa: ARG002
        """Take over what was written to the log at ``at_ms``."""
        before = self._state.values
        self._state.apply(change.event, at_ms)
        if self._state.values is not before:
            self.configure(self._topic_settings)

    def hold(self, change: QueueChange, at_ms: int, producer_id: int) -> None:
        """Take over what was written to the log as a part of a transaction, which decides whether it counts."""
        self._state.hold(change.event, at_ms, producer_id)

    def producers_held(self) -> Collection[int]:
        """The producers in whose open transactions something was acked."""
        return self._deliveries.holds.producers()

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> LeasesSettled | None:
        """Take over the end of a transaction; what was acked by it, if anything was."""
        return self._state.end_transaction(producer_id, is_commit=is_commit)

    def resume(self, now_ms: int) -> None:
        """Begin to lead with what was read from the log."""
        self._state.set_clock(now_ms)
        self._state.tally = QueueTally()

    def configure(self, topic_settings: QueueSettings) -> None:
        """Go by other settings of the topic from now on; what was promised stays."""
        self._topic_settings = topic_settings
        try:
            settings = topic_settings.with_values(self._state.values)
        except InvalidConfig:  # written by another version of this; better its own settings than no queue
            settings = topic_settings
        self._settings = settings
        self._deliveries.supply_by(settings)

    @property
    def is_snapshot_due(self) -> bool:
        """Whether the changes since the last snapshot have become much longer than another one would be."""
        return self._state.is_snapshot_due

    def snapshot(self) -> QueueChange:
        """A change that stands for all before it; to be written and applied like any other, right away."""
        return self.draft_snapshot(-1)()

    def draft_snapshot(self, upto: int) -> Callable[[], QueueChange]:
        """The same for all before ``upto``, where the log ends now. What is returned is called in any thread.

        The change may be written later; until then others go on. Only the latest draft is of any use.
        """
        self._check_begun()
        draft = self._state.draft(upto)
        return lambda: QueueChange(self.id, draft.finish())


_RULES: Final[dict[type[Request[Any]], Callable[[Queue, Any, int], tuple[QueueEvent | None, object]]]] = {
    AckDeliveries: Queue._ack,
    NackDeliveries: Queue._nack,
    ReleaseDeliveries: Queue._release,
    RejectDeliveries: Queue._reject,
    ExtendLeases: Queue._extend,
    GrantLease: Queue._grant,
    ConfirmDeadLetters: Queue._confirm,
    SkipGaps: Queue._skip,
    TrimBefore: Queue._trim,
    PauseQueue: Queue._pause,
    ConfigureQueue: Queue._configure,
    AssignDeadLetterProducer: Queue._assign,
    SeekQueue: Queue._seek,
    PurgeBefore: Queue._purge,
    ForgetQueue: Queue._forget,
}
