"""Groups seen from outside: REST, metrics and the command line show and move what Kafka clients committed."""

from __future__ import annotations

import json
import subprocess

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support.node import Node, penstock_command

MESSAGES = 30


@pytest.fixture
def group(node: Node, topic: str) -> str:
    """An empty group that has read ten messages of thirty, all in partition 0."""
    old = {"retention.ms": "-1"}  # the messages are, and retention looks every ten seconds
    body = {"name": topic, "configs": old}
    httpx.post(f"{node.http_url}/v1/topics", json=body, timeout=60).raise_for_status()
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for number in range(MESSAGES):
        producer.produce(topic, value=str(number), partition=0, timestamp=1_700_000_000_000 + number * 1000)
    assert producer.flush(60) == 0
    name = f"group-of-{topic}"
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": name, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 0, 10)], asynchronous=False)
    consumer.close()
    return name


def penstock(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [penstock_command(), "group", *arguments, "--url", node.http_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def committed(node: Node, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=60)
    consumer.close()
    return int(found.offset)


def test_lag_is_the_same_at_every_door(node: Node, group: str, topic: str) -> None:
    detail = httpx.get(f"{node.http_url}/v1/groups/{group}").json()
    assert (detail["state"], detail["members"], detail["lag"]) == ("Empty", 0, 20)
    assert detail["offsets"] == [
        {
            "topic": topic,
            "partition": 0,
            "committed_offset": 10,
            "high_watermark": MESSAGES,
            "lag": 20,
            "metadata": "",
            "member_id": None,
        }
    ]
    assert group in [row["group"] for row in httpx.get(f"{node.http_url}/v1/groups").json()["groups"]]
    row = f'penstock_consumer_lag{{group="{group}",partition="0",topic="{topic}"}} 20.0'
    assert row in httpx.get(f"{node.http_url}/metrics").text
    assert penstock(node, "lag", group).stdout == "20\n"
    assert penstock(node, "lag", group, "--max", "19").returncode == 1


def test_a_member_and_what_it_reads_are_shown(node: Node, group: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": group, "client.id": "reader"})
    consumer.subscribe([topic])
    assert consumer.poll(90) is not None
    detail = json.loads(penstock(node, "describe", group, "-o", "json").stdout)
    (member,) = detail["member_details"]
    assert member["client_id"] == "reader"
    assert {"topic": topic, "partition": 0} in member["partitions"]
    assert detail["offsets"][0]["member_id"] == member["member_id"]
    refused = penstock(node, "delete", group, "--yes")
    assert refused.returncode == 4
    assert "members" in refused.stderr
    assert penstock(node, "reset", group, topic, "--to", "earliest").returncode == 4
    consumer.close()


@pytest.mark.parametrize(
    ("options", "offset"),
    [
        (("--to", "earliest"), 0),
        (("--to", "latest"), MESSAGES),
        (("--to", "7"), 7),
        (("--since", "2023-11-14T22:13:25Z"), 5),
        (("--shift", "-3"), 7),
        (("--shift", "5"), 15),
        (("--shift", "-1000"), 0),
        (("--shift", "1000"), MESSAGES),
    ],
)
def test_an_empty_group_is_moved(node: Node, group: str, topic: str, options: tuple[str, ...], offset: int) -> None:
    moved = penstock(node, "reset", group, topic, "--partition", "0", *options)
    assert moved.returncode == 0, moved.stderr
    assert committed(node, group, topic) == offset


@pytest.mark.parametrize("output", ["json", "table"])
def test_a_dry_run_shows_what_would_be_and_moves_nothing(node: Node, group: str, topic: str, output: str) -> None:
    shown = penstock(node, "reset", group, topic, "--shift", "-4", "--dry-run", "-o", output)
    assert shown.returncode == 0, shown.stderr
    if output == "json":
        result = json.loads(shown.stdout)
        assert (result["dry_run"], result["lag"]) == (True, 20)
        assert result["moves"] == [{"topic": topic, "partition": 0, "from_offset": 10, "to_offset": 6}]
    else:
        assert shown.stdout.splitlines()[1:] == [
            f"{'TOPIC'.ljust(len(topic))}  PARTITION  FROM  TO",
            f"{topic}  0          10    6",
        ]
    assert committed(node, group, topic) == 10


def test_a_dry_run_begins_no_group(node: Node, group: str, topic: str) -> None:
    shown = penstock(node, "reset", f"new-{topic}", topic, "--to", "latest", "--dry-run", "-o", "json")
    assert [row["from_offset"] for row in json.loads(shown.stdout)["moves"]] == [None, None, None]
    assert penstock(node, "describe", f"new-{topic}").returncode == 3


@pytest.mark.parametrize("where", [("--partition", "1"), ("--partition", "0", "--partition", "1")])
def test_only_an_offset_that_is_there_can_be_shifted(
    node: Node, group: str, topic: str, where: tuple[str, ...]
) -> None:
    assert penstock(node, "reset", group, topic, "--shift", "1", *where).returncode == 2
    assert penstock(node, "reset", f"new-{topic}", topic, "--shift", "1").returncode == 2
    assert committed(node, group, topic) == 10


@pytest.mark.parametrize("options", [(), ("--to", "1", "--shift", "1"), ("--shift", "1", "--since", "2h")])
def test_a_reset_goes_to_one_place(node: Node, group: str, topic: str, options: tuple[str, ...]) -> None:
    assert penstock(node, "reset", group, topic, *options).returncode == 2


# -- deleting offsets --------------------------------------------------------------------------------------------------


def partitions_of(node: Node, group: str) -> list[int]:
    answer = httpx.get(f"{node.http_url}/v1/groups/{group}").json()
    return [row["partition"] for row in answer.get("offsets", [])]


def test_offsets_of_partitions_and_topics_are_deleted(node: Node, group: str, topic: str) -> None:
    assert penstock(node, "reset", group, topic, "--to", "earliest").returncode == 0
    assert partitions_of(node, group) == [0, 1, 2]
    refused = penstock(node, "delete-offsets", group, f"{topic}:0,2")
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True), "nobody is there to ask"
    done = penstock(node, "delete-offsets", group, f"{topic}:0,2", "--yes")
    assert json.loads(done.stdout) == {
        "group": group,
        "deleted": [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 2}],
    }
    assert "2 partitions" in done.stderr
    assert partitions_of(node, group) == [1]
    assert "1 partition " in penstock(node, "delete-offsets", group, topic, "--yes", "-o", "table").stderr
    assert penstock(node, "describe", group).returncode == 3, "an empty group goes with its last offset"
    assert penstock(node, "delete-offsets", group, topic, "--yes").returncode == 3


def test_offsets_of_a_topic_that_is_gone_can_be_deleted(node: Node, group: str, topic: str) -> None:
    httpx.delete(f"{node.http_url}/v1/topics/{topic}")
    assert penstock(node, "delete-offsets", group, topic, "--yes").returncode == 0
    assert penstock(node, "describe", group).returncode == 3


def test_offsets_of_a_topic_that_members_read_stay(node: Node, group: str, topic: str) -> None:
    joined = httpx.post(f"{node.http_url}/v1/groups/{group}/join", json={"topics": [topic]}, timeout=60).json()
    assert penstock(node, "delete-offsets", group, topic, "--yes").returncode == 4
    assert partitions_of(node, group) == [0, 1, 2]
    httpx.post(f"{node.http_url}/v1/groups/{group}/leave", json={"member_id": joined["member_id"]})


@pytest.mark.parametrize("target", ["", ":0", "TOPIC:", "TOPIC:x", "TOPIC:0,", "TOPIC:-1"])
def test_a_bad_target_is_wrong_usage(node: Node, group: str, topic: str, target: str) -> None:
    assert penstock(node, "delete-offsets", group, target.replace("TOPIC", topic), "--yes").returncode == 2
    assert committed(node, group, topic) == 10


@pytest.mark.parametrize("query", ["", "topic=", "topic=TOPIC&partitions=", "topic=TOPIC&partitions=a", "tpic=TOPIC"])
def test_a_bad_query_deletes_nothing(node: Node, group: str, topic: str, query: str) -> None:
    url = f"{node.http_url}/v1/groups/{group}/offsets?{query.replace('TOPIC', topic)}"
    answer = httpx.delete(url)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_parameter")
    assert committed(node, group, topic) == 10


def test_a_group_can_be_moved_before_it_was_ever_used(node: Node, group: str, topic: str) -> None:
    answer = httpx.post(
        f"{node.http_url}/v1/groups/new-{topic}/reset", json={"topic": topic, "to": 3, "partitions": [0]}
    )
    assert answer.status_code == 200, answer.text
    assert committed(node, f"new-{topic}", topic) == 3


def test_a_deleted_group_is_gone(node: Node, group: str) -> None:
    assert penstock(node, "delete", group, "--yes").returncode == 0
    assert penstock(node, "describe", group).returncode == 3


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"to": "earliest"}, 422),
        ({"topic": "TOPIC"}, 422),
        ({"topic": "TOPIC", "to": 5, "since": "2023-11-14T22:13:25Z"}, 422),
        ({"topic": "TOPIC", "to": "middle"}, 422),
        ({"topic": "TOPIC", "to": 31, "partitions": [0]}, 416),
        ({"topic": "TOPIC", "to": 0, "partitions": [99]}, 404),
        ({"topic": "missing", "to": "latest"}, 404),
    ],
)
def test_a_bad_reset_is_refused_and_moves_nothing(
    node: Node, group: str, topic: str, body: dict[str, object], status: int
) -> None:
    sent = {key: topic if value == "TOPIC" else value for key, value in body.items()}
    answer = httpx.post(f"{node.http_url}/v1/groups/{group}/reset", json=sent)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert committed(node, group, topic) == 10
