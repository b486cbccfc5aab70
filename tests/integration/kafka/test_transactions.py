"""Transactions over real sockets, request by request: what well-behaved clients never send, and the second protocol."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

import pytest
from tests.integration.kafka.test_door import TOPIC, Client, tell

from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.headers import decode_response
from penstock.doors.kafka.protocol.messages import offsets as offsets
from penstock.doors.kafka.protocol.messages import records as plain
from penstock.doors.kafka.protocol.messages import transactions as wire
from penstock.doors.kafka.protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from penstock.doors.kafka.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.doors.kafka.protocol.messages.shared import TopicPartitionIndexes, TopicPartitions
from penstock.doors.kafka.protocol.schema import ApiMessage
from penstock.errors import CoordinatorLoading
from penstock.machines.messages import ProducerIdentity
from penstock.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.records import Record, encode_batch

NAME = "x"
GROUP = "g"
ResponseT = TypeVar("ResponseT", bound=ApiMessage)


async def ask(client: Client, request: ApiMessage, version: int, response: type[ResponseT]) -> ResponseT:
    client.send(request, version)
    return decode_response(response, version, await client.receive())[1]


async def init(client: Client, timeout_ms: int = 60_000) -> ProducerIdentity:
    await ask(client, FindCoordinatorRequest(key=NAME, key_type=1), 3, FindCoordinatorResponse)
    request = wire.InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=timeout_ms)
    answer = await ask(client, request, 4, wire.InitProducerIdResponse)
    assert answer.error_code == ErrorCode.NONE
    return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def batch(producer: ProducerIdentity, sequence: int = 0, *, is_transactional: bool = True) -> bytes:
    return bytes(
        encode_batch(
            [Record(0, 1_700_000_000_000, None, b"value")],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
    )


def request_of(*batches: bytes, name: str | None = NAME, topic: str = TOPIC) -> plain.ProduceRequest:
    """A produce request with one batch for each partition."""
    rows = tuple(plain.PartitionProduceData(index=at, records=each) for at, each in enumerate(batches))
    return plain.ProduceRequest(
        transactional_id=name,
        acks=-1,
        timeout_ms=5_000,
        topic_data=(plain.TopicProduceData(name=topic, partition_data=rows),),
    )


async def produce(client: Client, request: plain.ProduceRequest, version: int) -> list[ErrorCode]:
    answer = await ask(client, request, version, plain.ProduceResponse)
    return [ErrorCode(row.error_code) for row in answer.responses[0].partition_responses]


async def add(
    client: Client, producer: ProducerIdentity, *places: tuple[str, int], version: int = 3
) -> list[ErrorCode]:
    request = wire.AddPartitionsToTxnRequest(
        transactional_id=NAME,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=tuple(TopicPartitions(name=topic, partitions=(at,)) for topic, at in places),
    )
    answer = await ask(client, request, version, wire.AddPartitionsToTxnResponse)
    return [ErrorCode(row.results_by_partition[0].partition_error_code) for row in answer.results]


async def end(client: Client, producer: ProducerIdentity, *, is_commit: bool, version: int) -> wire.EndTxnResponse:
    request = wire.EndTxnRequest(
        transactional_id=NAME,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=is_commit,
    )
    return await ask(client, request, version, wire.EndTxnResponse)


async def commit_offset(client: Client, producer: ProducerIdentity, offset: int, version: int) -> ErrorCode:
    row = wire.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
    request = wire.TxnOffsetCommitRequest(
        transactional_id=NAME,
        group_id=GROUP,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=(wire.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=(row,)),),
    )
    answer = await ask(client, request, version, wire.TxnOffsetCommitResponse)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def find_group(client: Client) -> None:
    """Have the topic of groups' offsets made, and wait until it can be asked."""
    await ask(client, FindCoordinatorRequest(key=GROUP, key_type=0), 3, FindCoordinatorResponse)
    while True:
        try:
            client.broker.groups.loaded_shards()
        except CoordinatorLoading:
            await asyncio.sleep(0.01)
        else:
            return


async def fetch_offset(client: Client, *, needs_stable: bool) -> tuple[int, ErrorCode]:
    topic = TopicPartitionIndexes(name=TOPIC, partition_indexes=(0,))
    request = offsets.OffsetFetchRequest(group_id=GROUP, topics=(topic,), require_stable=needs_stable)
    answer = await ask(client, request, 7, offsets.OffsetFetchResponse)
    row = answer.topics[0].partitions[0]
    return row.committed_offset, ErrorCode(row.error_code)


