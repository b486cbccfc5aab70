"""The condition of a node's disk, as the controller is told when the node registers and with every heartbeat."""

from __future__ import annotations

from penstock.consensus.commands import DoubtedReplica
from penstock.partitions.disk import RunningMark
from penstock.partitions.replicas import Replicas


class DiskHealth:
    """What the replicas and the mark of the last life say of the disk."""

    def __init__(self, replicas: Replicas, mark: RunningMark, *, syncs_before_ack: bool) -> None:
        self._replicas = replicas
        self._mark = mark
        self._syncs_before_ack = syncs_before_ack

    @property
    def has_lost_writes(self) -> bool:
        """Whether any replica may lack what was acknowledged: the power went before a late sync."""
        return self._mark.was_powered_off and not self._syncs_before_ack

    @property
    def is_unable(self) -> bool:
        return self._replicas.disk.is_unable

    @property
    def doubtful(self) -> tuple[DoubtedReplica, ...]:
        return self._replicas.doubtful

    def on_reported(self, doubtful: tuple[DoubtedReplica, ...]) -> None:
        self._replicas.on_reported(doubtful)
