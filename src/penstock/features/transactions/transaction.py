"""A transactional id as a state machine: no clock, no socket, no log, no partition.

Requests and the time come in; an `Outcome` goes out with the changes to persist and the replies to send. What must
survive a crash changes in `apply` alone. Between the decision to end a transaction and its completion stand the
partitions: the shard of this machine writes their markers when `owes_markers` says so, tells `on_marked`, and asks
again what was put off until then (`take_waiting`).

Times called ``now_ms`` only measure; they come from a clock that never jumps. Wall-clock times come with records.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final, NamedTuple

from penstock.config.settings import TransactionSettings
from penstock.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    PenstockError,
    TransactionalIdNotFound,
)
from penstock.features.transactions import epochs
from penstock.features.transactions.messages import AddToTransaction, End, Init, Terminate, Verify, Where
from penstock.features.transactions.records import Reason, StoredTransaction, TransactionChange, TransactionKey
from penstock.features.transactions.states import (
    DECIDED,
    SUCCESSORS,
    VERDICTS,
    TransactionEvent,
    TransactionState,
    TransactionVerdict,
)
from penstock.machines.messages import Outcome, ProducerIdentity, Rejected, Reply, Request

_REFUSED_RETRY_MS: Final = 1_000  # after a write that was refused, as by a full disk


class _Waiting(NamedTuple):
    """A request that has to wait for the end of a transaction."""

    request: Request[Any]
    reply: Reply
    deadline_ms: int


class _Ending(NamedTuple):
    """Somebody who wants to hear that a transaction has ended, and who the producer is from then on."""

    reply: Reply
    successor: ProducerIdentity
    deadline_ms: int


class Transaction:
    """One transactional id, its producer, and its transaction."""

    def __init__(self, transactional_id: str, config: TransactionSettings) -> None:
        self.id = transactional_id
        self._config = config
        self.stored: StoredTransaction | None = None
        self.updated_ms = -1  # by the wall clock
        self.started_ms = -1  # by the wall clock
        self._waiting: list[_Waiting] = []
        self._ending: list[_Ending] = []
        self._expires_ms: float = inf  # when the open transaction will have been open for too long
        self._completes_ms: float = inf  # when to try again to store that every partition was told
        self._is_marking = False
        self._has_ended = False
        self._dismissal: PenstockError | None = None
        self.wake_ms: float = inf  # nothing happens by itself before this time

    def __repr__(self) -> str:
        stored = self.stored
        if stored is None:
            return f"<Transaction {self.id!r} unknown>"
        return f"<Transaction {self.id!r} {stored.state.value}, producer {stored.producer_id}/{stored.producer_epoch}>"

    @property
    def state(self) -> TransactionState:
        return TransactionState.EMPTY if self.stored is None else self.stored.state

    @property
    def is_open(self) -> bool:
        """Whether there are records that are neither committed nor aborted for everybody to see."""
        return self.state is TransactionState.ONGOING or self.state in DECIDED

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing would be lost with it."""
        return self.stored is None

    # -- requests -----------------------------------------------------------------------------------------------------

    def handle(self, request: Request[Any], now_ms: int, reply: Reply) -> Outcome[TransactionChange]:
        """Decide on a request. The reply is in this outcome or a later one; an error instead changes nothing."""
        outcome = Outcome[TransactionChange]()
        match request:
            case Init():
                self._init(request, now_ms, reply, outcome)
            case AddToTransaction():
                self._add(request, now_ms, reply, outcome)
            case Verify():
                self._verify(request, reply, outcome)
            case End():
                self._end(request, now_ms, reply, outcome)
            case Terminate():
                self._terminate(now_ms, reply, outcome)
            case _:
                raise AssertionError(f"no rule for {request!r}")
        return outcome

    def _init(self, request: Init, now_ms: int, reply: Reply, outcome: Outcome[TransactionChange]) -> None:
        if not 0 < request.timeout_ms <= self._config.timeout_max_ms:
            raise InvalidTransactionTimeout(
                f"A transaction may be open for 1 to {self._config.timeout_max_ms} ms, not {request.timeout_ms}."
            )
        stored = self.stored
        verdict = VERDICTS[TransactionEvent.INIT][self.state]
        if verdict is TransactionVerdict.WAIT:
            self._wait(request, now_ms, reply)
        elif verdict is TransactionVerdict.TAKE_OVER:
            assert stored is not None
            if request.expected not in (None, stored.producer):
                raise epochs.fenced(request.expected, stored)
            self._decide(
                outcome, is_commit=False, bumps=True, reason=Reason.FENCED, fresh_producer_id=request.fresh_producer_id
            )
            outcome.reply(self._once_decided(reply, lambda: self._wait(request, now_ms, reply)), None)
        else:
            started = epochs.initialised(stored, request)
            self._change(started, outcome)
            outcome.reply(reply, started.producer)

    def _add(self, request: AddToTransaction, now_ms: int, reply: Reply, outcome: Outcome[TransactionChange]) -> None:
        stored = self._check_producer(request.producer)
        verdict = VERDICTS[TransactionEvent.ADD][self.state]
        if verdict is TransactionVerdict.WAIT:
            self._wait(request, now_ms, reply)
            return
        if stored.state is not TransactionState.ONGOING or self.lacking(request.partitions):
            started_ms = self.started_ms if stored.state is TransactionState.ONGOING else -1
            self._change(epochs.begun(stored, request.partitions, started_ms), outcome)
        outcome.reply(reply, None)

    def _verify(self, request: Verify, reply: Reply, outcome: Outcome[TransactionChange]) -> None:
        self._check_producer(request.producer)
        verdict = VERDICTS[TransactionEvent.VERIFY][self.state]
        if verdict is TransactionVerdict.LATER:
            raise ConcurrentTransactions(f"The last transaction of {self.id!r} is still being ended.")
        outcome.reply(
            reply, request.partitions if verdict is TransactionVerdict.REFUSE else self.lacking(request.partitions)
        )

    def lacking(self, partitions: frozenset[Where]) -> frozenset[Where]:
        """Those of the partitions that are not in the transaction."""
        present = self.stored.partitions if self.stored is not None else {}
        return frozenset(where for where in partitions if where[1] not in present.get(where[0], ()))

    def _end(self, request: End, now_ms: int, reply: Reply, outcome: Outcome[TransactionChange]) -> None:
        stored = self.stored
        event = self._event_of(request)
        assert stored is not None
        match VERDICTS[event][stored.state]:
            case TransactionVerdict.DO if stored.state is TransactionState.ONGOING:
                self._decide(
                    outcome,
                    is_commit=request.is_commit,
                    bumps=request.bumps,
                    reason=None if request.is_commit else Reason.CLIENT,
                    fresh_producer_id=request.fresh_producer_id,
                )
                self._join(now_ms, reply, outcome)
            case TransactionVerdict.DO:  # there is no partition to tell, so the end is complete at once
                aborted = epochs.decided(
                    stored, -1, is_commit=False, bumps=True, fresh_producer_id=request.fresh_producer_id
                )
                self._change(epochs.completed(aborted), outcome)
                outcome.reply(reply, aborted.successor)
            case TransactionVerdict.WAIT:
                self._wait(request, now_ms, reply)
            case TransactionVerdict.JOIN:
                self._join(now_ms, reply, outcome)
            case TransactionVerdict.ANSWER:
                outcome.reply(reply, stored.producer)
            case TransactionVerdict.FENCE:
                raise epochs.fenced(request.producer, stored)
            case _:
                what = "committed" if request.is_commit else "aborted"
                raise InvalidTxnState(f"{self.id!r} is {stored.state.value}; its transaction cannot be {what} now.")

    def _event_of(self, request: End) -> TransactionEvent:
        """What it means that this producer asks for an end."""
        if request.bumps and self.stored is not None and epochs.is_repeated(self.stored, request.producer):
            return TransactionEvent.COMMIT_AGAIN if request.is_commit else TransactionEvent.ABORT_AGAIN
        self._check_producer(request.producer)
        if request.bumps:
            return TransactionEvent.NEW_COMMIT if request.is_commit else TransactionEvent.NEW_ABORT
        return TransactionEvent.COMMIT if request.is_commit else TransactionEvent.ABORT

    def _terminate(self, now_ms: int, reply: Reply, outcome: Outcome[TransactionChange]) -> None:
        if self.stored is None:
            raise TransactionalIdNotFound(f"There is no transactional id {self.id!r}.")
        verdict = VERDICTS[TransactionEvent.TERMINATE][self.state]
        if verdict is TransactionVerdict.REFUSE:
            raise InvalidTxnState(f"{self.id!r} is {self.state.value}; there is no transaction to abort.")
        if verdict is TransactionVerdict.DO:
            self._decide(outcome, is_commit=False, bumps=True, reason=Reason.ADMIN)
        self._join(now_ms, reply, outcome)

    def _check_producer(self, producer: ProducerIdentity) -> StoredTransaction:
        """Refuse any but the producer that this transactional id has, or will have once its end is complete."""
        stored = self.stored
        if stored is None:
            raise InvalidProducerIdMapping(f"No producer has the transactional id {self.id!r}; start it anew.")
        current = stored.successor
        if producer.producer_id not in (current.producer_id, stored.producer_id):
            raise InvalidProducerIdMapping(
                f"{self.id!r} belongs to producer {current.producer_id}, not {producer.producer_id}."
            )
        if producer != current:
            raise epochs.fenced(producer, stored)
        return stored

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _wait(self, request: Request[Any], now_ms: int, reply: Reply) -> None:
        """Look at the request again once the transaction that is being ended has ended."""
        self._waiting.append(_Waiting(request, reply, now_ms + self._config.end_wait_ms))
        self._set_alarm()

    def _join(self, now_ms: int, reply: Reply, outcome: Outcome[TransactionChange]) -> None:
        """Answer once the transaction has ended, or after a while: from when it is decided nothing can change it."""
        decision = outcome.changes[-1].value if outcome.changes else self.stored
        assert decision is not None
        ending = _Ending(reply, decision.successor, now_ms + self._config.end_wait_ms)

        def join() -> None:
            if self.state in DECIDED:
                self._ending.append(ending)
                self._set_alarm()
            else:  # as fast as that
                reply(ending.successor)

        outcome.reply(self._once_decided(reply, join), None)

    def _once_decided(self, reply: Reply, go_on: Callable[[], None]) -> Reply:
        """Go on once what was decided is committed, unless it was refused or this machine has stopped meanwhile."""

        def settle(what: object) -> None:
            if isinstance(what, Rejected):
                reply(what)
            elif self._dismissal is not None:
                reply(Rejected(self._dismissal))
            else:
                go_on()

        return settle

    def _successor(self) -> ProducerIdentity:
        assert self.stored is not None
        return self.stored.successor

    def take_waiting(self) -> list[tuple[Request[Any], Reply]]:
        """What was put off until the end of the last transaction, and has to be asked again now, if it is over."""
        if not self._has_ended:
            return []
        self._has_ended = False
        waiting, self._waiting = self._waiting, []
        self._set_alarm()
        return [(each.request, each.reply) for each in waiting]

    def take_ending(self) -> list[tuple[Reply, ProducerIdentity]]:
        """Everybody who can be told that the transaction has ended."""
        ending, self._ending = self._ending, []
        self._set_alarm()
        return [(each.reply, each.successor) for each in ending]

    def dismiss_all(self, error: PenstockError) -> Outcome[TransactionChange]:
        """End every wait, as when another node takes over."""
        self._dismissal = error
        outcome = Outcome[TransactionChange]()
        for reply in [each.reply for each in self._waiting] + [each.reply for each in self._ending]:
            outcome.reply(reply, Rejected(error))
        self._waiting, self._ending = [], []
        return outcome

    # -- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> Outcome[TransactionChange]:
        """Let time pass: a transaction that is open for too long is aborted, and no caller waits for too long."""
        outcome = Outcome[TransactionChange]()
        for ending in [each for each in self._ending if each.deadline_ms <= now_ms]:
            self._ending.remove(ending)
            outcome.reply(ending.reply, ending.successor)
        late = Rejected(ConcurrentTransactions(f"The last transaction of {self.id!r} is still being ended."))
        for waiting in [each for each in self._waiting if each.deadline_ms <= now_ms]:
            self._waiting.remove(waiting)
            outcome.reply(waiting.reply, late)
        if self._expires_ms <= now_ms and VERDICTS[TransactionEvent.TIMEOUT][self.state] is TransactionVerdict.DO:
            self._expires_ms = now_ms + _REFUSED_RETRY_MS
            self._decide(outcome, is_commit=False, bumps=True, reason=Reason.TIMEOUT)
        if self._completes_ms <= now_ms:
            self._complete(now_ms, outcome)
        self._set_alarm()
        return outcome

    def expire(self, wall_ms: int) -> Outcome[TransactionChange]:
        """Forget a transactional id that no producer has used for long."""
        outcome = Outcome[TransactionChange]()
        is_old = self.updated_ms < wall_ms - self._config.id_retention_ms
        if (
            self.stored is not None
            and is_old
            and VERDICTS[TransactionEvent.EXPIRE][self.state] is TransactionVerdict.DO
        ):
            outcome.changes.append(TransactionChange(TransactionKey(self.id), None))
        return outcome

    def _set_alarm(self) -> None:
        deadlines = [each.deadline_ms for each in self._ending] + [each.deadline_ms for each in self._waiting]
        self.wake_ms = min(self._expires_ms, self._completes_ms, *deadlines)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _decide(
        self,
        outcome: Outcome[TransactionChange],
        *,
        is_commit: bool,
        bumps: bool,
        reason: Reason | None = None,
        fresh_producer_id: int = -1,
    ) -> None:
        assert self.stored is not None
        decision = epochs.decided(
            self.stored,
            self.started_ms,
            is_commit=is_commit,
            bumps=bumps,
            reason=reason,
            fresh_producer_id=fresh_producer_id,
        )
        self._change(decision, outcome)

    def owes_markers(self) -> bool:
        """Whether partitions are to be told of the decision from now on; true once for each decision."""
        if self._is_marking or self.state not in DECIDED:
            return False
        self._is_marking = True
        return True

    def on_marked(self, now_ms: int) -> Outcome[TransactionChange]:
        """Every partition was told."""
        outcome = Outcome[TransactionChange]()
        self._complete(now_ms, outcome)
        self._set_alarm()
        return outcome

    def _complete(self, now_ms: int, outcome: Outcome[TransactionChange]) -> None:
        assert self.stored is not None
        self._completes_ms = now_ms + _REFUSED_RETRY_MS
        self._change(epochs.completed(self.stored), outcome)

    # -- what survives ------------------------------------------------------------------------------------------------

    def _change(self, value: StoredTransaction, outcome: Outcome[TransactionChange]) -> None:
        assert value.state in SUCCESSORS[self.state], f"{self.state} cannot be followed by {value.state}"
        outcome.changes.append(TransactionChange(TransactionKey(self.id), value))

    def apply(self, change: TransactionChange, at_ms: int, now_ms: int = 0) -> None:
        """Take over what was written to the log at ``at_ms``."""
        was, self.stored = self.state, change.value
        self.updated_ms = at_ms
        if self.state is TransactionState.ONGOING:
            if was is not TransactionState.ONGOING:
                self._start_timer(now_ms)
            assert change.value is not None
            self.started_ms = change.value.started_ms if change.value.started_ms >= 0 else at_ms
        else:
            self._expires_ms = inf
        if self.state not in DECIDED:
            self._is_marking = False
            self._completes_ms = inf
            self._has_ended = was in DECIDED
        self._set_alarm()

    def resume(self, now_ms: int) -> None:
        """Go on with what was just read from the log: an open transaction has all its time again."""
        self._has_ended = False
        if self.state is TransactionState.ONGOING:
            self._start_timer(now_ms)
        self._set_alarm()

    def _start_timer(self, now_ms: int) -> None:
        assert self.stored is not None
        self._expires_ms = now_ms + self.stored.timeout_ms