# -- producing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "code"), [(9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)])
def test_a_partition_that_was_not_added_takes_nothing(tmp_path: Path, version: int, code: ErrorCode) -> None:
    async def story(client: Client) -> None:
        producer = await init(client)
        assert await produce(client, request_of(batch(producer)), version) == [code]
        assert await add(client, producer, (TOPIC, 0)) == [ErrorCode.NONE]
        both = request_of(batch(producer), batch(producer))
        assert await produce(client, both, version) == [ErrorCode.NONE, code]
        assert (await end(client, producer, is_commit=True, version=3)).error_code == ErrorCode.NONE
        late = request_of(batch(producer, 1))
        assert await produce(client, late, version) == [code]
        assert client.broker.partition(TOPIC, 0).last_stable_offset == 2, "a record and its marker"

    tell(tmp_path, story)


def test_the_second_protocol_adds_partitions_by_writing_to_them(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        first = await init(client)
        assert await produce(client, request_of(batch(first), batch(first)), 12) == [ErrorCode.NONE] * 2
        assert await produce(client, request_of(batch(first, 1)), 12) == [ErrorCode.NONE]
        partition = client.broker.partition(TOPIC, 0)
        assert partition.last_stable_offset == 0
        ended = await end(client, first, is_commit=True, version=5)
        second = ProducerIdentity(ended.producer_id, ended.producer_epoch)
        assert second == (first.producer_id, first.epoch + 1)
        assert partition.last_stable_offset == 3
        assert await produce(client, request_of(batch(first, 2)), 12) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert await produce(client, request_of(batch(second)), 12) == [ErrorCode.NONE]
        repeated = await end(client, first, is_commit=True, version=5)
        assert repeated.error_code == ErrorCode.PRODUCER_FENCED
        assert partition.last_stable_offset == 3, "a late commit has hit a later transaction"

    tell(tmp_path, story)


def test_batches_behind_the_first_of_a_transaction_do_not_overtake_it(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        producer = await init(client)
        for sequence in range(5):
            client.send(request_of(batch(producer, sequence)), 12)
        for offset in range(5):
            _, answer = decode_response(plain.ProduceResponse, 12, await client.receive())
            row = answer.responses[0].partition_responses[0]
            assert (row.error_code, row.base_offset) == (ErrorCode.NONE, offset)

    tell(tmp_path, story)


def test_a_request_claims_one_transaction(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        producer = await init(client)
        nameless = request_of(batch(producer), name=None)
        refused = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
        assert await produce(client, nameless, 9) == refused
        stranger = ProducerIdentity(producer.producer_id + 1, 0)
        two = request_of(batch(producer), batch(stranger))
        assert await produce(client, two, 12) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
        assert await produce(client, request_of(batch(stranger)), 12) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        assert await produce(client, request_of(batch(producer), name="y"), 12) == [
            ErrorCode.INVALID_PRODUCER_ID_MAPPING
        ]
        assert await produce(client, request_of(batch(producer), topic=OFFSETS_TOPIC), 12) == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        # A template that was learned from ordinary records lets none through that claim a transaction.
        plain_batch = batch(ProducerIdentity(-1, -1), -1, is_transactional=False)
        assert await produce(client, request_of(plain_batch, name=None), 9) == [ErrorCode.NONE]
        assert await produce(client, nameless, 9) == refused
        assert client.broker.partition(TOPIC, 0).log.end_offset == 1

    tell(tmp_path, story)


# -- steps -------------------------------------------------------------------------------------------------------------


def test_partitions_are_added_all_or_none_and_never_our_own(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        producer = await init(client)
        assert await add(client, producer, (TOPIC, 0), ("nowhere", 0), (TOPIC, 7)) == [
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert await add(client, producer, (TRANSACTIONS_TOPIC, 0)) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
        old = ProducerIdentity(producer.producer_id, producer.epoch)
        assert await init(client) == (old.producer_id, old.epoch + 1)
        assert await add(client, old, (TOPIC, 0)) == [ErrorCode.PRODUCER_FENCED]
        assert await add(client, old, (TOPIC, 0), version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert (await end(client, old, is_commit=True, version=1)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH

    tell(tmp_path, story)


def test_a_timeout_is_bounded(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        await init(client)
        for timeout_ms in (0, 900_001):
            request = wire.InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=timeout_ms)
            answer = await ask(client, request, 4, wire.InitProducerIdResponse)
            assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT

    tell(tmp_path, story)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_offsets_wait_for_their_transaction(tmp_path: Path, version: int) -> None:
    async def story(client: Client) -> None:
        producer = await init(client)
        await find_group(client)
        if version < 5:
            expected = ErrorCode.INVALID_TXN_STATE if version == 3 else ErrorCode.TRANSACTION_ABORTABLE
            assert await commit_offset(client, producer, 7, version) == expected
            request = wire.AddOffsetsToTxnRequest(
                transactional_id=NAME,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                group_id=GROUP,
            )
            added = await ask(client, request, 4, wire.AddOffsetsToTxnResponse)
            assert added.error_code == ErrorCode.NONE
        assert await commit_offset(client, producer, 7, version) == ErrorCode.NONE
        assert await fetch_offset(client, needs_stable=False) == (-1, ErrorCode.NONE)
        assert await fetch_offset(client, needs_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        await end(client, producer, is_commit=True, version=5)
        assert await fetch_offset(client, needs_stable=True) == (7, ErrorCode.NONE)
        # The epoch is over, in which this would have been committed.
        assert await commit_offset(client, producer, 9, version) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await fetch_offset(client, needs_stable=True) == (7, ErrorCode.NONE)

    tell(tmp_path, story)


# -- tools -------------------------------------------------------------------------------------------------------------


def test_tools_see_transactions_and_who_has_what_open(tmp_path: Path) -> None:
    async def described(client: Client, name: str) -> wire.DescribedTransaction:
        request = wire.DescribeTransactionsRequest(transactional_ids=(name,))
        return (await ask(client, request, 0, wire.DescribeTransactionsResponse)).transaction_states[0]

    async def listed(client: Client, *states: str, pattern: str | None = None, longer_ms: int = -1) -> list[str]:
        request = wire.ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=(),
            duration_filter=longer_ms,
            transactional_id_pattern=pattern,
        )
        answer = await ask(client, request, 2, wire.ListTransactionsResponse)
        assert answer.error_code == ErrorCode.NONE
        return [each.transactional_id for each in answer.transaction_states]

    async def story(client: Client) -> None:
        producer = await init(client)
        assert (await described(client, "y")).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert await listed(client, "Ongoing") == []
        await produce(client, request_of(batch(producer)), 12)
        found = await described(client, NAME)
        assert (found.transaction_state, found.producer_id) == ("Ongoing", producer.producer_id)
        assert [(each.topic, each.partitions) for each in found.topics] == [(TOPIC, (0,))]
        assert await listed(client, "Ongoing") == await listed(client) == await listed(client, pattern="[xy]") == [NAME]
        assert await listed(client, "Nonsense") == await listed(client, pattern="z.*") == []
        assert await listed(client, longer_ms=60_000) == []
        topic = TopicPartitionIndexes(name=TOPIC, partition_indexes=(0, 9))
        producers = await ask(client, wire.DescribeProducersRequest(topics=(topic,)), 0, wire.DescribeProducersResponse)
        there, nowhere = producers.topics[0].partitions
        assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (active,) = there.active_producers
        assert (active.producer_id, active.current_txn_start_offset) == (producer.producer_id, 0)

    tell(tmp_path, story)


def test_an_operator_ends_what_hangs_in_a_partition(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        producer = await init(client)
        await produce(client, request_of(batch(producer)), 12)
        request = wire.WriteTxnMarkersRequest(
            markers=(
                wire.WritableTxnMarker(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    transaction_result=False,
                    topics=(
                        TopicPartitionIndexes(name=TOPIC, partition_indexes=(0,)),
                        TopicPartitionIndexes(name=TRANSACTIONS_TOPIC, partition_indexes=(0,)),
                    ),
                    coordinator_epoch=0,
                ),
            )
        )
        answer = await ask(client, request, 1, wire.WriteTxnMarkersResponse)
        written, refused = answer.markers[0].topics
        assert written.partitions[0].error_code == ErrorCode.NONE
        assert refused.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert client.broker.partition(TOPIC, 0).last_stable_offset == 2

    tell(tmp_path, story)


def test_clients_are_told_of_the_second_protocol(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        answer = await ask(client, ApiVersionsRequest(), 3, ApiVersionsResponse)
        levels = {each.name: each.max_version_level for each in answer.finalized_features}
        assert levels["transaction.version"] == 2
        assert answer.finalized_features_epoch >= 0

    tell(tmp_path, story)
