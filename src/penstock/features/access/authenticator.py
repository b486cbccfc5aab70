"""Who a caller is: passwords, SCRAM, API keys, tokens and certificates become principals, or are refused.

A refusal says the same whatever was wrong, so that names of users cannot be collected, and costs about the same time.
Slow hashes run in a thread; a password that was proved a moment ago is known by a keyed hash of it, for a short time
and only while the rules stand. Tries that follow failures wait (`penstock.access.failures`). Nothing here logs, shows
or raises a credential.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections import Counter
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

log = logging.getLogger(__name__)

ADDRESS_WAIT_MAX_MS: Final = 5_000
USER_WAIT_MAX_MS: Final = 1_000  # an attacker must not keep the user itself out
WAITING_MAX: Final = 256  # tries that wait; more are refused at once
HASHING_MAX: Final = 4  # slow hashes at a time: the rest of the node wants its cores too
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
        self._waiting = 0
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
        await self._wait(door, host, user)
        held = self._rules.credentials.get(user)
        credential = next(iter(held.values())) if held else None
        async with self._hashing:
            if credential is None and self._may_bootstrap(user):
                is_right = await asyncio.to_thread(self._is_bootstrap_password, password)
            else:
                is_right = await asyncio.to_thread(self._verify, credential, password)
        if not is_right:
            raise self._refusal(door, "password", host, user)
        self._by_user.succeeded(user)
        self._remember(proof)
        return self._principal(user, door, host)

    @staticmethod
    def _verify(credential: ScramCredential | None, password: str) -> bool:
        if credential is None:
            derive(ScramMechanism.SHA_256, password, bytes(SALT_BYTES))  # so that it takes as long
            return False
        return verify(credential, password)

    def _may_bootstrap(self, user: str) -> bool:
        """Whether the settings' file holds this user's password: a super user's that has none of its own yet."""
        settings = self.settings
        return settings.bootstrap_password_file is not None and str(Principal(user)) in settings.super_users

    def _is_bootstrap_password(self, password: str) -> bool:
        """Runs in a thread."""
        assert self.settings.bootstrap_password_file is not None
        try:
            text = self.settings.bootstrap_password_file.read_text().partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            log.warning("security.bootstrap_password_file cannot be read: %s", error)
            return False
        return bool(text) and hmac.compare_digest(text.encode(), password.encode())

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

    # -- keys, tokens, certificates -----------------------------------------------------------------------------------

    async def api_key(self, text: str, host: str, door: str = "http") -> Principal:
        """The principal that a key acts for."""
        parts = api_keys.split_text(text)
        key = self._rules.keys.get(parts[0]) if parts is not None else None
        if parts is None or key is None or not api_keys.is_secret_of(key, parts[1]):
            await self._wait(door, host)
            raise self._refusal(door, "api_key", host)
        if key.is_expired(self._clock.now_ms()):
            raise self._refusal(door, "expired", host)
        owner = Principal.parse(key.principal)
        return Principal(owner.name, owner.kind, key.key_id, key.expires_ms)

    async def bearer(self, token: str, host: str, door: str = "http") -> Principal:
        """The principal of a token: an API key, or a JWT of the identity provider."""
        if token.startswith(api_keys.PREFIX):
            return await self.api_key(token, host, door)
        await self._wait(door, host)
        if self._tokens is None:
            raise self._refusal(door, "token", host)
        try:
            return await self._tokens.principal(token)
        except AuthenticationFailed as error:
            raise self._refusal(door, "token", host) from error

    @staticmethod
    def certificate(subject_dn: str) -> Principal:
        """The principal of a client's certificate: its whole subject, as RFC 2253 writes it."""
        try:
            return Principal(check_name(subject_dn))
        except InvalidPrincipal:
            raise AuthenticationFailed("The certificate's subject is empty, too long or not printable.") from None

    # -- failures -----------------------------------------------------------------------------------------------------

    def refuse(self, door: str, reason: str, host: str, user: str = "") -> AuthenticationFailed:
        """Count a failed login and return the error to raise; for doors that check something themselves."""
        return self._refusal(door, reason, host, user)

    async def wait(self, door: str, host: str, user: str = "") -> None:
        """Let a try wait that follows failures."""
        await self._wait(door, host, user)

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

    async def _wait(self, door: str, host: str, user: str = "") -> None:
        now_ms = self._now_ms()
        wait_ms = self._by_address.wait_ms(host, now_ms)
        if user:
            wait_ms = max(wait_ms, self._by_user.wait_ms(_short(user), now_ms))
        if not wait_ms:
            return
        if self._waiting >= WAITING_MAX:
            raise self._refusal(door, "too_many", host, user)
        self._waiting += 1
        try:
            await asyncio.sleep(wait_ms / 1_000)
        finally:
            self._waiting -= 1

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
                await self._authenticator.wait(self._door, self._host, self._user)
                return str(self._server.get_server_first()).encode()
            self._server.set_client_final(text)
            answer = str(self._server.get_server_final()).encode()
        except (ScramException, ValueError, KeyError, IndexError) as error:
            raise self._authenticator.refuse(self._door, "scram", self._host, self._user) from error
        if self._authenticator.credential(self._user, self._mechanism) is None:
            raise self._authenticator.refuse(self._door, "scram", self._host, self._user)
        self.principal = Principal(self._user)
        self._authenticator.succeeded(self._user)
        return answer

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
