"""Every door on every node of a real cluster: whichever node is asked, the answer is the cluster's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import msgspec
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from kafka import KafkaAdminClient
from tests.support.cluster import Cluster, command, eventually, known, led_by, rest

from penstock.records import decode_records

NODES = (1, 2, 3)
_numbers = count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"cluster__follower_reads": "true", "groups__initial_delay_ms": 100}
    running = Cluster(tmp_path_factory.mktemp("cluster"), **settings)
    for number, node in running.nodes.items():
        node.settings = {**node.settings, "broker__rack": f"rack-{number}"}
    with running:
        yield running


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic of which every node leads two partitions."""
    name = f"topic-{next(_numbers)}"
    rest(cluster, 1).post("/v1/topics", json={"name": name, "partitions": 6}).raise_for_status()
    eventually(lambda: all(in_sync == list(NODES) for in_sync in cluster.replicas_in_sync(name)), what="in sync")
    eventually(lambda: all(name in known(cluster, number) for number in NODES), what="the topic everywhere")
    assert sorted(cluster.leaders(name)) == [1, 1, 2, 2, 3, 3]
    return name


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", NODES)
def test_any_node_takes_messages_for_any_partition_and_gives_them_back(
    cluster: Cluster, topic: str, number: int
) -> None:
    with rest(cluster, number) as client:
        batch = [{"value": f"v{at}", "partition": at % 6} for at in range(60)]
        told = client.post(f"/v1/topics/{topic}/batch", json={"messages": batch})
        assert told.status_code == 200, told.text
        assert told.json()["published"] == 60
    for other in NODES:
        with rest(cluster, other) as client:
            for index in range(6):
                page = client.get(f"/v1/topics/{topic}/messages?partition={index}").json()
                assert [each["value"] for each in page["messages"]] == [f"v{at}" for at in range(index, 60, 6)]
                assert page["high_watermark"] == 10
            detail = client.get(f"/v1/topics/{topic}").json()
            assert detail["messages"] == 60
            assert [each["high_watermark"] for each in detail["partition_details"]] == [10] * 6


def test_a_reader_waits_at_one_node_for_a_message_that_comes_to_another(cluster: Cluster, topic: str) -> None:
    index = led_by(cluster, topic, 3)
    page = f"/v1/topics/{topic}/messages?partition={index}&offset=latest&timeout_ms=20000"
    with rest(cluster, 1) as reader, rest(cluster, 2) as writer:
        began = time.monotonic()
        waiting = _later(lambda: reader.get(page).json())
        time.sleep(0.5)
        writer.post(f"/v1/topics/{topic}/publish", json={"value": "late", "partition": index}).raise_for_status()
        assert [each["value"] for each in waiting()["messages"]] == ["late"]
        assert time.monotonic() - began < 18


def test_one_call_at_any_node_waits_for_all_ends_and_batches_come_from_their_leaders(
    cluster: Cluster, topic: str
) -> None:
    """What Spark's source does: it plans with one node and reads from any."""
    index = led_by(cluster, topic, 3)
    with rest(cluster, 1) as reader, rest(cluster, 2) as writer:
        known_ends = [{"topic": topic, "partition": at, "offset": 0} for at in range(6)]
        asked = {"topics": [topic], "known": known_ends, "wait_ms": 20_000}
        began = time.monotonic()
        waiting = _later(lambda: reader.post("/v1/offsets", json=asked).json())
        time.sleep(0.5)
        writer.post(f"/v1/topics/{topic}/publish", json={"value": "late", "partition": index}).raise_for_status()
        (found,) = waiting()["topics"]
        assert time.monotonic() - began < 18
        assert [at["last_stable_offset"] for at in found["partitions"]] == [int(at == index) for at in range(6)]
        for number in NODES:
            with rest(cluster, number) as client:
                path = f"/v1/topics/{topic}/partitions/{index}/batches"
                answer = client.get(path, params={"topic_id": found["topic_id"]})
                told = msgspec.msgpack.decode(answer.content)
                assert told[:2] == [found["topic_id"], 1]
                assert [record.value for record in decode_records(told[5])] == [b"late"]
                offsets = [{"topic": topic, "partition": index, "offset": 1, "topic_id": found["topic_id"]}]
                group = f"reporter-{topic}"
                client.post(f"/v1/groups/{group}/offsets", json={"offsets": offsets}).raise_for_status()
                assert client.get(f"/v1/groups/{group}").json()["lag"] == 0


