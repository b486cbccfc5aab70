"""Who a caller is: passwords, SCRAM, API keys, tokens and certificates become principals, or are refused.

A refusal says the same whatever was wrong, so that names of users cannot be collected, and costs about the same time.
Slow hashes run in a thread; a password that was proved a moment ago is known by a keyed hash of it, for a short time
and only while the rules stand. Refusals come the later the more often an address or a user was refused
(`penstock.access.failures`); good credentials never wait. Nothing here logs, shows or raises a credential.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections import Counter
from contextlib import suppress
from typing import Final, Protocol

from penstock.access import api_keys
from penstock.access.failures import Failures
from penstock.access.principal import Principal, check_name
from penstock.access.rules import AccessRules
from penstock.access.scram import (
    ITERATIONS,
    PASSWORD_BYTES_MAX,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
    derive,
    verify,
)
from penstock.clock import Clock
from penstock.config.settings import SecuritySettings
from penstock.errors import AuthenticationFailed, InvalidPrincipal

ADDRESS_WAIT_MAX_MS: Final = 5_000
USER_WAIT_MAX_MS: Final = 1_000  # an attacker must not keep the user itself out
WAITING_MAX: Final = 32  # refusals of one address that are held back; with more, its tries are not looked at
HASHING_MAX: Final = 4  # slow hashes at a time: the rest of the node wants its cores too
CREDENTIAL_CHARS_MAX: Final = 16 * 1024  # tokens of some providers have a few kilobytes
PROOFS_MAX: Final = 10_000
PROOF_SECONDS: Final = 60.0
_WRONG: Final = "The credentials are wrong or no longer valid."


class Tokens(Protocol):
    """What checks tokens of an identity provider."""

    async def principal(self, token: str) -> Principal:
        """Who the token names; `AuthenticationFailed` if it is not good."""


class Authenticator:
    """One node's checks of credentials. ``failures`` counts refusals by (door, reason)."""

    def __init__(
        self, rules: AccessRules, settings: SecuritySettings, clock: Clock, tokens: Tokens | None = None
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._tokens = tokens
        self.settings = settings
        self.failures: Counter[tuple[str, str]] = Counter()
        self._by_address = Failures(ADDRESS_WAIT_MAX_MS)
        self._by_user = Failures(USER_WAIT_MAX_MS)
        self._waiting: Counter[str] = Counter()  # refusals by address that are held back
        self._hashing = asyncio.Semaphore(HASHING_MAX)
        self._chance = secrets.token_bytes(32)  # of this process: keys proofs, and salts of users that do not exist
        self._proofs: dict[bytes, tuple[int, float]] = {}  # (version of the rules, monotonic end)

    # -- passwords ----------------------------------------------------------------------------------------------------

    async def plain(self, user: str, password: str, host: str, door: str = "kafka") -> Principal:
        """The user of that name, if that is its password."""
        if not user or not password or len(password.encode()) > PASSWORD_BYTES_MAX:
            raise self._refusal(door, "password", host)
        proof = hmac.digest(self._chance, f"{len(user)}:{user}:{password}".encode(), "sha256")
        if self._is_proved(proof):
            return self._principal(user, door, host)
        self._check_flood(door, host)
        held = self._rules.credentials.get(user)
        credential = next(iter(held.values())) if held else None
        async with self._hashing:
            is_right = await asyncio.to_thread(self._verify, credential, password)
        if not is_right:
            raise await self.refuse_late(door, "password", host, user)
        self._by_user.succeeded(user)
        self._remember(proof)
        return self._principal(user, door, host)

    @staticmethod
    def _verify(credential: ScramCredential | None, password: str) -> bool:
        if credential is None:
            derive(ScramMechanism.SHA_256, password, bytes(SALT_BYTES))  # so that it takes as long
            return False
        return verify(credential, password)

    def _is_proved(self, proof: bytes) -> bool:
        known = self._proofs.get(proof)
        return known is not None and known[0] == self._rules.version and self._clock.monotonic() < known[1]

    def _remember(self, proof: bytes) -> None:
        if len(self._proofs) >= PROOFS_MAX:
            self._proofs.clear()
        self._proofs[proof] = (self._rules.version, self._clock.monotonic() + PROOF_SECONDS)

    # -- SCRAM --------------------------------------------------------------------------------------------------------

    def scram(self, mechanism: ScramMechanism, host: str, door: str = "kafka") -> ScramExchange:
        """A login by SCRAM: feed it the client's messages."""
        return ScramExchange(self, mechanism, host, door)

    def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self._rules.credentials.get(user, {}).get(mechanism)

    def made_up_salt(self, user: str) -> bytes:
        """The salt of a user that does not exist: always the same, as a real one's is."""
        return hmac.digest(self._chance, user.encode(), "sha256")

    async def authorization(self, text: str, host: str, door: str) -> Principal:
        """The principal of an Authorization header: ``Bearer`` with a key or token, ``Basic`` with a password."""
        kind, _, credential = text.partition(" ")
        credential = credential.strip()
        if credential and len(credential) <= CREDENTIAL_CHARS_MAX:
            if kind.lower() == "bearer":
                return await self.bearer(credential, host, door)
            if kind.lower() == "basic":
                with suppress(binascii.Error, ValueError):
                    user, colon, password = base64.b64decode(credential, validate=True).decode().partition(":")
                    if colon:
                        return await self.plain(user, password, host, door)
        raise self._refusal(door, "malformed", host)

    # -- keys, tokens, certificates -----------------------------------------------------------------------------------

    async def api_key(self, text: str, host: str, door: str = "http") -> Principal:
        """The principal that a key acts for."""
        parts = api_keys.split_text(text)
        key = self._rules.keys.get(parts[0]) if parts is not None else None
        if parts is None or key is None or not api_keys.is_secret_of(key, parts[1]):
            self._check_flood(door, host)
            raise await self.refuse_late(door, "api_key", host)
        if key.is_expired(self._clock.now_ms()):
            raise self._refusal(door, "expired", host)
        owner = Principal.parse(key.principal)
        return Principal(owner.name, owner.kind, key.key_id, key.expires_ms)

    async def bearer(self, token: str, host: str, door: str = "http") -> Principal:
        """The principal of a token: an API key, or a JWT of the identity provider."""
        if token.startswith(api_keys.PREFIX):
            return await self.api_key(token, host, door)
        self._check_flood(door, host)
        if self._tokens is None:
            raise await self.refuse_late(door, "token", host)
        try:
            return await self._tokens.principal(token)
        except AuthenticationFailed as error:
            raise await self.refuse_late(door, "token", host) from error

    def certificate(self, subject_dn: str) -> Principal:
        """The principal of a client's certificate: what the rules make of its subject, as RFC 4514 writes it."""
        names = (rule.user_of(subject_dn) for rule in self.settings.tls.principal_rules)
        name = next((name for name in names if name is not None), "")
        with suppress(InvalidPrincipal):
            return Principal(check_name(name))
        raise AuthenticationFailed(
            "The certificate names no user: its subject fits no rule of security.tls.principal_rules, or the name that "
            "comes of it is empty, too long or not printable."
        )

    # -- failures -----------------------------------------------------------------------------------------------------

    def refuse(self, door: str, reason: str, host: str, user: str = "") -> AuthenticationFailed:
        """Count a failed login and return the error to raise; for doors that check something themselves."""
        return self._refusal(door, reason, host, user)

    async def refuse_late(self, door: str, reason: str, host: str, user: str = "") -> AuthenticationFailed:
        """The same, the later the more often it happened. Good credentials never wait."""
        error = self._refusal(door, reason, host, user)
        now_ms = self._now_ms()
        wait_ms = self._by_address.wait_ms(host, now_ms)
        if user:
            wait_ms = max(wait_ms, self._by_user.wait_ms(_short(user), now_ms))
        if wait_ms:
            self._waiting[host] += 1
            try:
                await asyncio.sleep(wait_ms / 1_000)
            finally:
                self._waiting[host] -= 1
                if not self._waiting[host]:
                    del self._waiting[host]
        return error

    def succeeded(self, user: str) -> None:
        self._by_user.succeeded(user)

    def _principal(self, user: str, door: str, host: str) -> Principal:
        try:
            return Principal(check_name(user))
        except InvalidPrincipal:
            raise self._refusal(door, "name", host) from None

    def _refusal(self, door: str, reason: str, host: str, user: str = "") -> AuthenticationFailed:
        now_ms = self._now_ms()
        self.failures[door, reason] += 1
        self._by_address.failed(host, now_ms)
        if user:
            self._by_user.failed(_short(user), now_ms)
        return AuthenticationFailed(_WRONG)

    def _check_flood(self, door: str, host: str) -> None:
        """Refuse tries at once, without a look at them, while too many of that address wait for their refusal."""
        if self._waiting[host] >= WAITING_MAX:
            raise self._refusal(door, "too_many", host)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1_000)


