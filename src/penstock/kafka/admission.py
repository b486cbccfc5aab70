"""Whether transactional records may be written: what a request claims, and how a client hears that it may not.

The first records of a transaction in a partition need the word of the transaction's coordinator (KIP-890). Clients of
the first protocol have told it of the partition before, so it is only asked; for those of the second it is told here.
Which errors a client knows depends on the version of its request: older ones get one that they react to the same way.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.coordination.messages import ProducerIdentity
from penstock.broker.transactions.messages import Where
from penstock.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    InvalidProducerIdMapping,
    InvalidTxnState,
    NotCoordinator,
    NotLeader,
    PenstockError,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdMissing,
    UnknownPartition,
    UnknownTopic,
)
from penstock.kafka.errors import error_code
from penstock.kafka.protocol.errors import ErrorCode
from penstock.kafka.protocol.produce import Produce
from penstock.records import peek_transaction

_FIRST_ABORTABLE_VERSION: Final = 11
FIRST_ADDING_VERSION: Final = 12  # from here on a produce takes its partitions into the transaction


class Claim(NamedTuple):
    """Whose transaction a request writes to, and the partitions that its coordinator has to be asked about."""

    producer: ProducerIdentity
    unconfirmed: frozenset[Where]


def claim_of(broker: Broker, request: Produce) -> Claim | None:
    """What a produce request claims; None if nothing in it is transactional."""
    producers: set[tuple[int, int]] = set()
    unconfirmed: set[Where] = set()
    for name, partitions in request.topics:
        for index, records in partitions:
            named = None if records is None else peek_transaction(records)
            if records is None or named is None:
                continue
            producers.add(named)
            try:
                partition = broker.partition(name, index)
            except (UnknownTopic, UnknownPartition, NotLeader):
                continue  # whoever appends will say so
            if not partition.is_leader:
                continue  # and so will they here; nothing is added to the transaction in vain
            if not partition.is_internal and partition.lacks_transaction(records):
                unconfirmed.add((name, index))
    if not producers:
        return None
    if not request.transactional_id:
        raise TransactionalIdMissing("Transactional records need a transactional id in their request.")
    if len(producers) > 1:
        raise InvalidProducerIdMapping("One request holds transactional records of several producers.")
    return Claim(ProducerIdentity(*producers.pop()), frozenset(unconfirmed))


def unconfirmed_error(where: Where) -> PenstockError:
    """What is told about a partition that the coordinator does not know to be in the transaction."""
    return TransactionAbortable(f"{where[0]}-{where[1]} is not in the producer's transaction. Abort it and begin anew.")


def produce_code(error: PenstockError, version: int) -> ErrorCode:
    """The code of a refusal in a produce response."""
    match error:
        case NotCoordinator() | CoordinatorLoading():
            return ErrorCode.NOT_ENOUGH_REPLICAS  # clients try again, and do not ask for metadata first
        case ConcurrentTransactions() if version < FIRST_ADDING_VERSION:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        case TransactionAbortable() if version < _FIRST_ABORTABLE_VERSION:
            return error_code(InvalidTxnState())
    return error_code(error)


def coordinator_code(error: PenstockError, *, knows_fenced: bool) -> ErrorCode:
    """The code of a refusal in the response of a transaction's coordinator."""
    if isinstance(error, ProducerFenced) and knows_fenced:
        return ErrorCode.PRODUCER_FENCED
    return error_code(error)
