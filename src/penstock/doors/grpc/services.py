"""Every service of the door: what the definitions promise, and what keeps the promise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from penstock.doors.grpc import (
    dead_letters,
    groups,
    publishing,
    queues,
    reading,
    schedules,
    settling,
    topics,
    transactions,
)
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.method import Method, handler_of
from penstock.grpc.generated import (
    dead_letters_pb2,
    groups_pb2,
    messages_pb2,
    queues_pb2,
    schedules_pb2,
    topics_pb2,
    transactions_pb2,
)

SERVICES: Final[tuple[tuple[ServiceDescriptor, Mapping[str, Method]], ...]] = (
    (topics_pb2.DESCRIPTOR.services_by_name["Topics"], topics.METHODS),
    (messages_pb2.DESCRIPTOR.services_by_name["Messages"], {**publishing.METHODS, **reading.METHODS}),
    (queues_pb2.DESCRIPTOR.services_by_name["Queues"], {**queues.METHODS, **settling.METHODS}),
    (dead_letters_pb2.DESCRIPTOR.services_by_name["DeadLetters"], dead_letters.METHODS),
    (schedules_pb2.DESCRIPTOR.services_by_name["Schedules"], schedules.METHODS),
    (groups_pb2.DESCRIPTOR.services_by_name["Groups"], groups.METHODS),
    (transactions_pb2.DESCRIPTOR.services_by_name["Transactions"], transactions.METHODS),
)


def handlers(door: Door) -> list[grpc.GenericRpcHandler[Any, Any]]:
    """What the library finds the methods in."""
    return [
        grpc.method_handlers_generic_handler(
            service.full_name,
            {described.name: handler_of(door, described, methods[described.name]) for described in service.methods},
        )
        for service, methods in SERVICES
    ]
