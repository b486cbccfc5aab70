"""The client's side of a login as bytes: what PLAIN, SCRAM and OAUTHBEARER send, handed to the authenticator.

An exchange takes the client's tokens one by one and answers each with a `Step`; the last step has the principal. It
raises `AuthenticationFailed`, and after that takes nothing more. Which credentials are right is the authenticator's
business; here is what a message must look like, as Kafka reads it: PLAIN by RFC 4616, SCRAM by RFC 5802 without
channel binding (``n``), OAUTHBEARER by RFC 7628, whose failures are told in a challenge that the client acknowledges.
"""

from __future__ import annotations

import asyncio
import enum
import re
from typing import Final, NamedTuple, NoReturn, Protocol

from penstock.access.principal import Principal
from penstock.access.scram import ScramMechanism
from penstock.doors.kafka.caller import Caller
from penstock.errors import AuthenticationFailed
from penstock.features.access.authenticator import Authenticator

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, *(each.value for each in ScramMechanism), OAUTHBEARER)

DOOR: Final = "kafka"
_PLAIN_PARTS: Final = 3
# gs2 header without channel binding, then key-value pairs that end with two separators (RFC 7628, 3.1).
_BEARER: Final = re.compile(rb"n,(?:a=(?P<as>[^,\x00\x01]+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]*\x01)*)\x01")
_TOKEN: Final = re.compile(rb"[Bb]earer +([-_~+/.A-Za-z0-9]+=*)")
_INVALID_TOKEN: Final = b'{"status":"invalid_token"}'
_ACKNOWLEDGED: Final = b"\x01"
_SCRAM_HEADER: Final = re.compile(rb"n,(?:a=(?P<as>[^,]*))?,n=(?P<user>[^,]*),")


class Step(NamedTuple):
    """The answer to one token; with a principal once the client has proved it."""

    reply: bytes
    principal: Principal | None = None


class Exchange(Protocol):
    """One login by one mechanism."""

    async def step(self, token: bytes) -> Step: ...


class LoginState(enum.Enum):
    """Where a connection is on its way in."""

    EXPECTED = enum.auto()  # the client is to name a mechanism
    EXCHANGING = enum.auto()  # its messages go to and fro
    ADMITTED = enum.auto()
    EXPIRED = enum.auto()  # it was admitted, and has to log in again
    FAILED = enum.auto()  # it has its answer, and is closed in a moment


class Login:
    """The login of one connection."""

    __slots__ = ("admitted_at", "caller", "exchange", "expires", "is_raw", "mechanism", "state", "timer")

    def __init__(self) -> None:
        self.state = LoginState.EXPECTED
        self.mechanism = ""
        self.exchange: Exchange | None = None
        self.is_raw = False  # tokens come without headers
        self.caller: Caller | None = None  # of the last login
        self.expires = False
        self.admitted_at = 0.0
        self.timer: asyncio.TimerHandle | None = None  # ends the login, or the time for it

    def set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer


def begin_exchange(mechanism: str, authenticator: Authenticator, host: str) -> Exchange:
    """A login by a mechanism of `MECHANISMS`, of a client at that address."""
    if mechanism == PLAIN:
        return _Plain(authenticator, host)
    if mechanism == OAUTHBEARER:
        return _Bearer(authenticator, host)
    return _Scram(authenticator, ScramMechanism(mechanism), host)


class _Plain:
    """One message: who to act as, user and password, with zeros between."""

    def __init__(self, authenticator: Authenticator, host: str) -> None:
        self._authenticator = authenticator
        self._host = host

    async def step(self, token: bytes) -> Step:
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            parts = []
        if len(parts) != _PLAIN_PARTS or parts[0] not in ("", parts[1]):
            _refuse(self._authenticator, self._host)
        _, user, password = parts
        return Step(b"", await self._authenticator.plain(user, password, self._host, DOOR))


class _Scram:
    """Two messages of the client, two answers."""

    def __init__(self, authenticator: Authenticator, mechanism: ScramMechanism, host: str) -> None:
        self._authenticator = authenticator
        self._host = host
        self._exchange = authenticator.scram(mechanism, host, DOOR)
        self._has_begun = False

    async def step(self, token: bytes) -> Step:
        if not self._has_begun:
            self._has_begun = True
            header = _SCRAM_HEADER.match(token)
            if header is None or header["as"] not in (None, b"", header["user"]):
                _refuse(self._authenticator, self._host)
        reply = await self._exchange.step(token)
        return Step(reply, self._exchange.principal)


class _Bearer:
    """One message with a token. A bad one is answered by a challenge that the client has to acknowledge."""

    def __init__(self, authenticator: Authenticator, host: str) -> None:
        self._authenticator = authenticator
        self._host = host
        self._failure: AuthenticationFailed | None = None

    async def step(self, token: bytes) -> Step:
        if self._failure is not None:
            raise self._failure
        found = _BEARER.fullmatch(token)
        pairs = dict(pair.split(b"=", 1) for pair in found["pairs"].split(b"\x01")[:-1]) if found else {}
        bearer = _TOKEN.fullmatch(pairs.get(b"auth", b""))
        if found is None or bearer is None:
            _refuse(self._authenticator, self._host)
        try:
            principal = await self._authenticator.bearer(bearer[1].decode(), self._host, DOOR)
        except AuthenticationFailed as error:
            self._failure = error
            return Step(_INVALID_TOKEN)
        if found["as"] not in (None, principal.name.encode()):
            _refuse(self._authenticator, self._host)
        return Step(b"", principal)


def _refuse(authenticator: Authenticator, host: str) -> NoReturn:
    raise authenticator.refuse(DOOR, "message", host)
