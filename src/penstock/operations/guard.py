"""The gate before every operation of the table: who calls, and whether its rules allow what the row needs.

Doors get their operations from `server_of`, which puts this in front of each, so no door can forget it. A row's needs
name actions on resources; here they become rights of Kafka's model, on the names that the request holds (see
docs/reference/access.md). Without a declared need an operation is refused. Lists are served to every authenticated
caller and hold only what the caller may see. What waits for long is looked at again if the rules changed meanwhile.

A refusal does not tell whether a resource exists: it is decided on the name alone, and names the missing right only
where the caller may describe the resource.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.access.acls import CLUSTER_NAME, AclAction, AclResource
from penstock.access.principal import ANONYMOUS
from penstock.api.groups import FindOffsets, ListGroups, OffsetsAnswer
from penstock.api.health import Health, IsReady
from penstock.api.operation import TABLE, Action, Admits, Needs, Operation, Request, Resource
from penstock.api.pipelines import ListPipelines
from penstock.api.queues import ListQueues
from penstock.api.schedules import ListSchedules
from penstock.api.topics import ListTopics
from penstock.api.transactions import ListTransactions
from penstock.errors import AuthenticationFailed, AuthorizationDenied, NodeStarting, PenstockError, ScheduleNotFound
from penstock.features.queues.core.messages import parse_receipt
from penstock.operations.caller import Caller
from penstock.operations.services import Services
from penstock.operations.serving import Serve

_RECEIPTS: Final = frozenset({"receipts", "ack"})  # fields that hold receipts, each of which names its topic
LOG_IN: Final = (
    "Say who you are: Authorization: Bearer with an API key or a token, or Basic with a user's name and password."
)


class Right(NamedTuple):
    """An action on a resource, as rules give it. Without a name it means some resource of the kind."""

    action: AclAction
    resource: AclResource
    name: str | None

    def __str__(self) -> str:
        named = "" if self.name is None else f" {self.name!r}"
        return f"{self.action.name} on {self.resource.name.lower()}{named}"


# -- the table: what a need is in the model of rules -------------------------------------------------------------------

_TOPIC, _GROUP, _CLUSTER, _ID = AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER, AclResource.TRANSACTIONAL_ID

MAPPED: Final[Mapping[tuple[Action, Resource], tuple[AclAction, AclResource]]] = {
    (Action.READ, Resource.TOPIC): (AclAction.READ, _TOPIC),
    (Action.WRITE, Resource.TOPIC): (AclAction.WRITE, _TOPIC),
    (Action.CREATE, Resource.TOPIC): (AclAction.CREATE, _TOPIC),
    (Action.DELETE, Resource.TOPIC): (AclAction.DELETE, _TOPIC),
    (Action.DESCRIBE, Resource.TOPIC): (AclAction.DESCRIBE, _TOPIC),
    (Action.ALTER, Resource.TOPIC): (AclAction.ALTER, _TOPIC),
    (Action.READ, Resource.GROUP): (AclAction.READ, _GROUP),
    (Action.DESCRIBE, Resource.GROUP): (AclAction.DESCRIBE, _GROUP),
    (Action.DELETE, Resource.GROUP): (AclAction.DELETE, _GROUP),
    (Action.ALTER, Resource.GROUP): (AclAction.ALTER_CONFIGS, _GROUP),
    (Action.CREATE, Resource.TRANSACTION): (AclAction.WRITE, _ID),
    (Action.WRITE, Resource.TRANSACTION): (AclAction.WRITE, _ID),
    (Action.DESCRIBE, Resource.TRANSACTION): (AclAction.DESCRIBE, _ID),
    # A schedule is a message of its topic that is still to come.
    (Action.DESCRIBE, Resource.SCHEDULE): (AclAction.READ, _TOPIC),
    (Action.ALTER, Resource.SCHEDULE): (AclAction.WRITE, _TOPIC),
    (Action.DELETE, Resource.SCHEDULE): (AclAction.WRITE, _TOPIC),
    # A pipeline counts as the group of its name.
    (Action.DESCRIBE, Resource.PIPELINE): (AclAction.DESCRIBE, _GROUP),
    (Action.WRITE, Resource.PIPELINE): (AclAction.READ, _GROUP),
    (Action.ALTER, Resource.PIPELINE): (AclAction.ALTER_CONFIGS, _GROUP),
    (Action.DELETE, Resource.PIPELINE): (AclAction.DELETE, _GROUP),
    (Action.DESCRIBE, Resource.CLUSTER): (AclAction.DESCRIBE, _CLUSTER),
    (Action.ALTER, Resource.CLUSTER): (AclAction.ALTER, _CLUSTER),
    (Action.DESCRIBE, Resource.NODE): (AclAction.DESCRIBE, _CLUSTER),
    # Running nodes is an operator's work; ALTER on the cluster also changes who may do what.
    (Action.ALTER, Resource.NODE): (AclAction.ALTER_CONFIGS, _CLUSTER),
    # As Kafka's calls for quotas have it.
    (Action.DESCRIBE, Resource.QUOTA): (AclAction.DESCRIBE_CONFIGS, _CLUSTER),
    (Action.ALTER, Resource.QUOTA): (AclAction.ALTER_CONFIGS, _CLUSTER),
}

# What administrators answer for: written to the audit log.
_CHANGES: Final = frozenset({Action.CREATE, Action.DELETE, Action.ALTER})
_ADMINISTERED: Final = frozenset(
    {Resource.TOPIC, Resource.GROUP, Resource.PIPELINE, Resource.CLUSTER, Resource.NODE, Resource.QUOTA}
)


# -- lists: only what the caller may see -------------------------------------------------------------------------------

May = Callable[[str], bool]
Only = Callable[[Any, May], Any]


def _only(field: str, name: str) -> Only:
    def filtered(answer: Any, may: May) -> Any:
        return replace(answer, **{field: [item for item in getattr(answer, field) if may(getattr(item, name))]})

    return filtered


def _only_offsets(answer: OffsetsAnswer, may: May) -> OffsetsAnswer:
    return replace(answer, topics=[ends for ends in answer.topics if may(ends.topic)])


LISTS: Final[Mapping[type[Request[Any]], Only]] = {
    ListTopics: _only("topics", "name"),
    ListQueues: _only("queues", "topic"),
    ListGroups: _only("groups", "group"),
    ListTransactions: _only("transactions", "transaction"),
    ListSchedules: _only("schedules", "topic"),
    ListPipelines: _only("pipelines", "name"),
    FindOffsets: _only_offsets,
}


# -- the gate ----------------------------------------------------------------------------------------------------------


def guarded(row: Operation, serve: Serve) -> Serve:
    """What serves an operation, behind the gate."""
    return partial(_guarded, Guard(row), serve)


def _guarded(guard: Guard, serve: Serve, services: Services, request: Any, caller: Caller) -> Awaitable[Any]:
    if not services.authorizer.is_on:
        return serve(services, request, caller)
    return guard.serve(serve, services, request, caller)


class Guard:
    """The gate of one operation."""

    def __init__(self, row: Operation) -> None:
        self._row = row
        self._only = LISTS.get(row.request)
        self._is_change = any(need.action in _CHANGES and need.resource in _ADMINISTERED for need in row.needs)
        self._makes_topics = tuple(
            need for need in row.needs if (need.action, need.resource) == (Action.WRITE, Resource.TOPIC)
        )

    async def serve(self, serve: Serve, services: Services, request: Any, caller: Caller) -> Any:
        """Check, serve, and check again if the rules changed while it was served."""
        authorizer, row = services.authorizer, self._row
        rights = await self.check(services, request, caller)
        version = authorizer.version
        request, hidden = self._without_hidden(services, request, caller)
        if hidden and not request.topics and request.pattern is None:
            return OffsetsAnswer(topics=[], missing=hidden)
        try:
            answer = await serve(services, request, caller)
        except PenstockError:
            if self._is_change:
                services.audit.failed(caller.principal, caller.host, row.name, _shown(rights), caller.request_id)
            raise
        if self._is_change:
            services.audit.changed(caller.principal, caller.host, row.name, _shown(rights), caller.request_id)
        elif authorizer.version != version:
            await self.check(services, request, caller)
        return self._visible(services, answer, caller, hidden)

    async def check(self, services: Services, request: Any, caller: Caller) -> list[Right]:
        """The rights that the request needs, all of which the caller has; else an error."""
        row = self._row
        if row.admits is Admits.EVERYONE:
            return []
        check_logged_in(services, caller, row.name)
        if row.admits is Admits.AUTHENTICATED:
            return []
        if not row.needs:
            services.authorizer.denied += 1
            raise AuthorizationDenied(f"The operation {row.name} says nothing of the access it needs, so it is closed.")
        rights: list[Right] = []
        for need in row.needs:
            rights += await self._rights(services, need, request, caller)
        for right in rights:
            require(services, caller, right, row.name)
        return rights

    async def _rights(self, services: Services, need: Needs, request: Any, caller: Caller) -> list[Right]:
        action, resource = MAPPED[need.action, need.resource]
        if resource is _CLUSTER:
            return [Right(action, resource, CLUSTER_NAME)]
        if need.name is None:
            return [] if self._only is not None else [Right(action, resource, None)]
        names = list(dict.fromkeys(names_in(request, need.name)))
        if need.resource is Resource.SCHEDULE:
            names = [await self._topic_of(services, name, action, caller) for name in names]
        rights = [Right(action, resource, name) for name in names]
        if need in self._makes_topics and services.broker.config.auto_create_topics:
            rights += [Right(AclAction.CREATE, _TOPIC, name) for name in names if name not in services.metadata.topics]
        return rights

    async def _topic_of(self, services: Services, schedule_id: str, action: AclAction, caller: Caller) -> str:
        """The topic of a schedule; to callers without the right to it the schedule does not exist."""
        topic = (await services.schedules.show(schedule_id)).message.topic
        if not allowed(services, caller, Right(action, _TOPIC, topic)) and not allowed(
            services, caller, Right(AclAction.DESCRIBE, _TOPIC, topic)
        ):
            _note(services, caller, Right(action, _TOPIC, topic), self._row.name)
            raise ScheduleNotFound(f"There is no schedule {schedule_id!r}.")
        return topic

    def _without_hidden(self, services: Services, request: Any, caller: Caller) -> tuple[Any, list[str]]:
        """A request for several topics without those that the caller may not see; and their names."""
        if not isinstance(request, FindOffsets):
            return request, []
        may = self._may(services, caller)
        hidden = [name for name in request.topics if not may(name)]
        known = [item for item in request.known if may(item.topic)]
        return replace(request, topics=[name for name in request.topics if may(name)], known=known), hidden

    def _visible(self, services: Services, answer: Any, caller: Caller, hidden: list[str]) -> Any:
        if isinstance(answer, Health) and self._row.request is IsReady and caller.principal == ANONYMOUS:
            return replace(answer, reasons=[], warnings=[], node_id=0, version="", uptime_ms=0, partitions=0)
        if self._only is None:
            return answer
        answer = self._only(answer, self._may(services, caller))
        return replace(answer, missing=[*answer.missing, *hidden]) if hidden else answer

    def _may(self, services: Services, caller: Caller) -> May:
        action, resource = MAPPED[self._row.needs[0].action, self._row.needs[0].resource]
        return lambda name: allowed(services, caller, Right(action, resource, name))


def check_known(services: Services) -> None:
    """Refuse to judge credentials, in a way that clients try again, while the node does not know its users yet."""
    if not services.broker.is_started:
        raise NodeStarting("This node is starting and does not know its users yet. Try again in a moment.")


def check_logged_in(services: Services, caller: Caller, operation: str) -> None:
    """Refuse a caller that has not said who it is, or whose credential has ended."""
    principal = caller.principal
    if principal == ANONYMOUS:
        check_known(services)
        _note(services, caller, None, operation)
        raise AuthenticationFailed(LOG_IN)
    if principal.expires_ms is not None and services.clock.now_ms() >= principal.expires_ms:
        raise AuthenticationFailed("The credential has expired. Log in with a new one.")


def allowed(services: Services, caller: Caller, right: Right) -> bool:
    authorizer, principal, host = services.authorizer, caller.principal, caller.host
    if right.name is None:
        return authorizer.allows_any(principal, host, right.action, right.resource)
    if authorizer.allows(principal, host, right.action, right.resource, right.name):
        return True
    # As in Kafka: who may create topics in the cluster may create any, but for the broker's own.
    return (
        right.action is AclAction.CREATE
        and right.resource is _TOPIC
        and not right.name.startswith("__")
        and authorizer.allows(principal, host, AclAction.CREATE, _CLUSTER, CLUSTER_NAME)
    )


def require(services: Services, caller: Caller, right: Right, operation: str) -> None:
    """Refuse unless the caller has the right."""
    if allowed(services, caller, right):
        return
    if caller.principal == ANONYMOUS:
        check_known(services)
    _note(services, caller, right, operation)
    if caller.principal == ANONYMOUS:
        raise AuthenticationFailed(LOG_IN)
    if allowed(services, caller, right._replace(action=AclAction.DESCRIBE)):
        raise AuthorizationDenied(f"{caller.principal} needs {right}. An administrator can grant it.")
    raise AuthorizationDenied(f"{caller.principal} may not do this. An administrator can grant the right.")


def check_looks(services: Services, caller: Caller, operation: str) -> None:
    """Refuse unless the caller may look at the cluster; for pages that are no operations."""
    if services.authorizer.is_on:
        check_logged_in(services, caller, operation)
        require(services, caller, Right(AclAction.DESCRIBE, _CLUSTER, CLUSTER_NAME), operation)


def require_topics(
    services: Services, caller: Caller, action: AclAction, topics: Iterable[str], operation: str
) -> None:
    """The same for topics that no field of the request names; nothing where security is off."""
    if services.authorizer.is_on:
        for topic in topics:
            require(services, caller, Right(action, _TOPIC, topic), operation)


async def check_request(services: Services, request: Request[Any], caller: Caller) -> None:
    """The gate for doors that do not serve a row but do the same, such as subscriptions."""
    if services.authorizer.is_on:
        await Guard(TABLE[type(request)]).check(services, request, caller)


def _note(services: Services, caller: Caller, right: Right | None, operation: str) -> None:
    services.authorizer.denied += 1
    services.audit.denied(
        caller.principal, caller.host, operation, "" if right is None else str(right), caller.request_id
    )


def _shown(rights: list[Right]) -> str:
    return ", ".join(map(str, rights))


# -- names in requests -------------------------------------------------------------------------------------------------


def names_in(request: Any, path: str) -> Iterator[str]:
    """The names that a request holds at a path of fields; lists are looked into, and what is absent names nothing."""
    field, _, rest = path.partition(".")
    value = getattr(request, field)
    for each in value if isinstance(value, (list, tuple)) else (value,):
        if each is None or each is msgspec.UNSET:
            continue
        if rest:
            yield from names_in(each, rest)
        elif field in _RECEIPTS:
            receipt = parse_receipt(each)
            if receipt is not None:  # one that is none of ours is refused where it is looked at
                yield receipt.topic
        else:
            yield str(each)
