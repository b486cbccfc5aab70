"""A coordinator that takes over tells partitions only of decisions that nobody can take back."""

from __future__ import annotations

from tests.unit.transactions.journal import MemoryJournal, MemoryMarkers

from penstock.config.settings import TransactionSettings
from penstock.features.transactions.coordinator import TransactionShard
from penstock.features.transactions.markers import EndMarker
from penstock.features.transactions.messages import Where
from penstock.features.transactions.records import StoredTransaction, TransactionChange, TransactionKey
from penstock.features.transactions.states import TransactionState
from penstock.machines.messages import ProducerIdentity
from penstock.partitions.stats import TransactionStats


def test_a_decision_that_was_read_is_committed_before_its_markers() -> None:
    journal = MemoryJournal()
    journal.is_slow = True
    decided = StoredTransaction(
        state=TransactionState.PREPARE_COMMIT,
        producer_id=1,
        producer_epoch=4,
        timeout_ms=1_000,
        partitions={"orders": (0, 2)},
    )
    journal.append([TransactionChange(TransactionKey("x"), decided)], 0)
    told: list[tuple[Where, EndMarker]] = []
    markers = MemoryMarkers(lambda where, marker: told.append((where, marker)))
    shard = TransactionShard(
        journal,
        TransactionSettings(),
        markers,
        TransactionStats(),
        lambda: 0,
        lambda: 0,
        lambda work: work(),
        epoch=9,
    )
    shard.open(shard.read_log())
    assert not told
    journal.commit()
    expected = EndMarker(ProducerIdentity(1, 4), is_commit=True, coordinator_epoch=9)
    assert told == [(("orders", 0), expected), (("orders", 2), expected)]
    assert shard.machines["x"].state is TransactionState.COMPLETE_COMMIT
