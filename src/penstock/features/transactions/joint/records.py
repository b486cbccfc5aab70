"""What the coordinator of joint transactions writes to its partition of ``__transaction_state``.

One record for the transaction and one for each of its writers, so that a writer's progress costs no more with a
thousand others beside it. Writers' records are gone once the transaction has ended. The same partition holds the
records of transactional ids, which are none of this coordinator's business, and the other way round.
Format: docs/formats/joint-transactions.md.
"""

from __future__ import annotations

import msgspec

from penstock.features.transactions.joint.states import JointState
from penstock.features.transactions.records import JOINT, JOINT_WRITER, Reason, is_joint
from penstock.machines.journal import KeyedFormat


class JointKey(msgspec.Struct, frozen=True, tag=JOINT):
    transaction: str


class WriterKey(msgspec.Struct, frozen=True, tag=JOINT_WRITER):
    transaction: str
    writer: str


class StoredPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which transaction of a series this one is, and all that has to be known of those before it."""

    series: str
    number: int
    run: str  # the job that opened it, in one of its lives
    ordinal: int = 0  # transactions of the series before it
    committed_before: int = -1  # the last number that was committed when it was opened
    older_runs: tuple[str, ...] = ()  # that were replaced, the last ones


class StoredJoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A joint transaction: where it stands and, once that is decided, how it ends."""

    state: JointState
    timeout_ms: int
    opened_ms: int
    # What the call that ended it said: its idempotency key, and the writers it named, if it did.
    key: str | None = None
    asked: tuple[str, ...] | None = None
    committed: tuple[str, ...] = ()
    aborted: tuple[str, ...] = ()
    reason: Reason | None = None  # why it was aborted
    part: StoredPart | None = None  # of a series, if it is


class WriterPlace(msgspec.Struct, frozen=True, array_like=True):
    """A partition of the topic that had this id, and how many numbered messages the writer has for it."""

    topic: str
    topic_id: str
    partition: int
    sent: int = 0


class StoredCall(msgspec.Struct, frozen=True, kw_only=True):
    """The last numbered call of a writer, with all that is needed to finish it if it was cut short."""

    sequence: int  # messages of the writer before it
    topic_id: str
    digest: int  # of its messages, so that another call with the same number is not taken for it
    spread: tuple[int, ...]  # the partition of each message
    # By partition, where its log ended before: nothing of the call lies before that.
    starts: dict[int, int]

    @property
    def next_sequence(self) -> int:
        return self.sequence + len(self.spread)


class StoredWriter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A writer: the producer it is in the logs, every partition that may hold something of it, its last call."""

    producer_id: int
    places: tuple[WriterPlace, ...] = ()
    call: StoredCall | None = None

    def base_sequence(self, partition: int) -> int:
        """How many messages the writer had for a partition of its last call's topic before that call."""
        call = self.call
        assert call is not None, "only numbered calls count"
        return self.sent_to(call.topic_id, partition) - call.spread.count(partition)

    def sent_to(self, topic_id: str, partition: int) -> int:
        """How many numbered messages the writer has for a partition, its last call included."""
        found = (each.sent for each in self.places if (each.topic_id, each.partition) == (topic_id, partition))
        return next(found, 0)


Key = JointKey | WriterKey
Value = StoredJoint | StoredWriter


class JointChange(msgspec.Struct, frozen=True):
    """One record to persist and apply: a key and its new value, or None where it is gone."""

    key: Key
    value: Value | None


_format = KeyedFormat(
    JointChange,
    {JointKey: StoredJoint, WriterKey: StoredWriter},
    "a joint transaction",
    is_other=lambda key: not is_joint(key),
)
to_record, from_record = _format.to_record, _format.from_record
