"""Problem documents (RFC 9457) turned back into the errors that they tell of."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock import errors
from penstock.client.connections import Answer
from penstock.errors import InvalidRequest, PenstockError, UnexpectedAnswer

_KINDS: Final[dict[str, type[PenstockError]]] = {
    kind.code: kind for kind in (getattr(errors, name) for name in errors.__all__)
}


class _Problem(msgspec.Struct, frozen=True):
    code: str = ""
    detail: str = ""
    title: str = ""
    retriable: bool = False


def error_named(code: str, message: str, *, is_callers_fault: bool = False) -> PenstockError:
    """The error of that code. One that this version does not know keeps its code all the same."""
    kind = _KINDS.get(code)
    if kind is not None:
        return kind(message)
    error = InvalidRequest(message) if is_callers_fault else PenstockError(message)
    error.code = code  # type: ignore[misc]  # an instance's own, where no class has it
    return error


def error_of(answer: Answer) -> PenstockError:
    """The error that an answer with a status of 400 or more tells of."""
    try:
        problem = msgspec.json.decode(answer.body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = _Problem()
    if not problem.code:
        return UnexpectedAnswer(f"The answer has status {answer.status} and is not one of a Penstock node.")
    error = error_named(problem.code, problem.detail or problem.title, is_callers_fault=answer.status < 500)
    error.retriable = problem.retriable  # type: ignore[misc]  # the node knows better than this version
    return error
