"""The cluster's topics as groups see them."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.consensus import controller
from penstock.consensus.controller import TopicSpec
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import Endpoint, NodeRegistered
from penstock.errors import InvalidRegularExpression
from penstock.features.groups.consumer.topics import MetadataTopics, NoTopics, TopicShape

ORDERS, BILLS = UUID(int=1), UUID(int=2)


def new_metadata() -> ClusterMetadata:
    metadata = ClusterMetadata()
    endpoint = Endpoint(door="kafka", host="localhost", port=9092)
    metadata.apply(NodeRegistered(node_id=1, epoch=0, endpoints=(endpoint,)))
    return metadata


def create(metadata: ClusterMetadata, name: str, topic_id: UUID, partitions: int = 1) -> None:
    spec = TopicSpec(name=name, partitions=partitions)
    for record in controller.create_topic(metadata, spec, topic_id, partitions=1, replication_factor=1):
        metadata.apply(record)


def test_topics_are_found_by_name_id_and_pattern_as_they_are_now() -> None:
    metadata = new_metadata()
    topics = MetadataTopics(metadata)
    assert topics.matching("o.*") == frozenset()
    before = topics.version
    create(metadata, "orders", ORDERS, partitions=3)
    create(metadata, "bills", BILLS)
    create(metadata, "__consumer_offsets", UUID(int=3))
    assert topics.version > before
    assert topics.find("orders") == TopicShape(ORDERS.hex, 3)
    assert topics.find("nothing") is None
    assert topics.name_of(BILLS.hex) == "bills"
    assert topics.name_of(UUID(int=9).hex) is None
    assert topics.matching("o.*") == {"orders"}
    assert topics.matching(".*") == {"orders", "bills"}, "internal topics are not meant"
    assert topics.matching("order") == frozenset(), "names are matched as a whole"
    for record in controller.delete_topic(metadata, "orders"):
        metadata.apply(record)
    assert topics.matching("o.*") == frozenset()


def test_a_cluster_without_topics_has_none() -> None:
    topics = NoTopics()
    assert topics.find("orders") is topics.name_of(ORDERS.hex) is None
    assert topics.matching(".*") == frozenset()
    with pytest.raises(InvalidRegularExpression):
        topics.matching("(")
