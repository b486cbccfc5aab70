"""Every limit on what a client may ask for, and the defaults that clients and nodes share, in one place, with reasons.

A limit stands here as a number and, where requests use it, as a type that carries it: the validators of all doors, the
OpenAPI description, the client and the command line read the same one. Limits that a feature enforces itself, with an
error of its own, are stated for the description alone (`_stated`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from penstock.model import TOPIC_NAME_CHARS_MAX


def _stated(**schema: Any) -> Meta:
    """Limits that the description tells and a feature checks."""
    return Meta(extra_json_schema=schema)


# -- numbers -----------------------------------------------------------------------------------------------------------

DEFAULT_GROUP: Final = "default"  # the queue group of consumers that name none
DEFAULT_WRITER: Final = "main"  # of a joint transaction, for producers that name none

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1

# A name is part of file names, metric labels and keys of internal topics; Kafka's limit, so that both agree.
NAME_CHARS_MAX: Final = TOPIC_NAME_CHARS_MAX
# Ids of members are made by clients of foreign libraries from host names and more.
MEMBER_ID_CHARS_MAX: Final = 1_000
# One call is one record in a queue's journal, and one answer: both have to stay small enough to hold in memory.
ACLS_MAX: Final = 1_000  # added by one call: one record of the metadata log holds them
RECEIPTS_MAX: Final = 10_000
RECEIPT_CHARS_MAX: Final = 1_000
RECEIVE_MAX: Final = 10_000
RECEIVE_DEFAULT: Final = 10
PEEK_MAX: Final = 1_000
BATCH_MESSAGES_MAX: Final = 10_000
BATCHES_MAX: Final = 10_000
MESSAGE_COUNT_MAX: Final = 9_999_999_999  # ten digits; what a writer has published into a transaction
READ_MAX: Final = 10_000
# A page of a list is made in one go, between other work.
PAGE_MAX: Final = 1_000
TRANSACTIONS_LISTED_MAX: Final = 10_000
# Proxies and load balancers commonly cut a request that says nothing for longer.
WAIT_MS_MAX: Final = 60_000
# A member that waits cannot send heartbeats; sessions commonly last 30 s.
MEMBER_WAIT_MS_MAX: Final = 30_000
SESSION_TIMEOUT_MS: Final = 30_000
# Amazon SQS has the same: work that takes longer should extend its lease.
VISIBILITY_MS_MAX: Final = 12 * 3_600_000
# What is to wait longer is a schedule.
NACK_DELAY_MS_MAX: Final = 7 * 24 * 3_600_000
# Stored in the headers of a dead letter, and in the journal of the queue.
REASON_CHARS_MAX: Final = 1_000
# Remembered for each attempt, for two minutes.
ATTEMPT_CHARS_MAX: Final = 64
# An answer that holds batches is put together in memory.
LEASED_BYTES_MAX: Final = 8 * 1024 * 1024
READ_BATCHES_BYTES: Final = 8 * 1024 * 1024
READ_BATCHES_BYTES_MAX: Final = 32 * 1024 * 1024
# Each partition has open files and replicas that fetch.
PARTITIONS_MAX: Final = 10_000
REPLICATION_FACTOR_MAX: Final = 32_767  # 16 bits in Kafka's protocol
NODES_LISTED_MAX: Final = 1_000
TOPICS_SUBSCRIBED_MAX: Final = 1_000
TOPICS_NAMED_MAX: Final = 10_000
OFFSETS_COMMITTED_MAX: Final = 10_000
OFFSETS_REPORTED_MAX: Final = 100_000
TIMESTAMPS_MAX: Final = 8  # each is a search in every partition
OFFSET_METADATA_CHARS_MAX: Final = 4_096
WRITERS_MAX: Final = 10_000
WRITER_CHARS_MAX: Final = 200
TRANSACTION_TIMEOUT_MS: Final = 60_000
SERIES_TIMEOUT_MS: Final = 300_000
RUN_CHARS_MAX: Final = 64
DEAD_LETTERS_NAMED_MAX: Final = 10_000
REDRIVE_RATE_MAX: Final = 1_000_000.0
REDRIVE_BY_CHARS_MAX: Final = 200
SCHEDULE_TIMES_MAX: Final = 100
SCHEDULES_CANCELLED_MAX: Final = 10_000
SCHEDULE_ID_CHARS_MAX: Final = 200
PIPELINE_WORD_CHARS_MAX: Final = 1_000
PIPELINE_ERROR_CHARS_MAX: Final = 20_000
PIPELINE_QUERIES_MAX: Final = 1_000
# What says what is to be done, rather than carrying messages, needs no large body.
SMALL_BODY_BYTES_MAX: Final = 1024 * 1024

TOPIC_NAME_PATTERN: Final = r"^[A-Za-z0-9._-]+$"
SERIES_PATTERN: Final = r"^[A-Za-z0-9._:@/+=-]{1,200}$"
PIPELINE_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_-]{0,99}$"
IDEMPOTENCY_KEY_PATTERN: Final = r"^[\x20-\x7e]{1,255}$"

# -- types -------------------------------------------------------------------------------------------------------------

# Checked by `penstock.model.check_topic_name`, whose errors say which rule a name breaks.
TopicName = Annotated[str, _stated(pattern=TOPIC_NAME_PATTERN, minLength=1, maxLength=NAME_CHARS_MAX)]
GroupName = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]  # of a queue group
GroupId = Annotated[str, _stated(minLength=1)]  # of a consumer group, which Kafka's clients name as they like
Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
PartitionIndex = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Offset = Annotated[int, Meta(ge=0, le=INT64_MAX)]
NodeId = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Instant = Annotated[datetime, Meta(tz=True)]
StartPoint = Annotated[
    Offset | Literal["earliest", "latest"] | None, Meta(description="An offset, earliest, or latest.")
]
Since = Annotated[Instant | None, Meta(description="The first message at or after this instant (RFC 3339).")]
Receipt = Annotated[str, Meta(max_length=RECEIPT_CHARS_MAX)]
Receipts = Annotated[list[Receipt], Meta(min_length=1, max_length=RECEIPTS_MAX)]
VisibilityMs = Annotated[
    Annotated[int, Meta(ge=1, le=VISIBILITY_MS_MAX)] | None,
    Meta(description="How long the messages are yours; without it, what the group is set to."),
]
NackDelayMs = Annotated[
    Annotated[int, Meta(ge=0, le=NACK_DELAY_MS_MAX)] | None,
    Meta(description="How long until it is delivered again; without it, the group's backoff."),
]
Reason = Annotated[str, Meta(max_length=REASON_CHARS_MAX, description="Why; dead letters tell it.")]
WaitMs = Annotated[int, Meta(ge=0, le=WAIT_MS_MAX, description="How long to wait for a message if there is none yet.")]
TimeoutMs = Annotated[int, Meta(ge=1, le=INT32_MAX)]
WriterName = Annotated[str, Meta(min_length=1, max_length=WRITER_CHARS_MAX)]
SeriesName = Annotated[str, _stated(pattern=SERIES_PATTERN)]
PipelineName = Annotated[str, _stated(pattern=PIPELINE_PATTERN)]
