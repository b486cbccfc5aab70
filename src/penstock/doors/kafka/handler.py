"""A handler of an API off the hot path: a function from a request and its context to a response.

It may be a coroutine function if it has to wait, or return the `CoordinatorRequest` whose answer becomes the response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from penstock.broker.broker import Broker
from penstock.consensus.records import NodeRegistered
from penstock.doors.kafka.caller import Caller
from penstock.doors.kafka.leaders import address_of
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages.shared import PartitionErrorCode, TopicErrorCodes
from penstock.doors.kafka.protocol.schema import ApiMessage
from penstock.machines.coordinator import NamedCoordinator
from penstock.machines.messages import Request


class RequestContext(NamedTuple):
    """What a handler knows of a request besides its body: the broker, the version, the client and what it may do."""

    broker: Broker
    version: int
    client_id: str | None
    local_host: str
    peer_host: str
    caller: Caller

    def address_of(self, node: NodeRegistered) -> tuple[str, int]:
        """Where this client reaches a node."""
        return address_of(node, self.local_host)

    def has_partition(self, topic: str, index: int) -> bool:
        """Whether the cluster has a partition."""
        known = self.broker.metadata.topics.get(topic)
        return known is not None and 0 <= index < len(known.partitions)


class CoordinatorRequest(NamedTuple):
    """A request to a coordinator, and how its answer, or `Rejected`, becomes the response.

    A coroutine could ask as well; but it takes a task and a future, which is too much for an API that is called ten
    thousand times a second.
    """

    coordinator: NamedCoordinator[Any]
    name: str
    request: Request[Any]
    respond: Callable[[Any], ApiMessage]


class Handler(NamedTuple):
    """The request that an API takes, and the function that answers it."""

    request: type[ApiMessage]
    function: Callable[[RequestContext, Any], ApiMessage | CoordinatorRequest | Awaitable[ApiMessage]]


def error_codes(
    topics: Iterable[tuple[str, Iterable[int]]], codes: Mapping[tuple[str, int], ErrorCode]
) -> tuple[TopicErrorCodes, ...]:
    """The error code of each partition that a request names, in its order; one without a code does not exist."""
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    rows = []
    for name, indexes in topics:
        partitions = [
            PartitionErrorCode(partition_index=index, error_code=codes.get((name, index), unknown)) for index in indexes
        ]
        rows.append(TopicErrorCodes(name=name, partitions=tuple(partitions)))
    return tuple(rows)
