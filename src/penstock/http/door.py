"""What every operation of the HTTP door shares."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from penstock.broker.broker import Broker
from penstock.broker.membership.hosting import HostedMembers
from penstock.broker.publishing import Partitioners
from penstock.http.config import HttpConfig
from penstock.http.hosts import Hosts
from penstock.http.leaderships import LeadershipCount
from penstock.http.upstream import Upstreams
from penstock.http.websocket_sessions import Sessions
from penstock.records import KeyHash, RoundRobin

PARTITIONERS: Final = {"key_hash": KeyHash, "round_robin": RoundRobin}


class Door:
    """The broker behind the door, the door's settings, and what it has counted."""

    def __init__(self, broker: Broker, config: HttpConfig, partitioners: Partitioners | None = None) -> None:
        self.broker = broker
        self.config = config
        self.hosted = HostedMembers(broker)
        self.partitioners = partitioners or Partitioners(PARTITIONERS, config.default_partitioner)
        self.started_at_ms = broker.clock.now_ms()
        self.requests: Counter[tuple[str, int]] = Counter()  # by operation and status
        self.stopping = asyncio.Event()
        self.hosts = Hosts((config.host, *_advertised(broker), *config.allowed_hosts), config.trusted_proxies)
        self.upstreams = Upstreams()
        self.leaderships = LeadershipCount()
        self.sessions = Sessions(self)


def _advertised(broker: Broker) -> list[str]:
    """The names under which clients and other nodes are told to call this one."""
    return [endpoint.host for endpoint in broker.config.endpoints]
