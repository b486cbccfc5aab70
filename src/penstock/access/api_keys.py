"""API keys: a name and a secret in one text, ``psk_{id}_{secret}``, of which only a hash of the secret is kept.

The secret has 256 bits of chance, so a fast hash is enough: there is nothing to guess. A key acts for its principal;
where it has scopes, it may do only what both the principal's rules and the scopes allow.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Final

import msgspec

from penstock.access.acls import Acl
from penstock.errors import InvalidCredential

PREFIX: Final = "psk_"
SECRET_BYTES: Final = 32
ID_BYTES: Final = 8
SCOPES_MAX: Final = 64
DESCRIPTION_CHARS_MAX: Final = 200
_TEXT: Final = re.compile(r"psk_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_ID: Final = re.compile(r"[0-9a-f]{16}")


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a key. ``scopes`` are permissions that narrow it; empty: all that its principal may do."""

    key_id: str
    principal: str
    secret_hash: bytes
    created_ms: int
    expires_ms: int | None = None
    scopes: tuple[Acl, ...] = ()
    description: str = ""

    def __repr__(self) -> str:
        return f"ApiKey({self.key_id}, {self.principal})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("key_id", self.key_id), ("principal", self.principal)]

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms


def make_text(id_bytes: bytes, secret: bytes) -> tuple[str, str, bytes]:
    """(id, the text to show once, the hash to keep) of a new key, made of random bytes."""
    key_id = id_bytes.hex()
    secret_text = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
    return key_id, f"{PREFIX}{key_id}_{secret_text}", _hash(secret_text)


def split_text(text: str) -> tuple[str, str] | None:
    """(id, secret) of a key's text; None if it is none."""
    found = _TEXT.fullmatch(text)
    return None if found is None else (found[1], found[2])


def is_secret_of(key: ApiKey, secret: str) -> bool:
    return hmac.compare_digest(key.secret_hash, _hash(secret))


def check_id(key_id: str) -> str:
    if not _ID.fullmatch(key_id):
        raise InvalidCredential("The id of an API key has 16 hexadecimal digits: the part between the underscores.")
    return key_id


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
