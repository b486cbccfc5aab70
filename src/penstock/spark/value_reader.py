"""JSON values as columns: each checked against the schema, and what does not fit dealt with as the user wants it.

Here a Python object is made for each value. Where that is too slow, read bytes and use Spark's ``from_json``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.types import ArrayType, MapType, StructType

from penstock.client.generated.sync import Client
from penstock.client.values import Draft
from penstock.errors import UnreadableValue
from penstock.spark.reading.options import SourceOptions
from penstock.spark.reading.plan import ReadSpan
from penstock.spark.values import Rule, attribute, checked_type, rule_of

log = logging.getLogger(__name__)

_PREFIX: Final = "penstock-dlq-"  # docs/how-to/dead-letters.md
_SUFFIX: Final = ".dlq"
_REASON_CHARS_MAX: Final = 1000


class _Bad(NamedTuple):
    """A row whose value does not fit, and why."""

    row: int
    reason: str


class ValueReader:
    """Parses the column ``value``."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.schema is not None, "a schema to read by"
        self._options = options
        self._rule = rule_of(options.schema)
        self._decoder = msgspec.json.Decoder(checked_type(self._rule))
        # What a dead letter keeps of its message.
        self.needs = ("timestamp", "key", "headers") if options.on_error == "dead-letter" else ()
        self._client: Client | None = None

    def parse(self, span: ReadSpan, columns: dict[str, Any], kind: pa.DataType) -> dict[str, Any]:
        """The same columns with values parsed; rows that do not fit are left out, if they are not the end of it."""
        texts = columns["value"].to_pylist()
        values: list[Any] = []
        bad: list[_Bad] = []
        decode = self._decoder.decode
        for row, text in enumerate(texts):
            try:
                values.append(None if text is None else decode(text))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                values.append(None)
                bad.append(_Bad(row, str(error)))
        try:
            parsed = _column(values, self._rule, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            bad = sorted(bad + self._unfit(values, kind))
            for at in bad:
                values[at.row] = None
            parsed = _column(values, self._rule, kind)
        if not bad:
            return {**columns, "value": parsed}
        self._deal_with(span, columns, bad)
        wrong = {at.row for at in bad}
        kept = pa.array([row for row in range(len(texts)) if row not in wrong], type=pa.int64())
        return {name: column.take(kept) for name, column in {**columns, "value": parsed}.items()}

    def _unfit(self, values: Sequence[Any], kind: pa.DataType) -> list[_Bad]:
        """Values of the right form that Spark's types cannot hold, such as a decimal with too many digits."""
        bad: list[_Bad] = []
        for row, value in enumerate(values):
            try:
                _column([value], self._rule, kind)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                bad.append(_Bad(row, str(error)))
        return bad

    def _deal_with(self, span: ReadSpan, columns: dict[str, Any], bad: list[_Bad]) -> None:
        place = f"{span.topic}-{span.partition}"
        first = f"offset {columns['offset'][bad[0].row].as_py()}: {bad[0].reason}"
        if self._options.on_error == "fail":
            raise UnreadableValue(
                f"{len(bad)} values of {place} do not fit the `schema`; the first at {first}. Set onError to drop or "
                f"dead-letter to go on without such messages, or read `value` without a schema."
            )
        log.warning("%d values of %s do not fit the schema and are left out; the first at %s", len(bad), place, first)
        if self._options.on_error == "dead-letter":
            self._bury(span, columns, bad)

    def _bury(self, span: ReadSpan, columns: dict[str, Any], bad: list[_Bad]) -> None:
        """Keep the messages as dead letters, before anything of this part is given to Spark."""
        if self._client is None:
            self._client = Client(
                *self._options.servers,
                timeout=self._options.timeout_s,
                delivery_timeout=self._options.timeout_s,
                ca=self._options.trust.ca,
                certificate=self._options.trust.certificate,
                key=self._options.trust.key,
                token_file=self._options.token_file,
            )
        topic = self._options.dead_letter_topic or span.topic + _SUFFIX
        self._client.publish_many(topic, [self._letter(span, columns, at) for at in bad])

    def _letter(self, span: ReadSpan, columns: dict[str, Any], bad: _Bad) -> Draft:
        row = {name: columns[name][bad.row].as_py() for name in ("offset", "timestamp", "key", "headers")}
        told: dict[str, object] = {
            "topic": span.topic,
            "partition": span.partition,
            "offset": row["offset"],
            "reason": bad.reason[:_REASON_CHARS_MAX],
            "time": int(time.time() * 1000),
        }
        if self._options.group is not None:
            told["group"] = self._options.group
        if row["timestamp"] is not None:
            told["timestamp"] = int(row["timestamp"].timestamp() * 1000)
        headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
        headers += [(_PREFIX + name, str(value).encode()) for name, value in told.items()]
        return Draft(columns["value"][bad.row].as_py(), key=row["key"], headers=headers, timestamp=row["timestamp"])


def _column(values: Sequence[Any], rule: Rule, kind: pa.DataType) -> pa.Array:
    """Checked values as an Arrow array."""
    if not isinstance(rule.kind, StructType):
        if isinstance(rule.kind, ArrayType | MapType):
            values = [_plain(value, rule) for value in values]
        return pa.array(values, type=kind)
    columns = []
    for at, (name, each) in enumerate(rule.fields.items()):
        attr = attribute(at)
        inner = [_field(value, attr) for value in values]
        columns.append(_column(inner, each, kind.field(name).type))
    is_null = pa.array([value is None for value in values])
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=is_null)


def _field(value: Any, attr: str) -> Any:
    """A field of a checked value; what was left out is null."""
    found = None if value is None else getattr(value, attr)
    return None if found is msgspec.UNSET else found


def _plain(value: Any, rule: Rule) -> Any:
    """A value within an array or a map as Arrow takes it."""
    if value is None:
        return None
    if isinstance(rule.kind, StructType):
        return {name: _plain(_field(value, attribute(at)), each) for at, (name, each) in enumerate(rule.fields.items())}
    if rule.item is None:
        return value
    if isinstance(rule.kind, ArrayType):
        return [_plain(item, rule.item) for item in value]
    return [(key, _plain(item, rule.item)) for key, item in value.items()]
