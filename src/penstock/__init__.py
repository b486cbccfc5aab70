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
    from penstock.client.admin import AsyncGroups, AsyncTopics, Groups, Topics
    from penstock.client.app import App
    from penstock.client.blocking import Client, Consumer, Queue, Transaction
    from penstock.client.client import AsyncClient
    from penstock.client.consuming import AsyncConsumer
    from penstock.client.drafts import Draft
    from penstock.client.leases import AsyncQueueMessage, LeasedMessage, QueueMessage, Refused
    from penstock.client.messages import Message, Published, Scheduled
    from penstock.client.queue import AsyncQueue
    from penstock.client.schedules import AsyncSchedules, Schedule, Schedules, ScheduleStats
    from penstock.client.signals import Reject, Retry
    from penstock.client.transactions import AsyncTransaction
    from penstock.client.worker import Worker, worker

_HOMES = {
    "App": "penstock.client.app",
    "AsyncClient": "penstock.client.client",
    "AsyncConsumer": "penstock.client.consuming",
    "AsyncGroups": "penstock.client.admin",
    "AsyncQueue": "penstock.client.queue",
    "AsyncQueueMessage": "penstock.client.leases",
    "AsyncSchedules": "penstock.client.schedules",
    "AsyncTopics": "penstock.client.admin",
    "AsyncTransaction": "penstock.client.transactions",
    "Client": "penstock.client.blocking",
    "Consumer": "penstock.client.blocking",
    "Draft": "penstock.client.drafts",
    "Groups": "penstock.client.admin",
    "LeasedMessage": "penstock.client.leases",
    "Message": "penstock.client.messages",
    "Published": "penstock.client.messages",
    "Queue": "penstock.client.blocking",
    "QueueMessage": "penstock.client.leases",
    "Refused": "penstock.client.leases",
    "Reject": "penstock.client.signals",
    "Retry": "penstock.client.signals",
    "Schedule": "penstock.client.schedules",
    "ScheduleStats": "penstock.client.schedules",
    "Scheduled": "penstock.client.messages",
    "Schedules": "penstock.client.schedules",
    "Topics": "penstock.client.admin",
    "Transaction": "penstock.client.blocking",
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
