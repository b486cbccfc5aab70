"""Messages of a joint transaction's writer into partitions.

The transaction is told of the partitions first, and asked once more, without a pause, right before the batches are
written: so nothing is written into a transaction that has been decided. What is on its way to another node then, and
arrives after the end, is fenced there by the marker, and told to have come too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from penstock.api.limits import DEFAULT_WRITER
from penstock.consensus.metadata import Topic
from penstock.errors import PenstockError, ProducerFenced, TransactionEnded, UnknownPartition
from penstock.features.messages.publishing import (
    COMMIT_TIMEOUT_MS,
    DEFAULT_PARTITIONER,
    OutgoingMessage,
    Publication,
    PublishOutcome,
    check_writable,
    ensure_topic,
)
from penstock.features.transactions.joint.coordinator import JointCoordinator
from penstock.features.transactions.joint.numbered import NumberedCall, check_still_open
from penstock.features.transactions.joint.shard import WRITER_EPOCH
from penstock.features.transactions.joint.writers import check_writer
from penstock.machines.messages import ProducerIdentity
from penstock.machines.ports import Ports
from penstock.records import Partitioner


@dataclass(frozen=True, slots=True)
class Ticket:
    """Into which transaction to publish, and as whom. ``sequence`` counts the writer's messages before this call."""

    transaction: str
    writer: str = DEFAULT_WRITER
    sequence: int | None = None


async def publish_into(
    ports: Ports,
    joint: JointCoordinator,
    ticket: Ticket,
    topic: str,
    messages: Sequence[OutgoingMessage],
    *,
    partitioner: Partitioner | None = None,
    timeout_ms: int = COMMIT_TIMEOUT_MS,
) -> list[PublishOutcome]:
    """Publish into a joint transaction and tell of each message what became of it.

    A numbered call is published as a whole or raises; then it has to be repeated before the writer goes on.
    """
    check_writable(topic)
    check_writer(ticket.writer)
    begun = perf_counter()
    await joint.loaded()
    joint.check_open(ticket.transaction)  # before a topic is created for nothing
    found = await ensure_topic(ports, topic)
    publication = Publication(ports, found, messages)
    groups = publication.route(partitioner or DEFAULT_PARTITIONER)
    if ticket.sequence is None:
        await _append(ports, joint, ticket, found, publication, groups)
        await publication.wait_committed(timeout_ms)
    else:
        publication.is_repeatable = True
        async with joint.turn(ticket.transaction, ticket.writer):
            call = NumberedCall(ports, joint, ticket.transaction, ticket.writer, found, messages, publication)
            try:
                await call.append(ticket.sequence, groups)
            except PenstockError as error:
                publication.fail(range(len(messages)), error)
                raise
            await publication.wait_committed(timeout_ms)
        try:
            publication.raise_first()
        except ProducerFenced as error:
            raise TransactionEnded(f"Transaction {ticket.transaction!r} ended before all was written.") from error
    ports.stats.produce_latency.observe(perf_counter() - begun)
    return [_told(ticket, outcome) for outcome in publication.close()]


def _told(ticket: Ticket, outcome: PublishOutcome) -> PublishOutcome:
    if isinstance(outcome, ProducerFenced):
        return TransactionEnded(f"Transaction {ticket.transaction!r} ended before the message was written.")
    return outcome


async def _append(
    ports: Ports,
    joint: JointCoordinator,
    ticket: Ticket,
    topic: Topic,
    publication: Publication,
    groups: dict[int, list[int]],
) -> None:
    count = len(topic.partitions)
    for index in [index for index in groups if index >= count]:
        # Now, and whatever partitions there are later: the transaction is not told of these.
        missing = UnknownPartition(f"Topic {topic.name!r} has {count} partitions; there is no partition {index}.")
        publication.fail(groups.pop(index), missing)
    if groups:
        entered = await joint.enter(ticket.transaction, ticket.writer, topic, frozenset(groups))
        publication.producer = ProducerIdentity(entered.writer.producer_id, WRITER_EPOCH)
        check_still_open(ports, joint, ticket.transaction, topic)
        publication.append_all(groups)
