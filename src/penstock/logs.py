"""What the node writes to standard error: one JSON object a line for machines, or one readable line for people.

Fields given as ``extra=`` become members of the object. Formatting must not raise, whatever a caller logs.
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

import msgspec

_PLAIN_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message"}
_COLOURS: Final = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


class JsonFormatter(logging.Formatter):
    """One JSON object: ts (RFC 3339, UTC), level, logger, message, then the extra fields."""

    _encoder = msgspec.json.Encoder(enc_hook=str)

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "ts": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in _extra(record).items():
            fields.setdefault(name, value)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        try:
            return self._encoder.encode(fields).decode()
        except (TypeError, ValueError):  # a field that no JSON can hold, such as a lone surrogate
            return self._encoder.encode({name: ascii(value) for name, value in fields.items()}).decode()


class TextFormatter(logging.Formatter):
    """One line for people: local time, level, message, then the extra fields."""

    def __init__(self, *, has_colour: bool) -> None:
        super().__init__()
        self._has_colour = has_colour

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname:<8}"
        if self._has_colour:
            level = f"\x1b[{_COLOURS.get(record.levelname, '0')}m{level}\x1b[0m"
        extra = "".join(f"  {name}={value}" for name, value in _extra(record).items())
        time = _time(record).astimezone().strftime("%H:%M:%S")
        line = f"{time} {level} {record.getMessage()}{extra}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(level: str, style: str, stream: TextIO | None = None) -> None:
    """Send every logger's records to ``stream``, standard error by default, and nowhere else."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    has_colour = stream.isatty() and "NO_COLOR" not in os.environ
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter(has_colour=has_colour))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.raiseExceptions = False  # a full or closed stderr must not stop the node


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _PLAIN_FIELDS}
