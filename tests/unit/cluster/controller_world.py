"""Metadata for tests of the controller: partitions are written as (replicas, in sync, eligible, leader)."""

from __future__ import annotations

from uuid import UUID

from penstock.consensus.commands import ChangeInSync, Command, InSyncChange, Outcome, Outcomes, RegisterNode
from penstock.consensus.controller import ControllerView, Decision, MetadataDraft, decide
from penstock.consensus.controller.nodes import fence, unfence
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import (
    ClusterCreated,
    MetadataRecord,
    NodeRegistered,
    PartitionAssigned,
    TopicConfigured,
    TopicCreated,
)

ORDERS = UUID(int=1)
State = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]


class World:
    """Metadata with nodes 1 to ``size``, and one topic whose partitions are as given."""

    def __init__(
        self, size: int, *states: State, fenced: tuple[int, ...] = (), configs: dict[str, str] | None = None
    ) -> None:
        self.metadata = ClusterMetadata()
        self.apply([ClusterCreated(cluster_id="c")])
        for node_id in range(1, size + 1):
            is_fenced = node_id in fenced
            disk = f"disk-{node_id}"
            self.apply([NodeRegistered(node_id=node_id, epoch=7, endpoints=(), directory_id=disk, is_fenced=is_fenced)])
        if states:
            self.apply([TopicCreated(name="orders", topic_id=ORDERS)])
        for key, value in (configs or {}).items():
            self.apply([TopicConfigured(topic_id=ORDERS, key=key, value=value)])
        for index, (replicas, in_sync, eligible, leader) in enumerate(states):
            self.apply(
                [
                    PartitionAssigned(
                        topic_id=ORDERS,
                        partition=index,
                        replicas=replicas,
                        in_sync=in_sync,
                        eligible=eligible,
                        leader=leader,
                        leader_epoch=10,
                        partition_epoch=20,
                    )
                ]
            )

    def apply(self, records: list[MetadataRecord]) -> None:
        for record in records:
            self.metadata.apply(record)

    def obey(self, command: Command, situation: ControllerView | None = None) -> Decision:
        decision = decide(self.metadata, command, situation=situation)
        self.apply(decision.records)
        return decision

    def outcome(self, command: Command) -> Outcome:
        answer = self.obey(command).answer
        assert isinstance(answer, Outcomes)
        (outcome,) = answer.outcomes
        return outcome

    def partition(self, index: int = 0) -> PartitionAssigned:
        return self.metadata.partition("orders", index)

    def state(self, index: int = 0) -> State:
        now = self.partition(index)
        return now.replicas, now.in_sync, now.eligible, now.leader

    def fence(self, *node_ids: int) -> list[MetadataRecord]:
        draft = MetadataDraft(self.metadata)
        fence(draft, node_ids)
        self.apply(draft.records())
        return draft.records()

    def unfence(self, node_id: int) -> None:
        draft = MetadataDraft(self.metadata)
        unfence(draft, node_id)
        self.apply(draft.records())

    def in_sync(self, *members: int, by: int | None = None, **epochs: int) -> Outcome:
        now = self.partition()
        change = InSyncChange(
            topic_id=ORDERS,
            partition=0,
            leader_epoch=epochs.get("leader_epoch", now.leader_epoch),
            partition_epoch=epochs.get("partition_epoch", now.partition_epoch),
            in_sync=tuple((member, epochs.get("node_epoch", 7)) for member in members),
        )
        return self.outcome(ChangeInSync(node_id=by or now.leader, epoch=7, changes=(change,)))


def register(node_id: int, *, disk: str | None = None, has_lost_writes: bool = False) -> RegisterNode:
    return RegisterNode(
        node_id=node_id,
        directory_id=disk or f"disk-{node_id}",
        endpoints=(),
        rack=None,
        has_lost_writes=has_lost_writes,
    )


R3 = (1, 2, 3)
