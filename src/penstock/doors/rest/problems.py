"""Errors as HTTP tells them, and those that only HTTP can meet. The table of statuses: `penstock.api.problems`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from penstock.api import problems
from penstock.api.problems import Problem
from penstock.doors.rest.exchange import HeaderList, Reply
from penstock.errors import AuthenticationFailed, InvalidField, PenstockError

log = logging.getLogger(__name__)

PROBLEM_TYPE: Final = "application/problem+json"
RETRY_AFTER_SECONDS: Final = 1
# How to say who one is (RFC 9110, section 11.6.1).
_CHALLENGES: Final[HeaderList] = [
    (b"www-authenticate", b'Bearer realm="penstock"'),
    (b"www-authenticate", b'Basic realm="penstock", charset="UTF-8"'),
]


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


# -- answers -----------------------------------------------------------------------------------------------------------


def problem_of(error: PenstockError, instance: str) -> Problem:
    """The problem document of an error; ``instance`` is the path that was asked for."""
    if isinstance(error, InvalidField):
        error = InvalidParameter(error.message) if error.is_parameter else InvalidBody(error.message)
    return problems.problem_of(error, instance, error.status if isinstance(error, HttpError) else None)


def problem_reply(error: BaseException, instance: str) -> Reply:
    """Any error as an answer. One that is not ours is a bug: it is logged and told without its inside."""
    if not isinstance(error, PenstockError):
        log.error("A request for %s met a bug.", instance, exc_info=error)
        error = InternalError("Something went wrong inside the node; its log says more.")
    problem = problem_of(error, instance)
    headers = error.headers if isinstance(error, HttpError) else []
    if isinstance(error, AuthenticationFailed):
        headers = [*headers, *_CHALLENGES]
    retry_after_s = problems.retry_after_of(error)
    if retry_after_s is None and error.retriable and problem.status >= 500:
        retry_after_s = RETRY_AFTER_SECONDS
    if retry_after_s is not None:
        headers = [*headers, (b"retry-after", str(retry_after_s).encode())]
    return Reply(problem.status, msgspec.json.encode(problem), PROBLEM_TYPE, headers)
