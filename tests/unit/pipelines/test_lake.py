"""The lake's files and catalog, without Spark: what is written, what counts, and what two writers do to each other."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import InvalidLake
from penstock.pipelines.lake.archiving import Limits, mergeable, sweep
from penstock.pipelines.lake.catalog import Catalog, CatalogEntry, DataFile, Range, TopicFact, write_entry
from penstock.pipelines.lake.settings import restored
from penstock.pipelines.lake.writing import ROW_SCHEMA, BatchFiles, LakeBatch, merge, merged_ranges

HOUR_MS = 3_600_000
FACT = TopicFact(name="orders", id="id-0", generation=0, partitions=2)


def rows(*places: tuple[int, int, int | None], topic: str = "orders") -> pa.RecordBatch:
    """Messages at partition, offset and hour."""
    schema = pa.schema([("topic", pa.string()), *list(ROW_SCHEMA)[1:], ("checksum", pa.int64())])
    columns: dict[str, list[Any]] = {
        "topic": [topic for _ in places],
        "partition": [partition for partition, _, _ in places],
        "offset": [offset for _, offset, _ in places],
        "timestamp": [None if hour is None else hour * HOUR_MS * 1000 for _, _, hour in places],
        "key": [b"k" for _ in places],
        "value": [None for _ in places],
        "headers": [[{"key": "h", "value": None}] for _ in places],
        "checksum": [-(1 << 62) + partition * 1000 + offset for partition, offset, _ in places],
    }
    return pa.RecordBatch.from_pydict(columns, schema)


def batch(reached: list[tuple[str, int, int, int]] | None = None) -> LakeBatch:
    return LakeBatch(7, 5 * HOUR_MS, {"orders": FACT}, reached or [])


def test_rows_are_parted_by_hour_and_known_by_their_ranges(tmp_path: Path) -> None:
    given = iter([rows((0, 3, 1), (0, 4, 1), (1, 0, 2)), rows((0, 5, 2), (1, 1, None))])
    files = {file.path.split("/")[2]: file for file in BatchFiles(tmp_path, batch()).write(given)}
    assert set(files) == {"hour=01", "hour=02", "hour=05"}, "a message without a time is as old as the batch"
    first = files["hour=01"]
    assert first.path.startswith("topic=orders/date=1970-01-01/hour=01/0000000007-")
    assert (first.rows, first.bytes) == (2, (tmp_path / first.path).stat().st_size)
    (known,) = first.ranges
    assert (known.partition, known.first, known.last, known.rows) == (0, 3, 4, 2)
    assert (known.first_ms, known.last_ms) == (HOUR_MS, HOUR_MS)
    base = -(1 << 62)
    assert int(known.checksum, 16) == (base + 3) ^ (base + 4)
    assert [(each.partition, each.first) for each in files["hour=02"].ranges] == [(0, 5), (1, 0)]
    table = pq.read_table(tmp_path / first.path, partitioning=None)
    assert table.schema.equals(ROW_SCHEMA)
    assert table.column("headers").to_pylist() == [[{"key": "h", "value": None}]] * 2


def test_rows_that_are_in_the_lake_are_passed_over(tmp_path: Path) -> None:
    writer = BatchFiles(tmp_path, batch([("orders", 0, 0, 5), ("orders", 1, 0, 9), ("other", 0, 1, 9)]))
    (file,) = writer.write(iter([rows((0, 3, 1), (0, 4, 1), (0, 5, 1), (1, 0, 1))]))
    assert [(each.partition, each.first, each.last) for each in file.ranges] == [(0, 5, 5), (1, 0, 0)]
    assert BatchFiles(tmp_path, batch([("orders", 0, 0, 6)])).write(iter([rows((0, 5, 1))])) == []


def test_an_entry_is_written_once(tmp_path: Path) -> None:
    catalog = Catalog.load(tmp_path)
    other = Catalog.load(tmp_path)
    assert catalog.is_empty
    write_entry(
        tmp_path, catalog.next_number, CatalogEntry(kind="batch", at_ms=1, topics=[FACT], added=[_file("a", 0, 4)])
    )
    with pytest.raises(InvalidLake, match="Another pipeline writes"):
        write_entry(tmp_path, other.next_number, CatalogEntry(kind="batch", at_ms=1, added=[_file("b", 0, 9)]))
    for each in (catalog, other):
        each.refresh()
        assert list(each.files) == ["a"]
        assert each.reached == {("orders", 0, 0): 5}
    assert not list((tmp_path / "_catalog").glob(".*")), "nothing is left of what was refused"


def test_merged_files_give_way_and_a_topic_made_anew_is_another_generation(tmp_path: Path) -> None:
    write_entry(
        tmp_path, 0, CatalogEntry(kind="batch", at_ms=1, topics=[FACT], added=[_file("a", 0, 4), _file("b", 5, 9)])
    )
    write_entry(tmp_path, 1, CatalogEntry(kind="compaction", at_ms=2, added=[_file("c", 0, 9)], removed=["a", "b"]))
    catalog = Catalog.load(tmp_path)
    assert list(catalog.files) == ["c"]
    assert catalog.removed == {"a": 2, "b": 2}
    assert catalog.reached == {("orders", 0, 0): 10}
    large = {"max.message.bytes": "5000000"}
    assert catalog.fact_of("orders", "id-0", 4, large) == msgspec.structs.replace(FACT, partitions=4, settings=large)
    assert catalog.fact_of("orders", "id-1", 1, {}).generation == 1
    assert catalog.fact_of("bills", "id-2", 1, {}).generation == 0


def test_a_catalog_that_cannot_be_read_is_told_by_its_file(tmp_path: Path) -> None:
    write_entry(tmp_path, 0, CatalogEntry(kind="batch", at_ms=1, version=2))
    with pytest.raises(InvalidLake, match="later version"):
        Catalog.load(tmp_path)
    (tmp_path / "_catalog" / "000000000000.json").write_text("{")
    with pytest.raises(InvalidLake, match=r"000000000000\.json is no entry"):
        Catalog.load(tmp_path)


def _file(path: str, first: int, last: int, *, size: int = 10, hour: str = "") -> DataFile:
    known = Range(
        partition=0, first=first, last=last, rows=last - first + 1, checksum="0f", first_ms=first, last_ms=last
    )
    return DataFile(
        path=f"{hour}/{path}" if hour else path,
        topic="orders",
        generation=0,
        rows=known.rows,
        bytes=size,
        ranges=[known],
    )


def test_only_small_files_of_one_hour_are_merged_and_not_into_giants() -> None:
    limits = Limits(small_bytes=50, target_bytes=100, files_min=3)
    some = [_file(f"{at}", at, at, size=40, hour="h1") for at in range(7)]
    others = [_file("x", 0, 0, hour="h2"), _file("y", 0, 0, hour="h2"), _file("z", 0, 0, size=60, hour="h1")]
    groups = list(mergeable([*others, *reversed(some)], limits))
    assert [[file.path for file in group] for group in groups] == [["h1/0", "h1/1", "h1/2"], ["h1/3", "h1/4", "h1/5"]]


def test_merging_sorts_and_keeps_every_row(tmp_path: Path) -> None:
    writer = BatchFiles(tmp_path, batch())
    files = [
        *writer.write(iter([rows((1, 0, 1), (0, 7, 1))])),
        *writer.write(iter([rows((0, 3, 1), (1, 1, 1))])),
    ]
    made = merge(tmp_path, files)
    table = pq.read_table(tmp_path / made.path, partitioning=None)
    places = list(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))
    assert places == [(0, 3), (0, 7), (1, 0), (1, 1)]
    assert [(each.partition, each.first, each.last, each.rows) for each in made.ranges] == [(0, 3, 7, 2), (1, 0, 1, 2)]
    once = list(merged_ranges(each for file in files for each in file.ranges))
    assert made.ranges == once
    (tmp_path / files[0].path).write_bytes((tmp_path / files[1].path).read_bytes())
    with pytest.raises(InvalidLake, match="rows, not"):
        merge(tmp_path, [msgspec.structs.replace(files[0], rows=3), files[1]])


def test_what_no_entry_names_is_removed_in_time(tmp_path: Path) -> None:
    directory = tmp_path / "topic=orders/date=2026-01-01/hour=00"
    directory.mkdir(parents=True)
    for name in ("kept", "merged", "orphan"):
        (directory / f"{name}.parquet").touch()
    place = "topic=orders/date=2026-01-01/hour=00"
    old = [_file("merged.parquet", 0, 0, hour=place)]
    write_entry(tmp_path, 0, CatalogEntry(kind="batch", at_ms=1, added=[*old, _file("kept.parquet", 1, 1, hour=place)]))
    now_ms = int(time.time() * 1000)
    write_entry(tmp_path, 1, CatalogEntry(kind="compaction", at_ms=now_ms, removed=[old[0].path]))
    catalog = Catalog.load(tmp_path)
    sweep(catalog, Limits(grace_ms=60_000), now_ms)
    assert len(list(directory.iterdir())) == 3
    sweep(catalog, Limits(grace_ms=60_000), now_ms + 61_000)
    assert [path.stem for path in directory.iterdir()] == ["kept"]


def test_executors_load_the_client_and_nothing_of_the_broker() -> None:
    program = (
        "import sys, pyspark_penstock\n"
        "import penstock.pipelines.lake.sink, penstock.spark.source\n"
        "import penstock.spark.reading.batch, penstock.spark.writing.sink\n"
        "print(*sorted({name.split('.')[1] for name in sys.modules if name.startswith('penstock.')}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert not set(done.stdout.split()) & {
        *("broker", "cli", "cluster", "grpc", "http", "kafka", "peers", "quorum", "server", "storage", "testing"),
    }
    assert "client" in done.stdout.split()


def test_an_entry_from_before_settings_were_kept_is_read() -> None:
    earlier = b'{"name": "orders", "id": "id-0", "generation": 0, "partitions": 2}'
    assert msgspec.json.decode(earlier, type=TopicFact) == FACT


def test_a_restored_topic_gets_what_does_no_harm_to_old_messages() -> None:
    kept = {
        "max.message.bytes": "5000000",
        "retention.ms": "3600000",
        "retention.bytes": "1000",
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "compact",
        "queue.tries": "7",
        "min.insync.replicas": "3",
    }
    first, last, withheld = restored(kept, keeps_timestamps=True)
    assert first == {
        "max.message.bytes": "5000000",
        "queue.tries": "7",
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }
    assert last == {"cleanup.policy": "compact"}
    assert withheld == {
        "retention.ms": "3600000",
        "retention.bytes": "1000",
        "message.timestamp.type": "LogAppendTime",
    }
    first, last, withheld = restored(kept, keeps_timestamps=False)
    assert (first["retention.ms"], first["cleanup.policy"], last, withheld) == ("3600000", "compact", {}, {})
    assert "min.insync.replicas" not in first, "it is the cluster's"
