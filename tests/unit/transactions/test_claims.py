"""Which transaction a request's batches belong to, and what its coordinator has to confirm."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.consensus.topic_config import TopicSettings
from penstock.errors import InvalidProducerIdMapping, TransactionalIdMissing, UnknownPartition
from penstock.features.transactions.claims import Claim, claim_of
from penstock.machines.messages import ProducerIdentity
from penstock.model import TopicPartition
from penstock.partitions.partition import Partition
from penstock.partitions.stats import TopicStats
from penstock.records import Record, encode_batch
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles

NOW_MS = 1_700_000_000_000


class Idle:
    def request(self, log: Log) -> None: ...


class Node:
    """A node that leads partition 0 of a topic and follows in partition 1."""

    def __init__(self) -> None:
        self.partitions = [self._partition(index) for index in range(2)]
        self.partitions[0].lead(0)

    def _partition(self, index: int) -> Partition:
        log = Log.open(MemoryFiles(seed=1), Path(f"/logs/t/{index}"), LogConfig())
        return Partition(TopicPartition("t", index), log, TopicSettings(), TopicStats(), Idle())

    def find(self, topic: str, index: int) -> Partition:
        if topic != "t" or index >= len(self.partitions):
            raise UnknownPartition("There is none.")
        return self.partitions[index]


def batch(producer_id: int = 7, *, is_transactional: bool = True) -> memoryview:
    record = Record(0, NOW_MS, b"k", b"v")
    return memoryview(
        encode_batch(
            [record], producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=is_transactional
        )
    )


def test_ordinary_batches_claim_nothing() -> None:
    plain = [("t", [(0, batch(is_transactional=False)), (1, None)])]
    assert claim_of(Node().find, plain, None) is None


def test_the_first_batch_in_a_partition_needs_confirmation_and_later_ones_do_not() -> None:
    node = Node()
    batches = [("t", [(0, batch())])]
    assert claim_of(node.find, batches, "tx") == Claim(ProducerIdentity(7, 0), frozenset({("t", 0)}))
    node.partitions[0].append(batch(), NOW_MS, is_durable=False)
    assert claim_of(node.find, batches, "tx") == Claim(ProducerIdentity(7, 0), frozenset())


def test_partitions_whose_append_will_be_refused_are_not_added_to_the_transaction() -> None:
    batches = [("t", [(1, batch()), (9, batch())]), ("gone", [(0, batch())])]
    assert claim_of(Node().find, batches, "tx") == Claim(ProducerIdentity(7, 0), frozenset())


def test_a_request_has_one_producer_and_names_its_transaction() -> None:
    with pytest.raises(TransactionalIdMissing):
        claim_of(Node().find, [("t", [(0, batch())])], None)
    with pytest.raises(InvalidProducerIdMapping):
        claim_of(Node().find, [("t", [(0, batch(7)), (1, batch(8))])], "tx")
