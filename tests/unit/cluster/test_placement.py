"""Where partitions go, and how uneven nodes become even by few moves."""

from __future__ import annotations

from collections import Counter
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.consensus.commands import CreateTopic, Move, Planned, Rebalance
from penstock.consensus.controller import MetadataDraft, Rules, decide
from penstock.consensus.controller.moves import raise_internal_topics
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import MetadataRecord, NodeRegistered, PartitionAssigned
from penstock.model import OFFSETS_TOPIC


def nodes(racks: str, *, start: int = 1) -> list[MetadataRecord]:
    """One node for each letter, in that rack."""
    return [NodeRegistered(node_id=start + at, epoch=0, endpoints=(), rack=rack) for at, rack in enumerate(racks)]


def world(racks: str = "---") -> ClusterMetadata:
    metadata = ClusterMetadata()
    apply(metadata, nodes(racks))
    return metadata


def apply(metadata: ClusterMetadata, records: list[MetadataRecord]) -> None:
    for record in records:
        metadata.apply(record)


def create(metadata: ClusterMetadata, name: str, partitions: int, factor: int | None = None, **more: object) -> None:
    topic_id = UUID(int=len(metadata.topics) + 1)
    command = CreateTopic(
        name=name,
        topic_id=topic_id,
        partitions=partitions,
        replication_factor=factor,
        **more,  # type: ignore[arg-type]
    )
    apply(metadata, decide(metadata, command).records)


def all_partitions(metadata: ClusterMetadata) -> list[PartitionAssigned]:
    return [partition for topic in metadata.topics.values() for partition in topic.partitions]


def spread(counts: Counter[int], of: int) -> int:
    values = [counts[node_id] for node_id in range(1, of + 1)]
    return max(values) - min(values)


def replicas(metadata: ClusterMetadata) -> Counter[int]:
    return Counter(
        node_id
        for partition in all_partitions(metadata)
        for node_id in partition.replicas
        if node_id not in partition.removing
    )


def preferred(metadata: ClusterMetadata) -> Counter[int]:
    return Counter(partition.replicas[0] for partition in all_partitions(metadata))


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), max_size=8))
def test_leaders_and_replicas_of_every_topic_are_even(size: int, shapes: list[tuple[int, int]]) -> None:
    metadata = world("-" * size)
    for number, (partitions, factor) in enumerate(shapes):
        if factor <= size:
            create(metadata, f"t{number}", partitions, factor)
            topic = metadata.topic(f"t{number}")
            assert spread(Counter(one.leader for one in topic.partitions), size) <= 1
            assert spread(Counter(node for one in topic.partitions for node in one.replicas), size) <= 1


def test_many_small_topics_spread() -> None:
    metadata = world("-----")
    for number in range(50):
        create(metadata, f"t{number}", 1, 2)
    assert spread(preferred(metadata), 5) == 0
    assert spread(replicas(metadata), 5) <= 1


def test_those_who_take_over_from_a_node_are_not_all_the_same() -> None:
    metadata = world("---")
    create(metadata, "orders", 12)
    heirs = Counter(one.replicas[1] for one in all_partitions(metadata) if one.leader == 1)
    assert heirs == {2: 2, 3: 2}


def test_a_new_node_does_not_get_all_of_a_new_topic() -> None:
    metadata = world("---")
    create(metadata, "old", 30)
    apply(metadata, nodes("-", start=4))
    create(metadata, "new", 4)
    assert Counter(one.leader for one in metadata.topic("new").partitions) == {1: 1, 2: 1, 3: 1, 4: 1}


@pytest.mark.parametrize("racks", ["aabb", "aabbcc", "aaab", "abcabc"])
def test_replicas_are_in_as_many_racks_as_can_be(racks: str) -> None:
    metadata = world(racks)
    create(metadata, "orders", 12, 2)
    for partition in all_partitions(metadata):
        assert len({metadata.nodes[node_id].rack for node_id in partition.replicas}) == 2


