"""When a group counts as settled, and what its members tell each other."""

import asyncio
import struct

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from bench.client import LoadError
from bench.groups import Crowd
from bench.members import Manner, Member, decode_share, encode_share, encode_subscription, share_out

MANNER = Manner(topic="t", partitions=3, heartbeat_s=1, session_ms=10_000)


def crowd_of(*members: tuple[int, tuple[int, ...]]) -> Crowd:
    """Members that have a generation and a share, without a broker."""
    crowd = Crowd.of(0, "g", MANNER)
    for generation, share in members:
        member = Member(0, "g", MANNER, 0, crowd.moved.set, generation=generation, share=share, assigned_at=generation)
        crowd.members.append(member)
    return crowd


def settle(crowd: Crowd) -> float:
    return asyncio.run(crowd.settle(0.01))


def test_a_group_is_settled_when_one_generation_has_shared_out_everything() -> None:
    assert settle(crowd_of((4, (0, 2)), (4, (1,)))) == 4


def test_a_member_of_an_older_generation_unsettles_the_group() -> None:
    with pytest.raises(LoadError, match="not settled"):
        settle(crowd_of((4, (0, 2)), (3, (1,))))


def test_a_group_that_nobody_has_joined_yet_is_not_settled() -> None:
    with pytest.raises(LoadError, match="not settled"):
        settle(crowd_of((-1, ()), (-1, ())))


@pytest.mark.parametrize("shares", [((0, 1), (1, 2)), ((0,), (1,)), ((0, 1, 2), (3,))])
def test_shares_that_overlap_or_leave_something_out_void_the_run(shares: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(LoadError, match="every partition once"):
        settle(crowd_of(*((4, share) for share in shares)))


def test_partitions_are_shared_out_evenly() -> None:
    shares = share_out(100, [f"member-{n}" for n in range(51)])
    assert sorted(p for share in shares.values() for p in share) == list(range(100))
    assert {len(share) for share in shares.values()} == {1, 2}


def test_a_share_is_read_as_it_was_written() -> None:
    assert decode_share(encode_share("orders", [1, 5, 9])) == (1, 5, 9)
    assert decode_share(encode_share("orders", [])) == ()


def test_a_share_of_no_topic_is_refused() -> None:
    with pytest.raises(LoadError, match="0 topics"):
        decode_share(struct.pack(">hiih", 0, 0, -1, 0))


def test_other_clients_understand_what_members_say() -> None:
    subscription = ConsumerProtocolMemberMetadata.decode(encode_subscription("orders"))
    assert (subscription.version, subscription.subscription) == (0, ["orders"])
    share = ConsumerProtocolMemberAssignment.decode(encode_share("orders", [1, 5]))
    assert share.assignment == [("orders", [1, 5])]
