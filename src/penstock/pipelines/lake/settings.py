"""Settings of a topic: which a lake keeps, and which a topic gets that is restored from it.

A lake keeps what was set for the topic itself, and how large its messages may be even where the cluster said so. A
topic that is restored gets all of it but for what would remove, refuse or change messages of long ago.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.api.topics import AlterTopic, DescribeTopic, TopicDetail
from penstock.spark.connection import transport_to

_SIZE: Final = "max.message.bytes"
_POLICY: Final = "cleanup.policy"

# They belong to the cluster that the topic is in, not to its messages.
_OF_CLUSTER: Final = frozenset(
    {
        "min.insync.replicas",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "unclean.leader.election.enable",
    }
)
# They would remove old messages as soon as these are there, refuse them, or give them another time.
_AGAINST_OLD: Final = ("retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes")
_OF_TIME: Final = "message.timestamp."


class Restored(NamedTuple):
    """Settings for a topic that is made: ``first`` at once, ``last`` when it is filled; ``withheld`` are not set."""

    first: dict[str, str]
    last: dict[str, str]
    withheld: dict[str, str]


def settings_of(servers: Sequence[str], topic: str) -> dict[str, str]:
    """All settings that apply to a topic."""
    return _ask(servers, topic).settings


def kept_settings(servers: Sequence[str], topic: str) -> dict[str, str]:
    """The settings of a topic that a lake keeps."""
    found = _ask(servers, topic)
    kept = {name: value for name, value in found.configs.items() if name not in _OF_CLUSTER}
    if _SIZE in found.settings:
        kept[_SIZE] = found.settings[_SIZE]
    return dict(sorted(kept.items()))


def change_settings(servers: Sequence[str], topic: str, changes: Mapping[str, str]) -> None:
    portal, transport = transport_to(tuple(servers))
    portal.call(transport.call(AlterTopic(topic=topic, configs=dict(changes))))


def restored(kept: Mapping[str, str], *, keeps_timestamps: bool) -> Restored:
    """What a topic gets of the settings that a lake kept."""
    first = {name: value for name, value in kept.items() if name not in _OF_CLUSTER}
    if not keeps_timestamps:
        return Restored(first, {}, {})
    withheld = {name: first.pop(name) for name in list(first) if name in _AGAINST_OLD or name.startswith(_OF_TIME)}
    # Compaction would remove messages before they are compared with the lake.
    last = {_POLICY: first.pop(_POLICY)} if "compact" in first.get(_POLICY, "") else {}
    return Restored(first | {"retention.ms": "-1", "retention.bytes": "-1"}, last, withheld)


def _ask(servers: Sequence[str], topic: str) -> TopicDetail:
    portal, transport = transport_to(tuple(servers))
    return portal.call(transport.call(DescribeTopic(topic=topic)))
