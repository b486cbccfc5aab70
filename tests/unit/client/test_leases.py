"""Leases decoded, and receipts joined."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.leases import LeasedMessage, leased_messages, receipts_of
from penstock.records import Record, encode_batch

NONCE = "1" + "a" * 16


def batch(first: int, count: int) -> bytes:
    return bytes(encode_batch([Record(first + at, 1000 + at, b"k", b"v%d" % (first + at)) for at in range(count)]))


def received(deliveries: list[tuple[int, int, int]], data: bytes) -> list[LeasedMessage]:
    body = msgspec.msgpack.encode([("orders", 2, NONCE, 5_000, deliveries, data)])
    return leased_messages(body, LeasedMessage, None).messages


def test_messages_are_those_leased_of_the_batches_that_hold_them() -> None:
    messages = received([(3, 4, 1), (6, 11, 2)], batch(0, 5) + batch(5, 5) + batch(10, 5))
    assert [(message.offset, message.delivery_count) for message in messages] == [
        (3, 1),
        (4, 1),
        (6, 2),
        (7, 2),
        (8, 2),
        (9, 2),
        (10, 2),
        (11, 2),
    ]
    assert [message.value for message in messages] == [b"v%d" % message.offset for message in messages]
    assert messages[0].receipt == f"orders:2:3:1:{NONCE}"
    assert messages[0].timestamp_ms == 1003


def test_a_message_of_a_compacted_batch_is_found_by_its_offset() -> None:
    data = bytes(encode_batch([Record(at, 0, None, b"v%d" % at) for at in (10, 13, 17)]))
    messages = received([(13, 13, 1), (17, 17, 1)], data)
    assert [message.value for message in messages] == [b"v13", b"v17"]


def test_neighbours_of_one_delivery_share_a_receipt() -> None:
    messages = received([(0, 4, 1), (5, 9, 2)], batch(0, 10))
    shuffled = [messages[at] for at in (3, 0, 1, 8, 9, 4, 6)]
    assert [receipt for receipt, _ in receipts_of(shuffled)] == [
        f"orders:2:0-1:1:{NONCE}",
        f"orders:2:3-4:1:{NONCE}",
        f"orders:2:6:2:{NONCE}",
        f"orders:2:8-9:2:{NONCE}",
    ]


def test_messages_of_two_leases_are_never_joined() -> None:
    first, second = received([(0, 0, 1)], batch(0, 2)), received([(1, 1, 1)], batch(0, 2))
    assert len(receipts_of(first + second)) == 2


@given(st.lists(st.integers(0, 60), min_size=1, max_size=60))
def test_receipts_are_for_exactly_the_messages_given(offsets: list[int]) -> None:
    messages = received([(0, 60, 1)], batch(0, 61))
    receipts = receipts_of([messages[offset] for offset in offsets])
    named: list[int] = []
    for receipt, members in receipts:
        first, _, last = receipt.split(":")[2].partition("-")
        span = range(int(first), int(last or first) + 1)
        assert {member.offset for member in members} == set(span)
        named += span
    assert named == sorted(set(offsets))
