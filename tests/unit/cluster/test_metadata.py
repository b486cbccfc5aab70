"""The metadata: what the controller decides, and that records alone rebuild the state."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster import controller
from penstock.cluster.commands import RegisterNode
from penstock.cluster.controller import TopicSpec
from penstock.cluster.controller.nodes import register, unfence
from penstock.cluster.metadata import ClusterMetadata
from penstock.cluster.records import ClusterCreated, MetadataRecord, NodeRegistered, decode_record, encode_record
from penstock.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopicName,
    PenstockError,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)


def cluster(nodes: int = 1) -> ClusterMetadata:
    metadata = ClusterMetadata()
    metadata.apply(ClusterCreated(cluster_id="c"))
    for node in range(1, nodes + 1):
        metadata.apply(NodeRegistered(node_id=node, epoch=0, endpoints=()))
    return metadata


def create(metadata: ClusterMetadata, name: str, **options: object) -> None:
    spec = TopicSpec(name=name, **options)  # type: ignore[arg-type]
    apply(metadata, controller.create_topic(metadata, spec, uuid4(), partitions=3, replication_factor=1))


def apply(metadata: ClusterMetadata, records: list[MetadataRecord]) -> None:
    for record in records:
        metadata.apply(decode_record(encode_record(record)))


def facts(metadata: ClusterMetadata) -> object:
    return (
        metadata.cluster_id,
        metadata.next_producer_id,
        metadata.nodes,
        {name: (topic.topic_id, topic.partitions, topic.configs) for name, topic in metadata.topics.items()},
    )


def test_a_topic_takes_the_defaults_it_does_not_override() -> None:
    metadata = cluster()
    create(metadata, "orders")
    create(metadata, "events", partitions=7, configs={"retention.ms": "1000"})
    assert len(metadata.topic("orders").partitions) == 3
    assert len(metadata.topic("events").partitions) == 7
    assert metadata.topic("events").configs == {"retention.ms": "1000"}


def test_replicas_and_leaders_are_spread_over_the_nodes() -> None:
    metadata = cluster(nodes=3)
    create(metadata, "orders", partitions=6, replication_factor=2)
    partitions = metadata.topic("orders").partitions
    assert sorted(partition.leader for partition in partitions) == [1, 1, 2, 2, 3, 3]
    assert all(len(set(partition.replicas)) == 2 for partition in partitions)


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("", {}, InvalidTopicName),
        ("..", {}, InvalidTopicName),
        ("a b", {}, InvalidTopicName),
        ("x" * 250, {}, InvalidTopicName),
        ("taken", {}, TopicExists),
        ("with_underscore", {}, InvalidTopicName),
        ("ok", {"partitions": 0}, InvalidPartitions),
        ("ok", {"partitions": 10_001}, InvalidPartitions),
        ("ok", {"replication_factor": 2}, InvalidReplicationFactor),
        ("ok", {"replication_factor": 0}, InvalidReplicationFactor),
        ("ok", {"configs": {"retention.msec": "1"}}, InvalidConfig),
        ("ok", {"configs": {"retention.ms": "soon"}}, InvalidConfig),
        ("ok", {"configs": {"cleanup.policy": "burn"}}, InvalidConfig),
        ("ok", {"assignment": [[9]]}, InvalidReplicaAssignment),
        ("ok", {"assignment": [[1, 1]]}, InvalidReplicaAssignment),
    ],
)
def test_a_bad_topic_is_refused_and_nothing_changes(
    name: str, options: dict[str, object], error: type[PenstockError]
) -> None:
    metadata = cluster()
    create(metadata, "taken")
    create(metadata, "with.underscore")
    before = facts(metadata)
    with pytest.raises(error):
        create(metadata, name, **options)
    assert facts(metadata) == before


def test_an_unknown_setting_names_the_nearest_known_one() -> None:
    with pytest.raises(InvalidConfig, match=r"retention\.ms"):
        create(cluster(), "ok", configs={"retention.mss": "1"})


def test_partitions_can_be_added_but_not_removed() -> None:
    metadata = cluster()
    create(metadata, "orders")
    apply(metadata, controller.add_partitions(metadata, "orders", 5))
    assert [partition.partition for partition in metadata.topic("orders").partitions] == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidPartitions):
        controller.add_partitions(metadata, "orders", 5)


def test_unsetting_a_setting_needs_a_known_name_only() -> None:
    metadata = cluster()
    create(metadata, "orders", configs={"retention.ms": "5"})
    apply(metadata, controller.configure_topic(metadata, "orders", {"retention.ms": None}))
    assert metadata.topic("orders").configs == {}
    with pytest.raises(InvalidConfig):
        controller.configure_topic(metadata, "orders", {"retention": None})


def test_producer_ids_are_reserved_once() -> None:
    metadata = cluster()
    blocks = []
    for _ in range(3):
        block = controller.reserve_producer_ids(metadata, 1)
        metadata.apply(block)
        blocks.append(range(block.first_producer_id, block.next_producer_id))
    ids = [producer_id for block in blocks for producer_id in block]
    assert len(ids) == len(set(ids))


def test_what_is_missing_is_named() -> None:
    metadata = cluster()
    create(metadata, "orders")
    with pytest.raises(UnknownTopic, match="order"):
        metadata.topic("order")
    with pytest.raises(UnknownPartition, match="3"):
        metadata.partition("orders", 3)


names = st.sampled_from(["a", "b", "c", "d.e"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), names, st.integers(1, 4)),
        st.tuples(st.just("delete"), names, st.just(0)),
        st.tuples(st.just("grow"), names, st.integers(1, 8)),
        st.tuples(st.just("configure"), names, st.integers(-1, 5)),
        st.tuples(st.just("register"), st.just(""), st.integers(1, 3)),
        st.tuples(st.just("reserve"), st.just(""), st.just(0)),
    ),
    max_size=25,
)


def play(metadata: ClusterMetadata, step: tuple[str, str, int], at: int) -> list[MetadataRecord]:
    kind, name, number = step
    match kind:
        case "create":
            spec = TopicSpec(name=name, partitions=number)
            return controller.create_topic(metadata, spec, UUID(int=at), partitions=1, replication_factor=1)
        case "delete":
            return controller.delete_topic(metadata, name)
        case "grow":
            return controller.add_partitions(metadata, name, number)
        case "configure":
            value = None if number < 0 else str(number)
            return controller.configure_topic(metadata, name, {"retention.ms": value})
        case "register":
            node = RegisterNode(node_id=number, directory_id="d", endpoints=(), rack=None, has_lost_writes=False)
            draft = controller.Draft(metadata)
            register(draft, node)
            unfence(draft, number)
            return draft.records()
    return [controller.reserve_producer_ids(metadata, 1)]


@given(steps)
def test_a_snapshot_rebuilds_the_state_that_its_history_led_to(history: list[tuple[str, str, int]]) -> None:
    metadata = cluster()
    for at, step in enumerate(history):
        try:
            records = play(metadata, step, at)
        except PenstockError:
            continue
        apply(metadata, records)
    rebuilt = ClusterMetadata()
    apply(rebuilt, metadata.to_records())
    assert facts(rebuilt) == facts(metadata)
