"""What the sending half does when the disk refuses the bytes of a slice."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.support.bad_sector import PAGE_BYTES, BadSector, is_possible

from penstock.network.sockets import SendQueue
from penstock.storage.files import DiskFile, File, FileSlice


class Told:
    """A keeper that remembers what it was told."""

    def __init__(self) -> None:
        self.looked: list[tuple[int, int]] = []

    def read_checked(self, file: File, position: int, size: int) -> bytes:
        raise AssertionError("a slice is sent without being read")

    def look_again(self, position: int, size: int) -> None:
        self.looked.append((position, size))


def send(path: Path, size: int) -> Told:
    """Send the first bytes of a file into a socket until that fails."""
    told = Told()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        outflow = SendQueue(ours)
        outflow.pieces.append(FileSlice(DiskFile(path, create=False), 0, size, keeper=told))
        with pytest.raises(OSError):
            drain(outflow, theirs)
    return told


def drain(outflow: SendQueue, theirs: socket.socket) -> None:
    while not outflow.send():
        theirs.recv(1 << 20)


@pytest.mark.skipif(not is_possible(), reason="needs root and /dev/fuse")
def test_a_bad_sector_met_by_sendfile_is_told_to_the_keeper(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(5 * PAGE_BYTES))
    with BadSector(path, 2 * PAGE_BYTES + 10):
        told = send(path, 5 * PAGE_BYTES)
    assert told.looked
    assert all(position <= 2 * PAGE_BYTES < position + size for position, size in told.looked)


def test_a_file_that_was_cut_while_it_was_sent_is_told_to_the_keeper(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(3 * PAGE_BYTES))
    assert send(path, 5 * PAGE_BYTES).looked == [(3 * PAGE_BYTES, 2 * PAGE_BYTES)]
