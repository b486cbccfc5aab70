"""From what a file says to a `Definition`, with every problem found at its line before anything runs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from penstock.pipelines.definition import (
    DEFAULT_SERVERS,
    NAME_PATTERN,
    TABLE_PATTERN,
    Definition,
    Expectation,
    Otherwise,
    PythonStep,
    Sink,
    Source,
    SqlStep,
    Trigger,
    TriggerKind,
    Watermark,
)
from penstock.pipelines.text import Faults, Place, Text, did_you_mean

T = TypeVar("T")

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
    document: Text, name: str, steps: Mapping[str, PythonStep] | None = None, *, ready: Iterable[str] = ()
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

    def definition(self, document: Text, steps: dict[str, PythonStep]) -> Definition:
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

    def _of_ready(self, head: dict[str, Text], definition: Definition) -> None:
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

    def _source(self, name: str, text: Text) -> Source:
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
        return Source(
            name=name,
            format=kind,
            options=self._options(entries),
            watermark=watermark,
            is_stream=is_stream,
            place=text.place,
        )

    def _step(self, name: str, text: Text) -> SqlStep:
        sql = self._text(text, "").strip().rstrip(";")
        if sql and not re.match(r"(?is)\s*(--[^\n]*\n\s*)*(select|with|values|from|table)\b", sql):
            self._faults.add(text.place, f"step {name!r} is no query: write `SELECT …`.")
        return SqlStep(name=name, sql=sql, place=text.place)

    def _sink(self, name: str, text: Text) -> Sink:
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

    def _expectations(self, text: Text | None) -> dict[str, tuple[Expectation, ...]]:
        found: dict[str, tuple[Expectation, ...]] = {}
        for table, entries in ({} if text is None else self._mapping(text, "`expectations`")).items():
            if not isinstance(entries.value, list):
                self._faults.add(entries.place, f"expectations of {table!r} are a list: `- check: CONDITION`.")
                continue
            found[table] = tuple(self._expectation(each) for each in entries.value)
        return found

    def _expectation(self, text: Text) -> Expectation:
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

    def _trigger(self, text: Text) -> Trigger:
        if isinstance(text.value, dict):
            self._known(text.value, ("every",))
            if "every" not in text.value:
                self._faults.add(text.place, "a trigger is `continuous`, `available-now` or `every: 10 seconds`.")
                return Trigger()
            return Trigger(TriggerKind.EVERY, self._interval(text.value["every"]))
        kinds = [TriggerKind.CONTINUOUS.value, TriggerKind.ONCE.value]
        return Trigger(TriggerKind(self._one_of(text, kinds, TriggerKind.CONTINUOUS.value)))

    def _watermark(self, text: Text) -> Watermark | None:
        entries = self._mapping(text, "a watermark")
        self._known(entries, ("column", "delay"))
        if entries.keys() != {"column", "delay"}:
            self._faults.add(text.place, "a watermark has a column and a delay: `{column: at, delay: 10 seconds}`.")
            return None
        return Watermark(self._text(entries["column"], ""), self._interval(entries["delay"]))

    # -- how parts fit ------------------------------------------------------------------------------------------------

    def _whole(self, definition: Definition, place: Place) -> None:
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

    def _table(self, name: str, definition: Definition, place: Place, lead: str = "") -> None:
        if name and name not in definition.tables:
            self._faults.add(
                place, f"{lead}{name!r}, which is no source or step.{did_you_mean(name, definition.tables)}"
            )

    # -- values -------------------------------------------------------------------------------------------------------

    def _each(self, text: Text | None, what: str, read: Callable[[str, Text], T]) -> dict[str, T]:
        found = {}
        for name, value in ({} if text is None else self._mapping(text, f"`{what}`")).items():
            if not re.fullmatch(TABLE_PATTERN, name):
                self._faults.add(value.place, f"{name!r} is no name for SQL: use letters, digits and _.")
            found[name] = read(name, value)
        return found

    def _mapping(self, text: Text, what: str) -> dict[str, Text]:
        if isinstance(text.value, dict):
            return text.value
        self._faults.add(text.place, f"{what} is a mapping of names to values, not {text.kind}.")
        return {}

    def _known(self, entries: Mapping[str, Text], known: tuple[str, ...]) -> None:
        for key, value in entries.items():
            if key not in known:
                place = value.named_at or value.place
                self._faults.add(place, f"{key!r} is not known here.{did_you_mean(key, known)}")

    def _text(self, text: Text | None, default: str) -> str:
        if text is None:
            return default
        if isinstance(text.value, (dict, list)) or text.value is None:
            self._faults.add(text.place, f"a text is needed here, not {text.kind}.")
            return default
        return _spelled(text.value)

    def _flag(self, text: Text | None, *, default: bool) -> bool:
        if text is None:
            return default
        if not isinstance(text.value, bool):
            self._faults.add(text.place, f"true or false is needed here, not {text.kind}.")
            return default
        return text.value

    def _one_of(self, text: Text | None, known: list[str] | tuple[str, ...], default: str) -> str:
        given = self._text(text, default)
        if given not in known:
            assert text is not None
            self._faults.add(text.place, f"{given!r} is not one of {', '.join(known)}.")
            return default
        return given

    def _named(self, text: Text, pattern: str, words: str) -> str:
        name = self._text(text, "")
        if not re.fullmatch(pattern, name):
            self._faults.add(text.place, f"{name!r} is no name: use {words}, and begin with a letter.")
        return name

    def _names(self, text: Text) -> tuple[str, ...]:
        each = text.value if isinstance(text.value, list) else [text]
        return tuple(self._text(item, "") for item in each)

    def _interval(self, text: Text) -> str:
        given = self._text(text, "").strip()
        if not _INTERVAL.fullmatch(given):
            self._faults.add(text.place, f"{given!r} is no span of time: write it as `10 seconds` or `5 minutes`.")
            return "1 seconds"
        number = re.match(r"[\d.]+", given)
        assert number is not None
        unit = given[number.end() :].strip().lower()
        return f"{number[0]} {_UNITS.get(unit, unit)}"

    def _options(self, entries: Mapping[str, Text]) -> dict[str, str]:
        return {key: self._option(value) for key, value in entries.items()}

    def _option(self, text: Text) -> str:
        if isinstance(text.value, list):
            return ",".join(self._text(each, "") for each in text.value)
        return self._text(text, "")

    def _plain_options(self, text: Text | None, what: str) -> dict[str, str]:
        return {} if text is None else self._options(self._mapping(text, f"`{what}`"))


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
