"""Errors as answers tell them: RFC 9457 problem documents, and the one table from our errors to HTTP's statuses.

``type`` and ``code`` are stable and meant for programs, ``detail`` is meant for people and may change. A problem can be
a whole answer, or part of one that tells of many things one by one.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock import errors
from penstock.errors import PenstockError


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, after RFC 9457; `code` names the kind of error, `retriable` whether trying again can help."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    retriable: bool
    retry_after_ms: Annotated[int | UnsetType, Meta(description="How long to wait, where a quota is used up.")] = UNSET


# A class stands for its subclasses too; the nearest ancestor counts.
STATUSES: Final[dict[type[PenstockError], int]] = {
    PenstockError: 500,
    errors.ClientGone: 400,
    errors.InvalidRequest: 422,
    errors.MessageTooLarge: 413,
    errors.PolicyViolation: 403,
    errors.TopicExists: 409,
    errors.UnknownTopic: 404,
    errors.UnknownPartition: 404,
    errors.OffsetOutOfRange: 416,
    errors.CorruptRecords: 500,
    errors.OutOfOrderSequence: 409,
    errors.DuplicateSequence: 409,
    errors.ProducerFenced: 409,
    errors.CoordinatorFenced: 409,
    errors.NotLeader: 503,
    errors.FencedLeaderEpoch: 503,
    errors.UnknownLeaderEpoch: 503,
    errors.NotEnoughReplicas: 503,
    errors.NotController: 503,
    errors.RequestTimedOut: 504,
    errors.PeerUnavailable: 503,
    errors.ControllerUnavailable: 503,
    errors.StaleNodeEpoch: 409,
    errors.NodeNotFound: 404,
    errors.DuplicateNode: 409,
    errors.NodeStarting: 503,
    errors.NodeInUse: 409,
    errors.StalePartitionEpoch: 409,
    errors.IneligibleReplica: 409,
    errors.LeaderNotAvailable: 503,
    errors.ElectionNotNeeded: 409,
    errors.NoReassignment: 404,
    errors.OffsetNotAvailable: 503,
    errors.StorageError: 503,
    errors.DiskFull: 507,
    errors.StartupError: 500,
    errors.GroupError: 409,
    errors.GroupNotFound: 404,
    errors.UnknownMember: 404,
    errors.InvalidGroupId: 422,
    errors.InvalidSessionTimeout: 422,
    errors.OffsetMetadataTooLarge: 413,
    errors.NotCoordinator: 503,
    errors.CoordinatorLoading: 503,
    errors.DeadLetterNotFound: 404,
    errors.RedriveNotFound: 404,
    errors.RedriveRunning: 409,
    errors.PipelineNotFound: 404,
    errors.PipelineReplaced: 409,
    errors.InvalidLake: 409,
    errors.ScheduleNotFound: 404,
    errors.ScheduleBeingFired: 409,
    errors.ScheduleExists: 409,
    errors.TransactionError: 409,
    errors.TransactionNotFound: 404,
    errors.TransactionalIdNotFound: 404,
    errors.InvalidTransactionTimeout: 422,
    errors.UnknownWriter: 422,
    errors.IdempotencyKeyReused: 422,
    errors.TransactionLimitReached: 429,
    errors.AccessError: 403,
    errors.AuthenticationFailed: 401,
    errors.UserNotFound: 404,
    errors.ApiKeyNotFound: 404,
    errors.LastAdmin: 409,
    errors.AccessLimitReached: 409,
    errors.QuotaExceeded: 429,
    errors.QuotaNotFound: 404,
    errors.KeysNotRotated: 409,
}


def status_of(error: PenstockError) -> int:
    """The status that tells of an error."""
    return status_of_kind(type(error))


def status_of_kind(kind: type[PenstockError]) -> int:
    return next(STATUSES[each] for each in kind.__mro__ if each in STATUSES)


def retry_after_of(error: PenstockError) -> int | None:
    """Whole seconds after which a call that is over its quota may come again; None for other errors."""
    return -(-error.retry_after_ms // 1000) if isinstance(error, errors.QuotaExceeded) else None


def problem_of(error: PenstockError, instance: str, status: int | None = None) -> Problem:
    """The problem document of an error; ``instance`` is the path that was asked for."""
    told = status_of(error) if status is None else status
    title = (type(error).__doc__ or HTTPStatus(told).phrase).strip().splitlines()[0]
    return Problem(
        type=f"urn:penstock:error:{error.code}",
        title=title,
        status=told,
        detail=error.message,
        instance=instance,
        code=error.code,
        retriable=error.retriable,
        retry_after_ms=error.retry_after_ms if isinstance(error, errors.QuotaExceeded) else UNSET,
    )
