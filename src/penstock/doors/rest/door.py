"""What every operation of the HTTP door shares."""

from __future__ import annotations

import asyncio
from collections import Counter

from penstock.broker.broker import Broker
from penstock.doors.rest.config import HttpConfig
from penstock.doors.rest.hosts import Hosts
from penstock.doors.rest.leaderships import LeadershipCount
from penstock.doors.rest.login import Login
from penstock.operations.services import Services


class Door:
    """The broker behind the door, the door's settings, and what it has counted."""

    def __init__(self, services: Services, config: HttpConfig) -> None:
        broker = services.broker
        self.services = services
        self.broker = broker
        self.config = config
        self.requests: Counter[tuple[str, int]] = Counter()  # by operation and status
        self.stopping = asyncio.Event()
        self.hosts = Hosts(
            (config.host, *_advertised(broker), *config.node.http_allowed_hosts), config.node.http_trusted_proxies
        )
        self.login = Login(services)
        self.leaderships = LeadershipCount()


def _advertised(broker: Broker) -> list[str]:
    """The names under which clients and other nodes are told to call this one."""
    return [endpoint.host for endpoint in broker.config.endpoints]
