"""Errors as gRPC tells them: the one table from our errors to status codes, and the trailers that say more.

Every call that fails has the trailers ``penstock-error``, the error's stable code, and ``penstock-retriable``. One that
is over a quota also has ``retry-after``, whole seconds as in HTTP.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from grpc import StatusCode

from penstock import errors
from penstock.api.problems import retry_after_of
from penstock.errors import PenstockError

log = logging.getLogger(__name__)

ERROR_TRAILER: Final = "penstock-error"
RETRIABLE_TRAILER: Final = "penstock-retriable"
RETRY_AFTER_TRAILER: Final = "retry-after"


class NodeStopping(PenstockError):
    """The node is stopping; another node, or this one in a moment, goes on."""

    code = "node_stopping"
    retriable = True


class Status(NamedTuple):
    """How a call ends that did not work."""

    code: StatusCode
    details: str
    error: str
    is_retriable: bool
    retry_after_s: int | None = None

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        told = (ERROR_TRAILER, self.error), (RETRIABLE_TRAILER, "true" if self.is_retriable else "false")
        return told if self.retry_after_s is None else (*told, (RETRY_AFTER_TRAILER, str(self.retry_after_s)))


# A class stands for its subclasses too; the nearest ancestor counts. What is retriable and not named here is
# UNAVAILABLE, which clients may repeat by themselves; what is named may be retriable as well, and its trailer says so.
CODES: Final[dict[type[PenstockError], StatusCode]] = {
    errors.InvalidRequest: StatusCode.INVALID_ARGUMENT,
    errors.PolicyViolation: StatusCode.PERMISSION_DENIED,
    errors.AccessError: StatusCode.PERMISSION_DENIED,
    errors.AuthenticationFailed: StatusCode.UNAUTHENTICATED,
    errors.AuthorizationDenied: StatusCode.PERMISSION_DENIED,
    errors.UserNotFound: StatusCode.NOT_FOUND,
    errors.ApiKeyNotFound: StatusCode.NOT_FOUND,
    errors.LastAdmin: StatusCode.FAILED_PRECONDITION,
    errors.AccessLimitReached: StatusCode.RESOURCE_EXHAUSTED,
    errors.KeysNotRotated: StatusCode.FAILED_PRECONDITION,
    errors.TopicExists: StatusCode.ALREADY_EXISTS,
    errors.UnknownTopic: StatusCode.NOT_FOUND,
    errors.UnknownPartition: StatusCode.NOT_FOUND,
    errors.OffsetOutOfRange: StatusCode.OUT_OF_RANGE,
    errors.CorruptRecords: StatusCode.DATA_LOSS,
    errors.OutOfOrderSequence: StatusCode.FAILED_PRECONDITION,
    errors.DuplicateSequence: StatusCode.FAILED_PRECONDITION,
    errors.ProducerFenced: StatusCode.FAILED_PRECONDITION,
    errors.CoordinatorFenced: StatusCode.FAILED_PRECONDITION,
    errors.ClientGone: StatusCode.CANCELLED,
    # Whether it happened is not known, so it is not for a client's library to repeat it unasked.
    errors.RequestTimedOut: StatusCode.DEADLINE_EXCEEDED,
    errors.StaleNodeEpoch: StatusCode.FAILED_PRECONDITION,
    errors.NodeNotFound: StatusCode.NOT_FOUND,
    errors.NodeInUse: StatusCode.FAILED_PRECONDITION,
    errors.ElectionNotNeeded: StatusCode.FAILED_PRECONDITION,
    errors.NoReassignment: StatusCode.NOT_FOUND,
    errors.DeadLetterNotFound: StatusCode.NOT_FOUND,
    errors.RedriveNotFound: StatusCode.NOT_FOUND,
    errors.RedriveRunning: StatusCode.FAILED_PRECONDITION,
    errors.PipelineNotFound: StatusCode.NOT_FOUND,
    errors.PipelineReplaced: StatusCode.FAILED_PRECONDITION,
    errors.InvalidLake: StatusCode.FAILED_PRECONDITION,
    errors.ScheduleNotFound: StatusCode.NOT_FOUND,
    errors.ScheduleBeingFired: StatusCode.FAILED_PRECONDITION,
    errors.ScheduleExists: StatusCode.ALREADY_EXISTS,
    errors.DiskFull: StatusCode.RESOURCE_EXHAUSTED,
    errors.GroupError: StatusCode.FAILED_PRECONDITION,
    errors.GroupNotFound: StatusCode.NOT_FOUND,
    errors.UnknownMember: StatusCode.NOT_FOUND,
    errors.GroupFull: StatusCode.RESOURCE_EXHAUSTED,
    errors.InvalidGroupId: StatusCode.INVALID_ARGUMENT,
    errors.InvalidSessionTimeout: StatusCode.INVALID_ARGUMENT,
    errors.OffsetMetadataTooLarge: StatusCode.INVALID_ARGUMENT,
    errors.RebalanceInProgress: StatusCode.ABORTED,
    errors.MemberBusy: StatusCode.ABORTED,
    errors.TransactionError: StatusCode.FAILED_PRECONDITION,
    errors.TransactionNotFound: StatusCode.NOT_FOUND,
    errors.TransactionalIdNotFound: StatusCode.NOT_FOUND,
    errors.InvalidTransactionTimeout: StatusCode.INVALID_ARGUMENT,
    errors.UnknownWriter: StatusCode.INVALID_ARGUMENT,
    errors.IdempotencyKeyReused: StatusCode.INVALID_ARGUMENT,
    errors.ConcurrentTransactions: StatusCode.UNAVAILABLE,
    errors.TransactionLimitReached: StatusCode.RESOURCE_EXHAUSTED,
    errors.AccessError: StatusCode.PERMISSION_DENIED,
    errors.AuthenticationFailed: StatusCode.UNAUTHENTICATED,
    errors.UserNotFound: StatusCode.NOT_FOUND,
    errors.ApiKeyNotFound: StatusCode.NOT_FOUND,
    errors.LastAdmin: StatusCode.FAILED_PRECONDITION,
    errors.AccessLimitReached: StatusCode.RESOURCE_EXHAUSTED,
    errors.QuotaExceeded: StatusCode.RESOURCE_EXHAUSTED,
    errors.QuotaNotFound: StatusCode.NOT_FOUND,
    errors.KeysNotRotated: StatusCode.FAILED_PRECONDITION,
}


def code_of(error: PenstockError) -> StatusCode:
    """The code that tells of an error."""
    fallback = StatusCode.UNAVAILABLE if error.retriable else StatusCode.INTERNAL
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), fallback)


def status_of(error: Exception, method: str) -> Status:
    """Any error as the end of a call. One that is not ours is a bug: it is logged and told without its inside."""
    if isinstance(error, PenstockError):
        return Status(code_of(error), error.message, error.code, error.retriable, retry_after_of(error))
    log.error("A call of %s met a bug.", method, exc_info=error)
    details = "Something went wrong inside the node; its log says more."
    return Status(StatusCode.INTERNAL, details, PenstockError.code, is_retriable=False)
