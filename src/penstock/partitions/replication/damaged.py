"""Copies that are found damaged while the node runs: they give up their place, and are copied anew.

A damaged leader has another replica in sync lead. A damaged follower has its leader take it out of the in-sync set
first, and the controller where it stays eligible even so, and cuts its log at the damage then, never the other way
round: in between it could be elected without what it has cut. A client, a follower or the scrub
(`penstock.partitions.scrub`) finds the damage when it reads it. Until a sound replica leads, reads of what is damaged
are refused. Where no other replica may have the records, the leader reports them as lost; that is a fact of the
metadata, shown with the topic, and lets readers go past.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from penstock.consensus.commands import DoubtedReplica, DoubtReplicas, PartitionLosses, ReportLosses
from penstock.consensus.records import NO_LEADER, LostRecords
from penstock.errors import PenstockError
from penstock.partitions.damage import doubt_of, is_damaged, is_misdated, restamp_epochs
from penstock.partitions.partition import Partition
from penstock.partitions.replicas import Replicas
from penstock.partitions.replication.proposals import Controller
from penstock.storage.ranges import OffsetRange

log = logging.getLogger(__name__)

_SCAN_EVERY_S: Final = 0.5


class DamagedReplicas:
    """Looks after the copies of one node."""

    def __init__(self, node_id: int, replicas: Replicas, controller: Controller) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._controller = controller

    async def run(self) -> None:
        """See to what is damaged, and to whether a full disk has space again."""
        while True:
            await asyncio.sleep(_SCAN_EVERY_S)
            await self._replicas.disk.probe()
            await self.scan()

    async def scan(self) -> None:
        """One round: tell the controller, and copy anew what does not count any more."""
        replicas = self._replicas
        if replicas.node_epoch is None:
            return
        epoch = replicas.node_epoch
        reported = replicas.doubtful
        doubtful = list(reported)
        losses: list[PartitionLosses] = []
        for partition in replicas:
            if is_damaged(partition.log):
                found = self._assess(partition)
                if found is not None:
                    doubtful.append(found)
                elif is_misdated(partition.log) and self._is_only_copy(partition):
                    await self._redate(partition)
            if partition.is_leader and (lost := self._losses(partition)) is not None:
                losses.append(lost)
        if doubtful:
            command = DoubtReplicas(node_id=self._node_id, epoch=epoch, doubtful=tuple(doubtful))
            if await self._submit(command):
                replicas.on_reported(reported)
        if losses:
            await self._submit(ReportLosses(node_id=self._node_id, epoch=epoch, partitions=tuple(losses)))

    async def _submit(self, command: DoubtReplicas | ReportLosses) -> bool:
        try:
            await self._controller.submit(command)
        except PenstockError as error:
            log.warning("Damaged replicas could not be reported to the controller: %s", error.message)
            return False
        return True

    def _losses(self, partition: Partition) -> PartitionLosses | None:
        """What is lost of a partition that is led here, if that is not what the metadata says."""
        here = partition.log
        if not here.lost and not here.opened.has_damage:
            return None
        known = tuple(lost for lost in here.lost if lost.next > here.start_offset)
        found = tuple(damage for damage in self._lost_now(partition) if damage not in known)
        lost = tuple(sorted((*known, *found)))
        if lost == here.lost:
            return None
        return PartitionLosses(
            topic_id=partition.topic_id,
            partition=partition.id.partition,
            leader_epoch=partition.leader_epoch,
            lost=tuple(LostRecords(first_offset=each.first, next_offset=each.next) for each in lost),
        )

    def _lost_now(self, partition: Partition) -> list[OffsetRange]:
        """Committed records that are damaged here and that no other replica can have."""
        assigned = self._replicas.assigned(partition)
        if assigned is None or assigned.eligible or not self._is_only_copy(partition):
            return []
        here, followers = partition.log, partition.followers
        return [
            damage
            for damage in here.damage()
            if damage.next > here.start_offset and (followers is None or not followers.may_have(damage.next))
        ]

    def _assess(self, partition: Partition) -> DoubtedReplica | None:
        """What to tell of a damaged copy, if it has a place to give up."""
        assigned = self._replicas.assigned(partition)
        if assigned is None or len(assigned.replicas) < 2:
            return None
        if assigned.leader in {NO_LEADER, self._node_id}:
            if assigned.in_sync == (self._node_id,) or self._node_id not in (*assigned.in_sync, *assigned.eligible):
                return None  # no other replica has it, or it does not count
            return doubt_of(partition.id, partition.topic_id, partition.log, 0)
        if self._replicas.fetcher is not None and not partition.is_leader:
            self._replicas.fetcher.follow(partition, assigned.leader)  # which copies it anew from the damage on
        if self._node_id in assigned.eligible:  # its leader has taken it out, but with too few left it can be elected
            return doubt_of(partition.id, partition.topic_id, partition.log, 0)
        return None

    def _is_only_copy(self, partition: Partition) -> bool:
        assigned = self._replicas.assigned(partition)
        return assigned is not None and partition.is_leader and assigned.in_sync == (self._node_id,)

    async def _redate(self, partition: Partition) -> None:
        """No other replica has the records that go with damaged leader epochs."""
        async with self._replicas.upkeep(partition):
            try:
                await asyncio.to_thread(restamp_epochs, partition.log)
            except PenstockError as error:
                log.warning("Leader epochs of %s could not be written anew: %s", partition.id, error.message)