def _later(work: Any) -> Any:
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    return pool.submit(work).result


def test_what_is_wrong_is_told_by_every_node_alike(cluster: Cluster, topic: str) -> None:
    for number in NODES:
        with rest(cluster, number) as client:
            for body, status, code in (
                ({"value": "v", "partition": 77}, 404, "unknown_partition"),
                ({"value": "v" * 2_000_000, "partition": 0}, 413, "message_too_large"),
            ):
                told = client.post(f"/v1/topics/{topic}/publish", json=body)
                assert (told.status_code, told.json()["code"]) == (status, code)
            told = client.get(f"/v1/topics/{topic}/messages?partition=0&offset=99")
            assert (told.status_code, told.json()["code"]) == (416, "offset_out_of_range")


# -- groups ------------------------------------------------------------------------------------------------------------


def test_a_member_can_turn_to_another_node_with_every_call(cluster: Cluster, topic: str) -> None:
    group = f"group-of-{topic}"
    clients = [rest(cluster, number) for number in NODES]
    turn = count()

    def call(verb: str, **body: object) -> httpx.Response:
        client = clients[next(turn) % 3]
        return client.post(f"/v1/groups/{group}/{verb}", json=body, headers={"X-Request-Id": f"call-{verb}"})

    for at in range(30):
        clients[at % 3].post(f"/v1/topics/{topic}/publish", json={"value": f"v{at}", "partition": at % 6})
    told = call("join", topics=[topic])
    assert told.status_code == 200, told.text
    joined = told.json()
    assert len(joined["partitions"]) == 6, joined
    found: list[str] = []
    while len(found) < 30:
        polled = call("poll", member_id=joined["member_id"], wait_ms=20_000)
        assert polled.status_code == 200, polled.text
        messages = polled.json()["messages"]
        assert messages, f"only {len(found)} of 30 came"
        found += [each["value"] for each in messages]
    assert sorted(found) == sorted(f"v{at}" for at in range(30))
    assert call("commit", member_id=joined["member_id"]).status_code == 200
    for client in clients:
        assert client.get(f"/v1/groups/{group}").json()["lag"] == 0
        listed = {each["group"]: each for each in client.get("/v1/groups").json()["groups"]}
        assert listed[group]["members"] == 1
    assert call("leave", member_id=joined["member_id"]).status_code == 204
    moved = call("reset", topic=topic, to="earliest").json()
    assert [move["from_offset"] for move in moved["moves"]] == [5] * 6
    for client in clients:
        assert client.get(f"/v1/groups/{group}").json()["lag"] == 30
    assert clients[0].delete(f"/v1/groups/{group}").status_code == 204
    assert clients[1].get(f"/v1/groups/{group}").status_code == 404


def test_a_member_that_waits_at_a_node_hears_of_a_message_without_delay(cluster: Cluster, topic: str) -> None:
    group = f"waiting-{topic}"
    with rest(cluster, 1) as client, rest(cluster, 2) as writer:
        member = client.post(f"/v1/groups/{group}/join", json={"topics": [topic]}).json()["member_id"]
        for index in range(6):
            waiting = _later(
                lambda: client.post(f"/v1/groups/{group}/poll", json={"member_id": member, "wait_ms": 20_000}).json()
            )
            time.sleep(0.3)
            began = time.monotonic()
            writer.post(f"/v1/topics/{topic}/publish", json={"value": f"v{index}", "partition": index})
            assert [each["value"] for each in waiting()["messages"]] == [f"v{index}"]
            assert time.monotonic() - began < 15


def test_what_a_client_waits_for_at_another_node_ends_when_it_goes(cluster: Cluster, topic: str) -> None:
    group = f"gone-{topic}"
    polls = []
    for number in NODES:  # of which two do not coordinate the group
        with rest(cluster, number) as client:
            joined = client.post(f"/v1/groups/{group}/join", json={"topics": [topic], "wait_ms": 20_000}).json()
            member = {"member_id": joined["member_id"]}
            with pytest.raises(httpx.ReadTimeout):
                client.post(f"/v1/groups/{group}/poll", json={**member, "wait_ms": 20_000}, timeout=0.5)
        with rest(cluster, number) as client:

            def is_free(client: httpx.Client = client, member: dict[str, str] = member) -> bool:
                """A member takes one call at a time: another one is refused while the poll goes on."""
                polls.append(client.post(f"/v1/groups/{group}/poll", json={**member, "wait_ms": 0}))
                return polls[-1].status_code == 200

            began = time.monotonic()
            eventually(is_free, what="the end of the poll")
            assert time.monotonic() - began < 15
            client.post(f"/v1/groups/{group}/leave", json=member).raise_for_status()
    assert {each.json().get("code") for each in polls if each.status_code != 200} <= {"member_busy"}


