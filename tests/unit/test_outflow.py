"""Everything put into an outflow leaves in order, however little the socket takes at a time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.network.sockets import Piece, SendQueue
from penstock.storage.files import DiskFiles, FileSlice
from penstock.testing.files import MemoryFiles

KNOWN = bytes(range(256)) * 1_024


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    for end in (near, far):
        end.setblocking(False)
    yield near, far
    near.close()
    far.close()


def drained(out: SendQueue, far: socket.socket) -> bytes:
    received = bytearray()
    while not out.send():
        received += far.recv(100_000)
    while True:
        try:
            received += far.recv(100_000)
        except BlockingIOError:
            return bytes(received)


spans = st.tuples(st.sampled_from(["bytes", "view", "disk", "memory"]), st.integers(0, 100_000), st.integers(0, 60_000))


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=st.lists(spans, max_size=12), many=st.integers(0, 700))
def test_all_pieces_leave_in_order(
    ends: tuple[socket.socket, socket.socket],
    tmp_path: Path,
    wanted: list[tuple[str, int, int]],
    many: int,
) -> None:
    near, far = ends
    files = {}
    for name, home in (("disk", DiskFiles()), ("memory", MemoryFiles())):
        files[name] = home.open(tmp_path / name, create=True)
        if files[name].size == 0:
            files[name].write(KNOWN)
    out = SendQueue(near)
    expected = bytearray(b"x" * many)
    out.pieces.extend([b"x"] * many)
    for kind, begin, size in wanted:
        data = KNOWN[begin : begin + size]
        piece: Piece = data
        if kind == "view":
            piece = memoryview(bytearray(data))
        elif kind in files and size:
            piece = FileSlice(files[kind], begin, size)
        out.pieces.append(piece)
        expected += data
    assert drained(out, far) == expected
    assert out.sent_bytes == len(expected)
    assert not out.pieces


def test_a_file_that_ends_early_is_an_error(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    file = DiskFiles().open(tmp_path / "short", create=True)
    file.write(b"ten bytes.")
    out = SendQueue(ends[0])
    out.pieces.append(FileSlice(file, 0, 15))
    with pytest.raises(OSError, match="5 bytes early"):
        out.send()


def test_an_end_that_is_gone_is_an_error(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[1].close()
    out = SendQueue(ends[0])
    out.pieces.append(b"anybody?")
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        out.send()
