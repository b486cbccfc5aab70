"""The administrative verbs of the client, and which operation of REST each one is: one table.

An `Operation` has the method, the path with its places in braces, and what the answer is read as.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from string import Formatter
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from penstock.client.dead_letters import QueueStats
from penstock.client.transport import Transport, decoded

T = TypeVar("T")

# -- answers -----------------------------------------------------------------------------------------------------------


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in a list. ``messages`` counts offsets, so compaction can make it too high."""

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    is_internal: bool
    messages: int
    size_bytes: int


class PartitionDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A partition: which node leads it (-1 if none does), which have it, and what it holds, if its leader answers."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    log_start_offset: int | None
    high_watermark: int | None
    size_bytes: int | None


class TopicDetail(TopicSummary, frozen=True, kw_only=True):
    """A topic: ``configs`` are the settings of its own, ``settings`` all that apply."""

    configs: dict[str, str]
    settings: dict[str, str]
    partition_details: list[PartitionDetail]


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a list. ``kind`` tells what reads by it: classic, consumer, rest, queue or spark."""

    group: str
    type: str
    kind: str
    state: str
    protocol: str | None
    members: int
    lag: int


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str


class GroupOffset(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group got in a partition; None where nothing was committed or the partition is not reached."""

    topic: str
    partition: int
    committed_offset: int | None
    high_watermark: int | None
    lag: int | None


class GroupDetail(GroupSummary, frozen=True, kw_only=True):
    """A group with its members and offsets."""

    member_details: list[GroupMember]
    offsets: list[GroupOffset]


class OffsetMove(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    from_offset: int | None
    to_offset: int


class GroupReset(GroupDetail, frozen=True, kw_only=True):
    """A group after its offsets were moved; after a dry run as it is, and what would be moved."""

    dry_run: bool
    moves: list[OffsetMove]


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that is read as a queue, and by which groups."""

    topic: str
    groups: list[str]


class TopicList(msgspec.Struct, frozen=True):
    topics: list[TopicSummary]


class GroupList(msgspec.Struct, frozen=True):
    groups: list[GroupSummary]


class QueueList(msgspec.Struct, frozen=True):
    queues: list[QueueSummary]


# -- the table ---------------------------------------------------------------------------------------------------------


class Operation(NamedTuple, Generic[T]):
    """What a verb asks of REST, and what the answer is read as."""

    method: str
    path: str
    answer: type[T]


_QUEUE_GROUP: Final = "v1/queues/{topic}/groups/{group}"

LIST_TOPICS: Final = Operation("GET", "v1/topics", TopicList)
CREATE_TOPIC: Final = Operation("POST", "v1/topics", TopicDetail)
DESCRIBE_TOPIC: Final = Operation("GET", "v1/topics/{topic}", TopicDetail)
CONFIGURE_TOPIC: Final = Operation("PATCH", "v1/topics/{topic}", TopicDetail)
SCALE_TOPIC: Final = Operation("POST", "v1/topics/{topic}/partitions", TopicDetail)
DELETE_TOPIC: Final = Operation("DELETE", "v1/topics/{topic}", type(None))
LIST_GROUPS: Final = Operation("GET", "v1/groups", GroupList)
DESCRIBE_GROUP: Final = Operation("GET", "v1/groups/{group}", GroupDetail)
RESET_GROUP: Final = Operation("POST", "v1/groups/{group}/reset", GroupReset)
DELETE_GROUP: Final = Operation("DELETE", "v1/groups/{group}", type(None))
LIST_QUEUES: Final = Operation("GET", "v1/queues", QueueList)
QUEUE_STATS: Final = Operation("GET", _QUEUE_GROUP, QueueStats)
CONFIGURE_QUEUE: Final = Operation("PUT", _QUEUE_GROUP, QueueStats)
PAUSE_QUEUE: Final = Operation("POST", f"{_QUEUE_GROUP}/pause", QueueStats)
RESUME_QUEUE: Final = Operation("POST", f"{_QUEUE_GROUP}/resume", QueueStats)
SEEK_QUEUE: Final = Operation("POST", f"{_QUEUE_GROUP}/seek", QueueStats)
PURGE_QUEUE: Final = Operation("POST", "v1/queues/{topic}/purge", QueueStats)
DELETE_QUEUE: Final = Operation("DELETE", _QUEUE_GROUP, type(None))


async def perform(
    transport: Transport,
    operation: Operation[T],
    *,
    body: Mapping[str, Any] | None = None,
    query: Mapping[str, object] | None = None,
    **places: str,
) -> T:
    """Do what an operation says, at these places of its path. What is None in the body is left out."""
    path = [_filled(part, places) for part in operation.path.split("/")]
    payload = (
        b"" if body is None else msgspec.json.encode({key: each for key, each in body.items() if each is not None})
    )
    answer = await transport.call(operation.method, path, query=urlencode(query or {}), body=payload)
    return decoded(answer.body or b"null", operation.answer)


def _filled(part: str, places: Mapping[str, str]) -> str:
    """A part of a path, with what its name in braces stands for; names of users may have braces of their own."""
    ((text, name, *_),) = Formatter().parse(part)
    return text if name is None else places[name]


def start_form(to: int | str | None, since: datetime | None) -> dict[str, Any]:
    """Where to read on, as REST has it."""
    return {"to": to, "since": None if since is None else since.isoformat()}


def settings_form(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """Settings by their names with dots; None stands for the default."""
    return {
        name.replace("_", "."): None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }
