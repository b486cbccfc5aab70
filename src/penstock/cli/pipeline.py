"""``penstock pipeline``: data jobs on Spark, one file each: created, checked, run, watched and stopped."""

from __future__ import annotations

import json
import logging
import os
import signal
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.options import answer_options, assignments_of, output_option, url_option
from penstock.cli.output import Column, Output, Row, count_of, echo_json, echo_table, printable
from penstock.cli.rest import Rest
from penstock.cli.runs import LOG_TOPIC, QUERY_COLUMNS, Reports, display_of, query_row, startup_noise_held
from penstock.extras import needs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipelines.definition import Definition, Trigger
    from penstock.pipelines.run import PipelineRun

_PAGE: Final = 1_000

# How a run ends for an error of ours; for any other, it failed.
_EXITS: Final = {
    "invalid_pipeline": Exit.USAGE,
    "invalid_config": Exit.USAGE,
    "unknown_topic": Exit.NOT_FOUND,
    "nodes_unreachable": Exit.UNAVAILABLE,
}

_YAML: Final = """\
# Run it:  penstock pipeline run {file}
pipeline: {name}
servers: http://127.0.0.1:8080

sources:
  orders:
    topics: orders
    startingOffsets: earliest
    schema: "id STRING, amount DOUBLE"

steps:
  large: SELECT id, amount FROM orders WHERE amount >= 100

expectations:
  orders:
    - {{check: id IS NOT NULL, otherwise: drop}}

sinks:
  large_orders:
    from: large
    topic: large-orders
    key: id

trigger: continuous
"""

_PYTHON: Final = '''\
"""Run it: penstock pipeline run {file}"""

from penstock.pipelines import Pipeline

pipeline = Pipeline("{name}")
pipeline.source("orders", topics="orders", startingOffsets="earliest", schema="id STRING, amount DOUBLE")
pipeline.expect("orders", "id IS NOT NULL", otherwise="drop")


@pipeline.step
def large(orders):
    return orders.where("amount >= 100").select("id", "amount")


pipeline.sink("large", topic="large-orders", key="id")
'''


@click.group()
def pipeline() -> None:
    """Run data jobs on Spark, each declared in one file.

    They run in this process with its own Spark, unless --master or --remote names another. This needs
    `penstock-mq[spark]`.
    """


