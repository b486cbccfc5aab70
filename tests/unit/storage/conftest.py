"""The central tests of storage run twice: on a plain disk and on an encrypted one."""

from __future__ import annotations

import pytest
from tests.unit.storage.sealed import SealedMemoryFiles

# The other modules change bytes at places that they count themselves, or use a real disk.
_ON_BOTH = {
    "test_crash",
    "test_log",
    "test_compaction",
    "test_aborted",
    "test_swap",
    "test_transactions",
    "test_epochs",
    "test_producers",
    "test_faults",
    "test_errors",
    "test_commit",
    "test_threads",
    "test_startup",
    "test_missing_segments",
    "test_damage",
    "test_scrubbing",
    "test_bad_sectors",
    "test_inspect",
    "test_epoch_repair",
    "test_garbage",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.module.__name__.rpartition(".")[2]
    if name in _ON_BOTH and hasattr(metafunc.module, "MemoryFiles"):
        metafunc.parametrize("disk", ["plain", "encrypted"], indirect=True)


@pytest.fixture(autouse=True)
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if getattr(request, "param", "plain") == "encrypted":
        monkeypatch.setattr(request.module, "MemoryFiles", SealedMemoryFiles)
