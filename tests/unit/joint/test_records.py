"""Records of joint transactions: they read back as they were written, and nobody is held up by what others wrote."""

from __future__ import annotations

import pytest

from penstock.errors import CorruptRecords
from penstock.features.transactions import records as kafka
from penstock.features.transactions.joint.records import (
    JointChange,
    JointKey,
    StoredCall,
    StoredJoint,
    StoredWriter,
    WriterKey,
    WriterPlace,
    from_record,
    to_record,
)
from penstock.features.transactions.joint.states import JointState
from penstock.features.transactions.records import Reason, StoredTransaction, TransactionKey
from penstock.records import Record

CALL = StoredCall(sequence=4, topic_id="i", digest=7, spread=(0, 2, 0), starts={0: 5, 2: 0})
CHANGES = [
    JointChange(JointKey("t"), StoredJoint(state=JointState.OPEN, timeout_ms=1, opened_ms=2)),
    JointChange(
        JointKey("t"),
        StoredJoint(
            state=JointState.COMMITTING,
            timeout_ms=1,
            opened_ms=2,
            key="k",
            asked=("a",),
            committed=("a",),
            aborted=("b",),
        ),
    ),
    JointChange(JointKey("t"), StoredJoint(state=JointState.ABORTED, timeout_ms=1, opened_ms=2, reason=Reason.TIMEOUT)),
    JointChange(JointKey("t"), StoredJoint(state=JointState.COMMITTED, timeout_ms=1, opened_ms=2, key="k", asked=())),
    JointChange(
        WriterKey("t", "ü/ä"),
        StoredWriter(producer_id=3, places=(WriterPlace("orders", "i", 0), WriterPlace("x", "j", 1, 9))),
    ),
    JointChange(
        WriterKey("t", "a"), StoredWriter(producer_id=3, places=(WriterPlace("orders", "i", 0, 2),), call=CALL)
    ),
    JointChange(JointKey("t"), None),
    JointChange(WriterKey("t", "a"), None),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change.value).__name__)
def test_a_record_reads_back_as_it_was_written(change: JointChange) -> None:
    assert from_record(to_record(change, 0, 1)) == change


def test_each_coordinator_steps_over_what_is_the_others() -> None:
    stored = StoredTransaction(state=kafka.TransactionState.EMPTY, producer_id=1, producer_epoch=0, timeout_ms=1)
    theirs = kafka.to_record(kafka.TransactionChange(TransactionKey("t"), stored), 0, 1)
    assert from_record(theirs) is None
    assert kafka.from_record(theirs) is not None
    for change in CHANGES:
        assert kafka.from_record(to_record(change, 0, 1)) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b'{"type":"joint"}', b"{}"),
        (b'{"type":"joint","transaction":"t"}', b"not json"),
        (b'{"type":"joint","transaction":"t"}', b'{"state":"odd","timeout_ms":1,"opened_ms":1}'),
        (b'{"type":"joint-writer","transaction":"t","writer":"w"}', b'{"producer_id":"x"}'),
    ],
)
def test_what_no_coordinator_wrote_is_told_apart(key: bytes, value: bytes) -> None:
    with pytest.raises(CorruptRecords):
        from_record(Record(0, 0, key, value, ()))


@pytest.mark.parametrize("key", [None, b"", b"garbage", b"[]", b'{"type":7}'])
def test_garbage_is_the_other_coordinators_to_complain_about(key: bytes | None) -> None:
    record = Record(0, 0, key, b"{}", ())
    assert from_record(record) is None
    with pytest.raises(CorruptRecords):
        kafka.from_record(record)


def test_a_partition_of_a_call_counts_from_what_was_sent_there_before() -> None:
    places = (WriterPlace("orders", "i", 0, 7), WriterPlace("orders", "i", 2, 1), WriterPlace("old", "j", 0, 100))
    writer = StoredWriter(producer_id=3, places=places, call=CALL)
    assert (writer.base_sequence(0), writer.base_sequence(2)) == (5, 0)
    assert (writer.sent_to("i", 0), writer.sent_to("j", 0), writer.sent_to("i", 9)) == (7, 100, 0)
