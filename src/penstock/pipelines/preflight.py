"""What can be found out about a pipeline before Spark is started: its options, and whether its topics are there.

Spark takes seconds to start and says what is wrong at the end of a long trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.errors import InvalidConfig, InvalidPipeline, NodesUnreachable, UnknownTopic, WrongPort
from penstock.pipelines.definition import Definition, PipelineSource
from penstock.pipelines.ready import READY
from penstock.pipelines.text import FilePlace, FileProblem
from penstock.spark.reading.cluster import Cluster
from penstock.spark.reading.options import SourceOptions
from penstock.spark.writing.options import SinkOptions

_TIMEOUT: Final = "10"  # seconds in which a node has to answer


def check_topics(definition: Definition, *, is_elsewhere: bool, tell: Callable[[str], None]) -> None:
    """Check options and topics of a pipeline. ``is_elsewhere``: Spark may reach nodes that this machine does not."""
    sources = list(definition.sources.values())
    if definition.uses:
        ready = READY[definition.uses]
        sources = ready.sources(ready.check(definition), definition)
    for sink in definition.sinks.values():
        if sink.format == "penstock":
            try:
                SinkOptions.of({"servers": definition.servers, **sink.options}, is_streaming=True)
            except InvalidConfig as error:
                raise _blamed(definition, sink.place, error.message) from error
    for source in sources:
        if source.format != "penstock":
            continue
        try:
            _check(definition, source)
        except NodesUnreachable as error:
            if not is_elsewhere:
                raise
            tell(f"This machine does not reach the nodes, so only Spark can say whether topics exist. {error.message}")
            return


def _check(definition: Definition, source: PipelineSource) -> None:
    given = {"servers": definition.servers, **source.options}
    try:
        SourceOptions.of(given, is_streaming=source.is_stream)
        quick = SourceOptions.of({**given, "timeout": _TIMEOUT}, is_streaming=source.is_stream)
        Cluster(quick).reaches()
    except (InvalidConfig, WrongPort) as error:
        raise _blamed(definition, source.place, error.message) from error
    except UnknownTopic as error:
        place = source.place
        raise UnknownTopic(f"{definition.file}:{place.line}:{place.column}: {error.message}") from error


def _blamed(definition: Definition, place: FilePlace, words: str) -> InvalidPipeline:
    return InvalidPipeline(FileProblem(place, words).told_of(definition.file or definition.name))
