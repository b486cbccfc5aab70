"""The rules of a transactional id as two tables; everything else in this package carries them out.

`VERDICTS` says how an event is met in each state, `SUCCESSORS` which states may follow on each. A pair that `VERDICTS`
leaves out cannot happen. Which of several events a request is depends on who sends it: see `TransactionEvent`.

             ┌──────────────────────────────── init ───────────────────────────────────┐
             ▼                                                                         │
           EMPTY ──add──▶ ONGOING ──commit──▶ PREPARE_COMMIT ──all marked──▶ COMPLETE_COMMIT
                           ▲   │                                                       │
                           │   └───abort────▶ PREPARE_ABORT  ──all marked──▶ COMPLETE_ABORT
                           └───────────────────────── add ─────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class TransactionState(Enum):
    """Where a transactional id is. The values are the names that Kafka's tools show."""

    EMPTY = "Empty"  # a producer has its identity, and has not written yet
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"  # decided; partitions are being told
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"  # every partition has its marker
    COMPLETE_ABORT = "CompleteAbort"


class TransactionEvent(Enum):
    """What happens to a transactional id.

    Producers of the first protocol keep their epoch from one transaction to the next. Those of the second (KIP-890) get
    a new one with each end, so that a repeated request can be told from a new one.
    """

    INIT = "a producer starts, and wants an identity"
    ADD = "the producer is about to write to partitions"
    VERIFY = "a partition asks whether the producer may write to it"
    COMMIT = "a producer of the first protocol commits, or repeats that it does"
    ABORT = "a producer of the first protocol aborts, or repeats that it does"
    NEW_COMMIT = "a producer of the second protocol commits, in its present epoch"
    NEW_ABORT = "a producer of the second protocol aborts, in its present epoch"
    COMMIT_AGAIN = "a producer of the second protocol repeats a commit, in the epoch that this ended"
    ABORT_AGAIN = "a producer of the second protocol repeats an abort, in the epoch that this ended"
    TIMEOUT = "the transaction has been open for too long"
    TERMINATE = "an operator wants the transaction aborted"
    EXPIRE = "no producer has used the transactional id for long"


class TransactionVerdict(Enum):
    """How an event is met."""

    DO = "carried out"
    TAKE_OVER = "the open transaction is aborted first, in an epoch that its producer does not have"
    WAIT = "looked at again once the transaction that is being ended has ended"
    JOIN = "that is being done: answered once it is"
    ANSWER = "that was done already: answered as the first time"
    LATER = "refused for now: a transaction is being ended"
    REFUSE = "refused: that cannot be done from here"
    FENCE = "refused: the epoch is over"


EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState
DECIDED: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})

DO, TAKE_OVER, WAIT, JOIN, ANSWER, LATER, REFUSE, FENCE = TransactionVerdict


def _row(*verdicts: TransactionVerdict | None) -> dict[TransactionState, TransactionVerdict]:
    return {state: verdict for state, verdict in zip(TransactionState, verdicts, strict=True) if verdict is not None}


VERDICTS: Final[Mapping[TransactionEvent, Mapping[TransactionState, TransactionVerdict]]] = {
    #                       EMPTY   ONGOING    PREPARE_COMMIT PREPARE_ABORT COMPLETE_COMMIT COMPLETE_ABORT
    TransactionEvent.INIT:         _row(DO,     TAKE_OVER, WAIT,          WAIT,         DO,             DO),
    TransactionEvent.ADD:          _row(DO,     DO,        WAIT,          WAIT,         DO,             DO),
    TransactionEvent.VERIFY:       _row(REFUSE, DO,        LATER,         LATER,        REFUSE,         REFUSE),
    TransactionEvent.COMMIT:       _row(REFUSE, DO,        JOIN,          REFUSE,       ANSWER,         REFUSE),
    TransactionEvent.ABORT:        _row(REFUSE, DO,        REFUSE,        JOIN,         REFUSE,         ANSWER),
    TransactionEvent.NEW_COMMIT:   _row(REFUSE, DO,        WAIT,          WAIT,         REFUSE,         REFUSE),
    # Without having heard of a partition: a produce that would have told may be lost on its way here. The new epoch
    # that comes with the answer keeps it out, should it still arrive.
    TransactionEvent.NEW_ABORT:    _row(DO,     DO,        WAIT,          WAIT,         DO,             DO),
    TransactionEvent.COMMIT_AGAIN: _row(FENCE,  None,      JOIN,          REFUSE,       ANSWER,         REFUSE),
    TransactionEvent.ABORT_AGAIN:  _row(FENCE,  None,      REFUSE,        JOIN,         REFUSE,         ANSWER),
    TransactionEvent.TIMEOUT:      _row(None,   DO,        None,          None,         None,           None),
    TransactionEvent.TERMINATE:    _row(REFUSE, DO,        REFUSE,        JOIN,         REFUSE,         REFUSE),
    TransactionEvent.EXPIRE:       _row(DO,     REFUSE,    REFUSE,        REFUSE,       DO,             DO),
}  # fmt: skip

SUCCESSORS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    # From an end an abort without partitions leads straight to the next: there is no partition to be told.
    EMPTY: frozenset({EMPTY, ONGOING, COMPLETE_ABORT}),
    ONGOING: frozenset({ONGOING, PREPARE_COMMIT, PREPARE_ABORT}),
    PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
    PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
    COMPLETE_COMMIT: frozenset({EMPTY, ONGOING, COMPLETE_ABORT}),
    COMPLETE_ABORT: frozenset({EMPTY, ONGOING, COMPLETE_ABORT}),
}
