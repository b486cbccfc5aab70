"""Which nodes clients are told of."""

from __future__ import annotations

from penstock.broker.known_nodes import KnownNodes
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import MetadataRecord, NodeChanged, NodeRegistered, NodeRemoved


class StillClock:
    """It moves when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


class Told:
    """Metadata, and what clients are told of it."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.metadata = ClusterMetadata()
        self.known = KnownNodes(self.metadata, self.clock)

    def hear(self, *records: MetadataRecord) -> None:
        for record in records:
            self.metadata.apply(record)
        self.known.on_applied(1, records)

    @property
    def nodes(self) -> list[int]:
        return [node.node_id for node in self.known.listed()]


def registered(node_id: int, epoch: int = 1, *, is_fenced: bool = True) -> NodeRegistered:
    return NodeRegistered(node_id=node_id, epoch=epoch, endpoints=(), is_fenced=is_fenced)


def changed(node_id: int, epoch: int = 1, *, is_fenced: bool) -> NodeChanged:
    return NodeChanged(node_id=node_id, epoch=epoch, is_fenced=is_fenced, is_draining=False)


def test_a_node_is_told_of_once_it_is_let_in() -> None:
    told = Told()
    told.hear(registered(2))
    assert told.nodes == []
    told.hear(changed(2, is_fenced=False))
    assert told.nodes == [2]


def test_a_node_that_restarts_is_told_of_all_the_time() -> None:
    told = Told()
    told.hear(registered(1), changed(1, is_fenced=False), registered(2), changed(2, is_fenced=False))
    told.hear(changed(2, is_fenced=True))
    assert told.nodes == [1, 2]
    told.clock.advance(5)
    told.hear(registered(2, epoch=2))
    assert told.nodes == [1, 2]
    told.hear(changed(2, epoch=2, is_fenced=False))
    told.clock.advance(60)
    assert told.nodes == [1, 2]


def test_a_node_that_does_not_come_back_is_forgotten() -> None:
    told = Told()
    told.hear(registered(2), changed(2, is_fenced=False))
    told.hear(changed(2, is_fenced=True))
    told.clock.advance(29)
    assert told.nodes == [2]
    told.clock.advance(2)
    assert told.nodes == []


def test_a_node_that_was_removed_is_not_told_of() -> None:
    told = Told()
    told.hear(registered(2), changed(2, is_fenced=False))
    told.hear(changed(2, is_fenced=True), NodeRemoved(node_id=2))
    assert told.nodes == []


def test_nodes_of_a_snapshot_count_as_let_in() -> None:
    told = Told()
    told.metadata.apply(registered(2, is_fenced=False))
    told.hear(changed(2, is_fenced=True))
    assert told.nodes == [2]
