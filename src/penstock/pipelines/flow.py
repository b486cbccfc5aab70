"""A pipeline as Spark runs it: a view for each source and step, a streaming query for each sink.

Everything but the queries is lazy, so building a flow also checks SQL and column names, without reading a row.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import InvalidPipeline
from penstock.pipelines.definition import (
    Definition,
    Expectation,
    Otherwise,
    PipelineSource,
    PythonStep,
    Sink,
    SqlStep,
    Trigger,
    TriggerKind,
)
from penstock.pipelines.places import beside, within
from penstock.pipelines.text import FilePlace, FileProblem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

META: Final = ("key", "topic", "partition", "offset", "timestamp", "headers")  # beside what a schema reads of a value

# The same as columns of a table with a schema: they tell of the message that a row was, and are not written with it.
_ABOUT: Final = tuple(f"_{name}" for name in META)
_WAS: Final = ("topic", "partition", "offset")
_SOURCES_S: Final = 30.0
_BEGINNING: Final = ("Initializing StreamExecution", "Initializing sources", "Getting offsets from ")
_UNMET: Final = "unmet"  # begins the names of what is observed


class Branch(NamedTuple):
    """Rows and where they go: one streaming query."""

    sink: Sink
    rows: DataFrame


class Flow:
    """The tables and queries of a pipeline, in one session."""

    def __init__(self, definition: Definition, spark: SparkSession) -> None:
        self.definition = definition
        self._spark = spark
        self._tables: dict[str, DataFrame] = {}
        self.branches: list[Branch] = []
        self.begins: list[str] = []  # sources that begin at the earliest messages, because their file does not say
        self._build()

    # -- tables -------------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        for source in self.definition.sources.values():
            with self._blaming(source.place):
                self._put(source.name, self._read(source))
        for step in self.definition.steps.values():
            with self._blaming(step.place):
                self._put(step.name, self._do(step))
        for sink in self.definition.sinks.values():
            with self._blaming(sink.place):
                if sink.mode == "update" and sink.format == "penstock" and not hasattr(self._spark, "sparkContext"):
                    raise InvalidPipeline("over Spark Connect, topics take no `mode: update`: use --master.")
                self.branches.append(Branch(sink, self._shaped(sink, self._tables[sink.rows])))

    def _put(self, name: str, rows: DataFrame) -> None:
        for number, expectation in enumerate(self.definition.expectations.get(name, ())):
            with self._blaming(expectation.place):
                rows = self._expecting(rows, expectation, name, number)
        _ = rows.schema  # over Connect, nothing is analysed before it is asked for
        self._tables[name] = rows
        rows.createOrReplaceTempView(name)

    def _read(self, source: PipelineSource) -> DataFrame:
        options = dict(source.options)
        reader: Any = self._spark.readStream if source.is_stream else self._spark.read
        reader = reader.format(source.format)
        if source.format == "penstock":
            options.setdefault("servers", self.definition.servers)
            if source.is_stream and not any(name.lower().startswith("starting") for name in options):
                options["startingOffsets"] = "earliest"
                self.begins.append(source.name)
        elif "schema" in options:
            reader = reader.schema(options.pop("schema"))
        if "path" in options:
            options["path"] = beside(self.definition, options["path"])
        rows: DataFrame = reader.options(**options).load()
        if source.format == "penstock" and "schema" in options:
            about = (rows[name].alias(f"_{name}") for name in META if name in rows.columns)
            rows = rows.select("value.*", *about)
        if source.watermark is not None:
            rows = rows.withWatermark(source.watermark.column, source.watermark.delay)
        return rows

    def _do(self, step: SqlStep | PythonStep) -> DataFrame:
        if isinstance(step, SqlStep):
            return self._spark.sql(step.sql)
        tables: dict[str, Any] = {"spark": self._spark} | self._tables
        wanted = inspect.signature(step.function).parameters
        missing = [name for name in wanted if name not in tables]
        if missing:
            raise InvalidPipeline(f"step {step.name!r} reads {missing[0]!r}, which comes after it: change their order.")
        rows = step.function(**{name: tables[name] for name in wanted})
        if not hasattr(rows, "createOrReplaceTempView"):
            raise InvalidPipeline(f"step {step.name!r} has to return a DataFrame, not {type(rows).__name__}.")
        return rows

    def _expecting(self, rows: DataFrame, expectation: Expectation, table: str, number: int) -> DataFrame:
        """Rows with what does not meet an expectation counted, and treated as it says."""
        from pyspark.sql import functions as sql

        is_met = sql.expr(f"coalesce({expectation.check}, false)")
        counted = rows.observe(f"{_UNMET}:{table}:{number}", sql.count_if(~is_met).alias(expectation.name))
        if expectation.otherwise is Otherwise.FAIL:
            words = f"A row of {table!r} does not meet {expectation.name!r} ({expectation.check}): "
            broken = sql.raise_error(sql.concat(sql.lit(words), sql.to_json(sql.struct("*"))))
            return counted.where(sql.when(is_met, is_met).otherwise(broken.cast("boolean")))
        if expectation.otherwise is Otherwise.DEAD_LETTER:
            name, target = f"{table}_unmet_{number}", {"topic": expectation.topic}
            columns = {"headers": "_headers"}
            sink = Sink(name=name, rows=table, options=target, columns=columns, place=expectation.place)
            dead = rows.where(~is_met).withColumn("_headers", _letter_headers(rows, f"{table}: {expectation.name}"))
            self.branches.append(Branch(sink, self._shaped(sink, dead)))
        return counted.where(is_met)

    def _shaped(self, sink: Sink, rows: DataFrame) -> DataFrame:
        """Rows with the columns that a topic takes; for anything else, as they are."""
        from pyspark.sql import functions as sql

        if sink.format != "penstock":
            return rows
        columns = {name: sql.expr(expression).alias(name) for name, expression in sink.columns.items()}
        kinds = dict(rows.dtypes)
        if "value" not in columns:
            is_plain = kinds.get("value") in ("string", "binary")
            whole = [name for name in rows.columns if name not in _ABOUT] or rows.columns
            columns["value"] = sql.col("value") if is_plain else sql.to_json(sql.struct(*whole)).alias("value")
        for name in ("key", "_key"):
            if "key" not in columns and kinds.get(name) in ("string", "binary"):
                columns["key"] = sql.col(name).alias("key")
        return rows.select(*columns.values())

    # -- queries ------------------------------------------------------------------------------------------------------

    def start(self, checkpoint: str, trigger: Trigger) -> list[StreamingQuery]:
        """Begin to run, one query for each sink; all of them or none."""
        started: list[StreamingQuery] = []
        try:
            for branch in self.branches:
                started.append(self._start(branch, checkpoint, trigger))
                _await_sources(started[-1])
        except BaseException:
            for query in started:
                query.stop()
            raise
        return started

    def _start(self, branch: Branch, checkpoint: str, trigger: Trigger) -> StreamingQuery:
        sink = branch.sink
        options = dict(sink.options)
        if sink.format == "penstock":
            options.setdefault("servers", self.definition.servers)
        if "path" in options:
            options["path"] = beside(self.definition, options["path"])
        where = within(checkpoint, sink.name)
        writer = branch.rows.writeStream.queryName(sink.name).option("checkpointLocation", where)
        if sink.mode == "update" and sink.format == "penstock":
            # Spark writes changed rows to Python sinks only batch by batch.
            writer = writer.outputMode("update").foreachBatch(
                _batch_writer(options, f"{self.definition.name}.{sink.name}")
            )
        else:
            writer = writer.format(sink.format).outputMode(sink.mode).options(**options)
            if sink.partition_by:
                writer = writer.partitionBy(*sink.partition_by)
        with self._blaming(sink.place):
            return triggered(writer, trigger).start()

    @contextmanager
    def _blaming(self, place: FilePlace) -> Iterator[None]:
        """Have what Spark says about a part of the file name its line."""
        try:
            yield
        except InvalidPipeline as error:
            if re.match(r"[^\n]*:\d+:\d+: ", error.message):
                raise
            raise self._blamed(place, error.message) from error
        except Exception as error:
            if not _is_of_spark(error):
                raise
            raise self._blamed(place, _first_words(error)) from error

    def _blamed(self, place: FilePlace, words: str) -> InvalidPipeline:
        return InvalidPipeline(FileProblem(place, words).told_of(self.definition.file or self.definition.name))


def unmet_of(observed: dict[str, Any]) -> dict[str, int]:
    """How many rows did not meet each expectation, of what a batch observed."""
    found: dict[str, int] = {}
    for name, row in observed.items():
        if name.startswith(f"{_UNMET}:"):
            for expectation, count in _observed(row).items():
                found[expectation] = found.get(expectation, 0) + int(count)
    return found


def _observed(row: Any) -> dict[str, Any]:
    """A row of what was observed, by column. Over Connect it comes as its values and the schema that names them."""
    columns: dict[str, Any] = row.asDict()
    if columns.keys() == {"values", "schema"} and isinstance(columns["schema"], dict):
        names = [column["name"] for column in columns["schema"]["fields"]]
        return dict(zip(names, columns["values"], strict=True))
    return columns


def _letter_headers(rows: DataFrame, reason: str) -> Any:
    """What tells of a dead letter, as queues have it: why, and where the message was, if the row still knows."""
    from pyspark.sql import functions as sql

    known = {name: column for name in _WAS for column in (f"_{name}", name) if column in rows.columns}
    texts = {"reason": sql.lit(reason)} | {name: sql.col(column).cast("string") for name, column in known.items()}
    pairs = [
        sql.struct(sql.lit(f"penstock-dlq-{name}").alias("key"), text.cast("binary").alias("value"))
        for name, text in texts.items()
    ]
    return sql.concat("_headers", sql.array(*pairs)) if "_headers" in rows.columns else sql.array(*pairs)


def triggered(writer: DataStreamWriter, trigger: Trigger) -> DataStreamWriter:
    """The same writer, that runs when it should."""
    match trigger.kind:
        case TriggerKind.ONCE:
            return writer.trigger(availableNow=True)
        case TriggerKind.EVERY:
            return writer.trigger(processingTime=trigger.interval)
        case TriggerKind.CONTINUOUS:
            return writer


def _await_sources(query: StreamingQuery) -> None:
    """Wait until a query has its sources: each starts a process, for which Spark has ten seconds of patience."""
    deadline = time.monotonic() + _SOURCES_S
    while query.isActive and not query.recentProgress and time.monotonic() < deadline:
        if not query.status["message"].startswith(_BEGINNING):
            return
        time.sleep(0.05)


def _batch_writer(options: dict[str, str], name: str) -> Callable[[DataFrame, int], None]:
    def write(rows: DataFrame, batch: int) -> None:
        # Kept in the checkpoint, so it is the same after a restart and another one for a new checkpoint.
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        numbered = {"txnId": f"{name}-{query}", "txnVersion": str(batch)}
        rows.write.format("penstock").options(**options, **numbered).mode("append").save()

    return write


def _is_of_spark(error: Exception) -> bool:
    return type(error).__module__.startswith(("pyspark.", "py4j."))


def _first_words(error: Exception) -> str:
    """What Spark says, without its plans and stack."""
    words = str(error).split("JVM stacktrace", 1)[0]
    return re.split(r";\n|\n\s*at |\n'", words, maxsplit=1)[0].strip()
