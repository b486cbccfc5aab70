"""What a receipt looks like, and what does not pass for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.features.queues.core.messages import Receipt, Seal, parse_receipt

SEAL = Seal(bytes(range(16)))
NONCE = SEAL.nonce(1)


@given(
    st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 1_000),
    st.integers(1, 999_999_999),
    st.integers(1, 2**60),
)
def test_a_receipt_comes_back_as_it_went(
    topic: str, partition: int, first: int, more: int, count: int, lease: int
) -> None:
    receipt = Receipt(topic, partition, first, min(first + more, 2**63 - 1), count, SEAL.nonce(lease))
    assert parse_receipt(str(receipt)) == receipt
    assert SEAL.lease_of(receipt.nonce) == lease


def test_one_message_and_neighbours_look_like_this() -> None:
    assert str(Receipt("orders", 3, 17, 17, 2, NONCE)) == f"orders:3:17:2:{NONCE}"
    assert str(Receipt("orders", 3, 17, 42, 2, NONCE)) == f"orders:3:17-42:2:{NONCE}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        ":::::",
        f"orders:3:17:{NONCE}",
        f"orders:3:17:1:2:{NONCE}",
        f":3:17:1:{NONCE}",
        f"or ders:3:17:1:{NONCE}",
        f"{'o' * 250}:3:17:1:{NONCE}",
        f"orders:-3:17:1:{NONCE}",
        f"orders:+3:17:1:{NONCE}",
        f"orders:03:17:1:{NONCE}",
        f"orders:3:1_7:1:{NONCE}",
        f"orders:3:١٧:1:{NONCE}",
        f"orders:3: 17:1:{NONCE}",
        f"orders:3:17-17:1:{NONCE}",
        f"orders:3:17-16:1:{NONCE}",
        f"orders:3:17-:1:{NONCE}",
        f"orders:3:9223372036854775808:1:{NONCE}",
        f"orders:3:0-9223372036854775808:1:{NONCE}",
        f"orders:3:17:0:{NONCE}",
        f"orders:3:17:1:{NONCE.upper()}x",
        f"orders:3:17:1:{'0' * 17}",
        f"orders:3:17:1:{'a' * 16}",
        f"orders:3:17:1:{'a' * 40}",
        f"orders:3:17:1:{NONCE}\n",
        f"\x00orders:3:17:1:{NONCE}",
    ],
)
def test_nothing_else_is_a_receipt(text: str) -> None:
    assert parse_receipt(text) is None


def test_a_nonce_is_known_only_where_it_was_made() -> None:
    other = Seal(bytes(16))
    assert SEAL.lease_of(SEAL.nonce(77)) == 77
    assert other.lease_of(SEAL.nonce(77)) is None
    assert SEAL.lease_of("4e" + SEAL.nonce(77)[2:]) is None, "the hash of one lease is not another's"
    assert SEAL.nonce(77) != SEAL.nonce(78)
