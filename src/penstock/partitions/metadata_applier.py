"""The replicas kept in step with the metadata: what was decided takes effect here, in order and off the hot path.

Metadata is applied the moment it is committed; opening logs takes longer. So topics that changed are noted, and one
task sees to them, all that gathered at a time. `caught_up` tells when everything known at the call has taken effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import (
    ClusterCreated,
    MetadataRecord,
    NodeRemoved,
    PartitionAssigned,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from penstock.network.port import Peers
from penstock.partitions.replicas import Replicas
from penstock.supervision import Supervision

log = logging.getLogger(__name__)

INTERNAL_DOOR: Final = "internal"
_TASK: Final = "bringing replicas in line with the metadata"


class MetadataApplier:
    """Sees to it that replicas, and who counts as a peer, are what the metadata says."""

    def __init__(self, metadata: ClusterMetadata, replicas: Replicas, peers: Peers, supervision: Supervision) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._peers = peers
        self._supervision = supervision
        self._changed: dict[UUID, None] = {}
        self._is_all_changed = False
        self._noted = 0  # changes heard of
        self._done = 0  # changes that took effect
        self._wake = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._supervision.start(_TASK, self._work)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for _, waiting in self._waiting:
            waiting.cancel()

    # -- hearing ------------------------------------------------------------------------------------------------------

    def on_applied(self, _index: int, records: Sequence[MetadataRecord]) -> None:
        """An entry of the metadata log was applied."""
        for record in records:
            match record:
                case ClusterCreated():
                    self._peers.cluster_id = record.cluster_id
                case NodeRemoved():
                    self._peers.forget(record.node_id)
                case TopicCreated() | TopicDeleted() | TopicConfigured() | PartitionAssigned():
                    self._changed[record.topic_id] = None
        if self._changed:
            self._note()

    def on_reset(self) -> None:
        """The metadata was replaced by a snapshot: anything may have changed."""
        self._peers.cluster_id = self._metadata.cluster_id
        self.apply_all()

    def apply_all(self) -> None:
        """Anything may have to be brought in line."""
        self._is_all_changed = True
        self._note()

    def _note(self) -> None:
        self._noted += 1
        self._wake.set()

    # -- doing --------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            noted, changed = self._noted, None if self._is_all_changed else tuple(self._changed)
            self._changed.clear()
            self._is_all_changed = False
            try:
                await self._replicas.follow(changed)
            except Exception as error:  # one topic's trouble must not stop the others from following
                self._supervision.note(_TASK, error)
            self._done = noted
            self._complete_waiters()

    def _complete_waiters(self) -> None:
        waiting, self._waiting = self._waiting, []
        for noted, future in waiting:
            if noted > self._done:
                self._waiting.append((noted, future))
            elif not future.done():
                future.set_result(None)

    async def caught_up(self) -> None:
        """Return once all that is applied now has taken effect."""
        if self._done >= self._noted:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._noted, future))
        await future
