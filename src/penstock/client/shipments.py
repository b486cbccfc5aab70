"""A batch under way: who publishes it, what a node says of it, and whoever waits for its messages."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.client.connections import Answer
from penstock.client.contents import Contents
from penstock.client.parcels import Lane, Span
from penstock.client.problems import error_named
from penstock.client.transport import unpacked
from penstock.errors import InvalidRequest, MessageTooLarge, PenstockError, UnexpectedAnswer

# What became of a batch: its first offset and append time, or an error.
ShipmentOutcome = tuple[int, int] | PenstockError

_TOLD: Final = list[list[int | str]]  # of each batch


class Identity(msgspec.Struct):
    """What a node calls a producer."""

    producer_id: int
    producer_epoch: int


class Producer:
    """An identity for idempotent batches, and how many messages each partition has had of it."""

    def __init__(self, identity: Identity) -> None:
        self.id = identity.producer_id
        self.epoch = identity.producer_epoch
        self.sequences: dict[tuple[str, int], int] = {}


class Shipment:
    """A batch under way."""

    __slots__ = ("contents", "data", "lane", "producer", "spans", "tries")

    def __init__(self, lane: Lane, spans: list[Span], contents: Contents) -> None:
        self.lane = lane
        self.spans = spans
        self.contents = contents
        self.data = bytearray()
        self.producer: Producer | None = None
        self.tries = 0


def outcomes_of(answer: Answer, count: int) -> list[ShipmentOutcome]:
    """What a node's answer says of each of the batches that it was sent."""
    results = unpacked(answer.body, _TOLD)
    if len(results) != count:
        raise UnexpectedAnswer(f"{count} batches were sent, and {len(results)} answered.")
    return [_outcome(result) for result in results]


def _outcome(result: list[int | str]) -> ShipmentOutcome:
    match result:
        case [int(base_offset), int(append_time_ms)]:
            return base_offset, append_time_ms
        case [_, str(code), str(message)]:
            return error_named(code, message)
    return UnexpectedAnswer(f"{result!r} is no answer for a batch.")


def can_be_parted(shipment: Shipment, error: PenstockError) -> bool:
    """Whether others of a batch that was refused may be taken without the message at fault."""
    if isinstance(error, MessageTooLarge):
        return len(shipment.contents) > 1
    return isinstance(error, InvalidRequest) and len(shipment.spans) > 1


def succeed(topic: str, shipment: Shipment, base_offset: int, append_time_ms: int) -> None:
    """Tell whoever waits that the messages are safe."""
    published = shipment.contents.published(topic, shipment.lane.partition, base_offset, append_time_ms)
    at = 0
    for parcel, begin, end, _ in shipment.spans:
        parcel.succeed(begin, published if len(published) == end - begin else published[at : at + end - begin])
        at += end - begin


def fail(shipment: Shipment, error: PenstockError) -> None:
    """Tell whoever waits that they are not, or that nothing is known."""
    for span in shipment.spans:
        span.parcel.fail(error)
