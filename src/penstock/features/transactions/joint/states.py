"""The rules of a joint transaction as two tables; everything else in this package carries them out.

`VERDICTS` says how an event is met in each state, `TRANSITIONS` which steps lead from one state to the next.

    NONE ──open──▶ OPEN ──commit──▶ COMMITTING ──marked──▶ COMMITTED ──forget──▶ NONE
                    │                                                             ▲
                    └─────abort───▶ ABORTING  ───marked──▶ ABORTED ────forget─────┘

A transaction is opened once and ends once, so its id never comes back with another outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class JointState(Enum):
    """Where a joint transaction is. The values are what the REST door shows."""

    NONE = "none"  # never opened, or forgotten
    OPEN = "open"
    COMMITTING = "committing"  # decided; partitions are being told
    ABORTING = "aborting"
    COMMITTED = "committed"  # every partition has its markers
    ABORTED = "aborted"


class JointEvent(Enum):
    """What happens to a joint transaction."""

    OPEN = "somebody opens it"
    ENTER = "a writer is about to write"
    EXTEND = "somebody wants more time"
    COMMIT = "somebody commits it"
    COMMIT_AGAIN = "a commit is repeated, with the key of the first"
    ABORT = "somebody aborts it"
    TIMEOUT = "it has been open for too long"
    RESULT = "somebody waits for its end"
    MARKED = "every partition has its markers"
    EXPIRE = "it ended so long ago that no client will ask again"


class JointVerdict(Enum):
    """How an event is met."""

    DO = "carried out"
    WAIT = "answered once it has ended"
    ANSWER = "that was decided already: answered as the first time"
    ENDED = "refused: it is over"
    UNKNOWN = "refused: there is no such transaction"
    IGNORE = "nothing happens"


class JointStep(Enum):
    """What moves a transaction from one state to another, each a record in the log."""

    OPEN = "opened"
    COMMIT = "decided: the chosen writers are committed, the others aborted"
    ABORT = "decided: all writers are aborted"
    FINISH = "every partition knows"
    FORGET = "forgotten"


NONE, OPEN, COMMITTING, ABORTING, COMMITTED, ABORTED = JointState
DECIDED: Final = frozenset({COMMITTING, ABORTING})
ENDED: Final = frozenset({COMMITTED, ABORTED})


def _row(*verdicts: JointVerdict) -> Mapping[JointState, JointVerdict]:
    return dict(zip(JointState, verdicts, strict=True))


_DO, _WAIT, _ANSWER, _ENDED, _UNKNOWN, _IGNORE = JointVerdict

VERDICTS: Final[Mapping[JointEvent, Mapping[JointState, JointVerdict]]] = {
    #                        NONE      OPEN     COMMITTING ABORTING COMMITTED ABORTED
    # Ids are made by the broker, so none is opened twice but by a bug.
    JointEvent.OPEN:         _row(_DO,      _ENDED,  _ENDED,    _ENDED,  _ENDED,   _ENDED),
    JointEvent.ENTER:        _row(_UNKNOWN, _DO,     _ENDED,    _ENDED,  _ENDED,   _ENDED),
    JointEvent.EXTEND:       _row(_UNKNOWN, _DO,     _ENDED,    _ENDED,  _ENDED,   _ENDED),
    JointEvent.COMMIT:       _row(_UNKNOWN, _DO,     _ENDED,    _ENDED,  _ENDED,   _ENDED),
    JointEvent.COMMIT_AGAIN: _row(_UNKNOWN, _DO,     _ANSWER,   _ENDED,  _ANSWER,  _ENDED),
    # An abort asks for nothing but that nothing is seen, so who asks for it again has got it.
    JointEvent.ABORT:        _row(_UNKNOWN, _DO,     _ENDED,    _ANSWER, _ENDED,   _ANSWER),
    JointEvent.RESULT:       _row(_UNKNOWN, _WAIT,   _WAIT,     _WAIT,   _ANSWER,  _ANSWER),
    JointEvent.TIMEOUT:      _row(_IGNORE,  _DO,     _IGNORE,   _IGNORE, _IGNORE,  _IGNORE),
    JointEvent.MARKED:       _row(_IGNORE,  _IGNORE, _DO,       _DO,     _IGNORE,  _IGNORE),
    JointEvent.EXPIRE:       _row(_IGNORE,  _IGNORE, _IGNORE,   _IGNORE, _DO,      _DO),
}  # fmt: skip

TRANSITIONS: Final[Mapping[JointStep, Mapping[JointState, JointState]]] = {
    JointStep.OPEN: {NONE: OPEN},
    JointStep.COMMIT: {OPEN: COMMITTING},
    JointStep.ABORT: {OPEN: ABORTING},
    JointStep.FINISH: {COMMITTING: COMMITTED, ABORTING: ABORTED},
    JointStep.FORGET: {COMMITTED: NONE, ABORTED: NONE},
}
