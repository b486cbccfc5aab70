"""Who a producer is after each step: epochs go up by one, and a producer id that has none left gives way to a new one.

The highest epoch is kept for fencing: it is written into markers and never given to a producer. So there is always an
epoch above that of the producer that has to be kept out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.errors import ProducerFenced
from penstock.features.transactions.messages import Init, Where
from penstock.features.transactions.records import NO_EPOCH, NO_PRODUCER, Reason, StoredTransaction
from penstock.features.transactions.states import TransactionState
from penstock.machines.messages import ProducerIdentity

EPOCH_MAX: Final = (1 << 15) - 1


def is_last(epoch: int) -> bool:
    """Whether a producer can get no further epoch of its id."""
    return epoch >= EPOCH_MAX - 1


def initialised(stored: StoredTransaction | None, request: Init) -> StoredTransaction:
    """The state in which a producer starts; `ProducerFenced` if it is not the one that it takes itself for."""
    if stored is None:
        return _empty(request, ProducerIdentity(request.fresh_producer_id, 0))
    expected = request.expected
    if expected is not None and is_repeated(stored, expected):
        # It was answered, and the answer was lost.
        return _empty(request, stored.producer, stored.last_epoch, stored.previous_producer_id)
    if expected is not None and expected != stored.producer:
        raise fenced(expected, stored)
    last_epoch = NO_EPOCH if expected is None else stored.producer_epoch
    if is_last(stored.producer_epoch):
        return _empty(request, ProducerIdentity(request.fresh_producer_id, 0), last_epoch, stored.producer_id)
    return _empty(request, ProducerIdentity(stored.producer_id, stored.producer_epoch + 1), last_epoch)


def _empty(
    request: Init, producer: ProducerIdentity, last_epoch: int = NO_EPOCH, previous_producer_id: int = NO_PRODUCER
) -> StoredTransaction:
    return StoredTransaction(
        state=TransactionState.EMPTY,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        timeout_ms=request.timeout_ms,
        last_epoch=last_epoch,
        previous_producer_id=previous_producer_id,
    )


def is_repeated(stored: StoredTransaction, producer: ProducerIdentity) -> bool:
    """Whether this is who the producer was before its last step gave it another epoch."""
    if producer.epoch != stored.last_epoch or producer.epoch == NO_EPOCH:
        return False
    if producer.producer_id == stored.producer_id:
        return True
    return producer.producer_id == stored.previous_producer_id and is_last(producer.epoch)


def begun(stored: StoredTransaction, partitions: Iterable[Where], started_ms: int) -> StoredTransaction:
    """The state with more partitions in the transaction, which begins if it had not."""
    by_topic = {topic: set(indexes) for topic, indexes in stored.partitions.items()}
    for topic, index in partitions:
        by_topic.setdefault(topic, set()).add(index)
    return StoredTransaction(
        state=TransactionState.ONGOING,
        producer_id=stored.producer_id,
        producer_epoch=stored.producer_epoch,
        timeout_ms=stored.timeout_ms,
        started_ms=started_ms,
        partitions={topic: tuple(sorted(by_topic[topic])) for topic in sorted(by_topic)},
    )


def decided(
    stored: StoredTransaction,
    started_ms: int,
    *,
    is_commit: bool,
    bumps: bool,
    reason: Reason | None = None,
    fresh_producer_id: int = NO_PRODUCER,
) -> StoredTransaction:
    """The state in which partitions are told; if it ``bumps``, in an epoch that no other instance has."""
    epoch, last_epoch, next_producer_id = stored.producer_epoch, NO_EPOCH, NO_PRODUCER
    if bumps:
        last_epoch, epoch = epoch, epoch + 1
        if epoch >= EPOCH_MAX:
            next_producer_id = fresh_producer_id
            if next_producer_id == NO_PRODUCER:
                last_epoch = NO_EPOCH  # the producer cannot go on as anybody: it has to start anew
    return msgspec.structs.replace(
        stored,
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        producer_epoch=epoch,
        last_epoch=last_epoch,
        next_producer_id=next_producer_id,
        started_ms=started_ms,
        reason=reason,
    )


def completed(stored: StoredTransaction) -> StoredTransaction:
    """The state in which every partition was told."""
    producer = stored.successor
    is_other = producer.producer_id != stored.producer_id
    return StoredTransaction(
        state=TransactionState.COMPLETE_COMMIT
        if stored.state is TransactionState.PREPARE_COMMIT
        else TransactionState.COMPLETE_ABORT,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        timeout_ms=stored.timeout_ms,
        last_epoch=stored.last_epoch,
        previous_producer_id=stored.producer_id if is_other else NO_PRODUCER,
        reason=stored.reason,
    )


def fenced(producer: ProducerIdentity, stored: StoredTransaction) -> ProducerFenced:
    return ProducerFenced(
        f"Producer {producer.producer_id} has epoch {producer.epoch}, and the transactional id is in epoch "
        f"{stored.producer_epoch} of producer {stored.producer_id}. Stop this instance, or start it anew."
    )
