"""Changes of in-sync sets on their way to the controller: gathered for a moment, and asked for in one call at a time.

What becomes of each is told to the partition's `Followers`, which decides what that means.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple, Protocol

from penstock.clock import Clock
from penstock.consensus.commands import Answer, ChangeInSync, Command, InSyncChange, Outcome, Outcomes
from penstock.errors import PenstockError
from penstock.partitions.partition import Partition
from penstock.partitions.replicas import Replicas
from penstock.partitions.replication.followers import Followers, Proposal, ReplicaAssignment
from penstock.partitions.stats import ReplicationStats
from penstock.supervision import Supervision

log = logging.getLogger(__name__)

_GATHERING_S: Final = 0.02
_AGAIN_S: Final = 0.5
# Only these say for certain that the change was looked at in the partition epoch it was asked for in, and not made.
_REFUSALS: Final = frozenset({"IneligibleReplica", "InvalidRequest", "UnknownTopic", "UnknownPartition"})


class Controller(Protocol):
    async def submit(self, command: Command, *, timeout_s: float = 15.0) -> Answer: ...


class _Proposed(NamedTuple):
    partition: Partition
    followers: Followers
    proposal: Proposal
    before: tuple[int, ...]


class InSyncProposals:
    """Partitions whose in-sync set may have to change."""

    def __init__(
        self,
        node_id: int,
        replicas: Replicas,
        controller: Controller,
        clock: Clock,
        stats: ReplicationStats,
        supervision: Supervision,
    ) -> None:
        self._supervision = supervision
        self._node_id = node_id
        self._replicas = replicas
        self._controller = controller
        self._clock = clock
        self._stats = stats
        self._requested: dict[Partition, None] = {}
        self._held_back: dict[Partition, None] = {}  # until the call that is under way has ended
        self._put_off: dict[Partition, float] = {}  # refused ones, until when
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._is_stopped = False

    def request(self, partition: Partition) -> None:
        """Look at a partition soon."""
        self._requested[partition] = None
        if self._timer is None and not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_later(_GATHERING_S, self._propose_all)

    def _go_on(self) -> None:
        held_back, self._held_back = self._held_back, {}
        for partition in held_back:
            self.request(partition)

    async def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def _propose_all(self) -> None:
        self._timer = None
        wanted, self._requested = self._requested, {}
        now = self._clock.monotonic()
        asked: list[_Proposed] = []
        for partition in wanted:
            followers = partition.followers
            if followers is None:
                self._put_off.pop(partition, None)
                continue
            followers.check_lag(partition.log.end_offset, partition.high_watermark, now)
            if self._asking is not None:
                self._held_back[partition] = None
            elif self._put_off.get(partition, now) <= now:
                self._put_off.pop(partition, None)
                proposal = self._propose(partition, followers, now)
                if proposal is not None:
                    asked.append(_Proposed(partition, followers, proposal, followers.in_sync))
            partition.apply_followers()
            if followers.is_joining:
                self.request(partition)  # until it has joined, or the watermark waits for it no longer
        if asked:
            self._asking = asyncio.ensure_future(self._ask(asked))
            self._supervision.watch("telling who is in sync", self._asking)

    def _propose(self, partition: Partition, followers: Followers, now: float) -> Proposal | None:
        own_epoch = self._replicas.node_epoch
        if own_epoch is None:
            return None
        return followers.propose(own_epoch, partition.high_watermark, now)

    async def _ask(self, asked: list[_Proposed]) -> None:
        try:
            assert self._replicas.node_epoch is not None
            answer = await self._controller.submit(
                ChangeInSync(
                    node_id=self._node_id,
                    epoch=self._replicas.node_epoch,
                    changes=tuple(_change(each) for each in asked),
                )
            )
        except PenstockError as error:
            log.warning("Who is in sync could not be told to the controller: %s", error.message)
            self._lose(asked)
        except BaseException:
            self._lose(asked)
            raise
        else:
            if isinstance(answer, Outcomes) and len(answer.outcomes) == len(asked):
                for each, outcome in zip(asked, answer.outcomes, strict=True):
                    self._take(each, outcome)
            else:
                self._lose(asked)
        finally:
            self._asking = None
            self._go_on()

    def _lose(self, asked: list[_Proposed]) -> None:
        for each in asked:
            each.followers.lose(each.proposal)
            self._try_again(each.partition)

    def _take(self, asked: _Proposed, outcome: Outcome) -> None:
        partition, followers, proposal, before = asked
        if outcome.error is None and outcome.assigned is not None:
            self._count(before, proposal.node_ids)
            assigned = outcome.assigned
            now_is = ReplicaAssignment(assigned.replicas, assigned.in_sync, assigned.partition_epoch)
            if assigned.leader_epoch == partition.leader_epoch and partition.followers is followers:
                followers.grant(proposal, now_is, self._clock.monotonic())
                partition.in_sync_count = len(followers.in_sync)
        elif outcome.error in _REFUSALS:
            followers.refuse(proposal)
            self._try_again(partition)
        else:
            followers.lose(proposal)
            self._try_again(partition)
        if partition.followers is followers:
            partition.apply_followers()

    def _count(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        self._stats.expands += sum(node_id not in before for node_id in after)
        self._stats.shrinks += sum(node_id not in after for node_id in before)

    def _try_again(self, partition: Partition) -> None:
        if not self._is_stopped:
            self._put_off[partition] = self._clock.monotonic() + _AGAIN_S
            asyncio.get_running_loop().call_later(_AGAIN_S, self._again, partition)

    def _again(self, partition: Partition) -> None:
        if not self._is_stopped and partition.followers is not None:
            self.request(partition)


def _change(asked: _Proposed) -> InSyncChange:
    return InSyncChange(
        topic_id=asked.partition.topic_id,
        partition=asked.partition.id.partition,
        leader_epoch=asked.partition.leader_epoch,
        partition_epoch=asked.proposal.partition_epoch,
        in_sync=asked.proposal.in_sync,
    )
