"""The central tests of storage run twice: on a plain disk and on an encrypted one."""

from __future__ import annotations

import pytest
from tests.unit.storage.sealed import SealedMemoryFiles

# The others change bytes at places that they count themselves, or use a real disk.
_ON_BOTH = {
    "test_aborted",
    "test_commit",
    "test_compaction",
    "test_crash",
    "test_epochs",
    "test_errors",
    "test_faults",
    "test_log",
    "test_log_settings",
    "test_missing_segments",
    "test_producers",
    "test_scrubbing",
    "test_startup",
    "test_swap",
    "test_threads",
    "test_transactions",
}
# These compare with the places or the reads of a plain file.
_ON_PLAIN = {
    "test_a_damaged_segment_is_left_as_it_is",
    "test_a_lost_file_is_rebuilt_from_all_batches",
    "test_a_flipped_bit_is_found_wherever_it_is",
    "test_a_damaged_index_is_written_anew",
    "test_a_restart_reads_as_much_of_a_large_log_as_of_a_small_one",  # sizes are found by opening each file
    "test_an_index_from_before_the_crash_is_not_taken_for_a_new_one",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.module.__name__.rpartition(".")[2]
    if name in _ON_BOTH and metafunc.function.__name__ not in _ON_PLAIN and hasattr(metafunc.module, "MemoryFiles"):
        metafunc.parametrize("disk", ["plain", "encrypted"], indirect=True)


@pytest.fixture(autouse=True)
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if getattr(request, "param", "plain") == "encrypted":
        monkeypatch.setattr(request.module, "MemoryFiles", SealedMemoryFiles)
