"""The records of the metadata log: every fact the cluster agrees on, as it was decided.

They are stored as JSON in the values of ordinary record batches, so that ``penstock log inspect`` shows them to a
person. A field added later needs a default; a meaning never changes. Format: docs/formats/metadata.md.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from penstock.access.acls import Acl
from penstock.access.api_keys import ApiKey
from penstock.access.scram import ScramCredential, ScramMechanism
from penstock.consensus.resource_config import ResourceKind

NO_LEADER: Final = -1


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a door of a node can be reached."""

    door: str
    host: str
    port: int


class ClusterCreated(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    cluster_id: str


class NodeRegistered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A node came up. Its epoch tells this life of the process from all earlier ones.

    A fenced node is not counted on: it leads nothing, and no client is sent to it. One that is draining gives up what
    it leads and gets nothing new. ``directory_id`` is the disk it has: a wiped node has another.
    """

    node_id: int
    epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    directory_id: str = ""
    is_fenced: bool = False
    is_draining: bool = False


class NodeChanged(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A node was heard of, given up on, or is to be emptied; only for the life with that epoch."""

    node_id: int
    epoch: int
    is_fenced: bool
    is_draining: bool


class NodeRemoved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A node left for good. It has no replicas any more."""

    node_id: int


class TopicCreated(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    name: str
    topic_id: UUID


class TopicDeleted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    topic_id: UUID


class TopicConfigured(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A setting of a topic was changed, or, with no value, went back to its default."""

    topic_id: UUID
    key: str
    value: str | None


class ResourceConfigured(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All settings of a group or a node that differ from the defaults; each one replaces the one before.

    The empty name of kind ``node`` is the default of all nodes.
    """

    kind: ResourceKind
    name: str
    configs: dict[str, str]


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """A replica came back cut or damaged, so it may lack what it had. ``end`` is how far it is good.

    ``last_epoch`` is the leader epoch of the last batch before that.
    """

    node_id: int
    last_epoch: int
    end: int


class LostRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets from ``first_offset`` up to before ``next_offset``, of which no replica has the records any more."""

    first_offset: int
    next_offset: int


class PartitionAssigned(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A partition's whole state; each one replaces the one before.

    ``leader_epoch`` grows with every new leader, ``partition_epoch`` with every change at all. While replicas move,
    ``replicas`` names old and new ones, ``adding`` those that come and ``removing`` those that go. ``eligible`` are
    replicas outside of ``in_sync`` that have every committed record all the same, because too few were in sync for
    anything to be committed since they fell out (KIP-966): they may lead when no replica in sync can. ``doubtful``
    tells which of all these came back cut while no other replica could lead; it is empty once one does. ``lost`` are
    committed records that were damaged on the last replica that had them: readers go past them.
    """

    topic_id: UUID
    partition: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    eligible: tuple[int, ...] = ()
    doubtful: tuple[Doubt, ...] = ()
    lost: tuple[LostRecords, ...] = ()


class ProducerIdsReserved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A node may hand out the producer ids from ``first_producer_id`` to before ``next_producer_id``."""

    node_id: int
    first_producer_id: int
    next_producer_id: int


class CredentialSet(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A user can log in with this credential; it replaces the one of the same mechanism."""

    user: str
    credential: ScramCredential


class CredentialRemoved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    user: str
    mechanism: ScramMechanism


class AclAdded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    acl: Acl


class AclRemoved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    acl: Acl


class ApiKeyIssued(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    key: ApiKey


class ApiKeyRevoked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    key_id: str


MetadataRecord = (
    ClusterCreated
    | NodeRegistered
    | NodeChanged
    | NodeRemoved
    | TopicCreated
    | TopicDeleted
    | TopicConfigured
    | ResourceConfigured
    | PartitionAssigned
    | ProducerIdsReserved
    | CredentialSet
    | CredentialRemoved
    | AclAdded
    | AclRemoved
    | ApiKeyIssued
    | ApiKeyRevoked
)

_encoder = msgspec.json.Encoder()
_list_decoder: msgspec.json.Decoder[list[MetadataRecord]] = msgspec.json.Decoder(list[MetadataRecord])


def encode_records(records: list[MetadataRecord]) -> bytes:
    return _encoder.encode(records)


def decode_records(data: bytes) -> list[MetadataRecord]:
    return _list_decoder.decode(data)
