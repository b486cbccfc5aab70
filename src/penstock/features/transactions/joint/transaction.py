"""One joint transaction, as a state machine without clock, socket or log.

A writer is entered, with the partitions it is about to write to, before anything of it goes there; so the node that
ends the transaction knows every place that may hold something. The decision names the writers that are committed and
comes before the first marker; from then on nothing can change it, and a crash only means that markers are written
again.

A writer may number its calls. Then each call is written down before its messages are, with the partition of each, so
that a call which was cut short can be finished and one that was not is told what it was told before.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from penstock.config.settings import TransactionSettings
from penstock.errors import (
    DuplicateSequence,
    IdempotencyKeyReused,
    InvalidTransactionTimeout,
    OutOfOrderSequence,
    PenstockError,
    TransactionEnded,
    TransactionLimitReached,
    TransactionNotFound,
    TransactionTimedOut,
    UnknownWriter,
)
from penstock.features.transactions.joint.messages import (
    AbortJoint,
    AwaitEnd,
    CommitJoint,
    Enter,
    Entered,
    ExtendJoint,
    JointEnd,
    Open,
    Opened,
)
from penstock.features.transactions.joint.records import (
    JointChange,
    JointKey,
    StoredCall,
    StoredJoint,
    StoredWriter,
    WriterKey,
    WriterPlace,
)
from penstock.features.transactions.joint.states import (
    DECIDED,
    ENDED,
    TRANSITIONS,
    VERDICTS,
    JointEvent,
    JointState,
    JointStep,
    JointVerdict,
)
from penstock.features.transactions.records import Reason
from penstock.machines.messages import Outcome as CoordinatorOutcome
from penstock.machines.messages import Rejected, Reply, Request
from penstock.model import queue_parent

Outcome = CoordinatorOutcome[JointChange]

_REFUSED_RETRY_MS: Final = 1_000  # after a write that was refused, as by a full disk


class Marking(NamedTuple):
    """A writer's partitions and how its part of the transaction ends there."""

    producer_id: int
    is_commit: bool
    places: tuple[WriterPlace, ...]


