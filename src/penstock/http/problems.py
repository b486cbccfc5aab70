"""Errors as HTTP tells them: RFC 9457 problem documents, and the one table from our errors to statuses.

``type`` and ``code`` are stable and meant for programs, ``detail`` is meant for people and may change.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import ClassVar, Final

import msgspec

from penstock import errors
from penstock.errors import PenstockError
from penstock.http.exchange import HeaderList, Reply

log = logging.getLogger(__name__)

PROBLEM_TYPE: Final = "application/problem+json"
RETRY_AFTER_SECONDS: Final = 1


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, after RFC 9457; `code` names the kind of error, `retriable` whether trying again can help."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    retriable: bool


# -- what only HTTP can get wrong --------------------------------------------------------------------------------------


class HttpError(PenstockError):
    """A request that never reached the broker."""

    status: ClassVar[int] = 400
    code = "bad_request"

    @property
    def headers(self) -> HeaderList:
        return []


class MalformedBody(HttpError):
    """The body is not JSON."""

    code = "malformed_body"


class InvalidBody(HttpError):
    """The body is JSON but not what is expected here."""

    status = 422
    code = "invalid_body"


class InvalidParameter(HttpError):
    """A query parameter is unknown or has a bad value."""

    code = "invalid_parameter"


class BodyTooLarge(HttpError):
    """The body is larger than this node takes."""

    status = 413
    code = "body_too_large"


class UnsupportedMediaType(HttpError):
    """The body is of a kind that this call does not take."""

    status = 415
    code = "unsupported_media_type"


class ClientGone(HttpError):
    """The client went away before its request was complete."""

    code = "client_gone"


class CrossOrigin(HttpError):
    """A page of another site tried to change something here."""

    status = 403
    code = "cross_origin"


class HostNotAllowed(HttpError):
    """The request names a host that this node is not."""

    status = 421
    code = "host_not_allowed"


class NoSuchRoute(HttpError):
    """There is nothing at this path."""

    status = 404
    code = "no_such_route"


class MethodNotAllowed(HttpError):
    """The path is there, but not for this method."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, allowed: Sequence[str]) -> None:
        super().__init__(message)
        self.allowed = allowed

    @property
    def headers(self) -> HeaderList:
        return [(b"allow", ", ".join(self.allowed).encode())]


class UpgradeRequired(HttpError):
    """This path is for WebSockets only."""

    status = 426
    code = "upgrade_required"

    @property
    def headers(self) -> HeaderList:
        return [(b"upgrade", b"websocket"), (b"connection", b"upgrade")]


class TooManyConnections(HttpError):
    """There are as many connections as this node takes."""

    status = 503
    code = "too_many_connections"
    retriable = True


class InternalError(HttpError):
    """This request has met a bug of the node."""

    status = 500
    code = "internal_error"


# -- the table ---------------------------------------------------------------------------------------------------------

# A class stands for its subclasses too; the nearest ancestor counts.
STATUSES: Final[dict[type[PenstockError], int]] = {
    PenstockError: 500,
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
}


def status_of(error: PenstockError) -> int:
    """The status that tells of an error."""
    if isinstance(error, HttpError):
        return error.status
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def problem_of(error: PenstockError, instance: str) -> Problem:
    """The problem document of an error; ``instance`` is the path that was asked for."""
    status = status_of(error)
    title = (type(error).__doc__ or HTTPStatus(status).phrase).strip().splitlines()[0]
    return Problem(
        type=f"urn:penstock:error:{error.code}",
        title=title,
        status=status,
        detail=error.message,
        instance=instance,
        code=error.code,
        retriable=error.retriable,
    )


def problem_reply(error: BaseException, instance: str) -> Reply:
    """Any error as an answer. One that is not ours is a bug: it is logged and told without its inside."""
    if not isinstance(error, PenstockError):
        log.error("A request for %s met a bug.", instance, exc_info=error)
        error = InternalError("Something went wrong inside the node; its log says more.")
    problem = problem_of(error, instance)
    headers = error.headers if isinstance(error, HttpError) else []
    if error.retriable and problem.status >= 500:
        headers = [*headers, (b"retry-after", str(RETRY_AFTER_SECONDS).encode())]
    return Reply(problem.status, msgspec.json.encode(problem), PROBLEM_TYPE, headers)
