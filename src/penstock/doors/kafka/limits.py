"""What one request may ask for, so that a few kilobytes cannot cost the node seconds or megabytes.

Only produce requests carry messages and may be as large as the settings allow. All others are small
and name a bounded number of things; what they name twice is answered once.
"""

from __future__ import annotations

from operator import is_
from typing import Any, Final, TypeVar

import msgspec

from penstock.doors.kafka.protocol import apis
from penstock.doors.kafka.protocol.errors import ProtocolError
from penstock.doors.kafka.protocol.fetch import Fetch, PartitionFetch
from penstock.doors.kafka.protocol.schema import Api

MIB: Final = 1024 * 1024

# Elements of all arrays of a request together: a client of all partitions of a large cluster stays below.
ELEMENTS_MAX: Final = 30_000
FETCH_WAIT_MS_MAX: Final = 60_000  # clients give up on a request before that

_REQUEST_BYTES_MAX: Final = 2 * MIB
# Members send their metadata, and a leader sends the assignments of all members.
_LARGER: Final[dict[int, int]] = {apis.JOIN_GROUP.key: 16 * MIB, apis.SYNC_GROUP.key: 16 * MIB}

# Requests that only read: what is named twice in them gets one answer.
READ_ONLY: Final = frozenset(
    {
        apis.METADATA,
        apis.OFFSET_FETCH,
        apis.FIND_COORDINATOR,
        apis.DESCRIBE_GROUPS,
        apis.OFFSET_FOR_LEADER_EPOCH,
        apis.LIST_OFFSETS,
        apis.DESCRIBE_CONFIGS,
        apis.DESCRIBE_LOG_DIRS,
        apis.LIST_PARTITION_REASSIGNMENTS,
        apis.DESCRIBE_PRODUCERS,
        apis.DESCRIBE_TRANSACTIONS,
        apis.CONSUMER_GROUP_DESCRIBE,
    }
)

T = TypeVar("T")


def check_size(api_key: int, length: int) -> None:
    """Refuse a request that is larger than its API needs."""
    if length > _REQUEST_BYTES_MAX and api_key != apis.PRODUCE.key:
        limit = _LARGER.get(api_key, _REQUEST_BYTES_MAX)
        if length > limit:
            known = apis.APIS.get(api_key)
            name = f"API {api_key}" if known is None else known.name
            raise ProtocolError(f"A request of {length} bytes is more than the {limit} that {name} may have.")


def without_repeats(api: Api, request: T) -> T:
    """The same request, with everything that it names more than once named once."""
    return _without_repeats(request) if api in READ_ONLY else request


def _without_repeats(value: Any) -> Any:
    if isinstance(value, tuple):
        once = dict.fromkeys(value)
        if value and isinstance(value[0], msgspec.Struct):
            once = dict.fromkeys(map(_without_repeats, once))
        is_same = len(once) == len(value) and all(map(is_, once, value))
        return value if is_same else tuple(once)
    if isinstance(value, msgspec.Struct):
        changed = {
            name: thin
            for name in value.__struct_fields__
            if isinstance(given := getattr(value, name), tuple) and (thin := _without_repeats(given)) is not given
        }
        return msgspec.structs.replace(value, **changed) if changed else value
    return value


def bounded_fetch(request: Fetch) -> Fetch:
    """The same fetch with each partition named once, as Kafka takes it: the last time counts."""
    total = sum(len(topic.partitions) for topic in request.topics)
    if total + len(request.topics) > ELEMENTS_MAX:
        raise ProtocolError(f"A fetch of {total} partitions is more than the {ELEMENTS_MAX} that one request may name.")
    if request.max_wait_ms > FETCH_WAIT_MS_MAX:
        request = request._replace(max_wait_ms=FETCH_WAIT_MS_MAX)
    topics: dict[tuple[str, Any], dict[int, PartitionFetch]] = {}
    for topic in request.topics:
        wanted = topics.setdefault((topic.name, topic.topic_id), {})
        for partition in topic.partitions:
            wanted[partition.partition] = partition
    if sum(map(len, topics.values())) == total and len(topics) == len(request.topics):
        return request
    firsts = {(topic.name, topic.topic_id): topic for topic in reversed(request.topics)}
    return request._replace(
        topics=tuple(firsts[key]._replace(partitions=tuple(wanted.values())) for key, wanted in topics.items())
    )
