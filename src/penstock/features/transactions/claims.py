"""Which transaction a request's batches belong to, and which partitions its coordinator must confirm first (KIP-890).

The first batch of a transaction in a partition needs the coordinator's confirmation; later ones do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import (
    InvalidProducerIdMapping,
    NotLeader,
    TransactionAbortable,
    TransactionalIdMissing,
    UnknownPartition,
    UnknownTopic,
)
from penstock.features.transactions.messages import Where
from penstock.machines.messages import ProducerIdentity
from penstock.partitions.partition import Batches, Partition
from penstock.records import peek_transaction


class Claim(NamedTuple):
    """The producer whose transaction a request writes to, and the partitions that its coordinator must confirm."""

    producer: ProducerIdentity
    unconfirmed: frozenset[Where]


def claim_of(
    find: Callable[[str, int], Partition],
    batches: Batches,
    transactional_id: str | None,
) -> Claim | None:
    """The transaction that batches, by topic and partition, belong to; None if none of them is transactional."""
    producers: set[tuple[int, int]] = set()
    unconfirmed: set[Where] = set()
    for name, partitions in batches:
        for index, batch in partitions:
            named = None if batch is None else peek_transaction(batch)
            if batch is None or named is None:
                continue
            producers.add(named)
            try:
                partition = find(name, index)
            except (UnknownTopic, UnknownPartition, NotLeader):
                continue  # the append will be refused
            if not partition.is_leader:
                continue  # the append will be refused, so the transaction must not gain the partition
            if not partition.is_internal and partition.lacks_transaction(batch):
                unconfirmed.add((name, index))
    if not producers:
        return None
    if not transactional_id:
        raise TransactionalIdMissing("Transactional records need a transactional id in their request.")
    if len(producers) > 1:
        raise InvalidProducerIdMapping("One request holds transactional records of several producers.")
    return Claim(ProducerIdentity(*producers.pop()), frozenset(unconfirmed))


def unconfirmed_error(where: Where) -> TransactionAbortable:
    """Why a partition is refused that the coordinator does not know to be in the transaction."""
    return TransactionAbortable(f"{where[0]}-{where[1]} is not in the producer's transaction. Abort it and begin anew.")
