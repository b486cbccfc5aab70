"""Everything that serves operations: importing this module makes `server_of` know each of them."""

from __future__ import annotations

from typing import Final

from penstock.operations import (
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
    settings,
    topics,
    transactions,
)
from penstock.operations.asking import server_of

__all__ = ["RESOURCES", "server_of"]

RESOURCES: Final = (
    messages,
    queues,
    groups,
    topics,
    transactions,
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
