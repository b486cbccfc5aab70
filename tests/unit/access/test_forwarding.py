"""Identities from node to node: what is signed holds for one operation, one request and a short time."""

from __future__ import annotations

import msgspec
import pytest

from penstock.access.principal import Principal
from penstock.errors import AuthenticationFailed
from penstock.features.access.forwarding import GOOD_FOR_MS, Voucher

ALICE = Principal("alice", key_id="k", expires_ms=9)
SIGNED = Voucher("token").sign(ALICE, "10.0.0.1", "publish", b"{}", 1_000)


def test_what_a_node_signed_is_taken_by_another_with_the_same_token() -> None:
    found = Voucher("token").verify(SIGNED, "publish", b"{}", 1_000 + GOOD_FOR_MS)
    assert (found, found.expires_ms) == (ALICE, 9)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "root"},
        {"key_id": ""},
        {"host": "10.0.0.2"},
        {"expires_ms": None},
        {"issued_ms": 2_000},
        {"signature": b""},
    ],
)
def test_nothing_of_it_can_be_changed(changes: dict[str, object]) -> None:
    with pytest.raises(AuthenticationFailed):
        Voucher("token").verify(msgspec.structs.replace(SIGNED, **changes), "publish", b"{}", 1_000)


@pytest.mark.parametrize(
    ("token", "operation", "request_text", "now_ms"),
    [
        ("other", "publish", b"{}", 1_000),
        ("token", "delete", b"{}", 1_000),
        ("token", "publish", b"[]", 1_000),
        ("token", "publish", b"{}", 1_001 + GOOD_FOR_MS),
    ],
)
def test_it_is_of_no_use_elsewhere_or_later(token: str, operation: str, request_text: bytes, now_ms: int) -> None:
    with pytest.raises(AuthenticationFailed):
        Voucher(token).verify(SIGNED, operation, request_text, now_ms)
