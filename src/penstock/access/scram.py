"""SCRAM credentials (RFC 5802): what a server keeps of a password, for one mechanism.

The password cannot be read from it, but whoever has ``server_key`` and ``stored_key`` can pretend to be the server and
can try passwords at leisure; so no representation shows them.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from typing import Final

import msgspec

from penstock.errors import InvalidCredential

ITERATIONS_MIN: Final = 4_096  # RFC 7677's least, and Kafka's
ITERATIONS_MAX: Final = 16_384  # Kafka's most: a client pays them at every connect
ITERATIONS: Final = 8_192
SALT_BYTES: Final = 32
PASSWORD_BYTES_MAX: Final = 1_024
_SALT_BYTES_MIN: Final = 8
_SALT_BYTES_MAX: Final = 256


class ScramMechanism(enum.StrEnum):
    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return hashlib.new(self.hash_name).digest_size


class ScramCredential(msgspec.Struct, frozen=True, kw_only=True):
    """One user's credential for one mechanism."""

    mechanism: ScramMechanism
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("mechanism", self.mechanism), ("iterations", self.iterations)]

    def __repr__(self) -> str:
        return f"ScramCredential({self.mechanism}, {self.iterations} iterations)"


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """The slow part: milliseconds. Call it in a thread."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def from_salted_password(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a password that a client has salted itself, as Kafka's tools do (KIP-554)."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    return check(
        ScramCredential(
            mechanism=mechanism,
            salt=salt,
            iterations=iterations,
            stored_key=hashlib.new(mechanism.hash_name, client_key).digest(),
            server_key=hmac.digest(salted, b"Server Key", mechanism.hash_name),
        )
    )


def derive(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int = ITERATIONS) -> ScramCredential:
    """The credential of a password. Slow: call it in a thread."""
    check_password(password)
    return from_salted_password(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def verify(credential: ScramCredential, password: str) -> bool:
    """Whether that is the password. Slow: call it in a thread."""
    salted = salted_password(credential.mechanism, password, credential.salt, credential.iterations)
    client_key = hmac.digest(salted, b"Client Key", credential.mechanism.hash_name)
    stored = hashlib.new(credential.mechanism.hash_name, client_key).digest()
    return hmac.compare_digest(stored, credential.stored_key)


def check_password(password: str) -> None:
    if not password or len(password.encode()) > PASSWORD_BYTES_MAX:
        raise InvalidCredential(f"A password has 1 to {PASSWORD_BYTES_MAX} bytes.")


def check(credential: ScramCredential) -> ScramCredential:
    """Return the credential if it is one that clients can log in with."""
    if not ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX:
        raise InvalidCredential(f"SCRAM takes {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations.")
    if not _SALT_BYTES_MIN <= len(credential.salt) <= _SALT_BYTES_MAX:
        raise InvalidCredential(f"A salt has {_SALT_BYTES_MIN} to {_SALT_BYTES_MAX} bytes.")
    size = credential.mechanism.key_bytes
    if len(credential.stored_key) != size or len(credential.server_key) != size:
        raise InvalidCredential(f"Keys of {credential.mechanism} have {size} bytes.")
    return credential
