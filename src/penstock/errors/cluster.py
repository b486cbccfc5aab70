"""Leadership, replicas, nodes and the quorum."""

from __future__ import annotations

from penstock.errors.root import PenstockError


class NotLeader(PenstockError):
    """This node does not lead the partition; ask for metadata and try its leader."""

    code = "not_leader"
    retriable = True


class FencedLeaderEpoch(PenstockError):
    """The caller knows an older leader of this partition; ask for metadata again."""

    code = "fenced_leader_epoch"
    retriable = True


class UnknownLeaderEpoch(PenstockError):
    """The caller knows a newer leader of this partition than this node does."""

    code = "unknown_leader_epoch"
    retriable = True


class NotEnoughReplicas(PenstockError):
    """Fewer replicas are in sync than the topic's min.insync.replicas asks for."""

    code = "not_enough_replicas"
    retriable = True


class NotController(PenstockError):
    """This node is not the cluster's controller."""

    code = "not_controller"
    retriable = True


class RequestTimedOut(PenstockError):
    """The answer did not come in the time the caller gave."""

    code = "request_timed_out"
    retriable = True


class PeerUnavailable(PenstockError):
    """Another node cannot be reached, or did not answer; whether it did what it was asked to is not known."""

    code = "peer_unavailable"
    retriable = True


class PeerNotReached(PeerUnavailable):
    """There is no connection to another node, so it was not asked to do anything."""

    code = "peer_not_reached"


class ControllerUnavailable(PenstockError):
    """No node leads the cluster now, because a majority cannot be reached; nothing was changed for certain yet."""

    code = "controller_unavailable"
    retriable = True


class StaleNodeEpoch(PenstockError):
    """The node has registered again since, or was removed: this is about an earlier life of it."""

    code = "stale_node_epoch"


class NodeNotFound(PenstockError):
    """There is no such node in the cluster."""

    code = "node_not_found"


class DuplicateNode(PenstockError):
    """A node with that id is running, with another data directory; give one of the two another id."""

    code = "duplicate_node"
    retriable = True  # one that was wiped is let in when its earlier life is known to be over


class NodeInUse(PenstockError):
    """The node still has replicas; drain it first."""

    code = "node_in_use"


class StalePartitionEpoch(PenstockError):
    """The partition has changed since the caller looked at it."""

    code = "stale_partition_epoch"
    retriable = True


class IneligibleReplica(PenstockError):
    """A replica cannot be in sync: its node is fenced, unknown, or in another life."""

    code = "ineligible_replica"
    retriable = True


class LeaderNotAvailable(PenstockError):
    """The partition has no leader now; it gets one when a replica that has everything is back."""

    code = "leader_not_available"
    retriable = True


class ElectionNotNeeded(PenstockError):
    """The partition has the leader that was asked for."""

    code = "election_not_needed"


class NoReassignment(PenstockError):
    """The partition's replicas are not being moved."""

    code = "no_reassignment"


class OffsetNotAvailable(PenstockError):
    """A new leader does not know yet up to where its records are committed; try again in a moment."""

    code = "offset_not_available"
    retriable = True


class NodeStarting(PenstockError):
    """The node is starting; it answers once it is one of its cluster."""

    code = "node_starting"
    retriable = True
