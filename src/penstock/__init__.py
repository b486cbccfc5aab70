"""Penstock: one replicated log, read three ways: as a stream, as a work queue, as a table.

The Python client is here: `Client` and `AsyncClient`, and `worker` for functions that work off a queue. Names are
loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from penstock import errors
    from penstock.api.schedules import ScheduleStats
    from penstock.client.admin import AsyncGroups, AsyncTopics
    from penstock.client.client import AsyncClient
    from penstock.client.consuming import AsyncConsumer
    from penstock.client.generated.sync import (
        Client,
        Consumer,
        Groups,
        Queue,
        QueueMessage,
        Schedules,
        Topics,
        Transaction,
    )
    from penstock.client.leases import AsyncQueueMessage, LeasedMessage, Refused
    from penstock.client.messages import Message, Published, Scheduled
    from penstock.client.queue import AsyncQueue
    from penstock.client.schedules import AsyncSchedules, Schedule
    from penstock.client.transactions import AsyncTransaction
    from penstock.client.values import Draft
    from penstock.client.worker import App, Worker, worker
    from penstock.client.worker_pool import Reject, Retry

_HOMES = {
    "App": "penstock.client.worker",
    "AsyncClient": "penstock.client.client",
    "AsyncConsumer": "penstock.client.consuming",
    "AsyncGroups": "penstock.client.admin",
    "AsyncQueue": "penstock.client.queue",
    "AsyncQueueMessage": "penstock.client.leases",
    "AsyncSchedules": "penstock.client.schedules",
    "AsyncTopics": "penstock.client.admin",
    "AsyncTransaction": "penstock.client.transactions",
    "Client": "penstock.client.generated.sync",
    "Consumer": "penstock.client.generated.sync",
    "Draft": "penstock.client.values",
    "Groups": "penstock.client.generated.sync",
    "LeasedMessage": "penstock.client.leases",
    "Message": "penstock.client.messages",
    "Published": "penstock.client.messages",
    "Queue": "penstock.client.generated.sync",
    "QueueMessage": "penstock.client.generated.sync",
    "Refused": "penstock.client.leases",
    "Reject": "penstock.client.worker_pool",
    "Retry": "penstock.client.worker_pool",
    "Schedule": "penstock.client.schedules",
    "ScheduleStats": "penstock.api.schedules",
    "Scheduled": "penstock.client.messages",
    "Schedules": "penstock.client.generated.sync",
    "Topics": "penstock.client.generated.sync",
    "Transaction": "penstock.client.generated.sync",
    "Worker": "penstock.client.worker",
    "worker": "penstock.client.worker",
}

__all__ = [
    "App",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncGroups",
    "AsyncQueue",
    "AsyncQueueMessage",
    "AsyncSchedules",
    "AsyncTopics",
    "AsyncTransaction",
    "Client",
    "Consumer",
    "Draft",
    "Groups",
    "LeasedMessage",
    "Message",
    "Published",
    "Queue",
    "QueueMessage",
    "Refused",
    "Reject",
    "Retry",
    "Schedule",
    "ScheduleStats",
    "Scheduled",
    "Schedules",
    "Topics",
    "Transaction",
    "Worker",
    "__version__",
    "errors",
    "worker",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("penstock.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    found = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
