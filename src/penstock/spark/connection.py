"""The connection of a Spark process to the cluster: made once, and kept from task to task.

Also the words of Spark's Kafka connector. Users bring their options along: one that means what an option of ours means
is taken under either name, any other is refused with the name to use, and so are the addresses of Kafka brokers.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from penstock.client.login import Login
from penstock.client.portal import Portal
from penstock.client.transport import Transport
from penstock.client.trust import SYSTEM_TRUST, Trust
from penstock.errors import InvalidConfig

DEFAULT_TIMEOUT_SECONDS: Final = 30.0
DAEMON: Final = "penstock.spark.daemon"  # starts Spark's workers where the session is ours


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
_ways: dict[tuple[int, tuple[str, ...], float, Trust, str | None], Way] = {}


def transport_to(
    servers: Sequence[str],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_SECONDS,
    trust: Trust | None = None,
    token_file: str | None = None,
) -> Way:
    """The way to these nodes. It is made on first use, and anew in a process that was forked after that."""
    trust = trust or Trust.of()
    at = (os.getpid(), tuple(servers), timeout_s, trust, token_file)
    way = _ways.get(at)
    if way is None or not way.portal.is_running:
        if is_kept_worker():
            # Spark collects garbage after every task of these. All that was imported stays anyway; to look through it
            # once more takes longer than a small task.
            gc.freeze()
        tls = trust.context() if any(server.startswith("https://") for server in servers) else None
        transport = Transport(servers, timeout_s=timeout_s, tls=tls, login=Login.of(token_file=token_file))
        way = _ways[at] = Way(Portal("penstock-spark"), transport)
    return way


# Files that the driver and every executor have at the same path. What they hold never enters a plan.
CREDENTIAL_OPTIONS: Final = ("ca", "certificate", "key", "tokenFile")


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """What a reader or a writer needs to reach the cluster. It travels to the executors as part of the plan."""

    servers: tuple[str, ...]
    timeout_s: float
    trust: Trust = SYSTEM_TRUST
    token_file: str | None = None  # without it, each process goes by its own environment

    def way(self) -> Way:
        return transport_to(self.servers, timeout_s=self.timeout_s, trust=self.trust, token_file=self.token_file)


def is_kept_worker() -> bool:
    """Whether this is one of Spark's processes that are used again for task after task."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name in ("pyspark.daemon", DAEMON)


# -- words of Spark's Kafka connector ----------------------------------------------------------------------------------

# In lower case, as options are compared: the connector's name, and ours.
SAME: Final[dict[str, str]] = {
    "subscribe": "topics",
    "subscribepattern": "topicsPattern",
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "kafka.isolation.level": "isolation",
}

_SERVERS: Final = (
    "Penstock is read and written over HTTP, not by Kafka's protocol: in place of kafka.bootstrap.servers give "
    "`servers`, the HTTP addresses of nodes, such as http://127.0.0.1:8080."
)
_RETRIES: Final = "Calls are tried again for `timeout` seconds: give that in place of {name}."
_SIZES: Final = (
    "A micro-batch begins as soon as there is anything to read: in place of {name}, give the query a trigger."
)
_INSTEAD: Final[Mapping[str, str]] = {
    "kafka.bootstrap.servers": _SERVERS,
    "bootstrap.servers": _SERVERS,
    "groupidprefix": "In place of {name} give `group`: the whole name of the group that shows the query's progress.",
    "kafka.group.id": "In place of {name} give `group`: the name of the group that shows the query's progress.",
    "minoffsetspertrigger": _SIZES,
    "maxtriggerdelay": _SIZES,
    "maxrecordsperpartition": "In place of {name} give `minPartitions`: how many tasks there are at least.",
    "kafkaconsumer.polltimeoutms": _RETRIES,
    "fetchoffset.numretries": _RETRIES,
    "fetchoffset.retryintervalms": _RETRIES,
    "fetchoffset.retrytimeoutms": _RETRIES,
}

_KAFKA_SCHEMES: Final = frozenset({"kafka", "plaintext", "ssl", "sasl_plaintext", "sasl_ssl"})
_KAFKA_PORTS: Final = frozenset({9092, 9093, 9094, 19092, 29092})
_PROBE_SECONDS: Final = 2.0
_CORRELATION: Final = 0x50454E53
_API_VERSIONS: Final = 18


def instead_of(name: str) -> str | None:
    """What to say about an option of the connector that is not one of ours; None if it is not the connector's."""
    lower = name.lower()
    words = _INSTEAD.get(lower)
    if words is None and lower.startswith("kafka."):
        words = "{name} is for a Kafka client, and Penstock is read and written over HTTP: leave it out."
    return None if words is None else words.format(name=name)


def check_servers(servers: Sequence[str]) -> None:
    """Refuse addresses that are written as Kafka's are."""
    for server in servers:
        scheme, separator, _ = server.partition("://")
        if separator and scheme.lower() in _KAFKA_SCHEMES:
            raise InvalidConfig(_is_kafka(server))


def refuse_kafka(servers: Sequence[str], *, is_any_port: bool = False) -> None:
    """Refuse addresses where a Kafka broker answers; ask only at ports that Kafka is known for, unless told to."""
    for server in servers:
        parts = urlsplit(server if "://" in server else f"http://{server}")
        port = parts.port or 80
        if parts.hostname and (is_any_port or port in _KAFKA_PORTS) and _speaks_kafka(parts.hostname, port):
            raise InvalidConfig(_is_kafka(server))


def _is_kafka(server: str) -> str:
    return (
        f"{server} speaks Kafka's protocol. Give `servers` the HTTP addresses of Penstock nodes, such as "
        "http://127.0.0.1:8080; from Apache Kafka itself, read with Spark's Kafka connector."
    )


def _speaks_kafka(host: str, port: int) -> bool:
    """Whether the versions that a Kafka broker would tell are told there."""
    body = _API_VERSIONS.to_bytes(2, "big") + b"\0\0" + _CORRELATION.to_bytes(4, "big") + b"\xff\xff"
    try:
        with socket.create_connection((host, port), _PROBE_SECONDS) as connection:
            connection.settimeout(_PROBE_SECONDS)
            connection.sendall(len(body).to_bytes(4, "big") + body)
            answer = b""
            while len(answer) < 8:
                part = connection.recv(8 - len(answer))
                if not part:
                    return False
                answer += part
    except OSError:
        return False
    return answer[4:] == _CORRELATION.to_bytes(4, "big")
