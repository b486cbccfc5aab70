"""A caller's identity from node to node: signed with the cluster's token, for one operation and a short time.

The node that authenticated a client says who it is to the node that serves the operation. A signature covers the
operation, a digest of the request and the moment, so it is of no use for anything else or later.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec

from penstock.access.principal import Principal
from penstock.errors import AuthenticationFailed

GOOD_FOR_MS: Final = 30_000


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """Who asks, as a node vouches for it."""

    kind: str
    name: str
    key_id: str
    host: str
    expires_ms: int | None
    issued_ms: int
    signature: bytes


class Voucher:
    """Signs identities, and checks those that other nodes have signed."""

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(b"penstock identity\0" + secret.encode()).digest()

    def sign(self, principal: Principal, host: str, operation: str, request: bytes, now_ms: int) -> Identity:
        unsigned = Identity(
            principal.kind, principal.name, principal.key_id, host, principal.expires_ms, now_ms, signature=b""
        )
        return msgspec.structs.replace(unsigned, signature=self._signature(unsigned, operation, request))

    def verify(self, identity: Identity, operation: str, request: bytes, now_ms: int) -> Principal:
        """The principal that another node vouches for; `AuthenticationFailed` if that does not hold."""
        unsigned = msgspec.structs.replace(identity, signature=b"")
        if not hmac.compare_digest(identity.signature, self._signature(unsigned, operation, request)):
            raise AuthenticationFailed("The identity of a forwarded call is not signed by a node of this cluster.")
        if abs(now_ms - identity.issued_ms) > GOOD_FOR_MS:
            raise AuthenticationFailed(
                "The identity of a forwarded call is too old. If this lasts, compare the clocks of the nodes."
            )
        return Principal(identity.name, identity.kind, identity.key_id, identity.expires_ms)

    def _signature(self, unsigned: Identity, operation: str, request: bytes) -> bytes:
        digest = hashlib.sha256(request).digest()
        return hmac.digest(self._key, msgspec.msgpack.encode((unsigned, operation, digest)), "sha256")
