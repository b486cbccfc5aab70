"""Which error a client hears depends on what its version knows; all of them make it react in the same way."""

from __future__ import annotations

import pytest

from penstock.doors.kafka.errors import coordinator_error_code, produce_error_code
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    InvalidProducerIdMapping,
    NotCoordinator,
    PenstockError,
    ProducerFenced,
)
from penstock.features.transactions.claims import unconfirmed_error

UNCONFIRMED = unconfirmed_error(("t", 0))


@pytest.mark.parametrize(
    ("error", "version", "code"),
    [
        (NotCoordinator(), 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (CoordinatorLoading(), 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ConcurrentTransactions(), 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ConcurrentTransactions(), 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (UNCONFIRMED, 10, ErrorCode.INVALID_TXN_STATE),
        (UNCONFIRMED, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ProducerFenced(), 12, ErrorCode.INVALID_PRODUCER_EPOCH),
        (InvalidProducerIdMapping(), 12, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_a_refused_produce_is_told_in_the_words_of_its_version(
    error: PenstockError, version: int, code: ErrorCode
) -> None:
    assert produce_error_code(error, version) == code


def test_only_newer_versions_know_that_a_producer_is_fenced() -> None:
    assert coordinator_error_code(ProducerFenced(), knows_fenced=True) == ErrorCode.PRODUCER_FENCED
    assert coordinator_error_code(ProducerFenced(), knows_fenced=False) == ErrorCode.INVALID_PRODUCER_EPOCH
