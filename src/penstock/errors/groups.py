"""What coordinators and groups refuse."""

from __future__ import annotations

from penstock.errors.root import PenstockError


class CoordinationError(PenstockError):
    """A coordinator refuses the request."""

    code = "coordination_error"


class NotCoordinator(CoordinationError):
    """This node does not coordinate what the request is about; ask who does."""

    code = "not_coordinator"
    retriable = True


class CoordinatorLoading(CoordinationError):
    """The coordinator is still reading its log; try again in a moment."""

    code = "coordinator_loading"
    retriable = True


class GroupError(CoordinationError):
    """A group's coordinator refuses the request."""

    code = "group_error"


class InvalidGroupId(GroupError):
    """The group id is empty or too long."""

    code = "invalid_group_id"


class InvalidSessionTimeout(GroupError):
    """The session timeout is outside what this cluster allows."""

    code = "invalid_session_timeout"


class UnknownMember(GroupError):
    """The group does not know this member; it has to join again."""

    code = "unknown_member"


class MemberIdRequired(GroupError):
    """Join again with the member id that comes with this answer."""

    code = "member_id_required"


class IllegalGeneration(GroupError):
    """The member speaks for a generation of its group that is over; it has to join again."""

    code = "illegal_generation"


class RebalanceInProgress(GroupError):
    """The group is sharing out its partitions anew; the member has to join again."""

    code = "rebalance_in_progress"
    retriable = True


class FencedInstance(GroupError):
    """Another process has taken over this static member."""

    code = "fenced_instance"


class InconsistentProtocol(GroupError):
    """The member has no protocol in common with the rest of its group."""

    code = "inconsistent_protocol"


class GroupNotEmpty(GroupError):
    """The group still has members; stop them first."""

    code = "group_not_empty"


class GroupNotFound(GroupError):
    """There is no such group."""

    code = "group_not_found"


class GroupFull(GroupError):
    """The group has as many members as it may have."""

    code = "group_full"


class PartitionNotAssigned(GroupError):
    """The partition is not this member's in the group's present generation."""

    code = "partition_not_assigned"


class MemberBusy(GroupError):
    """Another call of this member is still being answered."""

    code = "member_busy"
    retriable = True


class FencedMemberEpoch(GroupError):
    """The member's epoch is not the group's idea of it; it has to give up its partitions and join again."""

    code = "fenced_member_epoch"


class StaleMemberEpoch(GroupError):
    """The member has moved on to another epoch; it has to send a heartbeat and try again with that one."""

    code = "stale_member_epoch"


class UnreleasedInstance(GroupError):
    """Another process still runs as this static member; stop it first."""

    code = "unreleased_instance"


class UnsupportedAssignor(GroupError):
    """There is no server-side assignor of that name."""

    code = "unsupported_assignor"


class InvalidRegularExpression(GroupError):
    """The pattern is not a regular expression in RE2's syntax."""

    code = "invalid_regular_expression"


class OffsetMetadataTooLarge(GroupError):
    """The text kept with a committed offset is too long."""

    code = "offset_metadata_too_large"