class ScramExchange:
    """The server's side of one SCRAM login: two messages of the client, two answers (RFC 5802)."""

    def __init__(self, authenticator: Authenticator, mechanism: ScramMechanism, host: str, door: str) -> None:
        from scramp import ScramMechanism as Mechanism  # with security only: it costs time at start

        self._authenticator = authenticator
        self._mechanism = mechanism
        self._host = host
        self._door = door
        self._user = ""
        self._has_begun = False
        self._server = Mechanism(mechanism=mechanism.value).make_server(self._look_up)
        self.principal: Principal | None = None  # once the client has proved itself

    async def step(self, message: bytes) -> bytes:
        """The answer to the client's next message. Any fault ends the login with `AuthenticationFailed`."""
        from scramp import ScramException

        try:
            text = message.decode()
            if not self._has_begun:
                self._has_begun = True
                self._server.set_client_first(text)
                return str(self._server.get_server_first()).encode()
            self._take_doubled_nonce(text)
            self._server.set_client_final(text)
            answer = str(self._server.get_server_final()).encode()
        except (ScramException, ValueError, KeyError, IndexError) as error:
            raise await self._refuse() from error
        if self._authenticator.credential(self._user, self._mechanism) is None:
            raise await self._refuse()
        self.principal = Principal(self._user)
        self._authenticator.succeeded(self._user)
        return answer

    def _take_doubled_nonce(self, final: str) -> None:
        """Take the nonce as librdkafka before 2.6.1 sends it: its own, and then the whole one, which begins with it.

        It ends with this server's own, and the proof covers it, so that it is as fresh as it should be. kcat on Debian
        and many programs have such a version; Kafka took it for as long.
        """
        whole = str(self._server.nonce)
        own = whole.removesuffix(str(self._server.s_nonce))
        if f",r={own}{whole},p=" in final:
            self._server.nonce = type(self._server.nonce)(own + whole)

    async def _refuse(self) -> AuthenticationFailed:
        return await self._authenticator.refuse_late(self._door, "scram", self._host, self._user)

    def _look_up(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self._user = user
        credential = self._authenticator.credential(user, self._mechanism)
        if credential is not None:
            return credential.salt, credential.stored_key, credential.server_key, credential.iterations
        size = self._mechanism.key_bytes
        return self._authenticator.made_up_salt(user), secrets.token_bytes(size), secrets.token_bytes(size), ITERATIONS


def _short(user: str) -> str:
    """A user's name at a length that can be kept."""
    return user if len(user) <= 64 else hashlib.sha256(user.encode()).hexdigest()
