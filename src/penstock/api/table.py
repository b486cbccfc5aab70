"""The whole table, resource by resource. Hot ones stand first, because routes are tried in order."""

from __future__ import annotations

from typing import Final

from penstock.api import (
    access,
    audit,
    cluster,
    dead_letters,
    groups,
    health,
    messages,
    pipelines,
    queues,
    quotas,
    schedules,
    series,
    settings,
    topics,
    transactions,
)
from penstock.api.operation import TABLE, Operation

RESOURCES: Final = (
    messages,
    queues,
    groups,
    topics,
    transactions,
    series,
    schedules,
    pipelines,
    dead_letters,
    cluster,
    settings,
    health,
    access,
    quotas,
    audit,
)
OPERATIONS: Final[tuple[Operation, ...]] = tuple(
    declared for resource in RESOURCES for kind, declared in TABLE.items() if kind.__module__ == resource.__name__
)
