"""Internal topics are the broker's own: nothing that is asked from outside changes them."""

from __future__ import annotations

import pytest
from tests.integration.http.conftest import DoorInThread

from penstock.consensus.commands import AddPartitions, Command, ConfigureTopic, DeleteTopic
from penstock.errors import PolicyViolation
from penstock.model import TRANSACTIONS_TOPIC


@pytest.fixture
def kept(door: DoorInThread) -> str:
    door.run(door.broker.ensure_transactions_topic())
    return TRANSACTIONS_TOPIC


def test_no_call_changes_one(door: DoorInThread, kept: str) -> None:
    before = door.look(lambda broker: broker.metadata.topic(kept))
    client, path = door.client, f"/v1/topics/{kept}"
    answers = [
        client.patch(path, json={"configs": {"retention.ms": "1"}}),
        client.post(f"{path}/partitions", json={"partitions": 50}),
        client.delete(path),
        client.post(f"{path}/publish", json={"value": "x"}),
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(403, "policy_violation")] * 4
    assert door.look(lambda broker: broker.metadata.topic(kept)) == before


@pytest.mark.parametrize(
    "command",
    [
        DeleteTopic(name=TRANSACTIONS_TOPIC),
        AddPartitions(name=TRANSACTIONS_TOPIC, count=50),
        ConfigureTopic(name=TRANSACTIONS_TOPIC, changes={"retention.ms": "1"}),
    ],
)
def test_no_node_has_the_controller_change_one(door: DoorInThread, kept: str, command: Command) -> None:
    before = door.look(lambda broker: broker.metadata.topic(kept))
    with pytest.raises(PolicyViolation, match="broker's own state"):
        door.run(door.broker.command(command))
    assert door.look(lambda broker: broker.metadata.topic(kept)) == before
