"""A pipeline as declared: where rows come from, what is done with them, where they go, and when.

`Pipeline` declares one in Python; `definition_of` reads one from a file, with every problem found at its line before
anything runs. Both give a `Definition`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from penstock.errors import InvalidPipeline
from penstock.pipelines.text import Faults, FilePlace, FileValue, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME_PATTERN: Final = r"[A-Za-z_][A-Za-z0-9_-]{0,99}"
TABLE_PATTERN: Final = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
DEFAULT_SERVERS: Final = "http://127.0.0.1:8080"

Step: TypeAlias = "Callable[..., DataFrame]"
_Step = TypeVar("_Step", bound=Callable[..., Any])

_NOWHERE: Final = FilePlace(1, 1)


class Otherwise(Enum):
    """What becomes of a row that does not meet an expectation."""

    DROP = "drop"
    FAIL = "fail"
    DEAD_LETTER = "dead-letter"


class TriggerKind(Enum):
    ONCE = "available-now"  # all there is now, then the end
    EVERY = "every"
    CONTINUOUS = "continuous"  # one micro-batch after the other


@dataclass(frozen=True, slots=True)
class Trigger:
    kind: TriggerKind = TriggerKind.CONTINUOUS
    interval: str = ""  # as Spark reads it: "10 seconds"


@dataclass(frozen=True, slots=True)
class Watermark:
    column: str
    delay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSource:
    """Rows to begin with. ``is_stream``: they keep coming; else they are a table, read anew for each run."""

    name: str
    format: str = "penstock"
    options: Mapping[str, str] = field(default_factory=dict)
    watermark: Watermark | None = None
    is_stream: bool = True
    place: FilePlace = _NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A condition in SQL that every row has to meet."""

    name: str
    check: str
    otherwise: Otherwise = Otherwise.FAIL
    topic: str = ""  # of dead letters
    place: FilePlace = _NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Where the rows of ``rows`` go: to a topic, or to anything that Spark writes."""

    name: str
    rows: str
    format: str = "penstock"
    options: Mapping[str, str] = field(default_factory=dict)
    mode: str = "append"
    columns: Mapping[str, str] = field(default_factory=dict)  # column of the sink: SQL expression
    partition_by: tuple[str, ...] = ()
    place: FilePlace = _NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlStep:
    name: str
    sql: str
    place: FilePlace = _NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonStep:
    """A function; its parameters are named as the tables that it reads."""

    name: str
    function: Step
    place: FilePlace = _NOWHERE


@dataclass(slots=True, kw_only=True)
class Definition:
    name: str
    servers: str = DEFAULT_SERVERS
    sources: dict[str, PipelineSource] = field(default_factory=dict)
    steps: dict[str, SqlStep | PythonStep] = field(default_factory=dict)
    expectations: dict[str, tuple[Expectation, ...]] = field(default_factory=dict)
    sinks: dict[str, Sink] = field(default_factory=dict)
    trigger: Trigger = Trigger()
    checkpoint: str = ""
    spark: dict[str, str] = field(default_factory=dict)
    uses: str = ""  # a ready pipeline
    options: dict[str, Any] = field(default_factory=dict)  # of the ready pipeline
    file: str = ""

    @property
    def tables(self) -> list[str]:
        """What steps and sinks can read, by name."""
        return [*self.sources, *self.steps]


class Pipeline:
    """A pipeline in Python: functions from DataFrames to DataFrames.

    ```python
    from penstock.pipelines import Pipeline

    orders = Pipeline("paid-orders")
    orders.source("orders", topics="orders", schema="id STRING, amount DOUBLE")


    @orders.step
    def paid(orders):
        return orders.where("amount > 0")


    orders.sink("paid", topic="paid-orders", key="id")
    ```
    """

    def __init__(
        self,
        name: str,
        *,
        servers: str = DEFAULT_SERVERS,
        checkpoint: str = "",
        trigger: str | Mapping[str, str] = "continuous",
        spark: Mapping[str, str] | None = None,
    ) -> None:
        self._head: dict[str, Any] = {
            "pipeline": name,
            "servers": servers,
            "checkpoint": checkpoint,
            "trigger": trigger,
            "spark": dict(spark or {}),
        }
        self._place = _caller()
        self._sources: dict[str, FileValue] = {}
        self._steps: dict[str, PythonStep] = {}
        self._expectations: dict[str, list[FileValue]] = {}
        self._sinks: dict[str, FileValue] = {}

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}>"

    @property
    def name(self) -> str:
        return str(self._head["pipeline"])

    def source(self, name: str, **options: Any) -> None:
        """Rows to begin with; options as under ``sources`` of a YAML file."""
        self._add(self._sources, name, FileValue.of(options, _caller()))

    def step(self, function: _Step) -> _Step:
        """A table made by a function: its parameters are the tables that it reads, its name is the new one's."""
        place = FilePlace(function.__code__.co_firstlineno, 1)
        self._add(self._steps, function.__name__, PythonStep(name=function.__name__, function=function, place=place))
        return function

    def expect(self, table: str, check: str, *, name: str = "", otherwise: str = "fail", topic: str = "") -> None:
        """Have every row of a table meet a condition in SQL."""
        entry = {"name": name or check, "check": check, "otherwise": otherwise} | ({"topic": topic} if topic else {})
        self._expectations.setdefault(table, []).append(FileValue.of(entry, _caller()))

    def sink(self, rows: str, *, name: str = "", **options: Any) -> None:
        """Where the rows of a table go; options as under ``sinks`` of a YAML file."""
        self._add(self._sinks, name or rows, FileValue.of({"from": rows} | options, _caller()))

    def document(self) -> tuple[FileValue, dict[str, PythonStep]]:
        """What a YAML file would say, and the functions that it could not."""
        head = {key: FileValue.of(value, self._place) for key, value in self._head.items() if value}
        body: dict[str, dict[str, Any]] = {
            "sources": self._sources,
            "expectations": {table: FileValue(each, each[0].place) for table, each in self._expectations.items()},
            "sinks": self._sinks,
        }
        parts = {key: FileValue(value, self._place) for key, value in body.items() if value}
        return FileValue(head | parts, self._place), dict(self._steps)

    def _add(self, where: dict[str, Any], name: str, value: Any) -> None:
        if name in where:
            raise InvalidPipeline(f"Pipeline {self.name!r} has {name!r} twice. Give one of them another name.")
        where[name] = value


