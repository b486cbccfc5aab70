"""The short way of requests whose head came before: programs that publish, receive or ack send the same one each time.

A head is parsed and routed in full the first time it comes on a connection. What differs afterwards is the body and the
digits of its length, so the next one is known by its bytes, and goes straight to the operation that answered the first.
Whatever is not exactly that (another header, a body in pieces, two requests at once) goes the usual way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from starlette.types import Receive, Scope, Send

# Where an operation says that it takes requests with this head again; given by the body first.
SERVES_AGAIN: Final = "penstock.serves_again"
ServesAgain = Callable[[bytes, Scope, Receive, Send], Awaitable[None]]

_LENGTH: Final = b"\r\ncontent-length: "  # the last header
_END: Final = b"\r\n\r\n"
_DIGITS_MAX: Final = 9
_HEADS_MAX: Final = 16
_HEAD_BYTES_MAX: Final = 2_048
# Headers with which the next request need not be like this one.
_TELLING: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"connection", b"trailer", b"te"})


class Known(NamedTuple):
    """A request with a head that is known, and the one body that came with it."""

    scope: Any  # of uvicorn's kind
    serves: ServesAgain
    body: bytes


def _split(data: bytes) -> tuple[bytes, int] | None:
    """A whole request as its head up to the length, and where the body begins; None if it is anything else."""
    length_at = data.find(_LENGTH, 0, _HEAD_BYTES_MAX)
    if length_at < 0:
        return None
    begin = length_at + len(_LENGTH)
    end = data.find(_END, begin, begin + _DIGITS_MAX + len(_END))
    if end < 0:
        return None
    digits = data[begin:end]
    if not digits.isdigit() or int(digits) != len(data) - end - len(_END):
        return None
    return data[:begin], end + len(_END)


class Heads:
    """The heads that came on one connection."""

    __slots__ = ("_scopes",)

    def __init__(self) -> None:
        self._scopes: dict[bytes, Scope] = {}

    def find(self, data: bytes) -> Known | None:
        """What ``data`` is, if it is one whole request with a head that is known."""
        if not self._scopes:
            return None
        parts = _split(data)
        if parts is None:
            return None
        head, begin = parts
        scope = self._scopes.get(head)
        if scope is None:
            return None
        serves: ServesAgain | None = scope.get(SERVES_AGAIN)
        return None if serves is None else Known(scope, serves, data[begin:])

    def learn(self, data: bytes, scope: Any) -> None:
        """``data`` was parsed as one whole request; ``scope`` is what the parser made of its head."""
        if scope["http_version"] != "1.1" or any(name in _TELLING for name, _ in scope["headers"]):
            return
        parts = _split(data)
        if parts is None:
            return
        if len(self._scopes) >= _HEADS_MAX:
            self._scopes.clear()
        self._scopes[parts[0]] = scope