# -- transactions ------------------------------------------------------------------------------------------------------


def test_writers_of_a_joint_transaction_can_be_at_different_nodes(cluster: Cluster, topic: str) -> None:
    clients = [rest(cluster, number) for number in NODES]
    opened = clients[0].post("/v1/transactions", json={})
    assert opened.status_code == 201, opened.text
    name = opened.json()["transaction"]
    for at in range(12):
        headers = {"Penstock-Transaction": name, "Penstock-Writer": f"writer-{at % 3}"}
        body = {"value": f"t{at}", "partition": at % 6}
        told = clients[at % 3].post(f"/v1/topics/{topic}/publish", json=body, headers=headers)
        assert told.status_code == 200, told.text
    assert [read_values(client, topic) for client in clients] == [[], [], []]
    for client in clients:
        listed = {each["transaction"]: each["state"] for each in client.get("/v1/transactions").json()["transactions"]}
        assert listed[name] == "open"
        assert len(client.get(f"/v1/transactions/{name}").json()["writers"]) == 3
    ended = clients[1].post(f"/v1/transactions/{name}/commit", json={})
    assert (ended.status_code, ended.json()["state"]) == (200, "committed"), ended.text
    for client in clients:
        eventually(lambda client=client: len(read_values(client, topic)) == 12, what="what was committed")


def test_a_numbered_call_is_written_once_whichever_nodes_it_reaches(cluster: Cluster, topic: str) -> None:
    clients = [rest(cluster, number) for number in NODES]
    name = clients[2].post("/v1/transactions", json={}).json()["transaction"]
    answers = []
    for sequence in (0, 6):
        headers = {"Penstock-Transaction": name, "Penstock-Sequence": str(sequence)}
        body = {"messages": [{"value": f"n{sequence + at}", "partition": at} for at in range(6)]}
        for client in clients:  # as if the answer had been lost
            told = client.post(f"/v1/topics/{topic}/batch", json=body, headers=headers)
            assert told.status_code == 200, told.text
            answers.append([each["offset"] for each in told.json()["results"]])
    assert answers == [[0] * 6] * 3 + [[1] * 6] * 3
    ended = clients[0].post(f"/v1/transactions/{name}/commit", json={})
    assert ended.status_code == 200, ended.text
    for client in clients:
        eventually(lambda client=client: len(read_values(client, topic)) == 12, what="what was committed")


def read_values(client: httpx.Client, topic: str) -> list[str]:
    return [
        each["value"]
        for index in range(6)
        for each in client.get(f"/v1/topics/{topic}/messages?partition={index}").json()["messages"]
    ]


# -- the cluster itself ------------------------------------------------------------------------------------------------


def test_every_node_tells_the_same_of_the_cluster(cluster: Cluster, topic: str) -> None:
    statuses = [cluster.ask("/v1/cluster", number) for number in NODES]
    assert len({status["cluster_id"] for status in statuses}) == 1
    assert len({status["controller"] for status in statuses}) == 1
    for status in statuses:
        assert [(node["node_id"], node["status"], node["rack"]) for node in status["nodes"]] == [
            (number, "up", f"rack-{number}") for number in NODES
        ]
        roles = sorted(member["role"] for member in status["quorum"])
        assert roles == ["leader", "voter", "voter"]
        assert all(member["lag"] is not None for member in status["quorum"])
        assert (status["leaderless"], status["under_replicated"], status["moving"]) == (0, 0, 0)
        assert all(node["leaders"] >= 2 and node["disk_free_bytes"] for node in status["nodes"])
    shown = command(cluster, "cluster", "status", "--check", "-o", "table", number=2)
    assert shown.returncode == 0, shown.stderr
    assert "3 nodes, controller" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 120
    nodes = command(cluster, "cluster", "nodes", number=3)
    assert [json.loads(line)["node_id"] for line in nodes.stdout.splitlines()] == list(NODES)
    assert topic in command(cluster, "topic", "list", "-o", "table", number=3).stdout


