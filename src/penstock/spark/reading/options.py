"""What a reader may be told: every option of the source, checked and typed before anything is read.

Reference: docs/reference/spark.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import msgspec

from penstock.errors import InvalidConfig
from penstock.spark.connection import CREDENTIAL_OPTIONS, DEFAULT_TIMEOUT_SECONDS, SAME, ConnectionOptions, servers_in
from penstock.spark.options import OptionTexts, check_name, trust_in

End = Literal["earliest", "latest"]
OnError = Literal["fail", "drop", "dead-letter"]

COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_PLAIN_COLUMNS: Final = COLUMNS[:-1]

_BOTH: Final = (
    "servers",
    "topics",
    "topicsPattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "columns",
    "minPartitions",
    "isolation",
    "failOnDataLoss",
    "includeHeaders",
    "schema",
    "onError",
    "deadLetterTopic",
    "timeout",
    "path",
    *CREDENTIAL_OPTIONS,
)
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM_ONLY: Final = ("group", "maxRecordsPerTrigger", "maxBytesPerTrigger")
_TIMEOUT_SECONDS_MAX: Final = 86_400
_KAFKA_ENDS: Final[dict[int, End]] = {-2: "earliest", -1: "latest"}


@dataclass(frozen=True)
class Bound:
    """Where reading begins or ends: at one of the ends, at an instant, or at named offsets of some partitions."""

    end: End
    timestamp_ms: int | None = None
    offsets: Mapping[str, Mapping[int, int | End]] | None = None
    timestamps_ms: Mapping[str, Mapping[int, int]] | None = None
    is_given: bool = True

    def of(self, topic: str, partition: int) -> int | End:
        """The offset or the end that is meant for a partition, where no instant is."""
        named = (self.offsets or {}).get(topic, {})
        return named.get(partition, self.end)

    def instant_of(self, topic: str, partition: int) -> int | None:
        """The instant that is meant for a partition, if one is."""
        if self.timestamp_ms is not None:
            return self.timestamp_ms
        return (self.timestamps_ms or {}).get(topic, {}).get(partition)

    @property
    def instants(self) -> frozenset[int]:
        """Every instant that has to be looked up."""
        named = {at for partitions in (self.timestamps_ms or {}).values() for at in partitions.values()}
        return frozenset(named if self.timestamp_ms is None else {self.timestamp_ms})

    @property
    def partitions(self) -> Iterator[tuple[str, int]]:
        """The partitions that are named one by one."""
        for named in (self.offsets or {}, self.timestamps_ms or {}):
            yield from ((topic, index) for topic, partitions in named.items() for index in partitions)


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ConnectionOptions):
    """The options of one reader."""

    topics: tuple[str, ...]
    pattern: str | None
    assigned: Mapping[str, frozenset[int]] | None  # partitions by topic, if only some are meant
    starting: Bound
    ending: Bound
    columns: tuple[str, ...]
    group: str | None
    max_records: int | None
    max_bytes: int | None
    min_partitions: int | None
    isolation: Literal["read_committed", "read_uncommitted"]
    fails_on_data_loss: bool
    schema: str | None
    on_error: OnError
    dead_letter_topic: str | None

    @classmethod
    def of(cls, given: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
        """Check what was given. ``InvalidConfig`` says what is wrong and what would be right."""
        texts = _texts_of(given, is_streaming=is_streaming)
        topics, pattern, assigned = _topics(texts)
        schema = texts.get("schema")
        on_error = texts.one_of("onError", ("fail", "drop", "dead-letter"), "fail")
        if schema is None and on_error != "fail":
            raise InvalidConfig(f"onError={on_error} is about values that break the `schema`; give one as well.")
        dead_letter_topic = texts.get("deadLetterTopic")
        if dead_letter_topic is not None:
            if on_error != "dead-letter":
                raise InvalidConfig("deadLetterTopic goes with onError=dead-letter.")
            check_name(dead_letter_topic, "deadLetterTopic")
        columns = _columns(texts)
        if schema is not None and "value" not in columns:
            raise InvalidConfig("`schema` is about the column `value`, which `columns` leaves out.")
        return cls(
            servers=servers_in(texts.get("servers")),
            topics=topics,
            pattern=pattern,
            assigned=assigned,
            starting=_bound(texts, "starting", "earliest"),
            ending=_bound(texts, "ending", "latest"),
            columns=columns,
            group=texts.get("group"),
            max_records=texts.whole("maxRecordsPerTrigger"),
            max_bytes=texts.whole("maxBytesPerTrigger"),
            min_partitions=texts.whole("minPartitions"),
            isolation=texts.one_of("isolation", ("read_committed", "read_uncommitted"), "read_committed"),
            fails_on_data_loss=texts.switch("failOnDataLoss", default=True),
            schema=schema,
            on_error=on_error,
            dead_letter_topic=dead_letter_topic,
            timeout_s=texts.number("timeout", DEFAULT_TIMEOUT_SECONDS, 0.001, _TIMEOUT_SECONDS_MAX),
            trust=trust_in(texts),
            token_file=texts.get("tokenFile"),
        )


def _texts_of(given: Mapping[str, str], *, is_streaming: bool) -> OptionTexts:
    here, other = (_STREAM_ONLY, _BATCH_ONLY) if is_streaming else (_BATCH_ONLY, _STREAM_ONLY)
    kind, others = ("streams", "batch reads") if is_streaming else ("batch reads", "streams")
    elsewhere = {name: f"Option {name!r} is for {others}; it means nothing for {kind}." for name in other}
    return OptionTexts(given, "source", _BOTH + here, elsewhere=elsewhere, aliases=SAME)


TopicChoice = tuple[tuple[str, ...], str | None, Mapping[str, frozenset[int]] | None]


def _topics(texts: OptionTexts) -> TopicChoice:
    """Names, a pattern for those that are not known yet, and which partitions of them, if not all."""
    given = {name: texts.get(name) for name in ("topics", "topicsPattern", "assign", "path")}
    ways = [name for name, text in given.items() if text is not None]
    if len(ways) > 1:
        raise InvalidConfig(
            "Name topics by `topics`, by `topicsPattern`, by `assign`, or by what you load, not by several of them."
        )
    if not ways:
        raise InvalidConfig("Give either `topics`, such as orders,bills or orders-*, or `topicsPattern`.")
    if given["topicsPattern"] is not None:
        return (), given["topicsPattern"], None
    if given["assign"] is not None:
        assigned = _assigned(given["assign"])
        return tuple(assigned), None, assigned
    named = given["topics"] or given["path"] or ""
    names = tuple(dict.fromkeys(part.strip() for part in named.split(",") if part.strip()))
    if not names:
        raise InvalidConfig("Option 'topics' names no topic.")
    globs = [name for name in names if "*" in name or "?" in name]
    if not globs:
        for name in names:
            check_name(name, "topics")
        return names, None, None
    return (), "|".join(f"(?:{_expression(name)})" for name in names), None


def _assigned(text: str) -> dict[str, frozenset[int]]:
    """``{"topic": [0, 1]}``."""
    try:
        found = msgspec.json.decode(text, type=dict[str, list[int]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(
            f"Option 'assign' is JSON such as {{\"orders\": [0, 1]}}; {text!r} is not: {error}."
        ) from None
    for topic, partitions in found.items():
        check_name(topic, "assign")
        if not partitions or min(partitions) < 0:
            raise InvalidConfig(f"Option 'assign' names partitions from 0 on for each topic; {topic!r} has none.")
    if not found:
        raise InvalidConfig("Option 'assign' names no topic.")
    return {topic: frozenset(partitions) for topic, partitions in found.items()}


def _expression(glob: str) -> str:
    """A name with ``*`` and ``?`` in it as a regular expression, in what RE2 and Python have in common."""
    plain = glob.replace("*", "").replace("?", "")
    if plain:
        check_name(plain, "topics")
    return "".join(".*" if sign == "*" else "." if sign == "?" else re.escape(sign) for sign in glob)


def _columns(texts: OptionTexts) -> tuple[str, ...]:
    has_headers = texts.switch("includeHeaders", default=False)
    named = texts.get("columns")
    if named is None:
        return COLUMNS if has_headers else _PLAIN_COLUMNS
    columns = tuple(part.strip().lower() for part in named.split(",") if part.strip())
    for column in columns:
        if column not in COLUMNS:
            raise InvalidConfig(f"There is no column {column!r}; choose from {', '.join(COLUMNS)}.")
    if len(set(columns)) != len(columns) or not columns:
        raise InvalidConfig(f"Option 'columns' names each column once, not {named!r}.")
    if has_headers and "headers" not in columns:
        raise InvalidConfig("`includeHeaders` is true but `columns` leaves headers out.")
    return columns


# -- where to begin and to end -----------------------------------------------------------------------------------------


def _bound(texts: OptionTexts, which: Literal["starting", "ending"], default: End) -> Bound:
    offsets, instant = texts.get(f"{which}Offsets"), texts.get(f"{which}Timestamp")
    instants = texts.get(f"{which}OffsetsByTimestamp")
    if sum(given is not None for given in (offsets, instant, instants)) > 1:
        raise InvalidConfig(f"Give {which}Offsets, {which}Timestamp or {which}OffsetsByTimestamp, not two of them.")
    if which == "starting":
        _check_strategy(texts)
    if instant is not None:
        return Bound(default, timestamp_ms=_instant(instant, f"{which}Timestamp"))
    if instants is not None:
        return Bound(default, timestamps_ms=_instants(instants, f"{which}OffsetsByTimestamp"))
    if offsets is None:
        return Bound(default, is_given=False)
    if offsets.lower() in {"earliest", "latest"}:
        end: End = "earliest" if offsets.lower() == "earliest" else "latest"
        if which == "ending" and end == "earliest":
            raise InvalidConfig("endingOffsets=earliest would read nothing; use latest or offsets.")
        return Bound(end)
    return Bound(default, offsets=_offsets(offsets, f"{which}Offsets"))


def _check_strategy(texts: OptionTexts) -> None:
    """Of what Kafka's connector may do where no message is as late as an instant, we do one thing."""
    strategy = texts.get("startingOffsetsByTimestampStrategy")
    if strategy is not None and strategy.lower() != "latest":
        raise InvalidConfig(
            "Where no message is as late as an instant, reading begins at the end: startingOffsetsByTimestampStrategy "
            f"is latest, not {strategy!r}. Leave it out."
        )