def _caller() -> FilePlace:
    """The line of a pipeline's file that called the method which asks."""
    return FilePlace(sys._getframe(2).f_lineno, 1)


T = TypeVar("T")

# -- from a file -------------------------------------------------------------------------------------------------------

_HEAD: Final = ("pipeline", "servers", "checkpoint", "trigger", "spark")
_BODY: Final = ("sources", "steps", "expectations", "sinks")
_READY: Final = ("uses", "with")
_SINK_COLUMNS: Final = ("key", "value", "headers", "partition", "timestamp", "priority", "deliver_at", "topic")
_TOPICS: Final = {"topics", "topicspattern", "subscribe", "subscribepattern", "assign"}
_MODES: Final = ("append", "update", "complete")
_INTERVAL: Final = re.compile(
    r"\d+(\.\d+)?\s*(ms|s|m|h|d|milliseconds?|seconds?|minutes?|hours?|days?|weeks?)", re.IGNORECASE
)
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def definition_of(
    document: FileValue, name: str, steps: Mapping[str, PythonStep] | None = None, *, ready: Iterable[str] = ()
) -> Definition:
    """The pipeline of a document. ``steps`` are those in Python; ``ready`` names the ready pipelines."""
    faults = Faults(name)
    definition = _Check(faults, tuple(ready)).definition(document, dict(steps or {}))
    faults.raise_any()
    definition.file = name
    return definition


