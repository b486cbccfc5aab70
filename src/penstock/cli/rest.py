"""A small REST client on the standard library: one kept-alive connection, JSON both ways, errors with an exit code.

Not the Python client: that needs asyncio, which makes every command start 13 ms later, and retries where a command
should say at once that no node answers.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from penstock.cli import profiles
from penstock.cli.exits import DEFAULT_URL, CommandError, Exit
from penstock.client.login import Login
from penstock.client.trust import Trust, explain
from penstock.errors import InvalidRequest

TIMEOUT_S: Final = 30.0
_EXITS: Final = {
    400: Exit.USAGE,
    416: Exit.USAGE,
    422: Exit.USAGE,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    408: Exit.UNAVAILABLE,
    429: Exit.UNAVAILABLE,
    502: Exit.UNAVAILABLE,
    503: Exit.UNAVAILABLE,
    504: Exit.UNAVAILABLE,
    507: Exit.UNAVAILABLE,
}
_UNAUTHORIZED: Final = 401
_WRONG_PORT: Final = "wrong_port"
_HTTP2_BEGINNING: Final = re.compile("\0..\4", re.DOTALL)  # a settings frame: how gRPC servers begin


class RefusedError(CommandError):
    """The node refused the request."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message, Exit.USAGE if code == _WRONG_PORT else _EXITS.get(status, Exit.FAILURE))
        self.status = status
        self.code = code


class Rest:
    """Calls to one node. Parameters and members of a body that are None are left out."""

    def __init__(
        self, url: str, *, timeout_s: float = TIMEOUT_S, trust: Trust | None = None, login: Login | None = None
    ) -> None:
        """Whom to trust and who to be is up to the command's options, the environment and its profile, if not given."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise CommandError(f"{url!r} is not the URL of a node; give one such as {DEFAULT_URL}.", Exit.USAGE)
        try:
            port = parts.port
        except ValueError:
            raise CommandError(f"{url!r} has a port that is not a number from 0 to 65535.", Exit.USAGE) from None
        self.url = url
        self.scheme = parts.scheme
        self._timeout_s = timeout_s
        self._prefix = parts.path.rstrip("/")
        self._connection: http.client.HTTPConnection
        self.trust = profiles.trust() if trust is None else trust
        self.login = profiles.login(url) if login is None else login
        try:
            self.login.check_address(parts.hostname, is_tls=parts.scheme == "https")
            header = self.login.header()
            context = self.trust.context() if parts.scheme == "https" else None
        except InvalidRequest as error:
            raise CommandError(error.message, Exit.USAGE) from error
        self._authorization = None if header is None else header.decode()
        if context is not None:
            self._connection = http.client.HTTPSConnection(parts.hostname, port, timeout=timeout_s, context=context)
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, port, timeout=timeout_s)

    def get(self, *path: str, wait_ms: int = 0, **params: object) -> Any:
        """GET; ``wait_ms`` is how long the node was asked to wait with its answer."""
        return self._call("GET", path, params, None, self._timeout_s + wait_ms / 1000)

    def post(self, *path: str, body: object, wait_ms: int = 0, **params: object) -> Any:
        return self._call("POST", path, params, body, self._timeout_s + wait_ms / 1000)

    def put(self, *path: str, body: object) -> Any:
        return self._call("PUT", path, {}, body, self._timeout_s)

    def patch(self, *path: str, body: object) -> Any:
        return self._call("PATCH", path, {}, body, self._timeout_s)

    def delete(self, *path: str, **params: object) -> Any:
        return self._call("DELETE", path, params, None, self._timeout_s)

    def _call(
        self, method: str, path: tuple[str, ...], params: dict[str, object], body: object, timeout_s: float
    ) -> Any:
        target = "/".join([self._prefix, *(quote(part, safe="") for part in path)])
        known = _without_none(params)
        if known:
            target += "?" + urlencode({name: _as_text(value) for name, value in known.items()})
        if isinstance(body, dict):
            body = _without_none(body)
        payload = None if body is None else msgspec.json.encode(body)
        try:
            response, data = self._send(method, target, payload, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if isinstance(error, http.client.BadStatusLine) and (door := _other_door(str(error.args[0]))):
                message = f"{self.url} is {door}. Give the node's HTTP address with --url, port 8080 by default."
                raise CommandError(message, Exit.USAGE) from error
            raise CommandError(self._unreachable(error), Exit.UNAVAILABLE) from error
        if response.status >= 400:
            raise _refusal(response, data)
        try:
            return msgspec.json.decode(data) if data else None
        except msgspec.DecodeError:
            raise CommandError(f"{self.url} does not answer like a Penstock node; check --url.") from None

    def _send(
        self, method: str, target: str, payload: bytes | None, timeout_s: float
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request and read the answer. A stale kept-alive connection is replaced once, for GET only."""
        connection = self._connection
        is_fresh = connection.sock is None
        headers = {"Accept": "application/json"}
        if self._authorization is not None:
            headers["Authorization"] = self._authorization
        if payload is not None:
            headers["Content-Type"] = "application/json"
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        connection.timeout = timeout_s
        try:
            connection.request(method, target, payload, headers)
            response = connection.getresponse()
            return response, response.read()
        except (ConnectionError, http.client.RemoteDisconnected):
            connection.close()
            if is_fresh or method != "GET":
                raise
            return self._send(method, target, payload, timeout_s)

    def _unreachable(self, error: Exception) -> str:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, ssl.SSLError):
            return f"Cannot reach a node at {self.url}: {explain(error)}."
        if isinstance(error, TimeoutError):
            reason = f"no answer within {self._connection.timeout:.0f} s"
        return (
            f"Cannot reach a node at {self.url}: {reason}. Start one with `penstock dev`, or name another with --url "
            "or PENSTOCK_URL."
        )


def _other_door(line: str) -> str | None:
    """Which port of a node answers with such a line; None if it may be anything."""
    from penstock.wrong_port import is_challenge

    if _HTTP2_BEGINNING.match(line):
        return "a gRPC port"
    is_internal = is_challenge(line.encode("latin-1", "replace"))
    return "the internal port of a node, for other nodes" if is_internal else None


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _without_none(members: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}


def _refusal(response: http.client.HTTPResponse, data: bytes) -> RefusedError:
    """The error in an RFC 9457 problem document, or in any other answer."""
    try:
        problem = json.loads(data)
        assert isinstance(problem, dict)
    except (ValueError, AssertionError):
        problem = {}
    detail = problem.get("detail") or problem.get("title") or f"The node answered {response.status} {response.reason}."
    if response.status == _UNAUTHORIZED:
        detail = "The node asks who you are: run `penstock login URL`, or give --token-file with an API key."
    return RefusedError(response.status, str(problem.get("code", "")), str(detail))
