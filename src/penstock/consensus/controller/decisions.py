"""One decision: a command in, the records to commit and the answer out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.consensus.commands import (
    AclsRemoved,
    AddAcls,
    AddPartitions,
    Admitted,
    Answer,
    BeginAccess,
    ChangeInSync,
    Command,
    ConfigureResource,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Done,
    DoubtReplicas,
    DrainNode,
    ElectLeaders,
    Heartbeat,
    IssueApiKey,
    Move,
    Planned,
    ProducerIds,
    Reassign,
    Rebalance,
    RegisterNode,
    RemoveAcls,
    RemoveCredentials,
    RemoveNode,
    ReportLosses,
    ReserveProducerIds,
    RevokeApiKey,
    SetCredentials,
    TransferControl,
)
from penstock.consensus.controller import access, elections, moves, nodes, topics
from penstock.consensus.controller.draft import ControllerView, MetadataDraft, Rules
from penstock.consensus.controller.topics import TopicSpec
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import MetadataRecord
from penstock.errors import InvalidRequest, PolicyViolation
from penstock.model import AUDIT_TOPIC, is_internal

# The one setting of an internal topic that the nodes' settings may change: how long the audit log is kept.
_AUDIT_CHANGES: Final = {"retention.ms"}


@dataclass(frozen=True, slots=True)
class Decision:
    """Records that make it so once they are committed, and what to say then."""

    records: list[MetadataRecord]
    answer: Answer


def decide(
    metadata: ClusterMetadata, command: Command, *, rules: Rules | None = None, situation: ControllerView | None = None
) -> Decision:
    """What comes of a command. An error means that nothing does."""
    match command:
        case CreateTopic() | DeleteTopic() | AddPartitions() | ConfigureTopic():
            return _decide_topic(metadata, command, rules, situation)
        case ConfigureResource():
            limits = (rules or Rules()).groups
            records = topics.configure_resource(metadata, command.kind, command.name, command.changes, limits)
            return Decision([] if command.is_only_checked else records, Done())
        case ReserveProducerIds():
            block = topics.reserve_producer_ids(metadata, command.node_id)
            return Decision([block], ProducerIds(first=block.first_producer_id, next=block.next_producer_id))
        case (
            BeginAccess()
            | SetCredentials()
            | RemoveCredentials()
            | AddAcls()
            | RemoveAcls()
            | IssueApiKey()
            | RevokeApiKey()
        ):
            return _decide_access(metadata, command)
        case Heartbeat() | TransferControl():
            raise InvalidRequest(f"{type(command).__name__} is not a matter of metadata.")
    draft = MetadataDraft(metadata, rules, situation)
    answer = _draft_answer(draft, command)
    if isinstance(command, Rebalance) and command.is_only_planned:
        return Decision([], answer)
    return Decision(draft.records(), answer)


def _decide_topic(
    metadata: ClusterMetadata,
    command: CreateTopic | DeleteTopic | AddPartitions | ConfigureTopic,
    rules: Rules | None,
    situation: ControllerView | None,
) -> Decision:
    match command:
        case CreateTopic():
            spec = TopicSpec(
                name=command.name,
                partitions=command.partitions,
                replication_factor=command.replication_factor,
                configs=command.configs,
                assignment=command.assignment,
            )
            records = topics.create_topic(
                metadata,
                spec,
                command.topic_id,
                partitions=command.default_partitions,
                replication_factor=command.default_replication_factor,
            )
        case DeleteTopic():
            _check_not_internal(command.name)
            return Decision(topics.delete_topic(metadata, command.name), Done())
        case AddPartitions():
            _check_not_internal(command.name)
            records = topics.add_partitions(metadata, command.name, command.count, command.assignment)
        case ConfigureTopic():
            if (command.name, set(command.changes)) != (AUDIT_TOPIC, _AUDIT_CHANGES):
                _check_not_internal(command.name)
            records = topics.configure_topic(metadata, command.name, command.changes, rules, situation)
    return Decision([] if command.is_only_checked else records, Done())


def _decide_access(
    metadata: ClusterMetadata,
    command: BeginAccess | SetCredentials | RemoveCredentials | AddAcls | RemoveAcls | IssueApiKey | RevokeApiKey,
) -> Decision:
    rules = metadata.access
    match command:
        case BeginAccess():
            return Decision(access.begin(rules, command.user, command.credentials, command.key), Done())
        case SetCredentials():
            return Decision(access.set_credentials(rules, command.user, command.credentials), Done())
        case RemoveCredentials():
            return Decision(access.remove_credentials(rules, command.user, command.mechanisms), Done())
        case AddAcls():
            records = access.add_acls(rules, command.acls)
            return Decision([] if command.is_only_checked else records, Done())
        case RemoveAcls():
            records, matches = access.remove_acls(rules, command.filters)
            return Decision([] if command.is_only_checked else records, AclsRemoved(matches=matches))
        case IssueApiKey():
            return Decision(access.issue_key(rules, command.key), Done())
        case RevokeApiKey():
            return Decision(access.revoke_key(rules, command.key_id), Done())


def _check_not_internal(topic: str) -> None:
    """Where a name is kept depends on the number of partitions, and what is kept on the settings."""
    if is_internal(topic):
        raise PolicyViolation(
            f"{topic!r} holds the broker's own state; only the broker creates, changes, empties or deletes it."
        )


def _draft_answer(
    draft: MetadataDraft,
    command: RegisterNode
    | DoubtReplicas
    | ReportLosses
    | ChangeInSync
    | Reassign
    | ElectLeaders
    | DrainNode
    | RemoveNode
    | Rebalance,
) -> Answer:
    match command:
        case RegisterNode():
            return Admitted(epoch=nodes.register(draft, command))
        case DoubtReplicas():
            nodes.doubt(draft, command)
            return Done()
        case ReportLosses():
            nodes.lose(draft, command)
            return Done()
        case ChangeInSync():
            return elections.change_in_sync(draft, command)
        case Reassign():
            return moves.reassign(draft, command.moves)
        case ElectLeaders():
            return elections.elect_leaders(draft, command)
        case DrainNode():
            if not command.is_draining:
                nodes.use_again(draft, command.node_id)
                return Planned(moves=())
            started = nodes.drain(draft, command.node_id, with_replicas=command.with_replicas)
            stuck = nodes.stuck_on(draft, command.node_id) if command.with_replicas else []
            return Planned(moves=tuple(started), stuck=tuple(stuck))
        case RemoveNode():
            nodes.remove(draft, command.node_id, is_forced=command.is_forced)
            return Done()
        case Rebalance():
            return Planned(moves=tuple(_rebalance(draft, command)))


def _rebalance(draft: MetadataDraft, command: Rebalance) -> list[Move]:
    sizes = {(topic, index): size for topic, listed in command.sizes.items() for index, size in enumerate(listed)}
    plan = moves.plan_rebalance(draft, moves.raise_internal_topics(draft), sizes)
    for move in plan:
        moves.start_move(draft, move)
    elections.give_back_leaders(draft)
    return plan
