"""The records of the metadata log: every fact the cluster agrees on, as it was decided.

They are stored as JSON in the values of ordinary record batches, so that ``penstock log inspect`` shows them to a
person. A field added later needs a default; a meaning never changes. Format: docs/formats/metadata.md.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

NO_LEADER: Final = -1


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a door of a node can be reached."""

    door: str
    host: str
    port: int


class ClusterCreated(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    cluster_id: str


class NodeRegistered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A node came up. Its epoch tells this life of the process from all earlier ones."""

    node_id: int
    epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None


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


class PartitionAssigned(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A partition's whole state; each one replaces the one before.

    ``leader_epoch`` grows with every new leader, ``partition_epoch`` with every change at all.
    """

    topic_id: UUID
    partition: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int


class ProducerIdsReserved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A node may hand out the producer ids from ``first_producer_id`` to before ``next_producer_id``."""

    node_id: int
    first_producer_id: int
    next_producer_id: int


MetadataRecord = (
    ClusterCreated
    | NodeRegistered
    | TopicCreated
    | TopicDeleted
    | TopicConfigured
    | PartitionAssigned
    | ProducerIdsReserved
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[MetadataRecord] = msgspec.json.Decoder(MetadataRecord)
_list_decoder: msgspec.json.Decoder[list[MetadataRecord]] = msgspec.json.Decoder(list[MetadataRecord])


def encode_record(record: MetadataRecord) -> bytes:
    return _encoder.encode(record)


def decode_record(data: bytes) -> MetadataRecord:
    return _decoder.decode(data)


def encode_records(records: list[MetadataRecord]) -> bytes:
    return _encoder.encode(records)


def decode_records(data: bytes) -> list[MetadataRecord]:
    return _list_decoder.decode(data)
