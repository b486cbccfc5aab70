"""A queue as a state machine: one group's deliveries of one partition, at the partition's leader.

Requests and the time come in; an `Outcome` goes out with the changes to persist and the replies to send. Only `apply`
changes what must survive, live as from the log. One request is at most one change. All times, those of records too,
are of one clock, which runs as a wall clock does but never jumps while a node leads.

To deliver, the shell asks for an `offer`, reads as much of it as fits into its answer, and has that granted, all in one
go. What else it performs: it writes `dead_letters` and confirms them, tells of gaps and of the log's start, ticks at
``wake_ms``, and writes a `snapshot` when one is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from penstock.broker.coordination.messages import Outcome, ProducerIdentity, Reply, Request
from penstock.broker.queues.core.claims import Claims
from penstock.broker.queues.core.config import QueueSettings
from penstock.broker.queues.core.failures import Failures
from penstock.broker.queues.core.holds import NOBODY
from penstock.broker.queues.core.intervals import Interval, IntervalSet
from penstock.broker.queues.core.messages import (
    Ack,
    AssignProducer,
    Begin,
    Configure,
    Confirm,
    DeadLetter,
    Extend,
    Forget,
    Grant,
    Granted,
    Judged,
    Nack,
    Offered,
    Pause,
    Purge,
    QueueStats,
    Reject,
    Release,
    Seek,
    Skip,
    Trim,
)
from penstock.broker.queues.core.pool import Run
from penstock.broker.queues.core.receipts import SECRET_BYTES, Receipt, Seal
from penstock.broker.queues.core.records import (
    Assigned,
    Begun,
    Cause,
    Change,
    Configured,
    Event,
    Extended,
    Forgotten,
    Leased,
    Moved,
    Paused,
    Settled,
    Trimmed,
)
from penstock.broker.queues.core.rows import ACKED, DYING, LEASED, WAITING, Row, joined, joined_by_count
from penstock.broker.queues.core.state import QueueState
from penstock.broker.queues.core.supply import Supply
from penstock.broker.queues.core.tally import Tally
from penstock.cluster.queue_config import check_own
from penstock.errors import GroupNotFound, InvalidConfig, InvalidRequest, PenstockError

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
        """Who writes the dead letters; None until `AssignProducer`."""
        return self._state.producer

    def take_tally(self) -> Tally:
        """What was done since the last time somebody asked, or since this node leads."""
        tally, self._state.tally = self._state.tally, Tally()
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

    def stats(self, end: int) -> QueueStats:
        """What is there up to the log's end."""
        leased, waiting, dying, acked = (self._deliveries.count(kind) for kind in (LEASED, WAITING, DYING, ACKED))
        ready = max(0, end - self.committed - leased - waiting - dying - acked)
        oldest = self.committed if self.committed < end else None
        return QueueStats(
            self.committed, ready, leased, waiting, dying, acked, self.is_paused, self.pause_reason, oldest
        )

    def rows_from(self, first: int, last: int) -> Iterator[Row]:
        """What is known of messages between two offsets, by offset; those left out were never delivered."""
        return self._deliveries.within(first, last)

    def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        """What has to be written to the dead letters and confirmed."""
        return self._deliveries.dead_letters(limit)

    # -- handing out --------------------------------------------------------------------------------------------------

    def offer(self, consumer: str, limit: int, end: int, now_ms: int) -> list[Offered]:
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

    def _with_counts(self, interval: Interval) -> list[Offered]:
        if not self._deliveries.rows.has_any(*interval):
            return [Offered(interval.first, interval.last, 1)]
        again = [Offered(row.first, row.last, row.deliveries + 1) for row in self._deliveries.within(*interval)]
        fresh = [Offered(gap.first, gap.last, 1) for gap in self._deliveries.rows.gaps(*interval)]
        return sorted(again + fresh)

    def unseen(self, limit: int, end: int) -> Interval | None:
        """What the shell has to look at, telling `see` of it, before it asks for an offer; only where order matters."""
        return self._deliveries.supply.unseen(limit, self.committed, end)

    def see(self, first: int, keys: Sequence[int | None], runs: Sequence[Run] = ()) -> None:
        """Hear the keys of messages from ``first`` on, as hashes, None for one without a key; and their lanes."""
        self._deliveries.supply.see(first, keys, runs)

    @property
    def supply(self) -> Supply:
        """Who chooses what is handed out next."""
        return self._deliveries.supply

    # -- decisions ----------------------------------------------------------------------------------------------------

    def handle(self, request: Request[Any], now_ms: int, reply: Reply) -> Outcome[Change]:
        """Decide on a request. The reply is in the outcome; an error instead changes nothing."""
        if isinstance(request, Begin):
            event, answer = self._begin(request), None
        else:
            self._check_begun()
            event, answer = _RULES[type(request)](self, request, now_ms)
        outcome: Outcome[Change] = Outcome()
        if event is not None:
            outcome.changes.append(Change(self.id, event))
            outcome.producer = request.producer if isinstance(request, Ack) else None
        outcome.reply(reply, answer)
        return outcome

    def tick(self, now_ms: int) -> Outcome[Change]:
        """Let time pass: leases end, retries become due."""
        outcome: Outcome[Change] = Outcome()
        self._deliveries.wake(now_ms)
        ended = self._deliveries.ended(now_ms, _ENDED_AT_ONCE)
        if ended:
            # The lease was the wait: what it covered can be delivered again at once.
            event = self._failures(Cause.EXPIRY, EXPIRED).retried(sorted(ended), now_ms, lambda _: 0)
            outcome.changes.append(Change(self.id, event))
        return outcome

    def _check_begun(self) -> Seal:
        if self._state.seal is None:
            raise GroupNotFound(f"No queue group {self.id!r} reads {self.topic}-{self.partition}.")
        return self._state.seal

    def _begin(self, request: Begin) -> Event | None:
        if len(request.secret) != SECRET_BYTES or request.start < 0:
            raise InvalidRequest(f"A group begins at an offset from 0 on, with a secret of {SECRET_BYTES} bytes.")
        return None if self._state.seal is not None else Begun(request.start, request.secret)

    def _grant(self, request: Grant, now_ms: int) -> tuple[Event | None, Granted]:
        until_ms = now_ms + self._timeout_ms(request.visibility_timeout_ms)
        room = self._room(request.consumer)
        taken = IntervalSet() if len(request.offered) > 1 else None
        deliveries: list[Offered] = []
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
        answer = Granted(tuple(deliveries), self._check_begun().nonce(lease), until_ms)
        if not deliveries and not gaps:
            return None, answer
        spans = [(first, last, count) for first, last, count in deliveries]
        return Leased(lease, request.consumer, until_ms, spans, gaps), answer

    def _room(self, consumer: str) -> int:
        """How many messages a consumer may get now."""
        if self.is_paused:
            return 0
        of_group = self._settings.in_flight_group_max - self.in_flight
        if not consumer:  # nobody in particular, so there is nobody to have a limit
            return of_group
        return min(of_group, self._settings.in_flight_consumer_max - self.held_by(consumer))

    def _is_grantable(self, offered: Offered) -> bool:
        """Whether what was offered still is as it was."""
        first, last, count = offered
        if not self.committed <= first <= last or not self._deliveries.supply.is_free(first, last):
            return False
        if not self._deliveries.rows.has_any(first, last):
            return count == 1
        rows = list(self._deliveries.within(first, last))
        return rows[0].first == first and rows[0].last == last and rows[0].deliveries == count - 1

    def _claim(
        self, receipts: Sequence[Receipt], *, owner: int = NOBODY, heeds_holds: bool = True
    ) -> tuple[list[Row], Judged]:
        claims = Claims(
            self._deliveries, self._check_begun(), self._state.last_lease, owner=owner, heeds_holds=heeds_holds
        )
        claims.add(receipts, self.topic, self.partition)
        return claims.rows, Judged(tuple(claims.parts))

    def _ack(self, request: Ack, _now_ms: int) -> tuple[Event | None, Judged]:
        owner = NOBODY if request.producer is None else request.producer.producer_id
        rows, judged = self._claim(request.receipts, owner=owner)
        return (Settled(acked=joined(rows)) if rows else None), judged

    def _nack(self, request: Nack, now_ms: int) -> tuple[Event | None, Judged]:
        delay_ms, longest_ms = request.delay_ms, self._settings.retry_delay_max_ms
        if delay_ms is not None and not 0 <= delay_ms <= longest_ms:
            raise InvalidRequest(f"A delay is between 0 and {longest_ms} ms, not {delay_ms}.")
        rows, judged = self._claim(request.receipts)
        if not rows:
            return None, judged
        delay_of = self._settings.backoff_ms if delay_ms is None else lambda _: delay_ms
        return self._failures(Cause.NACK, request.reason or GAVE_UP).retried(rows, now_ms, delay_of), judged

    def _release(self, request: Release, now_ms: int) -> tuple[Event | None, Judged]:
        rows, judged = self._claim(request.receipts)
        if not rows:
            return None, judged
        waiting = [(first, last, count - 1, now_ms) for first, last, count in joined_by_count(rows)]
        return Settled(waiting=waiting, cause=Cause.RELEASE), judged

    def _reject(self, request: Reject, _now_ms: int) -> tuple[Event | None, Judged]:
        rows, judged = self._claim(request.receipts)
        event = self._failures(Cause.REJECT, request.reason or REJECTED).buried(rows) if rows else None
        return event, judged

    def _extend(self, request: Extend, now_ms: int) -> tuple[Event | None, Judged]:
        until_ms = now_ms + self._timeout_ms(request.visibility_timeout_ms)
        rows, judged = self._claim(request.receipts, heeds_holds=False)
        return (Extended(until_ms, joined(rows)) if rows else None), judged

    def _failures(self, cause: Cause, reason: str) -> Failures:
        return Failures(self._settings, self._state.last_dead_letter, cause, reason)

    def _confirm(self, request: Confirm, _now_ms: int) -> tuple[Event | None, None]:
        rows = sorted(chain.from_iterable(self._deliveries.remains(number) for number in dict.fromkeys(request.ids)))
        return (Settled(acked=joined(rows), cause=Cause.BURIAL) if rows else None), None

    def _skip(self, request: Skip, _now_ms: int) -> tuple[Event | None, None]:
        gaps = self._deliveries.undone_parts(request.gaps)
        return (Settled(acked=gaps, cause=Cause.GAP) if gaps else None), None

    def _trim(self, request: Trim, _now_ms: int) -> tuple[Event | None, None]:
        return (Trimmed(request.start) if request.start > self.committed else None), None

    def _pause(self, request: Pause, _now_ms: int) -> tuple[Event | None, None]:
        reason = request.reason[: self._settings.reason_chars_max] if request.is_paused else ""
        is_as_before = (request.is_paused, reason) == (self.is_paused, self.pause_reason)
        return (None if is_as_before else Paused(request.is_paused, reason)), None

    def _configure(self, request: Configure, _now_ms: int) -> tuple[Event | None, None]:
        check_own(request.values)
        self._topic_settings.with_values(request.values)  # which refuses what makes no sense together
        values = dict(sorted(request.values.items()))
        return (None if values == self._state.values else Configured(values)), None

    def _assign(self, request: AssignProducer, _now_ms: int) -> tuple[Event | None, None]:
        return (None if request.producer == self.producer else Assigned(*request.producer)), None

    def _seek(self, request: Seek, _now_ms: int) -> tuple[Event | None, None]:
        if request.offset < 0:
            raise InvalidRequest(f"Offsets begin at 0; {request.offset} is none.")
        return Moved(request.offset), None

    def _purge(self, request: Purge, _now_ms: int) -> tuple[Event | None, None]:
        return (Trimmed(request.end) if request.end > self.committed else None), None

    def _forget(self, _request: Forget, _now_ms: int) -> tuple[Event | None, None]:
        return Forgotten(), None

    def _timeout_ms(self, asked_ms: int | None) -> int:
        longest_ms = self._settings.visibility_timeout_max_ms
        if asked_ms is None:
            return self._settings.visibility_timeout_ms
        if not 1 <= asked_ms <= longest_ms:
            raise InvalidRequest(f"A visibility timeout is between 1 and {longest_ms} ms, not {asked_ms}.")
        return asked_ms

    def dismiss_all(self, error: PenstockError) -> Outcome[Change]:  # noqa: ARG002
        """Nobody waits in here."""
        return Outcome()

    # -- what survives ------------------------------------------------------------------------------------------------

    def apply(self, change: Change, at_ms: int, now_ms: int = 0) -> None:  # noqa: ARG002
        """Take over what was written to the log at ``at_ms``."""
        before = self._state.values
        self._state.apply(change.event, at_ms)
        if self._state.values is not before:
            self.configure(self._topic_settings)

    def hold(self, change: Change, at_ms: int, producer_id: int) -> None:
        """Take over what was written to the log as a part of a transaction, which decides whether it counts."""
        self._state.hold(change.event, at_ms, producer_id)

    def holds_for(self, producer_id: int) -> bool:
        """Whether something was acked in a producer's open transaction."""
        return self._deliveries.holds.has_any_of(producer_id)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> Settled | None:
        """Take over the end of a transaction; what was acked by it, if anything was."""
        return self._state.end_transaction(producer_id, is_commit=is_commit)

    def resume(self, now_ms: int) -> None:
        """Begin to lead with what was read from the log."""
        self._state.set_clock(now_ms)
        self._state.tally = Tally()

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

    def snapshot(self) -> Change:
        """A change that stands for all before it; to be written and applied like any other, right away."""
        return self.draft_snapshot(-1)()

    def draft_snapshot(self, upto: int) -> Callable[[], Change]:
        """The same for all before ``upto``, where the log ends now. What is returned is called in any thread.

        The change may be written later; until then others go on. Only the latest draft is of any use.
        """
        self._check_begun()
        draft = self._state.draft(upto)
        return lambda: Change(self.id, draft.finish())


_RULES: Final[dict[type[Request[Any]], Callable[[Queue, Any, int], tuple[Event | None, object]]]] = {
    Ack: Queue._ack,
    Nack: Queue._nack,
    Release: Queue._release,
    Reject: Queue._reject,
    Extend: Queue._extend,
    Grant: Queue._grant,
    Confirm: Queue._confirm,
    Skip: Queue._skip,
    Trim: Queue._trim,
    Pause: Queue._pause,
    Configure: Queue._configure,
    AssignProducer: Queue._assign,
    Seek: Queue._seek,
    Purge: Queue._purge,
    Forget: Queue._forget,
}