def test_the_lead_of_the_quorum_is_handed_over(cluster: Cluster) -> None:
    before = cluster.ask("/v1/cluster")["controller"]
    wanted = next(number for number in NODES if number != before)
    done = command(cluster, "cluster", "transfer", wanted)
    assert done.returncode == 0, done.stderr
    for number in NODES:
        eventually(
            lambda number=number: cluster.ask("/v1/cluster", number)["controller"] == wanted, what="the new controller"
        )
    assert command(cluster, "cluster", "transfer", 77).returncode == 3


def test_a_topic_is_moved_and_its_messages_with_it(cluster: Cluster, topic: str) -> None:
    with rest(cluster, 1) as client:
        batch = [{"value": f"v{at}", "partition": at % 6} for at in range(600)]
        client.post(f"/v1/topics/{topic}/batch", json={"messages": batch}).raise_for_status()
    done = command(cluster, "topic", "reassign", topic, "--nodes", "1,2", "-r", 2, "--timeout", 60, number=3)
    assert done.returncode == 0, done.stderr
    moved = json.loads(done.stdout)
    assert [each["replicas"] for each in moved["partition_details"]] == [[1, 2], [2, 1]] * 3
    assert cluster.ask("/v1/reassignments", 2) == {"reassignments": []}
    with rest(cluster, 3) as client:
        assert len(read_values(client, topic)) == 600
    table = command(cluster, "topic", "describe", topic, "-o", "table", number=3).stdout
    assert "2,1" in table
    refused = command(cluster, "topic", "reassign", topic, "--move", "0:1,99")
    assert refused.returncode == 2, refused.stderr
    assert "99" in refused.stderr


def test_metrics_tell_of_the_cluster(cluster: Cluster, topic: str) -> None:
    led = 0
    for number in NODES:
        with rest(cluster, number) as client:
            rows = dict(
                line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if not line.startswith("#")
            )
        assert rows['penstock_nodes{status="up"}'] == "3.0"
        assert float(rows["penstock_quorum_term"]) >= 1
        assert float(rows["penstock_quorum_commit_index"]) >= float(rows["penstock_quorum_applied_index"]) > 0
        assert rows["penstock_leaderless_partitions"] == "0.0"
        led += sum(float(rows[f'penstock_partition_leader{{partition="{at}",topic="{topic}"}}']) for at in range(6))
        assert rows[f'penstock_replication_lag_messages{{partition="0",topic="{topic}"}}'] == "0.0"
    assert led == 6


def test_every_node_is_ready(cluster: Cluster) -> None:
    for number in NODES:
        with rest(cluster, number) as client:
            assert client.get("/readyz").json()["status"] == "ok"
            assert client.get("/livez").status_code == 200


# -- Kafka's clients ---------------------------------------------------------------------------------------------------


def test_kafka_clients_hear_of_every_node_from_every_node(cluster: Cluster, topic: str) -> None:
    for node in cluster.nodes.values():
        found = AdminClient({"bootstrap.servers": node.bootstrap}).list_topics(topic, timeout=60)
        assert sorted(found.brokers) == list(NODES)
        assert found.controller_id in NODES
        assert sorted(each.leader for each in found.topics[topic].partitions.values()) == [1, 1, 2, 2, 3, 3]
        assert all(sorted(each.isrs) == list(NODES) for each in found.topics[topic].partitions.values())


