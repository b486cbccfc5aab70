"""Settings of groups and of nodes that are kept in the metadata: which there are, and what values they take.

A node's own value counts before the cluster-wide default, which is kept under the empty name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from penstock.config.settings import GroupSettings
from penstock.errors import InvalidConfig

ResourceKind = Literal["group", "node", "quota"]

CLUSTER_WIDE: Final = ""
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_RATE: Final = "leader.replication.throttled.rate"
MOVE_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"  # of moves between disks, of which a node has one
UNLIMITED_RATE: Final = (1 << 63) - 1
HEARTBEAT_INTERVAL_MIN_MS: Final = 100

GROUP_SETTINGS: Final[Mapping[str, str]] = {
    HEARTBEAT_INTERVAL: "How often members of the new protocol send heartbeats.",
    SESSION_TIMEOUT: "When a member of the new protocol that sends no heartbeat counts as gone.",
}
NODE_SETTINGS: Final[Mapping[str, str]] = {
    FOLLOWER_RATE: "Bytes a second that this node copies into its replicas that are not in sync.",
    LEADER_RATE: "Bytes a second that this node sends to replicas that are not in sync.",
}


def check_group_settings(changes: Mapping[str, str | None], configs: Mapping[str, str], limits: GroupSettings) -> None:
    """Raise `InvalidConfig` unless the changes are fine and lead to ``configs`` that go together."""
    for name, value in changes.items():
        if name.startswith(("share.", "streams.")):
            raise InvalidConfig(f"{name!r} is of share or streams groups, which this broker does not have.")
        if name not in GROUP_SETTINGS:
            raise InvalidConfig(f"Groups have no setting {name!r}. They have: {', '.join(GROUP_SETTINGS)}.")
        if value is not None and _number(value) is None:
            raise InvalidConfig(f"{name}: {value!r} is not a number of milliseconds.")
    session = int(configs.get(SESSION_TIMEOUT, limits.session_timeout_ms))
    heartbeat = int(configs.get(HEARTBEAT_INTERVAL, limits.heartbeat_interval_ms))
    low, high = limits.session_timeout_min_ms, limits.session_timeout_max_ms
    if SESSION_TIMEOUT in configs and not low <= session <= high:
        raise InvalidConfig(
            f"{SESSION_TIMEOUT}: {session} is outside {low} to {high} (groups.session_timeout_min_ms and _max_ms)."
        )
    if heartbeat < HEARTBEAT_INTERVAL_MIN_MS:
        raise InvalidConfig(
            f"{HEARTBEAT_INTERVAL}: {heartbeat} is too short; {HEARTBEAT_INTERVAL_MIN_MS} is the least."
        )
    if heartbeat >= session:
        raise InvalidConfig(f"{HEARTBEAT_INTERVAL} ({heartbeat}) must be shorter than {SESSION_TIMEOUT} ({session}).")


def check_node_settings(changes: Mapping[str, str | None]) -> None:
    """Raise `InvalidConfig` unless the changes are fine."""
    for name, value in changes.items():
        if name == MOVE_RATE and value is None:
            continue  # Kafka's tools clear it after every move; it has no effect here
        if name not in NODE_SETTINGS:
            raise InvalidConfig(
                f"{name!r} cannot be changed while the node runs; put it into its file and restart it. "
                f"These can: {', '.join(NODE_SETTINGS)}."
            )
        if value is not None and not 0 < (_number(value) or 0) <= UNLIMITED_RATE:
            raise InvalidConfig(f"{name}: {value!r} is not a number of bytes a second.")


def _number(value: str) -> int | None:
    """A number as Kafka's tools write it; None for anything else."""
    return int(value) if value.isascii() and value.isdigit() and len(value) <= len(str(UNLIMITED_RATE)) else None
