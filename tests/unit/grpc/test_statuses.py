"""Every error has a status, and what a client's library may repeat by itself is only what it safely can."""

from __future__ import annotations

import logging

import pytest
from grpc import StatusCode

from penstock import errors
from penstock.doors.grpc.statuses import CODES, NodeStopping, code_of, status_of
from penstock.errors import PenstockError

KINDS = errors.ALL
# Retriable, but for the caller to decide, not for a library.
DECIDED_BY_CALLERS = {
    errors.UnknownTopic: StatusCode.NOT_FOUND,
    errors.UnknownPartition: StatusCode.NOT_FOUND,
    errors.RequestTimedOut: StatusCode.DEADLINE_EXCEEDED,
    errors.DiskFull: StatusCode.RESOURCE_EXHAUSTED,
    errors.RebalanceInProgress: StatusCode.ABORTED,
    errors.MemberBusy: StatusCode.ABORTED,
    errors.TransactionLimitReached: StatusCode.RESOURCE_EXHAUSTED,
    errors.QuotaExceeded: StatusCode.RESOURCE_EXHAUSTED,
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_retriable_is_unavailable_unless_callers_decide(kind: type[PenstockError]) -> None:
    code = code_of(kind("told"))
    if kind in DECIDED_BY_CALLERS:
        assert code is DECIDED_BY_CALLERS[kind]
    else:
        assert (code is StatusCode.UNAVAILABLE) == kind.retriable


# Errors that no call of this door can end with: roots of others, those before it opens, those of clients.
ROOTS = {errors.PenstockError, errors.CoordinationError}
TOLD = [kind for kind in KINDS if not issubclass(kind, (errors.StartupError, errors.ClientError)) and kind not in ROOTS]


@pytest.mark.parametrize("kind", TOLD, ids=lambda kind: kind.__name__)
def test_no_error_of_ours_looks_like_a_bug(kind: type[PenstockError]) -> None:
    assert code_of(kind("told")) is not StatusCode.INTERNAL


def test_the_table_names_only_errors_that_there_are() -> None:
    assert set(CODES) <= set(KINDS)


def test_a_subclass_is_told_as_its_nearest_ancestor() -> None:
    assert code_of(errors.MessageTooLarge("x")) is StatusCode.INVALID_ARGUMENT
    assert code_of(errors.PolicyViolation("x")) is StatusCode.PERMISSION_DENIED
    assert code_of(errors.TransactionTimedOut("x")) is StatusCode.FAILED_PRECONDITION


def test_the_trailers_say_which_error_and_whether_to_try_again() -> None:
    status = status_of(NodeStopping("later"), "/m")
    assert status.code is StatusCode.UNAVAILABLE
    assert status.details == "later"
    assert dict(status.trailers) == {"penstock-error": "node_stopping", "penstock-retriable": "true"}


def test_a_bug_is_logged_and_told_without_its_inside(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        status = status_of(ZeroDivisionError("secret"), "/penstock.v1.Topics/GetTopic")
    assert status.code is StatusCode.INTERNAL
    assert "secret" not in status.details
    assert "/penstock.v1.Topics/GetTopic" in caplog.text
