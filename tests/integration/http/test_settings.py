"""Settings of groups, of a node and of all nodes over REST: shown with where they come from, changed or refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

SESSION = "consumer.session.timeout.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"
LEADER = "leader.replication.throttled.rate"
FOLLOWER = "follower.replication.throttled.rate"


def settings(told: httpx.Response) -> dict[str, tuple[str | None, str]]:
    assert told.status_code == 200, told.text
    return {each["name"]: (each["value"], each["origin"]) for each in told.json()["settings"]}


def test_a_group_has_its_own_settings_before_the_defaults(client: httpx.Client, topic: str) -> None:
    at = f"/v1/groups/of {topic}/configs"
    assert settings(client.get(at)) == {HEARTBEAT: ("3000", "default"), SESSION: ("45000", "default")}
    changed = {HEARTBEAT: ("1000", "group"), SESSION: ("9000", "group")}
    assert settings(client.patch(at, json={"configs": {SESSION: 9_000, HEARTBEAT: "1000"}})) == changed
    assert settings(client.get(at)) == changed
    unset = settings(client.patch(at, json={"configs": {SESSION: None}}))
    assert unset == {HEARTBEAT: ("1000", "group"), SESSION: ("45000", "default")}


def test_a_node_tells_what_it_was_started_with_and_what_was_changed(client: httpx.Client) -> None:
    found = client.get("/v1/nodes/1/configs").json()["settings"]
    assert {each["name"] for each in found if each["is_changeable"]} == {LEADER, FOLLOWER}
    assert settings(client.get("/v1/nodes/1/configs"))["node.id"] == ("1", "startup")
    assert all(each["description"] for each in found)
    assert settings(client.patch("/v1/cluster/configs", json={"configs": {LEADER: 5_000}})) == {
        LEADER: ("5000", "cluster")
    }
    assert settings(client.get("/v1/nodes/1/configs"))[LEADER] == ("5000", "cluster")
    assert settings(client.patch("/v1/nodes/1/configs", json={"configs": {LEADER: 7_000}})) == {
        LEADER: ("7000", "node")
    }
    assert settings(client.get("/v1/nodes/1/configs"))[LEADER] == ("7000", "node")
    for at in ("nodes/1", "cluster"):
        assert settings(client.patch(f"/v1/{at}/configs", json={"configs": {LEADER: None}})) == {}
    assert settings(client.get("/v1/cluster/configs")) == {}
    assert settings(client.get("/v1/nodes/1/configs"))[LEADER][1] == "default"


@pytest.mark.parametrize(
    ("at", "configs", "status", "code"),
    [
        ("groups/g", {"no.such": 1}, 422, "invalid_config"),
        ("groups/g", {SESSION: "soon"}, 422, "invalid_config"),
        ("groups/g", {SESSION: 1}, 422, "invalid_config"),
        ("groups/g", {HEARTBEAT: 1_000, SESSION: 1}, 422, "invalid_config"),
        ("groups/g", {SESSION: [9_000]}, 422, "invalid_body"),
        ("nodes/1", {"node.id": 2}, 422, "invalid_config"),
        ("nodes/1", {LEADER: -1}, 422, "invalid_config"),
        ("nodes/9", {LEADER: 1}, 404, "node_not_found"),
        ("nodes/one", {LEADER: 1}, 422, "invalid_request"),
        ("cluster", {LEADER: True}, 422, "invalid_config"),
    ],
)
def test_what_is_wrong_changes_nothing(
    client: httpx.Client, at: str, configs: dict[str, Any], status: int, code: str
) -> None:
    refused = client.patch(f"/v1/{at}/configs", json={"configs": configs})
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert settings(client.get("/v1/groups/g/configs")) == {
        HEARTBEAT: ("3000", "default"),
        SESSION: ("45000", "default"),
    }
    assert settings(client.get("/v1/cluster/configs")) == {}
    assert client.get("/v1/nodes/9/configs").status_code == 404
