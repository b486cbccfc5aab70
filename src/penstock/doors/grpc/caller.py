"""The client behind a call, as operations see it: how much time it gives, whether it is still there."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc.aio

from penstock.access.principal import ANONYMOUS, Principal
from penstock.doors.grpc.door import Door
from penstock.errors import AuthenticationFailed
from penstock.operations.caller import Caller

DOOR: Final = "grpc"

Context = grpc.aio.ServicerContext[Any, Any]

# Clients take answers of up to 4 MiB unless told otherwise; who asks for more by `max_bytes` gets it.
_ANSWER_BYTES: Final = 3 * 1024 * 1024
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
# So long before the client gives up the answer has to be on its way.
_MARGIN_MS: Final = 100


class GrpcCaller(Caller):
    """The client of one call or stream."""

    __slots__ = ("_context", "_door", "_instance", "_principal", "answer_bytes", "gone")

    def __init__(self, door: Door, context: Context, instance: str) -> None:
        super().__init__(door.stopping)
        self._door = door
        self._context = context
        self._instance = instance
        self._principal = ANONYMOUS
        self.answer_bytes = _ANSWER_BYTES
        self.gone = asyncio.Event()

    async def log_in(self) -> None:
        """Find out who calls; `AuthenticationFailed` if what the client shows is not good."""
        services = self._door.services
        if not services.authorizer.is_on:
            return
        try:
            text = self._metadata("authorization")
            if text:
                self._principal = await services.authenticator.authorization(text, self.host, DOOR)
            elif (subject := _subject_of(self._context)) is not None:
                self._principal = services.authenticator.certificate(subject)
        except AuthenticationFailed:
            if not services.broker.is_started:
                return  # it does not know its users yet: what is not for everyone is refused as too early
            services.audit.login_failed(self.host, DOOR, "credentials", self.request_id)
            raise

    @property
    def principal(self) -> Principal:
        return self._principal

    @property
    def door(self) -> str:
        return DOOR

    @property
    def client_id(self) -> str:
        return self._metadata("x-client-id")

    @property
    def request_id(self) -> str:
        return self._metadata("x-request-id")

    def allow_bytes(self, wanted: int | None) -> None:
        """Note that the client asks for answers of this size."""
        if wanted is not None:
            self.answer_bytes = min(wanted, _ANSWER_BYTES_MAX)

    @property
    def instance(self) -> str:
        return self._instance

    @property
    def host(self) -> str:
        kind, _, where = self._context.peer().partition(":")
        return where.rpartition(":")[0].strip("[]") if kind in {"ipv4", "ipv6"} else ""

    @property
    def trace(self) -> str:
        return self._metadata("traceparent")

    def _metadata(self, wanted: str) -> str:
        for name, value in self._context.invocation_metadata() or ():
            if name == wanted:
                return str(value)
        return ""

    @property
    def answer_bytes_max(self) -> int:
        return self.answer_bytes

    @property
    def publish_timeout_ms(self) -> int:
        return self._door.config.publish_timeout_ms

    @property
    def is_gone(self) -> bool:
        remaining = self._context.time_remaining()
        return self.gone.is_set() or self._context.cancelled() or (remaining is not None and remaining <= 0)

    async def wait_gone(self) -> None:
        await self.gone.wait()

    def milliseconds_left(self, at_most: int) -> int:
        remaining = self._context.time_remaining()
        return at_most if remaining is None else max(min(int(remaining * 1000) - _MARGIN_MS, at_most), 0)


def _subject_of(context: Context) -> str | None:
    """The subject of the client's certificate, which TLS has checked; None if it showed none."""
    shown = next(iter(context.auth_context().get("x509_pem_cert") or ()), None)
    if shown is None:
        return None
    from cryptography import x509  # with TLS only: it costs time at start

    return x509.load_pem_x509_certificate(shown).subject.rfc4514_string()
