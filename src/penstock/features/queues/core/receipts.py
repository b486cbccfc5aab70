"""Receipts: what a consumer shows to say that a delivery was its own.

``topic:partition:offset:delivery-count:nonce``, or ``first-last`` in the place of the offset for neighbours that were
delivered together. The nonce is the number of the lease and a keyed hash of it under a secret of the group, so that
one hash serves a lease of any size, no client can make one up, and an old one is told from a forged one without keeping
any list of old ones.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from hmac import compare_digest
from typing import Final, NamedTuple

SECRET_BYTES: Final = 16
_HASH_DIGITS: Final = 16
_OFFSET_MAX: Final = 2**63 - 1
_FORM: Final = re.compile(
    r"([a-zA-Z0-9._-]{1,249}):(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,18})(?:-([1-9][0-9]{0,18}))?:([1-9][0-9]{0,8})"
    r":((?:[1-9a-f][0-9a-f]{0,15})[0-9a-f]{16})"
)


class Receipt(NamedTuple):
    """A delivery of one message, or of leaders."""

    topic: str
    partition: int
    first: int
    last: int
    delivery_count: int
    nonce: str

    def __str__(self) -> str:
        where = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.topic}:{self.partition}:{where}:{self.delivery_count}:{self.nonce}"


def parse_receipt(text: str) -> Receipt | None:
    """A receipt as its consumer brings it back, or None if none of ours looks like that."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    topic, partition, first, last, delivery_count, nonce = found.groups()
    begin = int(first)
    end = begin if last is None else int(last)
    if (last is not None and end <= begin) or end > _OFFSET_MAX:
        return None
    return Receipt(topic, int(partition), begin, end, int(delivery_count), nonce)


class Seal:
    """Makes the nonces of a group's leases, and knows its own."""

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == SECRET_BYTES
        self.secret = secret

    def nonce(self, lease: int) -> str:
        digest = blake2b(lease.to_bytes(8, "big"), key=self.secret, digest_size=_HASH_DIGITS // 2)
        return f"{lease:x}{digest.hexdigest()}"

    def lease_of(self, nonce: str) -> int | None:
        """The lease that a nonce was made for, or None if it was not made here."""
        lease = int(nonce[:-_HASH_DIGITS], 16)
        return lease if compare_digest(self.nonce(lease), nonce) else None
