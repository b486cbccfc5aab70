"""A pipeline as declared: where rows come from, what is done with them, where they go, and when."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from penstock.errors import InvalidPipeline
from penstock.pipelines.text import Place, Text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME_PATTERN: Final = r"[A-Za-z_][A-Za-z0-9_-]{0,99}"
TABLE_PATTERN: Final = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
DEFAULT_SERVERS: Final = "http://127.0.0.1:8080"

Step: TypeAlias = "Callable[..., DataFrame]"
_Step = TypeVar("_Step", bound=Callable[..., Any])

_NOWHERE: Final = Place(1, 1)


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
class Source:
    """Rows to begin with. ``is_stream``: they keep coming; else they are a table, read anew for each run."""

    name: str
    format: str = "penstock"
    options: Mapping[str, str] = field(default_factory=dict)
    watermark: Watermark | None = None
    is_stream: bool = True
    place: Place = _NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A condition in SQL that every row has to meet."""

    name: str
    check: str
    otherwise: Otherwise = Otherwise.FAIL
    topic: str = ""  # of dead letters
    place: Place = _NOWHERE


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
    place: Place = _NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlStep:
    name: str
    sql: str
    place: Place = _NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonStep:
    """A function; its parameters are named as the tables that it reads."""

    name: str
    function: Step
    place: Place = _NOWHERE


@dataclass(slots=True, kw_only=True)
class Definition:
    name: str
    servers: str = DEFAULT_SERVERS
    sources: dict[str, Source] = field(default_factory=dict)
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
        self._sources: dict[str, Text] = {}
        self._steps: dict[str, PythonStep] = {}
        self._expectations: dict[str, list[Text]] = {}
        self._sinks: dict[str, Text] = {}

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}>"

    @property
    def name(self) -> str:
        return str(self._head["pipeline"])

    def source(self, name: str, **options: Any) -> None:
        """Rows to begin with; options as under ``sources`` of a YAML file."""
        self._add(self._sources, name, Text.of(options, _caller()))

    def step(self, function: _Step) -> _Step:
        """A table made by a function: its parameters are the tables that it reads, its name is the new one's."""
        place = Place(function.__code__.co_firstlineno, 1)
        self._add(self._steps, function.__name__, PythonStep(name=function.__name__, function=function, place=place))
        return function

    def expect(self, table: str, check: str, *, name: str = "", otherwise: str = "fail", topic: str = "") -> None:
        """Have every row of a table meet a condition in SQL."""
        entry = {"name": name or check, "check": check, "otherwise": otherwise} | ({"topic": topic} if topic else {})
        self._expectations.setdefault(table, []).append(Text.of(entry, _caller()))

    def sink(self, rows: str, *, name: str = "", **options: Any) -> None:
        """Where the rows of a table go; options as under ``sinks`` of a YAML file."""
        self._add(self._sinks, name or rows, Text.of({"from": rows} | options, _caller()))

    def document(self) -> tuple[Text, dict[str, PythonStep]]:
        """What a YAML file would say, and the functions that it could not."""
        head = {key: Text.of(value, self._place) for key, value in self._head.items() if value}
        body: dict[str, dict[str, Any]] = {
            "sources": self._sources,
            "expectations": {table: Text(each, each[0].place) for table, each in self._expectations.items()},
            "sinks": self._sinks,
        }
        parts = {key: Text(value, self._place) for key, value in body.items() if value}
        return Text(head | parts, self._place), dict(self._steps)

    def _add(self, where: dict[str, Any], name: str, value: Any) -> None:
        if name in where:
            raise InvalidPipeline(f"Pipeline {self.name!r} has {name!r} twice. Give one of them another name.")
        where[name] = value


def _caller() -> Place:
    """The line of a pipeline's file that called the method which asks."""
    return Place(sys._getframe(2).f_lineno, 1)
