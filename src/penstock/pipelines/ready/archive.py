"""Archive: topics into a lake of Parquet files, each message once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.pipelines.definition import Definition, PipelineSource
from penstock.pipelines.flow import triggered
from penstock.pipelines.places import beside, on_this_machine, within
from penstock.pipelines.ready.kind import Option, ReadyPipeline, RunContext

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_COLUMNS: Final = "topic,partition,offset,timestamp,key,value,headers"
_MIB: Final = 1024 * 1024


class Archive(ReadyPipeline):
    name = "archive"
    help = "Topics to a lake of Parquet files by topic, date and hour."
    options: ClassVar[Mapping[str, Option]] = {
        "topics": Option("the topics, with commas between; * stands for any text", list),
        "lake": Option("the directory of the lake, which all of Spark can reach", is_local=True),
        "startingOffsets": Option("where to begin without a checkpoint", default="earliest"),
        "maxRecordsPerTrigger": Option("how many messages a batch takes at most", int, default=1_000_000),
        "writers": Option("how many tasks write, each its own files; 0: one for each partition", int, default=0),
        "compactEvery": Option("merge small files after so many batches; 0: never", int, default=50),
        "compact": Option("merge small files at the start as well", bool, default=False),
        "smallMegabytes": Option("files below this are merged", int, default=32),
        "graceMinutes": Option("how long files that were merged stay for those who still read them", int, default=60),
    }

    def sources(self, options: Mapping[str, Any], definition: Definition) -> list[PipelineSource]:
        given = {
            "servers": definition.servers,
            "topics": ",".join(options["topics"]),
            "columns": _COLUMNS,
            "startingOffsets": options["startingOffsets"],
            "maxRecordsPerTrigger": str(options["maxRecordsPerTrigger"]),
            "group": f"archive-{definition.name}",
        }
        return [PipelineSource(name=self.name, options=given)]

    def start(self, options: Mapping[str, Any], context: RunContext) -> list[StreamingQuery]:
        """Begin to archive."""
        from penstock.pipelines.lake.archiving import Archiver, Limits

        spark = context.spark
        (read,) = self.sources(options, context.definition)
        source = dict(read.options)
        lake = on_this_machine(beside(context.definition, options["lake"]), "A lake")
        limits = Limits(small_bytes=options["smallMegabytes"] * _MIB, grace_ms=options["graceMinutes"] * 60_000)
        archiver = Archiver(lake, source, limits, writers=options["writers"], compact_every=options["compactEvery"])
        if options["compact"]:
            context.tell(f"Merged {archiver.tidy(spark):,} small files of {lake}.")
        rows = spark.readStream.format("penstock").options(**source).load()
        writer = rows.writeStream.queryName(self.name).foreachBatch(archiver)
        writer = writer.option("checkpointLocation", within(context.checkpoint, self.name))
        return [triggered(writer, context.trigger).start()]
