"""Checkpoints at URIs: as paths of this machine, and on a file system that only Spark reaches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client.generated.sync import Client
from penstock.pipelines.files import load
from penstock.pipelines.places import Checkpoint
from penstock.pipelines.run import PipelineRun
from penstock.testing.local import LocalBroker

pytestmark = pytest.mark.timeout(900)

_TEXT = """
pipeline: moved
servers: SERVERS
checkpoint: CHECKPOINT
trigger: available-now
sources: {rows: {topics: SOURCE}}
sinks: {moved: {from: rows, topic: TARGET}}
"""


@pytest.fixture
def mounted(spark: Any, tmp_path: Path) -> str:
    """A URI that Hadoop resolves to a directory here, and nothing else does."""
    (tmp_path / "mounted").mkdir()
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set("fs.viewfs.mounttable.tests.link./here", (tmp_path / "mounted").as_uri())
    return "viewfs://tests/here/ck"


def test_a_pipeline_goes_on_from_a_uri_and_forgets_it(
    spark: Any, broker: LocalBroker, client: Client, new_topic: Callable[..., str], tmp_path: Path, mounted: str
) -> None:
    for number, uri in enumerate((f"file://{tmp_path}/local", mounted)):
        source, target = new_topic(), new_topic()
        directory = tmp_path / f"run-{number}"
        directory.mkdir()
        path = directory / "p.yaml"
        text = _TEXT.replace("SERVERS", broker.url).replace("CHECKPOINT", uri)
        path.write_text(text.replace("SOURCE", source).replace("TARGET", target))
        client.publish(source, b"one")
        told: list[str] = []

        def run(is_restart: bool = False, path: Path = path, told: list[str] = told) -> None:
            status = PipelineRun(load(path), spark, tell=told.append, is_restart=is_restart).go()
            assert (status.state, status.error) == ("finished", None)

        def values(target: str = target) -> list[bytes | None]:
            return [message.value for message in client.read(target, 0)]

        run()
        assert told[0] == "First run: rows from the earliest message on (startingOffsets: latest: only new ones)."
        told.clear()
        run()
        assert values() == [b"one"], "it went on where it was"
        assert not any(line.startswith("First run") for line in told)
        run(is_restart=True)
        assert values() == [b"one", b"one"]
        assert f"The checkpoint {uri} is forgotten; the pipeline begins anew." in told
        assert [each.name for each in directory.iterdir()] == ["p.yaml"], "no directory is called as a URI"
    assert (tmp_path / "mounted" / "ck" / "moved" / "offsets").is_dir()


def test_a_uri_that_spark_does_not_reach_fails_in_words_and_is_no_directory_here(
    spark: Any, broker: LocalBroker, new_topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # a place that is taken for a path may be made here, or beside the file
    path = tmp_path / "p.yaml"
    text = _TEXT.replace("SERVERS", broker.url).replace("CHECKPOINT", "s3a://bucket/ck")
    path.write_text(text.replace("SOURCE", new_topic()).replace("TARGET", new_topic()))
    for is_restart in (False, True):
        status = PipelineRun(load(path), spark, is_restart=is_restart).go()
        assert status.state == "failed"
        assert "S3AFileSystem" in (status.error or ""), "Spark was asked for the file system of s3a"
        assert len((status.error or "").splitlines()) == 1
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["elsewhere", "p.yaml"]


def test_a_plan_is_kept_where_only_spark_reaches(spark: Any, mounted: str) -> None:
    checkpoint = Checkpoint(mounted, spark)
    assert checkpoint.read("plan.json") is None
    checkpoint.write("plan.json", b'{"a": 1}\x00\xff')
    assert checkpoint.read("plan.json") == b'{"a": 1}\x00\xff'
    assert checkpoint.forget()
    assert checkpoint.read("plan.json") is None


def test_a_checkpoint_of_an_earlier_topic_is_explained(
    spark: Any, broker: LocalBroker, client: Client, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    import httpx

    source, target = new_topic(), new_topic()
    path = tmp_path / "p.yaml"
    text = _TEXT.replace("SERVERS", broker.url).replace("CHECKPOINT", "ck")
    path.write_text(text.replace("SOURCE", source).replace("TARGET", target))
    client.publish(source, b"one")
    assert PipelineRun(load(path), spark).go().state == "finished"
    assert httpx.delete(f"{broker.url}/v1/topics/{source}").status_code < 300
    new_topic(name=source)
    status = PipelineRun(load(path), spark).go()
    told = status.error or ""
    assert (status.state, status.code, len(told.splitlines())) == ("failed", "data_lost", 1)
    assert "was deleted and made anew" in told
    assert f"The checkpoint is {tmp_path / 'ck'}. To forget it and begin anew, run the pipeline with --restart" in told
    assert "Traceback" in status.trace
    client.publish(source, b"two")
    assert PipelineRun(load(path), spark, is_restart=True).go().state == "finished"
    assert [message.value for message in client.read(target, 0)] == [b"one", b"two"]
