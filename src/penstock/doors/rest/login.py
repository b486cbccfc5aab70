"""Who makes an HTTP request or opens a WebSocket: from its Authorization header, or from its client certificate.

``Bearer`` takes an API key or a token of the identity provider, ``Basic`` a user's name and password. What is wrong is
refused at once, whatever is asked for; what is absent makes the caller anonymous, which operations then refuse. No
other header says who a caller is. What was found stays in the request's scope, with the version of the rules it was
found under: a request that takes the short way later on is looked at again once either the rules or the time move on.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

from penstock.access.principal import ANONYMOUS, Principal
from penstock.doors.rest.exchange import header_of
from penstock.errors import AuthenticationFailed
from penstock.operations.services import Services

DOOR: Final = "http"
_PRINCIPAL: Final = "penstock.principal"
_VERSION: Final = "penstock.rules_version"


class Login:
    """Finds out who calls."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._authorizer = services.authorizer
        self._authenticator = services.authenticator

    async def admit(self, scope: Scope) -> None:
        """Note in the scope who calls; `AuthenticationFailed` if what it shows is not good.

        A node that does not know its users yet judges nothing: it serves what is for everyone, such as its health.
        """
        if not self._authorizer.is_on:
            return
        version = self._authorizer.version
        try:
            scope[_PRINCIPAL] = await self._find(scope)
        except AuthenticationFailed:
            if not self._services.broker.is_started:
                return
            self._services.audit.login_failed(host_of(scope), DOOR, "credentials", request_id_of(scope))
            raise
        scope[_VERSION] = version

    async def renew(self, scope: Scope) -> None:
        """The same for a scope that was admitted before, if anything may be different by now."""
        if not self._authorizer.is_on:
            return
        principal = principal_of(scope)
        is_over = principal.expires_ms is not None and self._services.clock.now_ms() >= principal.expires_ms
        if is_over or scope.get(_VERSION) != self._authorizer.version:
            await self.admit(scope)

    async def _find(self, scope: Scope) -> Principal:
        text = header_of(scope, b"authorization")
        host = host_of(scope)
        if not text:
            return self._by_certificate(scope)
        return await self._authenticator.authorization(text, host, DOOR)

    def _by_certificate(self, scope: Scope) -> Principal:
        """The principal of a client certificate that TLS has checked (ASGI's extension ``tls``), if there is one."""
        extensions = scope.get("extensions") or {}
        tls = extensions.get("tls") or {}
        subject = tls.get("client_cert_name")
        return self._authenticator.certificate(subject) if subject else ANONYMOUS


def principal_of(scope: Scope) -> Principal:
    principal: Principal = scope.get(_PRINCIPAL, ANONYMOUS)
    return principal


def host_of(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def client_id_of(scope: Scope) -> str:
    """What the client calls itself, for quotas."""
    return header_of(scope, b"x-client-id")


def request_id_of(scope: Scope) -> str:
    """What the client calls the request: its own id, or the trace that it is part of."""
    return header_of(scope, b"x-request-id") or header_of(scope, b"traceparent")
