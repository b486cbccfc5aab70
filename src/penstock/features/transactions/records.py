"""What a coordinator writes to its partition of ``__transaction_state``.

The key names a transactional id, so that compaction keeps the last word on each; no value means that it is forgotten.
Keys and values are JSON. Every value is the whole state, so one record is enough to go on from.
Format: docs/formats/transactions.md.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from penstock.features.transactions.states import TransactionState
from penstock.machines.journal import KeyedFormat
from penstock.machines.messages import ProducerIdentity

TRANSACTION: Final = "transaction"
JOINT: Final = "joint"
JOINT_WRITER: Final = "joint-writer"


class _Tag(msgspec.Struct, frozen=True):
    type: str


_tags = msgspec.json.Decoder(_Tag)


def is_joint(key: bytes | None) -> bool:
    """Whether a record is about a joint transaction, by its key."""
    try:
        return _tags.decode(key or b"").type in {JOINT, JOINT_WRITER}
    except msgspec.MsgspecError:
        return False


NO_EPOCH: Final = -1
NO_PRODUCER: Final = -1


class Reason(Enum):
    """Why a transaction was aborted."""

    CLIENT = "client"
    TIMEOUT = "timeout"
    FENCED = "fenced"  # another instance of its producer started
    ADMIN = "admin"


class TransactionKey(msgspec.Struct, frozen=True, tag=TRANSACTION):
    transactional_id: str


class StoredTransaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A transactional id: whose it is, and where its transaction stands."""

    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    # The epoch before, as far as a request that repeats the one which ended it has to be recognised.
    last_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER
    # Whom the producer will be once its transaction has ended, where it has no epoch left.
    next_producer_id: int = NO_PRODUCER
    # When the transaction began; without it, with this very record.
    started_ms: int = -1
    partitions: dict[str, tuple[int, ...]] = {}
    reason: Reason | None = None

    @property
    def producer(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def successor(self) -> ProducerIdentity:
        """Whom the producer is to be from the end of this transaction on."""
        return self.producer if self.next_producer_id == NO_PRODUCER else ProducerIdentity(self.next_producer_id, 0)


class TransactionChange(msgspec.Struct, frozen=True):
    """One record to persist and apply: a key and its new value, or None where it is gone."""

    key: TransactionKey
    value: StoredTransaction | None


_format = KeyedFormat(TransactionChange, {TransactionKey: StoredTransaction}, "a transaction", is_other=is_joint)
to_record, from_record = _format.to_record, _format.from_record
