"""The gate before the Kafka door: who a connection is, by SASL or by its certificate, before anything else is served.

Until a connection is admitted it may ask for ApiVersions, SaslHandshake and SaslAuthenticate in frames of 64 KiB, and
has ten seconds for it. A login that expires (KIP-368) closes the gate again: the next request is a SaslHandshake, for
the same principal by the same mechanism, or the connection is closed. Answers say that a login failed and never why.

After SaslHandshake version 0 the mechanism's tokens come without headers, and a failure is told by closing (KIP-152).
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final

from penstock.access.principal import Principal
from penstock.broker.broker import Broker
from penstock.doors.kafka.caller import Caller
from penstock.doors.kafka.connection import Answer, Connection
from penstock.doors.kafka.protocol import apis
from penstock.doors.kafka.protocol.codec import decode
from penstock.doors.kafka.protocol.errors import ErrorCode, ProtocolError
from penstock.doors.kafka.protocol.headers import RequestHeader, encode_response, read_request_header
from penstock.doors.kafka.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from penstock.doors.kafka.sasl import DOOR, MECHANISMS, Login, LoginState, Step, begin_exchange
from penstock.errors import AuthenticationFailed, PenstockError

log = logging.getLogger(__name__)

FRAME_BYTES_MAX: Final = 64 * 1024  # of a client that has not logged in: tokens are a few kilobytes
LOGIN_SECONDS_MAX: Final = 10.0
_CLOSE_SECONDS: Final = 0.1  # after a refusal: some clients do not read an answer that comes with the end
_AGAIN_SECONDS_MIN: Final = 1.0  # between two logins of one connection, as in Kafka
_LENGTH: Final = struct.Struct(">i")

_AnswerVersions = Callable[[Connection, RequestHeader], None]


class Gate:
    """Admits the connections of one door."""

    def __init__(self, broker: Broker, answer_versions: _AnswerVersions) -> None:
        self._authorizer = broker.authorizer
        self._audit = broker.audit
        self._authenticator = broker.authenticator
        self._mechanisms = tuple(each for each in MECHANISMS if each in broker.authenticator.settings.sasl_mechanisms)
        self._clock = broker.clock
        self._answer_versions = answer_versions
        self._tasks: set[asyncio.Task[None]] = set()

    def welcome(self, connection: Connection) -> None:
        """Take up a new connection: without security it is admitted as it is."""
        connection.caller = Caller(self._authorizer, self._audit, host=connection.peer_host)
        if not self._authorizer.is_on:
            return
        connection.is_admitted = False
        connection.limit_requests(FRAME_BYTES_MAX)
        connection.login = login = Login()
        login.set_timer(asyncio.get_running_loop().call_later(LOGIN_SECONDS_MAX, self._on_late, connection))

    def on_closed(self, connection: Connection) -> None:
        if connection.login is not None:
            connection.login.set_timer(None)
            connection.login.exchange = None

    def takes_again(self, connection: Connection) -> bool:
        """Whether a SaslHandshake of an admitted connection begins its next login."""
        login = connection.login
        if login is None or not login.expires:
            return False
        return asyncio.get_running_loop().time() - login.admitted_at >= _AGAIN_SECONDS_MIN

    def admits(self, connection: Connection, frame: memoryview) -> bool:
        """Handle a step of a login. True: it is none, and the client's certificate is enough to serve it."""
        login = connection.login
        assert login is not None, "a connection without a login is admitted"
        if login.state is LoginState.FAILED:
            connection.close()
            return False
        if login.state is LoginState.EXCHANGING and login.is_raw:
            self._exchange(connection, login, bytes(frame), None)
            return False
        header = read_request_header(frame)
        if header.api_key == apis.SASL_HANDSHAKE.key and login.state is not LoginState.EXCHANGING:
            self._handshake(connection, login, header, frame)
        elif header.api_key == apis.SASL_AUTHENTICATE.key:
            self._authenticate(connection, login, header, frame)
        elif header.api_key == apis.API_VERSIONS.key and login.state is LoginState.EXPECTED:
            self._answer_versions(connection, header)
        elif login.state is LoginState.EXPECTED and self._admit_by_certificate(connection, login):
            return True
        else:
            name = header.api.name if header.api is not None else f"API {header.api_key}"
            expired = " after its login expired" if login.state is LoginState.EXPIRED else " before its login"
            self._note(connection, f"it sent {name}{expired}")
            connection.close()
        return False

    # -- the client's steps -------------------------------------------------------------------------------------------

    def _handshake(self, connection: Connection, login: Login, header: RequestHeader, frame: memoryview) -> None:
        _check_version(header)
        request, _ = decode(SaslHandshakeRequest, header.api_version, frame, header.body_position)
        offered = self._mechanisms
        code = ErrorCode.NONE
        is_changed = login.caller is not None and request.mechanism != login.mechanism
        if request.mechanism not in offered:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        elif is_changed:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
        else:
            login.mechanism = request.mechanism
            login.exchange = begin_exchange(request.mechanism, self._authenticator, connection.peer_host)
            login.is_raw = header.api_version == 0
            login.state = LoginState.EXCHANGING
            connection.is_admitted = False
        response = SaslHandshakeResponse(error_code=code, mechanisms=offered)
        answer = connection.expect_answer(is_barrier=True)
        answer.complete([encode_response(response, header.api_version, header.correlation_id)])
        if code:
            self._refuse(connection, "it asked for a mechanism that it may not use")

    def _authenticate(self, connection: Connection, login: Login, header: RequestHeader, frame: memoryview) -> None:
        _check_version(header)
        request, _ = decode(SaslAuthenticateRequest, header.api_version, frame, header.body_position)
        if login.state is LoginState.EXCHANGING:
            self._exchange(connection, login, request.auth_bytes, header)
            return
        answer = connection.expect_answer(is_barrier=True)
        _fail(answer, header, ErrorCode.ILLEGAL_SASL_STATE, "Send SaslHandshake first.")
        self._refuse(connection, "it sent SaslAuthenticate before SaslHandshake")

    def _exchange(self, connection: Connection, login: Login, token: bytes, header: RequestHeader | None) -> None:
        """Hand a token to the mechanism; ``header`` is None where tokens come without one."""
        assert login.exchange is not None, "a mechanism was agreed on"
        answer = connection.expect_answer(is_barrier=True)
        self._spawn(self._answer(connection, login, login.exchange.step(token), header, answer))

    async def _answer(
        self,
        connection: Connection,
        login: Login,
        stepping: Coroutine[Any, Any, Step],
        header: RequestHeader | None,
        answer: Answer,
    ) -> None:
        try:
            step = await stepping  # the client may be gone before this begins, and before it ends
            if connection.is_closed:
                return
            lifetime_ms = 0 if step.principal is None else self._admit(connection, login, step.principal)
        except AuthenticationFailed as error:
            if not connection.is_closed:
                if header is not None:
                    _fail(answer, header, ErrorCode.SASL_AUTHENTICATION_FAILED, error.message)
                self._refuse(connection, f"{login.mechanism} failed", has_answer=header is not None)
            return
        except PenstockError as error:
            connection.close(f"a login met an error: {error.message}")
            return
        except Exception:
            log.exception("A login met a bug; closing the connection of %s.", connection.peer)
            connection.close()
            return
        if header is None:
            answer.complete([_LENGTH.pack(len(step.reply)) + step.reply])
        else:
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.NONE, auth_bytes=step.reply, session_lifetime_ms=lifetime_ms
            )
            answer.complete([encode_response(response, header.api_version, header.correlation_id)])

    # -- what becomes of it -------------------------------------------------------------------------------------------

    def _admit(self, connection: Connection, login: Login, principal: Principal) -> int:
        """Open the gate, and return for how many milliseconds; 0 for good."""
        if login.caller is not None and login.caller.principal != principal:
            raise AuthenticationFailed("A connection cannot change its principal.")
        lifetime_ms = 0
        if principal.expires_ms is not None:
            lifetime_ms = principal.expires_ms - self._clock.now_ms()
            if lifetime_ms <= 0:
                raise AuthenticationFailed("The credentials are wrong or no longer valid.")
        self._open(connection, login, Caller(self._authorizer, self._audit, principal, connection.peer_host))
        if lifetime_ms:
            login.expires = True
            login.set_timer(asyncio.get_running_loop().call_later(lifetime_ms / 1000, self._on_expired, connection))
        return lifetime_ms

    def _open(self, connection: Connection, login: Login, caller: Caller) -> None:
        login.state = LoginState.ADMITTED
        login.exchange = None
        login.expires = False
        login.set_timer(None)
        login.admitted_at = asyncio.get_running_loop().time()
        login.caller = connection.caller = caller
        connection.is_admitted = True
        connection.limit_requests(None)

    def _admit_by_certificate(self, connection: Connection, login: Login) -> bool:
        """Admit a client that has shown a certificate and asks for something else than SASL."""
        subject: str | None = getattr(connection, "peer_certificate_subject", None)
        if subject is None:
            return False
        try:
            principal = self._authenticator.certificate(subject)
        except AuthenticationFailed:
            return False
        self._open(connection, login, Caller(self._authorizer, self._audit, principal, connection.peer_host))
        return True

    def _refuse(self, connection: Connection, reason: str, *, has_answer: bool = True) -> None:
        """Close the connection once its client has the answer, if it gets one."""
        self._note(connection, reason)
        if not has_answer or connection.login is None:
            connection.close()
            return
        connection.is_admitted = False
        connection.login.state = LoginState.FAILED
        loop = asyncio.get_running_loop()
        connection.login.set_timer(loop.call_later(_CLOSE_SECONDS, connection.close_when_answered))

    def _note(self, connection: Connection, reason: str) -> None:
        """Tell of a login that failed, in a log that takes so many of them a second and no more."""
        self._audit.login_failed(connection.peer_host, DOOR, reason)

    def _on_late(self, connection: Connection) -> None:
        self._note(connection, f"it did not log in within {LOGIN_SECONDS_MAX:.0f} s")
        connection.close()

    def _on_expired(self, connection: Connection) -> None:
        if connection.login is not None and connection.login.state is LoginState.ADMITTED:
            connection.login.state = LoginState.EXPIRED
            connection.is_admitted = False

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _check_version(header: RequestHeader) -> None:
    api = header.api
    if api is None or not api.supports(header.api_version):
        raise ProtocolError(f"API {header.api_key} version {header.api_version} is not offered here.")


def _fail(answer: Answer, header: RequestHeader, code: ErrorCode, message: str) -> None:
    response = SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=b"")
    answer.complete([encode_response(response, header.api_version, header.correlation_id)])
