"""The handlers of all APIs off the hot path, a module for each domain as in `protocol.messages`.

A handler's docstring opens with the versions it answers and what changed between them, where that matters to it.
"""

from __future__ import annotations

from penstock.doors.kafka.handler import Handler
from penstock.doors.kafka.handlers import cluster, configs, groups, offsets, quotas, security, topics, transactions

HANDLERS: dict[int, Handler] = {
    handler.request.api.key: handler
    for module in (cluster, configs, groups, offsets, quotas, security, topics, transactions)
    for handler in module.HANDLERS
}