@pytest.mark.parametrize(("size", "expected"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_the_replication_factor_is_three_where_there_are_as_many_nodes(size: int, expected: int) -> None:
    metadata = world("-" * size)
    create(metadata, "orders", 1)
    assert metadata.topic("orders").replication_factor == expected


# -- rebalancing -------------------------------------------------------------------------------------------------------


def rebalance(metadata: ClusterMetadata, **options: object) -> tuple[Move, ...]:
    decision = decide(metadata, Rebalance(**options))  # type: ignore[arg-type]
    apply(metadata, decision.records)
    assert isinstance(decision.answer, Planned)
    return decision.answer.moves


def finish(metadata: ClusterMetadata) -> None:
    """Let everybody catch up."""
    draft = MetadataDraft(metadata)
    for partition in all_partitions(metadata):
        draft.settle(PartitionAssigned(**{**as_fields(partition), "in_sync": partition.replicas}))
    apply(metadata, draft.records())


def as_fields(partition: PartitionAssigned) -> dict[str, object]:
    return {name: getattr(partition, name) for name in partition.__struct_fields__}


def moved(moves: tuple[Move, ...], before: dict[tuple[str, int], tuple[int, ...]]) -> int:
    """How many replicas go somewhere else."""
    return sum(len(set(move.replicas or ()) - set(before[move.topic, move.partition])) for move in moves)


def where(metadata: ClusterMetadata) -> dict[tuple[str, int], tuple[int, ...]]:
    return {(topic.name, one.partition): one.replicas for topic in metadata.topics.values() for one in topic.partitions}


def test_a_fourth_node_gets_its_share_and_no_replica_moves_that_need_not() -> None:
    metadata = world("---")
    create(metadata, "orders", 16)
    create(metadata, "bills", 4)
    apply(metadata, nodes("-", start=4))
    before = where(metadata)
    assert rebalance(metadata, is_only_planned=True) == rebalance(metadata)
    finish(metadata)
    assert replicas(metadata) == {1: 15, 2: 15, 3: 15, 4: 15}
    assert preferred(metadata) == {1: 5, 2: 5, 3: 5, 4: 5}
    after = where(metadata)
    assert sum(len(set(after[place]) - set(before[place])) for place in before) == 15
    assert Counter(one.leader for one in all_partitions(metadata)) == preferred(metadata)
    assert rebalance(metadata) == (), "it is even"


@given(st.integers(0, 10_000))
def test_any_cluster_becomes_even(seed: int) -> None:
    random = Random(seed)
    size = random.randint(1, 6)
    racks = "".join(random.choice("ab") for _ in range(size)) if seed % 2 else "-" * size
    metadata = world(racks)
    for number in range(random.randint(1, 4)):
        factor = random.randint(1, min(3, size))
        places = [random.sample(range(1, size + 1), factor) for _ in range(random.randint(1, 12))]
        create(metadata, f"t{number}", len(places), factor, assignment=tuple(map(tuple, places)))
    crowded = sum(racks_shared(metadata, one) for one in all_partitions(metadata))
    rebalance(metadata)
    finish(metadata)
    assert not [one for one in all_partitions(metadata) if one.adding or one.removing]
    assert sum(racks_shared(metadata, one) for one in all_partitions(metadata)) <= crowded
    if seed % 2 == 0:
        assert spread(replicas(metadata), size) <= 1
    again = rebalance(metadata)
    assert not again, "one plan is enough"


def racks_shared(metadata: ClusterMetadata, partition: PartitionAssigned) -> int:
    return len(partition.replicas) - len({metadata.nodes[node_id].rack for node_id in partition.replicas})


def test_replicas_in_one_rack_are_parted() -> None:
    metadata = world("aabb")
    create(metadata, "orders", 2, 2, assignment=((1, 2), (3, 4)))
    rebalance(metadata)
    finish(metadata)
    assert [racks_shared(metadata, one) for one in all_partitions(metadata)] == [0, 0]


def test_leaders_are_evened_without_moving_anything() -> None:
    metadata = world("---")
    create(metadata, "orders", 6, 3, assignment=((1, 2, 3),) * 6)
    before = where(metadata)
    moves = rebalance(metadata)
    assert moved(moves, before) == 0
    assert preferred(metadata) == {1: 2, 2: 2, 3: 2}
    assert not [one for one in all_partitions(metadata) if one.adding]
    assert Counter(one.leader for one in all_partitions(metadata)) == {1: 2, 2: 2, 3: 2}


def test_leaderships_are_handed_on_in_a_chain() -> None:
    metadata = world("---")
    places = ((1, 2), (1, 2), (2, 3), (1, 2), (2, 3))
    create(metadata, "orders", 5, 2, assignment=places)
    rebalance(metadata)
    assert spread(preferred(metadata), 3) <= 1


def test_full_disks_give_to_empty_ones() -> None:
    metadata = world("--")
    create(metadata, "orders", 4, 1, assignment=((1,), (1,), (2,), (2,)))
    assert rebalance(metadata) == ()
    moves = rebalance(metadata, sizes={"orders": (100, 100, 1, 1)})
    assert len(moves) == 2
    finish(metadata)
    sizes = (100, 100, 1, 1)
    use = Counter[int]()
    for one in all_partitions(metadata):
        use[one.replicas[0]] += sizes[one.partition]
    assert use == {1: 101, 2: 101}


def test_partitions_on_the_move_are_let_alone() -> None:
    metadata = world("---")
    create(metadata, "orders", 6, 1, assignment=((1,),) * 6)
    first = rebalance(metadata)
    assert len(first) == 4
    assert rebalance(metadata) == ()


def test_replicas_of_dead_nodes_stay_and_drained_nodes_are_emptied() -> None:
    metadata = world("----")
    create(metadata, "orders", 4, 1, assignment=((1,), (2,), (3,), (4,)))
    one, two = (metadata.nodes[node_id] for node_id in (1, 2))
    apply(
        metadata,
        [
            NodeRegistered(node_id=1, epoch=one.epoch, endpoints=(), rack="-", is_fenced=True),
            NodeRegistered(node_id=2, epoch=two.epoch, endpoints=(), rack="-", is_draining=True),
        ],
    )
    moves = rebalance(metadata)
    assert [(move.partition, move.replicas) for move in moves] == [(1, (3,))]


def test_internal_topics_get_their_replicas_when_there_are_nodes() -> None:
    metadata = world("-")
    create(metadata, OFFSETS_TOPIC, 4)
    create(metadata, "orders", 4)
    assert raise_internal_topics(MetadataDraft(metadata)) == []
    apply(metadata, nodes("---", start=2))
    assert all(
        len(move.replicas or ()) == 2
        for move in raise_internal_topics(MetadataDraft(metadata, Rules(internal_replication_factor=2)))
    )
    rebalance(metadata)
    finish(metadata)
    assert metadata.topic(OFFSETS_TOPIC).replication_factor == 3
    assert metadata.topic("orders").replication_factor == 1
    assert spread(replicas(metadata), 4) <= 1