@pipeline.command()
@click.argument("file", type=click.Path(path_type=Path), default="pipeline.yaml")
@click.option("--name", help="What to call it. [default: the name of the file]")
@click.option("--uses", help="A ready-made pipeline, such as archive: write all its options.")
def init(file: Path, name: str | None, uses: str | None) -> int:
    """Write a first pipeline, in YAML or (NAME.py) in Python."""
    from penstock.pipelines.files import load

    if file.exists():
        raise CommandError(f"{file} exists already; it was not changed.", Exit.CONFLICT)
    form = _PYTHON if file.suffix == ".py" else _YAML
    text = form.format(name=name or file.stem, file=file)
    if uses is not None:
        if file.suffix == ".py":
            raise CommandError("Ready-made pipelines are written in YAML: name the file NAME.yaml.", Exit.USAGE)
        text = _ready_text(uses, name or file.stem, file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    try:
        load(file)
    except Exception:
        file.unlink()
        raise
    click.echo(f"Wrote {file}. Next: penstock pipeline run {file}", err=True)
    return Exit.OK


@pipeline.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--deep", is_flag=True, help="Also ask Spark: SQL, columns, topics. Takes some seconds.")
@click.option("--servers", help="The nodes, in place of those in the file.")
@click.option("--master", default="local[1]", show_default=True, help="With --deep: where Spark runs.")
@click.option("--debug", is_flag=True, help="With --deep: show all that Spark prints.")
def check(file: Path, deep: bool, servers: str | None, master: str, debug: bool) -> int:
    """Find what is wrong with a pipeline, without running it."""
    definition = _load(file, servers)
    if deep:
        _check_topics(definition, is_elsewhere=False)
    if deep and not definition.uses:
        from penstock.errors import InvalidPipeline
        from penstock.pipelines.flow import Flow

        spark = _session(definition, master, None, debug=debug)
        try:
            Flow(definition, spark)
        except InvalidPipeline as error:
            raise CommandError(error.message, Exit.USAGE) from error
        finally:
            spark.stop()
    parts = [count_of(len(definition.sources), "source"), count_of(len(definition.steps), "step")]
    said = (
        f"uses {definition.uses}" if definition.uses else ", ".join([*parts, count_of(len(definition.sinks), "sink")])
    )
    click.echo(f"{file} is fine: pipeline {definition.name}, {said}.", err=True)
    return Exit.OK


@pipeline.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--servers", help="The nodes, in place of those in the file.")
@click.option(
    "--master", default="local[*]", show_default=True, help="Where Spark runs: spark://host:7077, yarn, k8s://…"
)
@click.option("--remote", help="A Spark Connect server, such as sc://host:15002, in place of --master.")
@click.option("--once", "mode", flag_value="once", help="Process what there is now, then end.")
@click.option("--continuous", "mode", flag_value="continuous", help="Run for ever, one batch after another.")
@click.option("--checkpoint", metavar="PLACE", help="Where to keep its progress: a path, or a URI that Spark knows.")
@click.option("--restart", is_flag=True, help="Forget its progress and start again; rows may be written twice.")
@click.option("--conf", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
@click.option("--no-report", is_flag=True, help="Do not report to the cluster.")
@click.option("--debug", is_flag=True, help="Show all that Spark prints, and the trace of an error.")
@output_option
def run(
    file: Path,
    servers: str | None,
    master: str,
    remote: str | None,
    mode: str | None,
    checkpoint: str | None,
    restart: bool,
    settings: tuple[str, ...],
    no_report: bool,
    debug: bool,
    out: Output,
) -> int:
    """Run the pipeline of FILE until it is done (--once), fails, or is stopped.

    On SIGTERM or Ctrl-C it ends after the current batch; the next run continues from there.
    """
    from penstock.pipelines.places import absolute
    from penstock.pipelines.run import PipelineRun

    definition = _load(file, servers)
    definition.spark |= assignments_of(settings, "--conf")
    reports = None if no_report else Reports(definition)
    _check_topics(definition, is_elsewhere=remote is not None)
    spark = _session(definition, master, remote, debug=debug)
    with display_of(definition, is_table=out.is_table) as display:
        try:
            job = PipelineRun(
                definition,
                spark,
                trigger=_trigger(mode),
                checkpoint=None if checkpoint is None else absolute(checkpoint, Path.cwd()),
                is_restart=restart,
                report=reports.send if reports else lambda _: False,
                watch=display.show,
                tell=display.tell,
            )
            _stop_on_signals(job)
            status = job.go()
        finally:
            spark.stop()
    if not out.is_table:
        queries = [figures.view() for figures in status.figures]
        echo_json({"pipeline": definition.name, "state": status.state, "error": status.error, "queries": queries})
    if status.state == "failed":
        if debug:
            click.echo(status.trace, err=True)
        exit_code = _EXITS.get(status.code, Exit.FAILURE)
        hint = " (--debug shows the trace.)" if exit_code is Exit.FAILURE and not debug else ""
        raise CommandError(f"Pipeline {definition.name} failed: {status.error}{hint}", exit_code)
    return Exit.OK


@pipeline.command("list")
@answer_options
def list_pipelines(out: Output, rest: Rest) -> int:
    """List the pipelines that have reported to the cluster."""
    found = rest.get("v1", "pipelines")["pipelines"]
    out.rows(found, _COLUMNS)
    return Exit.OK


@pipeline.command()
@click.argument("name")
@answer_options
def status(name: str, out: Output, rest: Rest) -> int:
    """Show the last run of a pipeline, query by query."""
    found = rest.get("v1", "pipelines", name)
    if not out.is_table:
        echo_json(found)
        return Exit.OK
    for title, key in (
        ("Pipeline", "name"),
        ("State", "state"),
        ("Run", "run"),
        ("File", "file"),
        ("Master", "master"),
    ):
        click.echo(f"{title:<10}{printable(str(found[key]))}")
    click.echo(f"{'Since':<10}{found['started_at']} on {printable(found['host'])}")
    if found["error"]:
        click.echo(f"{'Error':<10}{printable(found['error'])}")
    echo_table(QUERY_COLUMNS, [query_row(query) for query in found["queries"]])
    return Exit.OK


@pipeline.command()
@click.argument("name")
@url_option
def stop(name: str, rest: Rest) -> int:
    """Ask a running pipeline to stop, wherever it runs."""
    found = rest.post("v1", "pipelines", name, "stop", body={})
    if found["state"] in ("finished", "stopped", "failed"):
        click.echo(f"Pipeline {name} is {found['state']} already.", err=True)
    else:
        click.echo(f"Pipeline {name} ends after its current batch.", err=True)
    return Exit.OK


@pipeline.command()
@click.argument("name")
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@answer_options
def logs(name: str, limit: int, out: Output, rest: Rest) -> int:
    """Show the last log lines of a pipeline; the topic penstock.pipelines.log has all of them."""
    from penstock.cli.rest import RefusedError

    try:
        partitions = int(rest.get("v1", "topics", LOG_TOPIC)["partitions"])
    except RefusedError as error:
        if error.status != 404:
            raise
        partitions = 0
    lines: list[dict[str, Any]] = []
    for at in range(partitions):
        offset: int | str = "earliest"
        while True:
            page = rest.get("v1", "topics", LOG_TOPIC, "messages", partition=at, offset=offset, limit=_PAGE)
            lines += [json.loads(each["value"]) for each in page["messages"] if each["key"] == name]
            lines = sorted(lines, key=lambda each: str(each["at"]))[-limit:]
            if not page["messages"]:
                break
            offset = page["next_offset"]
    for line in lines:
        if out.is_table:
            click.echo(f"{line['at']}  {line['level']:<7} {printable(line['message'])}")
        else:
            echo_json(line)
    return Exit.OK


def _ready_text(uses: str, name: str, file: Path) -> str:
    """A file that uses a ready-made pipeline; options with a default are comments."""
    from penstock.pipelines.ready import READY
    from penstock.pipelines.ready.kind import REQUIRED

    if uses not in READY:
        raise CommandError(f"There is no ready-made pipeline {uses!r}; choose one of {', '.join(READY)}.", Exit.USAGE)
    ready = READY[uses]
    lines = [f"# {ready.help}", f"# Run it:  penstock pipeline run {file}", f"pipeline: {name}"]
    lines += ["servers: http://127.0.0.1:8080", f"uses: {uses}", "with:"]
    for option, what in ready.options.items():
        default = "..." if what.default is REQUIRED else json.dumps(what.default)
        lead = "  " if what.default is REQUIRED else "  # "
        lines.append(f"{lead}{option}: {default}  # {what.help}")
    return "\n".join(lines) + "\n"


def _state(found: Row) -> object:
    return "stopping" if found["stop_requested"] and found["state"] == "running" else found["state"]


def _lag(found: Row) -> object:
    lags = [query["lag"] for query in found["queries"] if query["lag"] is not None]
    return sum(lags) if lags else ""


_COLUMNS: Final[dict[str, Column]] = {
    "pipeline": "name",
    "state": _state,
    "queries": lambda found: len(found["queries"]),
    "rows": lambda found: sum(query["rows"] for query in found["queries"]),
    "rows/s": lambda found: f"{sum(query['rows_per_second'] for query in found['queries']):,.0f}",
    "lag": _lag,
    "reported": "reported_at",
    "error": lambda found: printable((found["error"] or "").split("\n", 1)[0][:80]),
}


def _load(file: Path, servers: str | None) -> Definition:
    from penstock.errors import InvalidPipeline
    from penstock.pipelines.definition import DEFAULT_SERVERS
    from penstock.pipelines.files import load

    try:
        definition = load(file)
    except InvalidPipeline as error:
        raise CommandError(error.message, Exit.USAGE) from error
    if servers is None and definition.servers == DEFAULT_SERVERS:
        servers = os.environ.get("PENSTOCK_URL")  # as for every other command, where the file does not say
    if servers:
        definition.servers = servers
    return definition


def _trigger(mode: str | None) -> Trigger | None:
    from penstock.pipelines.definition import Trigger, TriggerKind

    kinds = {"once": TriggerKind.ONCE, "continuous": TriggerKind.CONTINUOUS}
    return None if mode is None else Trigger(kinds[mode])


def _check_topics(definition: Definition, *, is_elsewhere: bool) -> None:
    """Check what can be checked without Spark, which is slow to start and verbose."""
    from penstock.errors import PenstockError
    from penstock.pipelines.preflight import check_topics

    try:
        check_topics(definition, is_elsewhere=is_elsewhere, tell=lambda line: click.echo(line, err=True))
    except PenstockError as error:
        raise CommandError(error.message, _EXITS.get(error.code, Exit.FAILURE)) from error


def _session(definition: Definition, master: str, remote: str | None, *, debug: bool) -> SparkSession:
    from penstock.errors import PenstockError

    with needs("spark", "A pipeline"):
        import pyspark  # noqa: F401
    if remote is None:
        from penstock.spark import session

        settings: dict[str, Any] = dict(definition.spark)
        with nullcontext() if debug else startup_noise_held():
            try:
                spark = session(f"penstock-{definition.name}", master, **settings)
            except PenstockError:
                raise
            except Exception as error:
                raise CommandError(f"Spark did not start: {str(error).strip().splitlines()[0]}") from error
            if not debug:
                # Spark logs every error that it also raises, with its trace.
                spark.sparkContext.setLogLevel("OFF")
                logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        return spark
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(remote)
    for name, value in definition.spark.items():
        builder = builder.config(name, value)
    try:
        found: SparkSession = builder.getOrCreate()
    except ImportError as error:
        raise CommandError(f"Spark Connect needs more: `pip install 'pyspark[connect]'`. {error}") from error
    return found


def _stop_on_signals(job: PipelineRun) -> None:
    def stop(number: int, _frame: FrameType | None) -> None:
        click.echo("Ending after the current batch; interrupt again to end at once.", err=True)
        job.stop()
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
