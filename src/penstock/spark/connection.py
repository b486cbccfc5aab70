"""The way from a Spark process to the cluster: one a process, kept from task to task."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.client.portal import Portal
from penstock.client.transport import Transport

DEFAULT_TIMEOUT_SECONDS: Final = 30.0


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
        way = _ways[at] = Way(Portal("penstock-spark"), Transport(servers, timeout_s=timeout_s))
    return way