def test_a_kafka_group_finds_its_coordinator(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for at in range(60):
        producer.produce(topic, value=f"v{at}", partition=at % 6)
    assert producer.flush(60) == 0
    group = f"kafka-{topic}"
    consumer = Consumer(
        {"bootstrap.servers": cluster.nodes[2].bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found = []
    deadline = time.monotonic() + 60
    while len(found) < 60 and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value())
    assert len(found) == 60
    consumer.commit(asynchronous=False)
    consumer.close()
    for number in NODES:
        assert cluster.ask(f"/v1/groups/{group}", number)["lag"] == 0
    admin = AdminClient({"bootstrap.servers": cluster.nodes[3].bootstrap})
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(60)
    assert sum(each.offset for each in offsets.topic_partitions) == 60


def test_kafka_python_moves_replicas_and_elects_leaders(cluster: Cluster, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.nodes[1].bootstrap)
    try:
        before = cluster.topic(topic)["partition_details"][0]["replicas"]
        wanted = [before[1], before[0]]
        admin.alter_partition_reassignments({_place(topic, 0): wanted})
        eventually(lambda: cluster.topic(topic)["partition_details"][0]["replicas"] == wanted, what="the move")
        assert not admin.list_partition_reassignments()
        admin.elect_leaders(0, {topic: [0]}, raise_errors=False)
        eventually(lambda: cluster.leaders(topic)[0] == wanted[0], what="the preferred leader")
    finally:
        admin.close()


def _place(topic: str, index: int) -> Any:
    from kafka import TopicPartition as KafkaPythonPlace

    return KafkaPythonPlace(topic, index)


def test_a_consumer_reads_from_the_replica_in_its_rack(cluster: Cluster, topic: str) -> None:
    index = led_by(cluster, topic, 1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for at in range(100):
        producer.produce(topic, value=f"v{at}", partition=index)
    assert producer.flush(60) == 0
    before = _consumed(cluster, 3, topic)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": f"rack-{topic}", "client.rack": "rack-3"})
    consumer.assign([TopicPartition(topic, index, 0)])
    found = []
    deadline = time.monotonic() + 60
    while len(found) < 100 and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
    consumer.close()
    assert found == [f"v{at}" for at in range(100)]
    assert _consumed(cluster, 3, topic) - before >= 100, "node 3 follows, and served it"


def _consumed(cluster: Cluster, number: int, topic: str) -> int:
    figures = {each["topic"]: each for each in cluster.ask("/v1/admin/metrics", number)["topics"]}
    consumed: int = figures[topic]["messages_consumed"]
    return consumed


def test_topics_made_at_one_node_are_changed_and_deleted_at_others(cluster: Cluster) -> None:
    name = f"made-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": cluster.nodes[2].bootstrap})
    admin.create_topics([NewTopic(name, 2, 3)])[name].result(60)
    with rest(cluster, 3) as client:
        eventually(lambda: name in known(cluster, 3))
        client.post(f"/v1/topics/{name}/partitions", json={"partitions": 4}).raise_for_status()
    with rest(cluster, 1) as client:
        eventually(lambda: client.get(f"/v1/topics/{name}").json()["partitions"] == 4)
        client.patch(f"/v1/topics/{name}", json={"configs": {"retention.ms": 60_000}}).raise_for_status()
        assert client.delete(f"/v1/topics/{name}").status_code == 204
    for number in NODES:
        eventually(lambda number=number: name not in known(cluster, number))


def test_settings_set_at_one_node_are_told_by_each_and_by_kafkas_tools(cluster: Cluster) -> None:
    rate, session = "leader.replication.throttled.rate", "consumer.session.timeout.ms"
    group = f"set-{next(_numbers)}"
    with rest(cluster, 1) as client:
        client.patch("/v1/nodes/3/configs", json={"configs": {rate: 50_000_000}}).raise_for_status()
        client.patch(f"/v1/groups/{group}/configs", json={"configs": {session: 9_000}}).raise_for_status()
    for number in NODES:
        eventually(lambda number=number: _setting(cluster, number, "/v1/nodes/3", rate) == ("50000000", "node"))
        eventually(lambda number=number: _setting(cluster, number, f"/v1/groups/{group}", session) == ("9000", "group"))
        assert _setting(cluster, number, "/v1/nodes/3", "broker.rack") == ("rack-3", "startup"), "as node 3 tells it"
    node = ConfigResource(ConfigResource.Type.BROKER, "3")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (told,) = admin.describe_configs([node]).values()
    rows = {name: entry.value for name, entry in told.result(60).items()}
    assert rows[rate] == "50000000", "Kafka's tools are told the same"
    with rest(cluster, 2) as client:
        client.patch("/v1/nodes/3/configs", json={"configs": {rate: None}}).raise_for_status()
    eventually(lambda: _setting(cluster, 3, "/v1/nodes/3", rate)[1] == "default")


def _setting(cluster: Cluster, number: int, at: str, name: str) -> tuple[str, str]:
    found = {each["name"]: each for each in cluster.ask(f"{at}/configs", number)["settings"]}
    return found[name]["value"], found[name]["origin"]
