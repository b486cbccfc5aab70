"""The way from a Spark process to the cluster: one a process, kept from task to task."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.client.portal import Portal
from penstock.client.transport import Transport
from penstock.errors import InvalidConfig
from penstock.spark.kafka_names import check_servers

DEFAULT_TIMEOUT_SECONDS: Final = 30.0
DAEMON: Final = "penstock.spark.machine.daemon"  # starts Spark's workers where the session is ours


def servers_in(text: str | None) -> tuple[str, ...]:
    """The nodes that option ``servers`` names, with commas between."""
    servers = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    if not servers:
        raise InvalidConfig("Option 'servers' is missing: the HTTP addresses of nodes, such as http://127.0.0.1:8080.")
    check_servers(servers)
    for server in servers:
        if "://" in server and not server.startswith(("http://", "https://")):
            raise InvalidConfig(f"Option 'servers' takes addresses such as http://127.0.0.1:8080, not {server!r}.")
    return servers


class Way(NamedTuple):
    """A loop in a thread of its own, and the transport that lives in it."""

    portal: Portal
    transport: Transport


# Spark forks its workers and uses them again: what is made here serves all later tasks of the same process.
_ways: dict[tuple[int, tuple[str, ...], float], Way] = {}


def transport_to(servers: Sequence[str], *, timeout_s: float = DEFAULT_TIMEOUT_SECONDS) -> Way:
    """The way to these nodes. It is made on first use, and anew in a process that was forked after that."""
    at = (os.getpid(), tuple(servers), timeout_s)
    way = _ways.get(at)
    if way is None or not way.portal.is_running:
        if is_kept_worker():
            # Spark collects garbage after every task of these. All that was imported stays anyway; to look through it
            # once more takes longer than a small task.
            gc.freeze()
        way = _ways[at] = Way(Portal("penstock-spark"), Transport(servers, timeout_s=timeout_s))
    return way


def is_kept_worker() -> bool:
    """Whether this is one of Spark's processes that are used again for task after task."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name in ("pyspark.daemon", DAEMON)
