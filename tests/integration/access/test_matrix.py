"""Every operation of the table over REST: for callers without a name, without rights, with all, with all but one."""

from __future__ import annotations

import pytest
from tests.integration.access.conftest import ALICE, NOBODY, SecureDoor
from tests.support.access_samples import GROUP, SCHEDULE, TOPIC, as_http, sample

from penstock.access.acls import CLUSTER_NAME, Acl, AclResource
from penstock.api.operation import Admits, Operation, Resource
from penstock.api.table import OPERATIONS
from penstock.operations.guard import LISTS, MAPPED, names_in

EVERY = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
REFUSED = {401, 403}


def needed(operation: Operation) -> list[Acl]:
    """The rules that the operation's needs come to, one for each."""
    request = sample(operation)
    acls = []
    for need in operation.needs:
        action, resource = MAPPED[need.action, need.resource]
        if resource is AclResource.CLUSTER:
            names = [CLUSTER_NAME]
        elif need.resource is Resource.SCHEDULE:
            names = [TOPIC]
        elif need.name is None:
            names = [TOPIC if resource is AclResource.TOPIC else "*"]
        else:
            names = list(dict.fromkeys(names_in(request, need.name)))
        acls += [Acl(principal="User:alice", action=action, resource=resource, name=name) for name in names]
    return list(dict.fromkeys(acls))


def call(secure: SecureDoor, operation: Operation, login: tuple[str, str] | None) -> list[int]:
    """The status of each of its routes. The topic and the schedule of the samples are there each time."""
    secure.ensure_topic(TOPIC)
    if any(need.resource is Resource.SCHEDULE for need in operation.needs):
        secure.root.delete(f"/v1/schedules/{SCHEDULE}")
        later = {"id": SCHEDULE, "topic": TOPIC, "value": "x", "at": "2100-01-01T00:00:00Z"}
        assert secure.root.post("/v1/schedules", json=later).status_code == 201
    with secure.client_of(login) as client:
        return [
            client.request(**as_http(operation, route, sample(operation))).status_code for route in operation.routes
        ]


@EVERY
def test_a_caller_without_a_name_is_asked_for_one(secure: SecureDoor, operation: Operation) -> None:
    statuses = call(secure, operation, None)
    if operation.admits is Admits.EVERYONE:
        assert statuses == [200]
    else:
        assert set(statuses) == {401}


@EVERY
def test_a_caller_without_rights_is_refused_or_sees_nothing(secure: SecureDoor, operation: Operation) -> None:
    secure.set_rules([])
    statuses = call(secure, operation, NOBODY)
    if operation.admits is not Admits.ALLOWED or operation.request in LISTS:
        assert statuses == [200]
    elif any(need.resource is Resource.SCHEDULE for need in operation.needs):
        assert statuses == [404]  # as for one that is not there
    else:
        assert set(statuses) == {403}


@EVERY
def test_a_caller_with_the_declared_rights_is_served(secure: SecureDoor, operation: Operation) -> None:
    secure.set_rules(needed(operation))
    statuses = call(secure, operation, ALICE)
    assert not REFUSED & set(statuses)
    assert max(statuses) < 500


@EVERY
def test_each_of_the_declared_rights_is_needed(secure: SecureDoor, operation: Operation) -> None:
    rules = needed(operation)
    if operation.request in LISTS or len(rules) < 2:
        return  # the other tests say all there is to say
    for left_out in rules:
        secure.set_rules(rule for rule in rules if rule != left_out)
        statuses = call(secure, operation, ALICE)
        is_named = [left_out.name != TOPIC or "topic" not in route.omits for route in operation.routes]
        assert all(status == 403 for status, is_meant in zip(statuses, is_named, strict=True) if is_meant), left_out


@EVERY
def test_a_denial_beats_the_permission(secure: SecureDoor, operation: Operation) -> None:
    rules = needed(operation)
    if not rules or operation.request in LISTS or any(need.resource is Resource.SCHEDULE for need in operation.needs):
        return
    from msgspec.structs import replace

    from penstock.access.acls import AclPermission

    secure.set_rules([*rules, *(replace(rule, permission=AclPermission.DENY) for rule in rules)])
    assert set(call(secure, operation, ALICE)) == {403}


def test_samples_name_what_the_tests_think() -> None:
    assert {GROUP, TOPIC} == {"workers", "orders"}
