"""What a writer may be told: every option of the sink, checked and typed before anything is written.

Reference: docs/how-to/spark-sink.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from penstock.errors import InvalidConfig
from penstock.records import Codec
from penstock.spark.connection import CREDENTIAL_OPTIONS, ConnectionOptions, servers_in
from penstock.spark.options import OptionTexts, check_name, trust_in

Delivery = Literal["exactly-once", "at-least-once"]

_BOTH: Final = (
    "servers",
    "topic",
    "path",
    "delivery",
    "compression",
    "batchBytes",
    "stagingTimeout",
    "timeout",
    *CREDENTIAL_OPTIONS,
)
_BATCH_ONLY: Final = ("txnId", "txnVersion")
# Spark's own, which it hands on to every sink.
_SPARKS: Final = ("checkpointlocation", "queryname")
_TIMEOUT_SECONDS: Final = 120.0
_STAGING_TIMEOUT_SECONDS: Final = 300.0
_STAGING_TIMEOUT_SECONDS_MAX: Final = 900.0
_BATCH_BYTES: Final = 1_000_000  # a topic takes 1 MiB unless it is set otherwise
_BATCH_BYTES_MAX: Final = 8_000_000
_KAFKA: Final = {
    "includeheaders": "The sink always writes a column `headers` where there is one: leave out includeHeaders."
}
_CODECS: Final = tuple(codec.name.lower() for codec in Codec)
_TRANSACTION: Final = re.compile(r"[A-Za-z0-9._:@/+=-]{1,180}")


@dataclass(frozen=True, kw_only=True)
class SinkOptions(ConnectionOptions):
    """The options of one writer."""

    topic: str | None
    delivery: Delivery = "exactly-once"
    codec: Codec = Codec.NONE
    batch_bytes: int = _BATCH_BYTES
    staging_timeout_s: float = _STAGING_TIMEOUT_SECONDS
    transaction: str | None = None
    version: int = 0

    @property
    def is_staged(self) -> bool:
        return self.delivery == "exactly-once"

    @classmethod
    def of(cls, given: Mapping[str, str], *, is_streaming: bool) -> SinkOptions:
        """Check what was given. ``InvalidConfig`` says what is wrong and what would be right."""
        texts = _texts_of(given, is_streaming=is_streaming)
        transaction, version = texts.get("txnId"), texts.get("txnVersion")
        delivery: Delivery = texts.one_of("delivery", ("exactly-once", "at-least-once"), "exactly-once")
        if transaction is not None and delivery == "at-least-once":
            raise InvalidConfig("Option 'txnId' makes a write happen once; leave out delivery=at-least-once.")
        if version is not None and transaction is None:
            raise InvalidConfig("Option 'txnVersion' goes with 'txnId': it counts the writes of that id.")
        if transaction is not None and not _TRANSACTION.fullmatch(transaction):
            raise InvalidConfig("Option 'txnId' has 1 to 180 letters, digits and any of . _ : @ / + = -")
        return cls(
            servers=servers_in(texts.get("servers")),
            topic=_topic(texts),
            delivery=delivery,
            codec=Codec[texts.one_of("compression", _CODECS, "none").upper()],
            batch_bytes=int(texts.number("batchBytes", _BATCH_BYTES, 1_000, _BATCH_BYTES_MAX)),
            staging_timeout_s=texts.number("stagingTimeout", _STAGING_TIMEOUT_SECONDS, 1, _STAGING_TIMEOUT_SECONDS_MAX),
            timeout_s=texts.number("timeout", _TIMEOUT_SECONDS, 1, 3_600),
            trust=trust_in(texts),
            token_file=texts.get("tokenFile"),
            transaction=transaction,
            version=int(texts.number("txnVersion", 0, 0, (1 << 53) - 1)),
        )


def _texts_of(given: Mapping[str, str], *, is_streaming: bool) -> OptionTexts:
    reason = "Option {!r} is for batch writes; a stream has its query and batch for that."
    elsewhere = {name: reason.format(name) for name in _BATCH_ONLY} if is_streaming else {}
    allowed = _BOTH if is_streaming else _BOTH + _BATCH_ONLY
    return OptionTexts(given, "sink", allowed, elsewhere=elsewhere, hints=_KAFKA, passed_over=_SPARKS)


def _topic(texts: OptionTexts) -> str | None:
    topic, path = texts.get("topic"), texts.get("path")
    if topic is not None and path is not None and topic != path:
        raise InvalidConfig("Name the topic by the option 'topic' or by what you save to, not by both.")
    name = topic or path
    if name is not None:
        check_name(name, "topic")
    return name
