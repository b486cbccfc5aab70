"""Frames cut out of a stream, however it is chopped up, and none out of garbage."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.peers.exchanges import Question

from penstock import errors
from penstock.errors import GroupNotFound, PenstockError
from penstock.network.frames import CorruptFrame, Failure, Frame, FrameBuffer, FrameKind, encode_head, parse_frame


def received(stream: bytes, sizes: list[int], limit: int = 1 << 27) -> list[Frame]:
    """Feed a stream in chunks of the given sizes, over and over."""
    buffer, frames, at, turn = FrameBuffer(limit=limit), [], 0, 0
    while at < len(stream):
        space = buffer.space()
        chunk = stream[at : at + min(len(space), sizes[turn % len(sizes)])]
        space[: len(chunk)] = chunk
        frames += list(buffer.take(len(chunk)))
        at += len(chunk)
        turn += 1
    return frames


@settings(deadline=None, max_examples=60)
@given(
    bodies=st.lists(st.sampled_from([0, 1, 100, 16_000, 16_384, 65_500, 70_000, 300_000]), max_size=6),
    sizes=st.lists(st.sampled_from([1, 3, 4, 17, 1000, 65_536, 1_000_000]), min_size=1, max_size=4),
)
def test_a_stream_is_cut_into_the_frames_it_was_made_of(bodies: list[int], sizes: list[int]) -> None:
    if sum(bodies) > 1000 and max(sizes) < 1000:
        sizes = [*sizes, 65_536]
    stream = b"".join(
        encode_head(FrameKind.CALL, number, "area.verb", Question("x" * number), size)
        + random.Random(size).randbytes(size)
        for number, size in enumerate(bodies)
    )
    frames = received(stream, sizes)
    assert [(frame.kind, frame.number, frame.method) for frame in frames] == [
        (FrameKind.CALL, number, "area.verb") for number in range(len(bodies))
    ]
    assert [bytes(frame.body) for frame in frames] == [random.Random(size).randbytes(size) for size in bodies]


def test_every_flipped_bit_of_a_head_is_noticed() -> None:
    frame = encode_head(FrameKind.TELL, 77, "area.verb", Question("hello"), 0)
    for bit in range(len(frame) * 8):
        broken = bytearray(frame)
        broken[bit // 8] ^= 1 << bit % 8
        try:
            frames = received(bytes(broken), [len(frame)])
        except CorruptFrame:
            continue
        assert frames == [], f"bit {bit}"  # the length grew: the frame is still awaited


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_noise_is_refused_or_awaited_and_never_a_frame(noise: bytes) -> None:
    try:
        assert received(noise, [7, 100]) == []
    except CorruptFrame:
        return


def test_a_claim_beyond_the_limit_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(CorruptFrame, match="claims 4001 bytes"):
        received(struct.pack(">I", 4001), [4], limit=4000)


def test_errors_travel_by_name() -> None:
    for kind in errors.ALL:
        revived = Failure.of(kind("why")).revived()
        assert type(revived) is kind
        assert revived.message == "why"
    assert type(Failure("Path", "not an error").revived()) is PenstockError
    assert type(Failure("PenstockErrorOfTheFuture", "unknown").revived()) is PenstockError
    assert Failure.of(GroupNotFound()).message == "There is no such group."


def test_a_frame_without_its_head_is_refused() -> None:
    with pytest.raises(CorruptFrame):
        parse_frame(memoryview(b"123"))