class JointTransaction:
    """A transaction that several writers share."""

    def __init__(self, name: str, config: TransactionSettings) -> None:
        self.id = name
        self._config = config
        self.stored: StoredJoint | None = None
        self.writers: dict[str, StoredWriter] = {}
        self.deadline_ms: float = inf
        self.ended_ms = -1  # by the wall clock
        self._waiting: list[Reply] = []
        self._finish_ms: float = inf  # when to store, if need be again, that every partition was told
        self._is_marking = False

    @property
    def state(self) -> JointState:
        return JointState.NONE if self.stored is None else self.stored.state

    @property
    def wake_ms(self) -> float:
        return min(self.deadline_ms, self._finish_ms)

    @property
    def is_open(self) -> bool:
        """Whether there may be messages that are neither committed nor aborted for everybody to see."""
        return self.state is JointState.OPEN or self.state in DECIDED

    @property
    def is_forgettable(self) -> bool:
        return self.stored is None

    def check_open(self) -> None:
        """Refuse unless writers may write at this moment."""
        self._verdict(JointEvent.ENTER)

    # -- deciding -----------------------------------------------------------------------------------------------------

    def handle(self, request: Request[Any], now_ms: int, reply: Reply) -> Outcome:
        match request:
            case Open():
                return self._open(request, now_ms, reply)
            case Enter():
                return self._enter(request, reply)
            case ExtendJoint():
                return self._extend(request, now_ms, reply)
            case CommitJoint():
                return self._commit(request, reply)
            case AbortJoint():
                return self._abort(request.reason, reply)
            case AwaitEnd():
                return self._result(reply)
        raise AssertionError(f"a joint transaction is not asked for {request}")

    def tick(self, now_ms: int) -> Outcome:
        if now_ms >= self.deadline_ms and VERDICTS[JointEvent.TIMEOUT][self.state] is JointVerdict.DO:
            self.deadline_ms = now_ms + _REFUSED_RETRY_MS
            return Outcome([self._decide(JointStep.ABORT, reason=Reason.TIMEOUT)])
        if now_ms >= self._finish_ms:
            return self._finish(now_ms)
        return Outcome()

    def replace(self) -> Outcome:
        """A newer run of its series takes over: abort it, if it is not decided yet."""
        if VERDICTS[JointEvent.ABORT][self.state] is not JointVerdict.DO:
            return Outcome()
        return Outcome([self._decide(JointStep.ABORT, reason=Reason.FENCED)])

    def expire(self, wall_ms: int, retention_ms: int) -> Outcome:
        """Forget how it ended, if that was long ago."""
        is_old = self.ended_ms + retention_ms <= wall_ms
        if is_old and VERDICTS[JointEvent.EXPIRE][self.state] is JointVerdict.DO:
            return Outcome([JointChange(JointKey(self.id), None)])
        return Outcome()

    def dismiss_all(self, error: PenstockError) -> Outcome:
        waiting, self._waiting = self._waiting, []
        return Outcome(replies=[(reply, Rejected(error)) for reply in waiting])

    def _verdict(self, event: JointEvent) -> JointVerdict:
        verdict = VERDICTS[event][self.state]
        if verdict is JointVerdict.UNKNOWN:
            raise TransactionNotFound(f"There is no transaction {self.id!r}, or it ended too long ago.")
        if verdict is JointVerdict.ENDED:
            raise self._over()
        return verdict

    def _over(self) -> TransactionEnded:
        stored = self.stored
        assert stored is not None
        if stored.reason is Reason.TIMEOUT:
            return TransactionTimedOut(
                f"Transaction {self.id} was open for more than {stored.timeout_ms} ms and was aborted. Open a new one, "
                "with more time or extending it now and then."
            )
        return TransactionEnded(f"Transaction {self.id} is {stored.state.value}. Open a new one.")

    def _open(self, request: Open, now_ms: int, reply: Reply) -> Outcome:
        self._verdict(JointEvent.OPEN)
        self._check_timeout(request.timeout_ms)
        opened = StoredJoint(
            state=JointState.OPEN, timeout_ms=request.timeout_ms, opened_ms=request.at_ms, part=request.part
        )
        outcome = Outcome([JointChange(JointKey(self.id), opened)])
        outcome.reply(reply, Opened(request.timeout_ms, now_ms + request.timeout_ms))
        return outcome

    def _extend(self, request: ExtendJoint, now_ms: int, reply: Reply) -> Outcome:
        self._verdict(JointEvent.EXTEND)
        stored = self.stored
        assert stored is not None
        timeout_ms = stored.timeout_ms if request.timeout_ms is None else request.timeout_ms
        self._check_timeout(timeout_ms)
        outcome = Outcome([JointChange(JointKey(self.id), replace(stored, timeout_ms=timeout_ms))])
        outcome.reply(reply, Opened(timeout_ms, now_ms + timeout_ms))
        return outcome

    def _check_timeout(self, timeout_ms: int) -> None:
        longest_ms = self._config.timeout_max_ms
        if not 0 < timeout_ms <= longest_ms:
            raise InvalidTransactionTimeout(f"A transaction can be open for 1 to {longest_ms} ms, not {timeout_ms}.")

    # -- writers ------------------------------------------------------------------------------------------------------

    def _enter(self, request: Enter, reply: Reply) -> Outcome:
        self._verdict(JointEvent.ENTER)
        known = self.writers.get(request.writer)
        if known is None and len(self.writers) >= self._config.joint_writers_max:
            raise TransactionLimitReached(
                f"Transaction {self.id} has {len(self.writers)} writers already, and may not have more."
            )
        is_repeat = request.call is not None and self._is_repeat(request.writer, known, request.call)
        if request.call is None and not request.acks and known is not None and known.call is not None:
            raise OutOfOrderSequence(f"Writer {request.writer!r} numbers its calls; this one has no number.")
        outcome = Outcome()
        if is_repeat:
            assert known is not None
            entered = known
        else:
            entered = _entered(request, known)
            if entered != known:
                outcome.changes.append(JointChange(WriterKey(self.id, request.writer), entered))
        outcome.reply(reply, Entered(entered, is_repeat))
        return outcome

    def _is_repeat(self, name: str, known: StoredWriter | None, call: StoredCall) -> bool:
        """Whether a numbered call is the writer's last one again; refused unless it is that or the next."""
        last = None if known is None else known.call
        if known is not None and last is None and not _has_only_acked(known):
            raise OutOfOrderSequence(f"Writer {name!r} has not numbered its calls so far; number all of them or none.")
        expected = 0 if last is None else last.next_sequence
        if call.sequence == expected:
            return False
        if call.sequence > expected:
            raise OutOfOrderSequence(
                f"Writer {name!r} sends message {call.sequence} where message {expected} comes next: what is between "
                "them is missing. Send that first."
            )
        assert last is not None
        if call.sequence < last.sequence:
            raise DuplicateSequence(
                f"Writer {name!r} repeats message {call.sequence}. That is stored already; only its last call, which "
                f"began with message {last.sequence}, can be repeated."
            )
        if call.sequence != last.sequence or not _is_same(call, last):
            raise DuplicateSequence(
                f"Writer {name!r} has sent other messages from number {last.sequence} on than it does now."
            )
        return True

    # -- the end ------------------------------------------------------------------------------------------------------

    def _commit(self, request: CommitJoint, reply: Reply) -> Outcome:
        stored = self.stored
        is_again = stored is not None and request.key is not None and stored.key == request.key
        verdict = self._verdict(JointEvent.COMMIT_AGAIN if is_again else JointEvent.COMMIT)
        asked = None if request.writers is None else tuple(sorted(set(request.writers)))
        outcome = Outcome()
        if verdict is JointVerdict.DO:
            unknown = sorted(set(asked or ()) - set(self.writers))
            if unknown:
                names = ", ".join(map(repr, unknown))
                raise UnknownWriter(f"Nothing was committed: {names} wrote nothing into transaction {self.id}.")
            outcome.changes.append(self._decide(JointStep.COMMIT, key=request.key, asked=asked))
        elif stored is not None and stored.asked != asked:
            raise IdempotencyKeyReused(
                f"Transaction {self.id} was committed with this key before, but for other writers. Its outcome stands."
            )
        outcome.reply(reply, None)
        return outcome

    def _abort(self, reason: Reason, reply: Reply) -> Outcome:
        outcome = Outcome()
        if self._verdict(JointEvent.ABORT) is JointVerdict.DO:
            outcome.changes.append(self._decide(JointStep.ABORT, reason=reason))
        outcome.reply(reply, None)
        return outcome

    def _decide(
        self,
        step: JointStep,
        *,
        key: str | None = None,
        asked: tuple[str, ...] | None = None,
        reason: Reason | None = None,
    ) -> JointChange:
        stored = self.stored
        assert stored is not None
        chosen: tuple[str, ...] = ()
        if step is JointStep.COMMIT:
            chosen = tuple(sorted(self.writers)) if asked is None else asked
        decided = replace(
            stored,
            state=TRANSITIONS[step][stored.state],
            key=key,
            asked=asked,
            committed=chosen,
            aborted=tuple(sorted(set(self.writers) - set(chosen))),
            reason=reason,
        )
        return JointChange(JointKey(self.id), decided)

    def take_markings(self) -> list[Marking] | None:
        """What the partitions have to be told, once it is decided; None if there is nothing, or it was taken."""
        stored = self.stored
        if stored is None or stored.state not in DECIDED or self._is_marking:
            return None
        self._is_marking = True
        committed = set(stored.committed)
        return [Marking(known.producer_id, name in committed, known.places) for name, known in self.writers.items()]

    def on_marked(self, now_ms: int) -> Outcome:
        """Every partition has its markers."""
        return self._finish(now_ms) if VERDICTS[JointEvent.MARKED][self.state] is JointVerdict.DO else Outcome()

    def _result(self, reply: Reply) -> Outcome:
        outcome = Outcome()
        if self._verdict(JointEvent.RESULT) is JointVerdict.ANSWER:
            assert self.stored is not None
            outcome.reply(reply, _ended(self.stored))
        else:
            self._waiting.append(reply)
        return outcome

    def _finish(self, now_ms: int) -> Outcome:
        stored = self.stored
        assert stored is not None
        self._finish_ms = now_ms + _REFUSED_RETRY_MS
        finished = replace(stored, state=TRANSITIONS[JointStep.FINISH][stored.state])
        outcome = Outcome([JointChange(JointKey(self.id), finished)])
        outcome.changes += [JointChange(WriterKey(self.id, name), None) for name in self.writers]
        waiting, self._waiting = self._waiting, []
        outcome.replies = [(waiter, _ended(finished)) for waiter in waiting]
        return outcome

    # -- applying -----------------------------------------------------------------------------------------------------

    def apply(self, change: JointChange, at_ms: int, now_ms: int = 0) -> None:
        key, value = change.key, change.value
        if isinstance(key, WriterKey):
            if value is None:
                self.writers.pop(key.writer, None)
            else:
                assert isinstance(value, StoredWriter)
                self.writers[key.writer] = value
            return
        assert value is None or isinstance(value, StoredJoint)
        self.stored = value
        self.deadline_ms = now_ms + value.timeout_ms if value is not None and value.state is JointState.OPEN else inf
        self.ended_ms = at_ms if value is not None and value.state in ENDED else -1
        self._finish_ms = inf

    def resume(self, now_ms: int) -> None:
        """No writer is punished for the time this node was away, so an open transaction's time starts anew."""
        if self.stored is not None and self.stored.state is JointState.OPEN:
            self.deadline_ms = now_ms + self.stored.timeout_ms


def _ended(stored: StoredJoint) -> JointEnd:
    assert stored.state in ENDED, "it has not ended"
    return JointEnd(stored.state, stored.committed, stored.aborted, stored.reason)


def _entered(request: Enter, known: StoredWriter | None) -> StoredWriter:
    """The writer as it is once the call is written down."""
    sent = Counter(() if request.call is None else request.call.spread)
    places = {(place.topic_id, place.partition): place for place in (known.places if known else ())}
    for partition in sorted(request.partitions):
        at = (request.topic_id, partition)
        before = places[at].sent if at in places else 0
        places[at] = WriterPlace(request.topic, request.topic_id, partition, before + sent[partition])
    producer_id = request.fresh_producer_id if known is None else known.producer_id
    call = known.call if request.acks and known is not None else request.call
    return StoredWriter(producer_id=producer_id, places=tuple(places.values()), call=call)


def _has_only_acked(known: StoredWriter) -> bool:
    return all(queue_parent(place.topic) is not None for place in known.places)


def _is_same(call: StoredCall, last: StoredCall) -> bool:
    return (call.topic_id, call.digest, len(call.spread)) == (last.topic_id, last.digest, len(last.spread))
