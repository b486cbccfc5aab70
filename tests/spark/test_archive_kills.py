"""An archive whose driver and JVM are killed again and again has every message once; a damaged lake is found out."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.node import penstock_command

from penstock.client.generated.sync import Client
from penstock.pipelines.files import load
from penstock.pipelines.lake.catalog import Catalog
from penstock.pipelines.lake.reading import rows_of
from penstock.pipelines.run import PipelineRun
from penstock.testing.local import LocalBroker

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("PENSTOCK_ARCHIVE_KILLS", "6"))
SEED = int(os.environ.get("PENSTOCK_SEED", "7"))
_PATIENCE_S = 400.0


def write(path: Path, uses: str, broker: LocalBroker, options: str) -> Path:
    path.write_text(f"pipeline: {path.stem}\nservers: {broker.url}\nuses: {uses}\nwith:\n  {{{options}}}\n")
    return path


def entries(lake: Path) -> int:
    return len(list((lake / "_catalog").glob("*.json")))


def test_every_message_is_in_the_lake_once(
    tmp_path: Path, spark: Any, broker: LocalBroker, client: Client, new_topic: Callable[..., str]
) -> None:
    topic, lake, dice = new_topic(3), tmp_path / "lake", random.Random(SEED)
    options = f"topics: {topic}, lake: lake, maxRecordsPerTrigger: 150, compactEvery: 3, graceMinutes: 0"
    file = write(tmp_path / "archive.yaml", "archive", broker, options)
    sent = 0
    for _ in range(KILLS):
        sent += _publish(client, topic, sent, 900)
        with (tmp_path / "archive.log").open("ab") as log:
            process = subprocess.Popen(
                [penstock_command(), "pipeline", "run", str(file), "--master", "local[2]"], stdout=log, stderr=log
            )
        try:
            _wait_for_entries(process, lake, entries(lake) + dice.randrange(1, 3), tmp_path / "archive.log")
            time.sleep(dice.random() * 2)
        finally:
            _kill(process)
    status = PipelineRun(load(file), spark, trigger=_once()).go()
    assert status.error is None
    catalog = Catalog.load(lake)
    rows = rows_of(spark, lake, catalog.files_of([topic]))
    found = rows.selectExpr("count(*)", "count(distinct partition, offset)", "count(distinct value)").first()
    assert tuple(found) == (sent, sent, sent), f"seed {SEED}"
    assert sum(file.rows for file in catalog.files.values()) == sent
    assert catalog.removed, "files were merged meanwhile"


def test_a_damaged_file_is_found_before_anything_is_restored(
    tmp_path: Path, spark: Any, broker: LocalBroker, client: Client, new_topic: Callable[..., str]
) -> None:
    topic, lake = new_topic(), tmp_path / "lake"
    _publish(client, topic, 0, 60)
    file = write(tmp_path / "archive.yaml", "archive", broker, f"topics: {topic}, lake: lake, maxRecordsPerTrigger: 30")
    assert PipelineRun(load(file), spark, trigger=_once()).go().error is None
    first, second = (lake / path for path in Catalog.load(lake).files)
    first.write_bytes(second.read_bytes())  # as large, of the same topic, and of other messages
    for name, act, told in (
        ("swapped", lambda: None, "is not what was archived"),
        ("gone", first.unlink, "which its catalog has"),
    ):
        act()
        status = PipelineRun(
            load(write(tmp_path / f"{name}.yaml", "restore", broker, "lake: lake, suffix: -back")), spark
        ).go()
        assert told in (status.error or "")
    with pytest.raises(Exception, match=r"no topic|There is no"):
        list(client.read(f"{topic}-back", 0))


def _publish(client: Client, topic: str, first: int, count: int) -> int:
    for partition in range(3 if count > 100 else 1):
        share = range(first + partition, first + count, 3 if count > 100 else 1)
        client.publish_many(topic, [b"%d" % at for at in share], partition=partition)
    return count


def _once() -> Any:
    from penstock.pipelines.definition import Trigger, TriggerKind

    return Trigger(TriggerKind.ONCE)


def _wait_for_entries(process: subprocess.Popen[bytes], lake: Path, count: int, log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while entries(lake) < count:
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)


def _kill(process: subprocess.Popen[bytes]) -> None:
    family = psutil.Process(process.pid)
    for each in [family, *family.children(recursive=True)]:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()
