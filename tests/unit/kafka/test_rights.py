"""Every API that the door offers has its row in the table of rights, and rows name rights that Kafka knows."""

from __future__ import annotations

import pytest

from penstock.access.acls import AclAction, AclResource
from penstock.access.principal import Principal
from penstock.access.rules import AccessRules
from penstock.clock import SystemClock
from penstock.doors.kafka.caller import REFUSALS, Caller
from penstock.doors.kafka.handlers import HANDLERS
from penstock.doors.kafka.protocol import apis
from penstock.doors.kafka.protocol.errors import ProtocolError
from penstock.doors.kafka.protocol.messages.topics import CreateTopicsRequest
from penstock.doors.kafka.protocol.schema import Api
from penstock.doors.kafka.rights import RIGHTS, judge
from penstock.features.access.audit import AuditLog
from penstock.features.access.authorizer import Authorizer

OFFERED = {apis.PRODUCE, apis.FETCH, apis.API_VERSIONS, *(handler.request.api for handler in HANDLERS.values())}
NEEDS_NOTHING = {apis.API_VERSIONS, apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE}


def stranger() -> Caller:
    return Caller(Authorizer(AccessRules(), is_on=True), AuditLog(SystemClock()), Principal("stranger"), "127.0.0.1")


def test_every_api_has_its_row() -> None:
    assert set(RIGHTS) == OFFERED


def test_only_the_way_in_needs_nothing() -> None:
    assert {api for api, rules in RIGHTS.items() if not rules} == NEEDS_NOTHING


def test_every_kind_of_resource_has_its_refusal() -> None:
    assert set(REFUSALS) == set(AclResource)


def test_an_api_without_a_row_is_refused() -> None:
    unknown = Api(4711, "Unknown", 0, 0, flexible=0)
    with pytest.raises(ProtocolError, match="Unknown"):
        judge(stranger(), unknown, CreateTopicsRequest(topics=()))


def test_without_rules_a_caller_may_do_nothing() -> None:
    caller = stranger()
    for action in AclAction:
        for resource in AclResource:
            assert not caller.may(action, resource, "x")
            assert not caller.may_some(action, resource)
    assert caller.operations(AclResource.TOPIC, "x") == caller.cluster_operations() == 0
