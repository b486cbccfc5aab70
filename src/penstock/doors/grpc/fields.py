"""Values of requests, checked: a value that makes no sense is refused by the name of its field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from penstock.doors.grpc.statuses import InvalidArgument
from penstock.grpc.generated import message_pb2
from penstock.grpc.generated.message_pb2 import LogEnd
from penstock.partitions.access import SinceTime, Start

INT32_MAX: Final = (1 << 31) - 1
DEFAULT_GROUP: Final = "default"
RECEIPTS_MAX: Final = 10_000

_NANOS: Final = 1_000_000_000
_NANOS_PER_MS: Final = 1_000_000
# What the two types may hold by their own definitions: from the year 1 to the year 9999.
_TIMESTAMP_SECONDS: Final = (-62_135_596_800, 253_402_300_799)
_DURATION_SECONDS_MAX: Final = 315_576_000_000


def needed(text: str, field: str) -> str:
    """A text that must not be empty."""
    if not text:
        raise InvalidArgument(f"{field} is missing.")
    return text


def whole(value: int, field: str, *, low: int = 0, high: int = INT32_MAX, default: int | None = None) -> int:
    """A number within bounds; 0 stands for the default where there is one."""
    if value == 0 and default is not None:
        return default
    if not low <= value <= high:
        raise InvalidArgument(f"{field} is {value}; it has to be between {low} and {high}.")
    return value


def duration_ms(value: Duration, field: str, *, low_ms: int = 0, high_ms: int | None = None) -> int:
    """A duration in milliseconds; a part of one counts as a whole one, so that what is not zero stays so."""
    nanos = value.seconds * _NANOS + value.nanos
    if abs(value.nanos) >= _NANOS or abs(value.seconds) > _DURATION_SECONDS_MAX:
        raise InvalidArgument(f"{field} is not a valid duration.")
    milliseconds = -(-nanos // _NANOS_PER_MS)
    if milliseconds < low_ms:
        raise InvalidArgument(f"{field} is {milliseconds} ms; it has to be {low_ms} ms or more.")
    if high_ms is not None and milliseconds > high_ms:
        raise InvalidArgument(f"{field} is {milliseconds} ms; it has to be {high_ms} ms or less.")
    return milliseconds


def timestamp_ms(value: Timestamp, field: str) -> int:
    """An instant in milliseconds since 1970."""
    low, high = _TIMESTAMP_SECONDS
    if not low <= value.seconds <= high or not 0 <= value.nanos < _NANOS:
        raise InvalidArgument(f"{field} is not a valid instant.")
    if value.seconds < 0:
        raise InvalidArgument(f"{field} is before 1970.")
    return value.seconds * 1_000 + value.nanos // _NANOS_PER_MS


def start_of(start: message_pb2.Start, field: str = "start") -> Start:
    """Where reading begins; nothing said is the earliest message."""
    kind = start.WhichOneof("start")
    if kind == "offset":
        return whole(start.offset, f"{field}.offset", high=(1 << 63) - 1)
    if kind == "since":
        return SinceTime(timestamp_ms(start.since, f"{field}.since"))
    if kind == "end" and start.end == LogEnd.LOG_END_LATEST:
        return "latest"
    if kind == "end" and start.end != LogEnd.LOG_END_EARLIEST:
        raise InvalidArgument(f"{field}.end is neither the earliest nor the latest.")
    return "earliest"


def group_of(name: str) -> str:
    return name or DEFAULT_GROUP


def receipts_of(receipts: Sequence[str], field: str = "receipts") -> list[str]:
    """At least one receipt, and not too many."""
    if not 1 <= len(receipts) <= RECEIPTS_MAX:
        raise InvalidArgument(f"{field} has {len(receipts)} entries; it takes 1 to {RECEIPTS_MAX}.")
    return list(receipts)


def instant(milliseconds: int) -> Timestamp | None:
    """The instant, or None where there is none or no calendar has it."""
    seconds, rest = divmod(milliseconds, 1_000)
    if milliseconds < 0 or seconds > _TIMESTAMP_SECONDS[1]:
        return None
    return Timestamp(seconds=seconds, nanos=rest * _NANOS_PER_MS)


def duration(milliseconds: int) -> Duration:
    seconds, rest = divmod(milliseconds, 1_000)
    return Duration(seconds=seconds, nanos=rest * _NANOS_PER_MS)
