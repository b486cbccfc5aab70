"""What a writer may be told: every option of the sink, checked and typed before anything is written.

Reference: docs/how-to/spark-sink.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from penstock.client.trust import SYSTEM_TRUST, Trust
from penstock.errors import InvalidConfig, InvalidTopicName
from penstock.model import check_topic_name
from penstock.records import Codec
from penstock.spark.connection import TRUST_OPTIONS, instead_of, servers_in, trust_in
from penstock.spark.reading.options import nearest_of

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
    *TRUST_OPTIONS,
)
_BATCH_ONLY: Final = ("txnId", "txnVersion")
# Spark's own, which it hands on to every sink.
_SPARKS: Final = ("checkpointLocation", "queryName")
_TIMEOUT_SECONDS: Final = 120.0
_STAGING_TIMEOUT_SECONDS: Final = 300.0
_STAGING_TIMEOUT_SECONDS_MAX: Final = 900.0
_BATCH_BYTES: Final = 1_000_000  # a topic takes 1 MiB unless it is set otherwise
_BATCH_BYTES_MAX: Final = 8_000_000
_KAFKA: Final = {
    "includeheaders": "The sink always writes a column `headers` where there is one: leave out includeHeaders."
}
_TRANSACTION: Final = re.compile(r"[A-Za-z0-9._:@/+=-]{1,180}")


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """The options of one writer."""

    servers: tuple[str, ...]
    topic: str | None
    delivery: Delivery = "exactly-once"
    codec: Codec = Codec.NONE
    batch_bytes: int = _BATCH_BYTES
    staging_timeout_s: float = _STAGING_TIMEOUT_SECONDS
    timeout_s: float = _TIMEOUT_SECONDS
    trust: Trust = SYSTEM_TRUST
    transaction: str | None = None
    version: int = 0

    @property
    def is_staged(self) -> bool:
        return self.delivery == "exactly-once"

    @classmethod
    def of(cls, given: Mapping[str, str], *, is_streaming: bool) -> SinkOptions:
        """Check what was given. ``InvalidConfig`` says what is wrong and what would be right."""
        texts = _known(given, is_streaming=is_streaming)
        transaction, version = texts.get("txnId"), texts.get("txnVersion")
        delivery = _delivery(texts)
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
            codec=_codec(texts),
            batch_bytes=int(_number(texts, "batchBytes", _BATCH_BYTES, 1_000, _BATCH_BYTES_MAX)),
            staging_timeout_s=_number(
                texts, "stagingTimeout", _STAGING_TIMEOUT_SECONDS, 1, _STAGING_TIMEOUT_SECONDS_MAX
            ),
            timeout_s=_number(texts, "timeout", _TIMEOUT_SECONDS, 1, 3_600),
            trust=trust_in({name: texts.get(name) for name in TRUST_OPTIONS}),
            transaction=transaction,
            version=int(_number(texts, "txnVersion", 0, 0, (1 << 53) - 1)),
        )


def _known(given: Mapping[str, str], *, is_streaming: bool) -> dict[str, str]:
    """The options by the names we use, whatever their case."""
    names = {name.lower(): name for name in (*_BOTH, *_BATCH_ONLY)}
    theirs = {name.lower() for name in _SPARKS}
    allowed = _BOTH if is_streaming else (*_BOTH, *_BATCH_ONLY)
    texts: dict[str, str] = {}
    for name, text in given.items():
        known = names.get(name.lower())
        if known is None and name.lower() in theirs:
            continue
        if known is None:
            nearest = nearest_of(name, allowed)
            hint = f"did you mean {nearest!r}?" if nearest else f"it knows {', '.join(sorted(set(allowed) - {'path'}))}"
            raise InvalidConfig(
                _KAFKA.get(name.lower()) or instead_of(name) or f"The sink has no option {name!r}; {hint}"
            )
        if known not in allowed:
            raise InvalidConfig(f"Option {known!r} is for batch writes; a stream has its query and batch for that.")
        texts[known] = str(text).strip()
        if not texts[known]:
            raise InvalidConfig(f"Option {known!r} is empty; leave it out or give it a value.")
    return texts


def _delivery(texts: Mapping[str, str]) -> Delivery:
    match texts.get("delivery", "exactly-once").lower():
        case "exactly-once":
            return "exactly-once"
        case "at-least-once":
            return "at-least-once"
        case other:
            raise InvalidConfig(f"Option 'delivery' is exactly-once or at-least-once, not {other!r}.")


def _topic(texts: Mapping[str, str]) -> str | None:
    topic, path = texts.get("topic"), texts.get("path")
    if topic is not None and path is not None and topic != path:
        raise InvalidConfig("Name the topic by the option 'topic' or by what you save to, not by both.")
    name = topic or path
    if name is not None:
        try:
            check_topic_name(name)
        except InvalidTopicName as error:
            raise InvalidConfig(f"Option 'topic': {error.message}") from None
    return name


def _codec(texts: Mapping[str, str]) -> Codec:
    name = texts.get("compression", "none")
    try:
        return Codec[name.upper()]
    except KeyError:
        names = ", ".join(codec.name.lower() for codec in Codec)
        raise InvalidConfig(f"Option 'compression' is one of {names}, not {name!r}.") from None


def _number(texts: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = texts.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise InvalidConfig(f"Option {name!r} is a number from {least:g} to {most:g}, not {text!r}.")
    return number
