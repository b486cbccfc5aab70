"""No key seals two things under one nonce, whatever is cut, patched, lost in a crash and written again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import settings
from tests.unit.storage.samples import append, make_batch, open_log
from tests.unit.storage.sealed import SealedMemoryFiles, seal
from tests.unit.storage.test_encrypted_file import FileAgainstTwin

from penstock.storage.encryption import format as file_format
from penstock.storage.files import Buffer
from penstock.testing.files import Crash, MemoryFiles

PATH = Path("/data/file")
used: set[tuple[bytes, bytes]] = set()


class NonceUsedTwice(AssertionError):
    """A key met a nonce again."""


class RecordingGcm:
    """AES-GCM that remembers every key and nonce that anything was sealed with."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._gcm = AESGCM(key)

    def encrypt(self, nonce: bytes, data: Buffer, associated: bytes) -> bytes:
        self._note(nonce)
        return self._gcm.encrypt(nonce, data, associated)

    def encrypt_into(self, nonce: bytes, data: Buffer, associated: bytes, made: memoryview) -> int:
        self._note(nonce)
        return self._gcm.encrypt_into(nonce, data, associated, made)

    def _note(self, nonce: bytes) -> None:
        if (self._key, nonce) in used:
            raise NonceUsedTwice
        used.add((self._key, nonce))

    def decrypt(self, nonce: bytes, data: Buffer, associated: bytes) -> bytes:
        return self._gcm.decrypt(nonce, data, associated)

    def decrypt_into(self, nonce: bytes, data: Buffer, associated: bytes, found: memoryview) -> int:
        return self._gcm.decrypt_into(nonce, data, associated, found)


@pytest.fixture(autouse=True)
def _recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(file_format, "AESGCM", RecordingGcm)
    used.clear()
    yield
    assert len(used) > 1, "something was sealed"


class NoncesOfFile(FileAgainstTwin):
    """Any order of writes, cuts, patches, crashes and restarts; the recorder refuses a repeat."""


NoncesOfFile.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestNoncesOfFile = NoncesOfFile.TestCase


def test_a_log_that_is_cut_and_crashes_and_restarts_never_uses_a_nonce_twice() -> None:
    for seed in range(40):
        files = SealedMemoryFiles(seed=seed)
        for attempt in range(6):
            files.crash_at = files.steps + 7 + 5 * seed % 60
            try:
                log = open_log(files)
                for number in range(12):
                    append(log, make_batch(value=b"the same"), attempt)
                    if number % 4 == 3:
                        log.sync()
                log.truncate(max(0, log.end_offset - 5))
                log.close()
            except Crash:
                pass
            files.crash(keeps_unsynced=bool(seed % 3 == 0))
    assert len(used) > 1_000


def test_the_recorder_notices_nonces_that_begin_anew_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake that this module is there to find: a counter that a restart sets back."""

    def restart() -> None:
        counter = itertools.count()
        random = SimpleNamespace(urandom=lambda size: next(counter).to_bytes(size, "big"))
        monkeypatch.setattr(file_format, "os", random)

    restart()
    files = seal(MemoryFiles())
    file = files.open(PATH, create=True)
    for _ in range(4):
        file.write(b"content")
    restart()
    file = files.open(PATH)
    with pytest.raises(NonceUsedTwice):
        file.write(b"other")