def _instants(text: str, option: str) -> dict[str, dict[int, int]]:
    """``{"topic": {"0": 1000, "1": 2000}}``, in milliseconds since 1970."""
    wrong = f'Option {option!r} is JSON such as {{"orders": {{"0": 1769857200000}}}}, in milliseconds since 1970'
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[str, Annotated[int, msgspec.Meta(ge=0)]]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{wrong}; {text!r} is not: {error}.") from None
    for topic, partitions in found.items():
        for index in partitions:
            if not (index.isascii() and index.isdigit()):
                raise InvalidConfig(f"{wrong}; {index!r} is no partition of {topic!r}.")
    return {topic: {int(index): at for index, at in partitions.items()} for topic, partitions in found.items()}


def _instant(text: str, option: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidConfig(
            f"Option {option!r} is milliseconds since 1970 or an instant such as 2026-01-31T12:00:00Z, not {text!r}."
        ) from None
    if moment.tzinfo is None:
        raise InvalidConfig(f"Option {option!r} needs a time zone, such as {text}Z.")
    return int(moment.astimezone(UTC).timestamp() * 1000)


def _offsets(text: str, option: str) -> dict[str, dict[int, int | End]]:
    """``{"topic": {"0": 23, "1": "earliest"}}``."""
    wrong = f'Option {option!r} is earliest, latest, or JSON such as {{"orders": {{"0": 23, "1": "latest"}}}}'
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[str, int | str]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{wrong}; {text!r} is not: {error}.") from None
    offsets: dict[str, dict[int, int | End]] = {}
    for topic, partitions in found.items():
        for index, offset in partitions.items():
            if not (index.isascii() and index.isdigit()):
                raise InvalidConfig(f"{wrong}; {index!r} is no partition of {topic!r}.")
            place: int | str = _KAFKA_ENDS.get(offset, offset) if isinstance(offset, int) else offset
            if isinstance(place, int) and place < 0:
                raise InvalidConfig(f"{wrong}; {offset} is no offset of {topic}-{index}.")
            if isinstance(place, str) and place not in {"earliest", "latest"}:
                raise InvalidConfig(f"{wrong}; {offset!r} is no offset of {topic}-{index}.")
            offsets.setdefault(topic, {})[int(index)] = place  # type: ignore[assignment]  # a number or an end
    return offsets
