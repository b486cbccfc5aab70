"""Ready pipelines that are pipelines like any other: options fill in sources, steps and sinks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import InvalidPipeline
from penstock.pipelines.checking import definition_of
from penstock.pipelines.definition import Definition, PythonStep, Source
from penstock.pipelines.flow import Flow
from penstock.pipelines.ready.kind import Option, ReadyPipeline, Surroundings
from penstock.pipelines.text import Place, Text

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_PLACE: Final = Place(1, 1)

WHERE: Final = {
    "to": Option("the topic that results go to, or", default=""),
    "path": Option("the directory that they go to, as Parquet", default=""),
}
BEGIN: Final = {"startingOffsets": Option("where to begin without a checkpoint", default="earliest")}


class FlowPipeline(ReadyPipeline):
    """Says in `document` what the file of a pipeline would say."""

    def start(self, options: Mapping[str, Any], surroundings: Surroundings) -> list[StreamingQuery]:
        made = self._definition(options, surroundings.definition)
        return Flow(made, surroundings.spark).start(surroundings.checkpoint, surroundings.trigger)

    def sources(self, options: Mapping[str, Any], definition: Definition) -> list[Source]:
        return list(self._definition(options, definition).sources.values())

    def _definition(self, options: Mapping[str, Any], definition: Definition) -> Definition:
        head = {"pipeline": definition.name, "servers": definition.servers}
        document = Text.of(head | self.document(options), _PLACE)
        return definition_of(document, definition.file or definition.name, self.steps(options))

    @abstractmethod
    def document(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Sources, steps and sinks, as a file has them."""

    def steps(self, options: Mapping[str, Any]) -> dict[str, PythonStep]:  # noqa: ARG002
        """Steps in Python, which come before those of the document."""
        return {}

    def sink(self, rows: str, options: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """The one sink: a topic or a directory. ``more`` is for the topic only."""
        if bool(options["to"]) == bool(options["path"]):
            raise InvalidPipeline(f"{self.name} needs `to: TOPIC` or `path: DIRECTORY` under `with`, one of them.")
        if options["path"]:
            return {self.name: {"from": rows, "format": "parquet", "path": options["path"]}}
        return {self.name: {"from": rows, "topic": options["to"]} | {key: text for key, text in more.items() if text}}
