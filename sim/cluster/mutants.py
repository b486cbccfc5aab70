"""Known bugs of whole nodes: replication, the controller and transactions. The seeds and stories have to catch them."""

from __future__ import annotations

from typing import Final

from sim.cluster.lane_mutants import LANES
from sim.cluster.metadata_mutants import METADATA
from sim.cluster.queue_mutants import QUEUES
from sim.cluster.schedule_mutants import SCHEDULES
from sim.cluster.scrub_mutants import SCRUB
from sim.planting import Mutant

_PARTITION: Final = "penstock.partitions.partition"
_REPLICAS: Final = "penstock.partitions.replicas"
_FETCHER: Final = "penstock.partitions.replication.fetcher"
_FOLLOWERS: Final = "penstock.partitions.replication.followers"
_FOLLOWING: Final = "penstock.partitions.replication.following"
_SERVING: Final = "penstock.partitions.replication.serving"

REPLICATION: Final = (
    Mutant(
        "the high watermark is the leader's own end",
        _PARTITION,
        "        if stable > self._limit:\n            stable = self._limit\n",
        "",
    ),
    Mutant(
        "the high watermark minds the committed in-sync set only",
        _FOLLOWERS,
        "            named.update(dict.fromkeys(proposal.node_ids))\n",
        "            pass\n",
    ),
    Mutant(
        "followers count with what they received",
        _FOLLOWERS,
        "follower.stable = min(stable, end)",
        "follower.stable = end",
    ),
    Mutant(
        "a write is acknowledged as soon as it is written",
        _PARTITION,
        "if self.high_watermark >= offset:",
        "if True:",
    ),
    Mutant(
        "a leader counts what it has not synced",
        _PARTITION,
        "stable = self.log.end_offset if durable >= self._promised_end else durable",
        "stable = self.log.end_offset",
    ),
    Mutant(
        "a follower tells of what it has not synced",
        _PARTITION,
        "        if self._syncs:\n            self._promised_end = self.log.end_offset\n",
        "        if False:\n            self._promised_end = self.log.end_offset\n",
    ),
    Mutant(
        "a follower keeps what its leader never had",
        _FOLLOWING,
        "return min(parting.start_offset, known_end)",
        "return known_end",
    ),
    Mutant(
        "no history is found to part",
        _FOLLOWING,
        "if last_epoch == epochs.latest and offset <= end_offset:",
        "if offset <= end_offset:",
    ),
    Mutant(
        "a follower joins before it has caught up",
        _FOLLOWERS,
        "follower.stable >= max(high_watermark, self.epoch_start)",
        "follower.stable >= 0",
    ),
    Mutant(
        "the watermark moves with too few in sync",
        _FOLLOWERS,
        "if self.is_short:",
        "if False:",
    ),
    Mutant(
        "batches carry no leader epoch",
        _PARTITION,
        "log.append(batch, header, self.leader_epoch)",
        "log.append(batch, header, 0)",
    ),
    Mutant(
        "a node leads by what it knew in its last life",
        _REPLICAS,
        "return node is not None and node.epoch == self.node_epoch",
        "return True",
    ),
    Mutant(
        "a follower cuts its log at the watermark it knows",
        _REPLICAS,
        "                partition.follow(assigned.leader_epoch)\n",
        "                partition.follow(assigned.leader_epoch)\n"
        "                partition.log.truncate(partition.high_watermark)\n"
        "                partition.on_truncated()\n",
    ),
    Mutant(
        "an answer is taken for one to what is asked now",
        _FETCHER,
        "            partition = self._session.key(news.slot)\n",
        "            partition = next(iter(self._following), None)\n"
        "            if partition is not None and news.is_parting:\n"
        "                following = self._following[partition]\n"
        "                following.ask(partition.log.end_offset, partition.log.epochs)\n"
        "                import msgspec\n"
        "                news = msgspec.structs.replace(news, leader_epoch=following.leader_epoch)\n",
    ),
    Mutant(
        "a change of the in-sync set that is not answered counts as refused",
        _FOLLOWERS,
        "            self._sent = None\n            self._is_uncertain = True\n",
        "            self.refuse(proposal)\n",
    ),
    Mutant(
        "followers do not learn of producers",
        _PARTITION,
        "log.append_stored(batch, header)",
        "log.append_stored(batch, header._replace(producer_id=-1))",
    ),
)

_DRAFT: Final = "penstock.consensus.controller.draft"
_ELECTIONS: Final = "penstock.consensus.controller.elections"
_NODES: Final = "penstock.consensus.controller.nodes"

CONTROLLER: Final = (
    Mutant(
        "any living replica may lead",
        _DRAFT,
        'if is_unclean or self._config(self._topic(partition.topic_id), UNCLEAN) == "true":',
        "if True:",
    ),
    Mutant(
        "a fenced node is elected",
        _DRAFT,
        "if node_id in candidates and self.is_living(node_id)",
        "if node_id in candidates",
    ),
    Mutant(
        "whoever was in sync once stays eligible",
        _DRAFT,
        "if is_clean and len(in_sync) < self.min_in_sync(wanted):",
        "if is_clean:",
    ),
    Mutant(
        "changes of the in-sync set are not compared",
        _ELECTIONS,
        "if change.partition_epoch != partition.partition_epoch:",
        "if False:",
    ),
    Mutant(
        "a node joins the in-sync set in any life",
        _ELECTIONS,
        "if known is None or known.is_fenced or known.epoch != epoch:",
        "if known is None:",
    ),
    Mutant(
        "a wiped node counts as in sync",
        _NODES,
        "if has_other_disk or command.has_lost_writes:",
        "if False:",
    ),
    Mutant(
        "a leader epoch outlives its leader",
        _DRAFT,
        "leader_epoch=before.leader_epoch + (chosen != before.leader)",
        "leader_epoch=before.leader_epoch",
    ),
    Mutant(
        "a move ends before the new replicas have caught up",
        _DRAFT,
        "return moved if is_done else partition",
        "return moved if moved.in_sync else partition",
    ),
)

_MARKING: Final = "penstock.features.transactions.markers"

TRANSACTIONS: Final = (
    Mutant(
        "markers for partitions elsewhere are dropped",
        _MARKING,
        "            received = await self.leaders.peers.call(node_id, MARK, request, timeout_s=_TIMEOUT_SECONDS)\n"
        "            reply: Marked = received.reply\n",
        "            reply = Marked((None,) * len(request.places))\n",
    ),
    Mutant(
        "readers of committed data read open transactions",
        _PARTITION,
        "if first_open is None and not self._uncommitted_markers:",
        "if True:",
    ),
)

CLUSTER: Final[tuple[Mutant, ...]] = (
    REPLICATION + CONTROLLER + TRANSACTIONS + QUEUES + LANES + SCRUB + METADATA + SCHEDULES
)
