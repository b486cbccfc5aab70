"""Which of Kafka's requests go to the audit log: those that change what administrators answer for.

Changes of rules and users are noted by their handlers, which know what was removed. Refusals are noted where they are
decided. Here is the rest: topics, partitions, settings, moves, records and groups deleted, quotas. Values of settings
are left out: names say enough, and a value may be a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from penstock.doors.kafka.caller import REFUSALS, Caller
from penstock.doors.kafka.protocol import apis
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages import cluster, configs, groups, offsets, quotas, topics
from penstock.doors.kafka.protocol.schema import Api, ApiMessage
from penstock.doors.kafka.rights import Complete

_EVENTS_MAX: Final = 100  # of one request; the last one says how many more there were
_KINDS: Final = {2: "topic", 4: "node", 32: "group"}  # Kafka's types of resources with settings
_REFUSED: Final = frozenset(REFUSALS.values())


class Change(NamedTuple):
    """What a request changed, or tried to."""

    resource: str
    error_code: int


def audited(caller: Caller, request: Any, complete: Complete | None) -> Complete | None:
    """What completes the response, and notes what the request has changed before."""
    changes = CHANGES.get(request.api)
    if changes is None or getattr(request, "validate_only", False):
        return complete

    def noted(response: ApiMessage) -> ApiMessage:
        _note(caller, request.api, [each for each in changes(request, response) if each.error_code not in _REFUSED])
        return response if complete is None else complete(response)

    return noted


def _note(caller: Caller, api: Api, changes: list[Change]) -> None:
    for resource, error_code in changes[:_EVENTS_MAX]:
        note = caller.changed if error_code == ErrorCode.NONE else caller.failed
        note(api, resource)
    if len(changes) > _EVENTS_MAX:
        caller.changed(api, f"and {len(changes) - _EVENTS_MAX} more")


def _created(_: Any, response: topics.CreateTopicsResponse) -> Iterator[Change]:
    return (Change(f"topic:{each.name}", each.error_code) for each in response.topics)


def _deleted(_: Any, response: topics.DeleteTopicsResponse) -> Iterator[Change]:
    return (Change(f"topic:{each.name or each.topic_id}", each.error_code) for each in response.responses)


def _grown(request: topics.CreatePartitionsRequest, response: topics.CreatePartitionsResponse) -> Iterator[Change]:
    counts = {each.name: each.count for each in request.topics}
    return (
        Change(f"topic:{each.name} to {counts.get(each.name)} partitions", each.error_code) for each in response.results
    )


def _configured(request: configs.AlterConfigsRequest, response: configs.AlterConfigsResponse) -> Iterator[Change]:
    named = {
        (each.resource_type, each.resource_name): ", ".join(setting.name for setting in each.configs)
        for each in request.resources
    }
    for each in response.responses:
        kind = _KINDS.get(each.resource_type, "resource")
        settings = named.get((each.resource_type, each.resource_name), "")
        yield Change(f"{kind}:{each.resource_name} settings {settings}", each.error_code)


def _moved(_: Any, response: cluster.AlterPartitionReassignmentsResponse) -> Iterator[Change]:
    for topic in response.responses:
        for at in topic.partitions:
            yield Change(f"topic:{topic.name}-{at.partition_index}", at.error_code or response.error_code)


def _elected(_: Any, response: cluster.ElectLeadersResponse) -> Iterator[Change]:
    for topic in response.replica_election_results:
        for at in topic.partition_result:
            if at.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                yield Change(f"topic:{topic.topic}-{at.partition_id}", at.error_code)


def _trimmed(request: topics.DeleteRecordsRequest, response: topics.DeleteRecordsResponse) -> Iterator[Change]:
    before = {(topic.name, at.partition_index): at.offset for topic in request.topics for at in topic.partitions}
    for topic in response.topics:
        for at in topic.partitions:
            offset = before.get((topic.name, at.partition_index))
            yield Change(f"topic:{topic.name}-{at.partition_index} before offset {offset}", at.error_code)


def _forgotten(_: Any, response: groups.DeleteGroupsResponse) -> Iterator[Change]:
    return (Change(f"group:{each.group_id}", each.error_code) for each in response.results)


def _uncommitted(request: offsets.OffsetDeleteRequest, response: offsets.OffsetDeleteResponse) -> Iterator[Change]:
    if response.error_code:
        yield Change(f"group:{request.group_id}", response.error_code)
    for topic in response.topics:
        for at in topic.partitions:
            yield Change(f"group:{request.group_id} of topic:{topic.name}-{at.partition_index}", at.error_code)


def _limited(_: Any, response: quotas.AlterClientQuotasResponse) -> Iterator[Change]:
    for entry in response.entries:
        parts = " ".join(f"{part.entity_type}:{part.entity_name or '*'}" for part in entry.entity)
        yield Change(f"quota of {parts}", entry.error_code)


CHANGES: Final[Mapping[Api, Callable[[Any, Any], Iterator[Change]]]] = {
    apis.CREATE_TOPICS: _created,
    apis.DELETE_TOPICS: _deleted,
    apis.CREATE_PARTITIONS: _grown,
    apis.ALTER_CONFIGS: _configured,
    apis.INCREMENTAL_ALTER_CONFIGS: _configured,
    apis.ALTER_PARTITION_REASSIGNMENTS: _moved,
    apis.ELECT_LEADERS: _elected,
    apis.DELETE_RECORDS: _trimmed,
    apis.DELETE_GROUPS: _forgotten,
    apis.OFFSET_DELETE: _uncommitted,
    apis.ALTER_CLIENT_QUOTAS: _limited,
}
