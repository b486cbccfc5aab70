"""Leader epochs tell where the histories of two replicas part."""

from __future__ import annotations

from tests.unit.storage.samples import DIRECTORY

from penstock.storage.epochs import LeaderEpochs
from penstock.testing.files import MemoryFiles


def epochs_with(*starts: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs(MemoryFiles(), DIRECTORY / "leader-epochs")
    for epoch, offset in starts:
        epochs.begin(epoch, offset)
    return epochs


def test_an_epoch_ends_where_the_next_begins() -> None:
    epochs = epochs_with((1, 0), (3, 20), (4, 50))
    assert epochs.latest == 4
    assert [epochs.end_offset(epoch, 80) for epoch in range(6)] == [
        (-1, -1),
        (1, 20),
        (1, 20),
        (3, 50),
        (4, 80),
        (4, 80),
    ]


def test_older_epochs_change_nothing() -> None:
    assert epochs_with((3, 0), (2, 10), (3, 20)).items() == [(3, 0)]


def test_an_epoch_without_records_leaves_no_trace() -> None:
    assert epochs_with((1, 0), (2, 10), (3, 10)).items() == [(1, 0), (3, 10)]


def test_cutting_forgets_what_begins_behind() -> None:
    epochs = epochs_with((1, 0), (3, 20), (4, 50))
    epochs.cut(20)
    assert epochs.items() == [(1, 0)]
    assert epochs.latest == 1


def test_they_are_saved_and_loaded() -> None:
    epochs = epochs_with((1, 0), (3, 20))
    epochs.save()
    again = LeaderEpochs(epochs._files, DIRECTORY / "leader-epochs")
    assert again.load()
    assert (again.items(), again.latest) == ([(1, 0), (3, 20)], 3)
