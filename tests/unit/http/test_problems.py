"""The table from errors to statuses."""

from __future__ import annotations

import msgspec

from penstock import errors
from penstock.api.problems import status_of
from penstock.doors.rest.problems import HttpError, MethodNotAllowed, problem_of, problem_reply
from penstock.errors import PenstockError


def _all(kind: type[PenstockError]) -> list[type[PenstockError]]:
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in _all(child))]


def test_every_error_has_a_status_of_its_own_or_its_nearest_ancestors() -> None:
    for kind in _all(PenstockError):
        if kind.__module__.startswith("penstock.doors.grpc"):
            continue  # other doors may have been loaded before, and have errors of their own
        error = MethodNotAllowed("No.", ["GET"]) if kind is MethodNotAllowed else kind("Something.")
        assert 400 <= status_of(error) <= 599
    assert status_of(errors.InvalidTopicName("No.")) == 422
    assert status_of(errors.LogFailed("No.")) == 503
    assert status_of(errors.DiskFull("No.")) == 507


def test_codes_are_not_shared_by_different_errors() -> None:
    # One that has no code of its own is to clients what its parent is.
    named = [kind for kind in _all(PenstockError) if kind is not PenstockError and "code" in vars(kind)]
    codes = [kind.code for kind in named if kind.__module__ != __name__]
    assert len(codes) == len(set(codes))


def test_only_retriable_server_errors_say_when_to_come_back() -> None:
    def headers(error: Exception) -> dict[bytes, bytes]:
        return dict(problem_reply(error, "/x").headers)

    assert headers(errors.NotLeader("Elsewhere.")) == {b"retry-after": b"1"}
    assert headers(errors.UnknownTopic("No.")) == {}
    assert headers(errors.CorruptRecords("No.")) == {}
    assert headers(MethodNotAllowed("No.", ["GET", "PUT"])) == {b"allow": b"GET, PUT"}


def test_a_bug_is_told_without_its_inside() -> None:
    reply = problem_reply(RuntimeError("secret"), "/x")
    assert (reply.status, reply.content_type) == (500, "application/problem+json")
    assert b"secret" not in reply.body
    assert msgspec.json.decode(reply.body)["code"] == "internal_error"


def test_a_problem_has_the_members_of_rfc_9457() -> None:
    problem = problem_of(errors.UnknownTopic("There is no topic 'a'."), "/v1/topics/a")
    assert msgspec.to_builtins(problem) == {
        "type": "urn:penstock:error:unknown_topic",
        "title": "There is no such topic.",
        "status": 404,
        "detail": "There is no topic 'a'.",
        "instance": "/v1/topics/a",
        "code": "unknown_topic",
        "retriable": True,
    }
    assert issubclass(HttpError, PenstockError)
