"""The metadata: what the controller decides, and that records alone rebuild the state."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.consensus import controller
from penstock.consensus.commands import ConfigureResource, RegisterNode
from penstock.consensus.controller import TopicSpec
from penstock.consensus.controller.nodes import register, unfence
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import (
    ClusterCreated,
    MetadataRecord,
    NodeRegistered,
    NodeRemoved,
    decode_records,
    encode_records,
)
from penstock.consensus.resource_config import HEARTBEAT_INTERVAL, LEADER_RATE, MOVE_RATE, SESSION_TIMEOUT, ResourceKind
from penstock.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
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
        metadata.apply(*decode_records(encode_records([record])))


def facts(metadata: ClusterMetadata) -> object:
    return (
        metadata.cluster_id,
        metadata.next_producer_id,
        metadata.nodes,
        metadata.configured,
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


def configure(
    metadata: ClusterMetadata, resource: ResourceKind, to: str, **changes: str | None
) -> list[MetadataRecord]:
    return controller.decide(metadata, ConfigureResource(kind=resource, name=to, changes=changes)).records


def test_settings_of_groups_and_nodes_are_decided_as_a_whole() -> None:
    metadata = cluster()
    for changes in ({SESSION_TIMEOUT: "9000"}, {HEARTBEAT_INTERVAL: "1000"}):
        apply(metadata, configure(metadata, "group", "g", **changes))
    assert metadata.resource_configs("group", "g") == {SESSION_TIMEOUT: "9000", HEARTBEAT_INTERVAL: "1000"}
    assert configure(metadata, "group", "g", **{SESSION_TIMEOUT: "9000"}) == [], "nothing changes"
    apply(metadata, configure(metadata, "group", "g", **{SESSION_TIMEOUT: None, HEARTBEAT_INTERVAL: None}))
    assert metadata.configured == {}
    apply(metadata, configure(metadata, "node", "", **{LEADER_RATE: "5", MOVE_RATE: None}))
    apply(metadata, configure(metadata, "node", "1", **{LEADER_RATE: "6"}))
    only_checked = ConfigureResource(kind="node", name="1", changes={LEADER_RATE: "7"}, is_only_checked=True)
    assert controller.decide(metadata, only_checked).records == []
    metadata.apply(NodeRemoved(node_id=1))
    assert metadata.configured == {("node", ""): {LEADER_RATE: "5"}}, "a node's settings go with it"


@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "error"),
    [
        ("group", "g", SESSION_TIMEOUT, "5999", InvalidConfig),
        ("group", "g", SESSION_TIMEOUT, "1800001", InvalidConfig),
        ("group", "g", SESSION_TIMEOUT, "long", InvalidConfig),
        ("group", "g", HEARTBEAT_INTERVAL, "99", InvalidConfig),
        ("group", "g", HEARTBEAT_INTERVAL, "45000", InvalidConfig),
        ("group", "g", "share.session.timeout.ms", "45000", InvalidConfig),
        ("group", "g", "streams.num.standby.replicas", None, InvalidConfig),
        ("group", "g", "retention.ms", "1", InvalidConfig),
        ("group", "", SESSION_TIMEOUT, "9000", InvalidRequest),
        ("node", "1", LEADER_RATE, "0", InvalidConfig),
        ("node", "1", LEADER_RATE, "²", InvalidConfig),
        ("node", "1", LEADER_RATE, "9223372036854775808", InvalidConfig),
        ("node", "1", MOVE_RATE, "1", InvalidConfig),
        ("node", "", "num.partitions", "1", InvalidConfig),
        ("node", "2", LEADER_RATE, "1", InvalidRequest),
        ("node", "01", LEADER_RATE, "1", InvalidRequest),
    ],
)
def test_a_bad_setting_of_a_group_or_node_is_refused(
    kind: ResourceKind, name: str, key: str, value: str | None, error: type[PenstockError]
) -> None:
    with pytest.raises(error):
        configure(cluster(), kind, name, **{key: value})


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
        st.tuples(st.sampled_from(["group", "node"]), st.sampled_from(["", "1"]), st.integers(-1, 2)),
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
        case "group" | "node":
            setting = SESSION_TIMEOUT if kind == "group" else LEADER_RATE
            changes = {setting: None if number < 0 else str(6_000 + number)}
            return configure(metadata, kind, name, **changes)
        case "register":
            node = RegisterNode(node_id=number, directory_id="d", endpoints=(), rack=None, has_lost_writes=False)
            draft = controller.MetadataDraft(metadata)
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
