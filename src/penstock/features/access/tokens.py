"""Tokens of an identity provider: JWTs (RFC 7519), checked with the provider's public keys (a JWK set, RFC 7517).

Only signatures by asymmetric keys count: ``none`` is no signature, and with HS256 the public key could sign.
Issuer, audience and expiry are required and checked. Keys come from a file or from the provider; they are read again
in a thread when they are old, or when a token names one that is not known, but never more often than the pause allows:
a flood of tokens with invented key ids must not become a flood of requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.error import URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from penstock.access.principal import Principal, check_name
from penstock.clock import Clock
from penstock.config.settings import OidcSettings
from penstock.errors import AuthenticationFailed, PenstockError

if TYPE_CHECKING:
    from jwt import PyJWK

log = logging.getLogger(__name__)

_ALGORITHMS: Final = {
    "RSA": ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"],
    "EC": ["ES256", "ES384", "ES512"],
    "OKP": ["EdDSA"],
}
_FETCH_SECONDS: Final = 5.0
_KEYS_MAX: Final = 100
_TOKEN_CHARS_MAX: Final = 16 * 1024


class OidcTokens:
    """Checks tokens. PyJWT is imported with the first one: a node without them does not pay for it."""

    def __init__(self, settings: OidcSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._keys: dict[str, PyJWK] = {}
        self._read_at: float | None = None  # monotonic; None: never
        self._reading = asyncio.Lock()

    async def principal(self, token: str) -> Principal:
        """Who a token names; `AuthenticationFailed` says for the log why it is not good."""
        import jwt

        if len(token) > _TOKEN_CHARS_MAX:
            raise AuthenticationFailed("The token is too long.")
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
            key = await self._key(key_id)
            claims = self._decode(jwt, token, key)
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise AuthenticationFailed(f"The token is not good: {type(error).__name__}.") from error
        return self._principal_of(claims)

    def _decode(self, jwt: Any, token: str, key: PyJWK) -> dict[str, Any]:
        claims: dict[str, Any] = jwt.decode(
            token,
            key=key.key,
            algorithms=_ALGORITHMS[str(key.key_type)],
            audience=self._settings.audience,
            issuer=self._settings.issuer,
            leeway=self._settings.clock_skew_ms / 1_000,
            options={"require": ["exp", "iss", "aud"], "verify_signature": True},
        )
        return claims

    def _principal_of(self, claims: dict[str, Any]) -> Principal:
        name = claims.get(self._settings.principal_claim)
        if not isinstance(name, str):
            raise AuthenticationFailed(f"The token has no claim {self._settings.principal_claim!r} that is a text.")
        try:
            check_name(name)
        except PenstockError as error:
            raise AuthenticationFailed(error.message) from error
        if name == "*":
            raise AuthenticationFailed("The token names no single principal.")
        return Principal(name, expires_ms=int(claims["exp"] * 1_000) + self._settings.clock_skew_ms)

    # -- keys ---------------------------------------------------------------------------------------------------------

    async def _key(self, key_id: object) -> PyJWK:
        if self._is_older_than(self._settings.jwks_refresh_ms) or self._find(key_id) is None:
            await self._refresh()
        key = self._find(key_id)
        if key is None:
            raise AuthenticationFailed("The token is signed with a key that the identity provider does not have.")
        return key

    def _find(self, key_id: object) -> PyJWK | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id) if isinstance(key_id, str) else None

    def _is_older_than(self, age_ms: int) -> bool:
        return self._read_at is None or self._clock.monotonic() - self._read_at >= age_ms / 1_000

    async def _refresh(self) -> None:
        async with self._reading:
            if not self._is_older_than(self._settings.jwks_pause_ms):
                return
            self._read_at = self._clock.monotonic()
            try:
                self._keys = await asyncio.to_thread(self._read)
            except (OSError, ValueError, TypeError, AttributeError) as error:
                # Those that are known stay in use: the provider may be away for a while.
                log.warning("The keys of the identity provider could not be read: %s", error)

    def _read(self) -> dict[str, PyJWK]:
        """Runs in a thread."""
        from jwt import PyJWK
        from jwt.exceptions import PyJWTError

        settings = self._settings
        if settings.jwks_file is not None:
            data = _read_file(settings.jwks_file, settings.jwks_bytes_max)
        else:
            data = _fetch(settings.jwks_url or "", settings.jwks_bytes_max)
        found: dict[str, PyJWK] = {}
        for number, described in enumerate(json.loads(data)["keys"][:_KEYS_MAX]):
            if described.get("kty") not in _ALGORITHMS or described.get("use", "sig") != "sig":
                continue  # a symmetric key here would let its readers sign
            try:
                found[str(described.get("kid", number))] = PyJWK(described)
            except PyJWTError as error:
                log.warning("A key of the identity provider is left out: %s", error)
        return found


def _read_file(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path} is larger than {most} bytes")
    return data


class _NoRedirects(HTTPRedirectHandler):
    """Keys come from where the settings say."""

    def redirect_request(self, *_args: object, **_kwargs: object) -> None:
        return None


def _fetch(url: str, most: int) -> bytes:
    try:
        with build_opener(_NoRedirects).open(Request(url), timeout=_FETCH_SECONDS) as answer:
            data: bytes = answer.read(most + 1)
    except URLError as error:
        raise OSError(f"{url}: {error.reason}") from error
    if len(data) > most:
        raise ValueError(f"{url} answered with more than {most} bytes")
    return data