class _Check:
    def __init__(self, faults: Faults, ready: tuple[str, ...]) -> None:
        self._faults = faults
        self._ready = ready

    def definition(self, document: FileValue, steps: dict[str, PythonStep]) -> Definition:
        head = self._mapping(document, "a pipeline")
        self._known(head, (*_HEAD, *_BODY, *_READY))
        definition = Definition(name="")
        if "pipeline" not in head:
            self._faults.add(document.place, "the pipeline has no name: begin with `pipeline: NAME`.")
        else:
            definition.name = self._named(head["pipeline"], NAME_PATTERN, "letters, digits, - and _")
        definition.servers = self._text(head.get("servers"), DEFAULT_SERVERS)
        definition.checkpoint = self._text(head.get("checkpoint"), "")
        definition.trigger = self._trigger(head["trigger"]) if "trigger" in head else Trigger()
        definition.spark = self._plain_options(head.get("spark"), "spark")
        if "uses" in head or "with" in head:
            self._of_ready(head, definition)
            return definition
        definition.sources = self._each(head.get("sources"), "sources", self._source)
        definition.steps = {**steps, **self._each(head.get("steps"), "steps", self._step)}
        definition.sinks = self._each(head.get("sinks"), "sinks", self._sink)
        definition.expectations = self._expectations(head.get("expectations"))
        self._whole(definition, document.place)
        return definition

    # -- parts --------------------------------------------------------------------------------------------------------

    def _of_ready(self, head: dict[str, FileValue], definition: Definition) -> None:
        for key in _BODY:
            if key in head:
                self._faults.add(head[key].place, f"a ready pipeline (`uses`) has no {key} of its own: remove them.")
        if "uses" not in head:
            self._faults.add(head["with"].place, "`with` belongs to a ready pipeline: name it with `uses`.")
            return
        definition.uses = self._text(head["uses"], "")
        if self._ready and definition.uses not in self._ready:
            hint = did_you_mean(definition.uses, self._ready)
            self._faults.add(head["uses"].place, f"there is no ready pipeline {definition.uses!r}.{hint}")
        given = head.get("with")
        definition.options = {} if given is None or given.value is None else self._mapping(given, "`with`")

    def _source(self, name: str, text: FileValue) -> PipelineSource:
        entries = dict(self._mapping(text, f"source {name!r}"))
        kind = self._text(entries.pop("format", None), "penstock")
        watermark = self._watermark(entries.pop("watermark")) if "watermark" in entries else None
        is_stream = self._flag(entries.pop("stream", None), default=kind == "penstock")
        if kind == "penstock" and not {name.lower() for name in entries} & _TOPICS:
            self._faults.add(text.place, f"source {name!r} names no topic: add `topics: NAME`.")
        if watermark is not None and not is_stream:
            self._faults.add(
                text.place, f"source {name!r} is a table, and has no watermark. Remove it, or `stream: true`."
            )
        return PipelineSource(
            name=name,
            format=kind,
            options=self._options(entries),
            watermark=watermark,
            is_stream=is_stream,
            place=text.place,
        )

    def _step(self, name: str, text: FileValue) -> SqlStep:
        sql = self._text(text, "").strip().rstrip(";")
        if sql and not re.match(r"(?is)\s*(--[^\n]*\n\s*)*(select|with|values|from|table)\b", sql):
            self._faults.add(text.place, f"step {name!r} is no query: write `SELECT …`.")
        return SqlStep(name=name, sql=sql, place=text.place)

    def _sink(self, name: str, text: FileValue) -> Sink:
        entries = dict(self._mapping(text, f"sink {name!r}"))
        if "from" not in entries:
            self._faults.add(text.place, f"sink {name!r} does not say which rows it takes: add `from: TABLE`.")
        rows = self._text(entries.pop("from", None), "")
        kind = self._text(entries.pop("format", None), "penstock")
        mode = self._one_of(entries.pop("mode", None), _MODES, "append")
        columns: dict[str, str] = {}
        partition_by: tuple[str, ...] = ()
        if kind == "penstock":
            if "topic" not in entries:
                self._faults.add(text.place, f"sink {name!r} names no topic: add `topic: NAME`.")
            columns = {each: self._text(entries.pop(each), "") for each in _SINK_COLUMNS[:-1] if each in entries}
        elif "partitionBy" in entries:
            partition_by = self._names(entries.pop("partitionBy"))
        return Sink(
            name=name,
            rows=rows,
            format=kind,
            options=self._options(entries),
            mode=mode,
            columns=columns,
            partition_by=partition_by,
            place=text.place,
        )

    def _expectations(self, text: FileValue | None) -> dict[str, tuple[Expectation, ...]]:
        found: dict[str, tuple[Expectation, ...]] = {}
        for table, entries in ({} if text is None else self._mapping(text, "`expectations`")).items():
            if not isinstance(entries.value, list):
                self._faults.add(entries.place, f"expectations of {table!r} are a list: `- check: CONDITION`.")
                continue
            found[table] = tuple(self._expectation(each) for each in entries.value)
        return found

    def _expectation(self, text: FileValue) -> Expectation:
        if isinstance(text.value, str):
            return Expectation(name=text.value, check=text.value, place=text.place)
        entries = self._mapping(text, "an expectation")
        self._known(entries, ("name", "check", "otherwise", "topic"))
        if "check" not in entries:
            self._faults.add(text.place, "this expectation has no `check: CONDITION`.")
        check = self._text(entries.get("check"), "")
        otherwise = Otherwise(self._one_of(entries.get("otherwise"), [each.value for each in Otherwise], "fail"))
        topic = self._text(entries.get("topic"), "")
        if (otherwise is Otherwise.DEAD_LETTER) != bool(topic):
            self._faults.add(text.place, "`otherwise: dead-letter` and `topic: NAME` belong together.")
        return Expectation(
            name=self._text(entries.get("name"), check), check=check, otherwise=otherwise, topic=topic, place=text.place
        )

    def _trigger(self, text: FileValue) -> Trigger:
        if isinstance(text.value, dict):
            self._known(text.value, ("every",))
            if "every" not in text.value:
                self._faults.add(text.place, "a trigger is `continuous`, `available-now` or `every: 10 seconds`.")
                return Trigger()
            return Trigger(TriggerKind.EVERY, self._interval(text.value["every"]))
        kinds = [TriggerKind.CONTINUOUS.value, TriggerKind.ONCE.value]
        return Trigger(TriggerKind(self._one_of(text, kinds, TriggerKind.CONTINUOUS.value)))

    def _watermark(self, text: FileValue) -> Watermark | None:
        entries = self._mapping(text, "a watermark")
        self._known(entries, ("column", "delay"))
        if entries.keys() != {"column", "delay"}:
            self._faults.add(text.place, "a watermark has a column and a delay: `{column: at, delay: 10 seconds}`.")
            return None
        return Watermark(self._text(entries["column"], ""), self._interval(entries["delay"]))

    # -- how parts fit ------------------------------------------------------------------------------------------------

    def _whole(self, definition: Definition, place: FilePlace) -> None:
        if not definition.sources:
            self._faults.add(place, "the pipeline has no `sources`.")
        if not definition.sinks:
            self._faults.add(place, "the pipeline has no `sinks`.")
        for name, step in definition.steps.items():
            if name in definition.sources:
                self._faults.add(step.place, f"{name!r} is a source already: give the step another name.")
            if isinstance(step, PythonStep):
                self._parameters(step, definition)
        for sink in definition.sinks.values():
            self._table(sink.rows, definition, sink.place)
        for table, expectations in definition.expectations.items():
            if expectations:
                self._table(table, definition, expectations[0].place)
        if definition.sources and all(not source.is_stream for source in definition.sources.values()):
            self._faults.add(place, "every source is a table: one of them has to be a stream.")

    def _parameters(self, step: PythonStep, definition: Definition) -> None:
        for parameter in inspect.signature(step.function).parameters:
            if parameter != "spark":
                self._table(parameter, definition, step.place, f"step {step.name!r} reads ")

    def _table(self, name: str, definition: Definition, place: FilePlace, lead: str = "") -> None:
        if name and name not in definition.tables:
            self._faults.add(
                place, f"{lead}{name!r}, which is no source or step.{did_you_mean(name, definition.tables)}"
            )

    # -- values -------------------------------------------------------------------------------------------------------

    def _each(self, text: FileValue | None, what: str, read: Callable[[str, FileValue], T]) -> dict[str, T]:
        found = {}
        for name, value in ({} if text is None else self._mapping(text, f"`{what}`")).items():
            if not re.fullmatch(TABLE_PATTERN, name):
                self._faults.add(value.place, f"{name!r} is no name for SQL: use letters, digits and _.")
            found[name] = read(name, value)
        return found

    def _mapping(self, text: FileValue, what: str) -> dict[str, FileValue]:
        if isinstance(text.value, dict):
            return text.value
        self._faults.add(text.place, f"{what} is a mapping of names to values, not {text.kind}.")
        return {}

    def _known(self, entries: Mapping[str, FileValue], known: tuple[str, ...]) -> None:
        for key, value in entries.items():
            if key not in known:
                place = value.named_at or value.place
                self._faults.add(place, f"{key!r} is not known here.{did_you_mean(key, known)}")

    def _text(self, text: FileValue | None, default: str) -> str:
        if text is None:
            return default
        if isinstance(text.value, (dict, list)) or text.value is None:
            self._faults.add(text.place, f"a text is needed here, not {text.kind}.")
            return default
        return _spelled(text.value)

    def _flag(self, text: FileValue | None, *, default: bool) -> bool:
        if text is None:
            return default
        if not isinstance(text.value, bool):
            self._faults.add(text.place, f"true or false is needed here, not {text.kind}.")
            return default
        return text.value

    def _one_of(self, text: FileValue | None, known: list[str] | tuple[str, ...], default: str) -> str:
        given = self._text(text, default)
        if given not in known:
            assert text is not None
            self._faults.add(text.place, f"{given!r} is not one of {', '.join(known)}.")
            return default
        return given

    def _named(self, text: FileValue, pattern: str, words: str) -> str:
        name = self._text(text, "")
        if not re.fullmatch(pattern, name):
            self._faults.add(text.place, f"{name!r} is no name: use {words}, and begin with a letter.")
        return name

    def _names(self, text: FileValue) -> tuple[str, ...]:
        each = text.value if isinstance(text.value, list) else [text]
        return tuple(self._text(item, "") for item in each)

    def _interval(self, text: FileValue) -> str:
        given = self._text(text, "").strip()
        if not _INTERVAL.fullmatch(given):
            self._faults.add(text.place, f"{given!r} is no span of time: write it as `10 seconds` or `5 minutes`.")
            return "1 seconds"
        number = re.match(r"[\d.]+", given)
        assert number is not None
        unit = given[number.end() :].strip().lower()
        return f"{number[0]} {_UNITS.get(unit, unit)}"

    def _options(self, entries: Mapping[str, FileValue]) -> dict[str, str]:
        return {key: self._option(value) for key, value in entries.items()}

    def _option(self, text: FileValue) -> str:
        if isinstance(text.value, list):
            return ",".join(self._text(each, "") for each in text.value)
        return self._text(text, "")

    def _plain_options(self, text: FileValue | None, what: str) -> dict[str, str]:
        return {} if text is None else self._options(self._mapping(text, f"`{what}`"))


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
