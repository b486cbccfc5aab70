"""The same pipelines elsewhere: on a standalone cluster that loses a worker, by Connect, in Spark's own pipelines."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from tests.support.node import free_port, penstock_command

from penstock.client.generated.sync import Client
from penstock.testing.local import LocalBroker

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

_PATIENCE_S = 600.0
EXAMPLE = Path(__file__).parents[2] / "examples" / "spark-pipelines"
ROWS = 4000


class Machines:
    """Processes of Spark, each with all that it started."""

    def __init__(self, directory: Path) -> None:
        import pyspark

        from penstock.spark.sessions import ensure_java

        ensure_java()
        self.home = Path(pyspark.__file__).parent
        self._directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        log = self._directory / f"{len(self.processes)}.log"
        environment = {**os.environ, "SPARK_HOME": str(self.home), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= {"PYSPARK_PYTHON": sys.executable}
        with log.open("wb") as file:
            process = subprocess.Popen(arguments, stdout=file, stderr=file, cwd=self._directory, env=environment)
        self.processes.append(process)
        return process

    def java(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        return self.start(str(self.home / "bin" / "spark-class"), name, *arguments)

    def log(self, number: int) -> str:
        return (self._directory / f"{number}.log").read_text(errors="replace")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        try:
            family = psutil.Process(process.pid)
        except psutil.NoSuchProcess:
            return
        for each in [*family.children(recursive=True), family]:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        process.wait()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    for process in made.processes:
        made.kill(process)


def wait_for(is_so: Callable[[], bool], why: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"it takes too long: {why()}"
        time.sleep(0.2)


def rows_of(broker: LocalBroker, name: str) -> int:
    answer = httpx.get(f"{broker.url}/v1/pipelines/{name}")
    return sum(query["rows"] for query in answer.json()["queries"]) if answer.status_code == 200 else 0


def pipeline(directory: Path, broker: LocalBroker, source: str, target: str) -> Path:
    path = directory / "moved.yaml"
    path.write_text(f"""
pipeline: moved-{source}
servers: {broker.url}
sources:
  numbers: {{topics: {source}, schema: "n INT", maxRecordsPerTrigger: 200}}
steps:
  moved: SELECT /*+ REPARTITION(2, n) */ n, n * 2 AS twice FROM numbers
sinks:
  moved: {{from: moved, topic: {target}}}
trigger: available-now
""")
    return path


def numbers(client: Client, topic: str, partitions: int) -> Counter[int]:
    found = [message for index in range(partitions) for message in client.read(topic, index)]
    return Counter(json.loads(message.value)["n"] for message in found)


def test_a_standalone_cluster_loses_a_worker_and_no_row(
    tmp_path: Path, machines: Machines, broker: LocalBroker, client: Client, new_topic: Callable[..., str]
) -> None:
    source, target = new_topic(3), new_topic(2)
    for index in range(3):
        client.publish_many(source, [b'{"n": %d}' % at for at in range(ROWS) if at % 3 == index], partition=index)
    port = free_port()
    at = ["--host", "127.0.0.1"]
    machines.java("org.apache.spark.deploy.master.Master", *at, "--port", str(port), "--webui-port", "0")
    wait_for(lambda: "I have been elected leader" in machines.log(0), lambda: machines.log(0)[-2000:])
    workers = [
        machines.java(
            "org.apache.spark.deploy.worker.Worker",
            *at,
            *("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(tmp_path / "work")),
            f"spark://127.0.0.1:{port}",
        )
        for _ in range(2)
    ]
    wait_for(lambda: machines.log(0).count("Registering worker") == 2, lambda: machines.log(0)[-2000:])
    command = machines.start(
        *(penstock_command(), "pipeline", "run", str(pipeline(tmp_path, broker, source, target))),
        *("--master", f"spark://127.0.0.1:{port}", "--conf", "spark.executor.memory=512m"),
        *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.sql.shuffle.partitions=2"),
    )
    wait_for(
        lambda: rows_of(broker, f"moved-{source}") >= 600 or command.poll() is not None, lambda: machines.log(3)[-3000:]
    )
    assert command.poll() is None, machines.log(3)[-3000:]
    machines.kill(workers[0])
    assert command.wait(_PATIENCE_S) == 0, machines.log(3)[-3000:]
    assert numbers(client, target, 2) == Counter(range(ROWS))
    executors = len(list((tmp_path / "work").glob("app-*/*")))
    assert executors >= 2, "both workers took part"


def test_the_same_file_runs_by_connect(
    tmp_path: Path, machines: Machines, broker: LocalBroker, client: Client, new_topic: Callable[..., str]
) -> None:
    source, target = new_topic(), new_topic()
    client.publish_many(source, [b'{"n": %d}' % at for at in range(300)])
    port = free_port()
    machines.start(
        str(machines.home / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[1]"),
        *("--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.ui.enabled=false", "spark-internal"),
    )
    wait_for(lambda: "Spark Connect server started" in machines.log(0), lambda: machines.log(0)[-2000:])
    command = machines.start(
        *(penstock_command(), "pipeline", "run", str(pipeline(tmp_path, broker, source, target))),
        *("--remote", f"sc://127.0.0.1:{port}"),
    )
    assert command.wait(_PATIENCE_S) == 0, machines.log(1)[-3000:]
    assert numbers(client, target, 1) == Counter(range(300))


def test_sparks_own_pipelines_read_and_write_topics(
    tmp_path: Path, machines: Machines, broker: LocalBroker, client: Client
) -> None:
    directory = tmp_path / "example"
    shutil.copytree(EXAMPLE, directory)
    specification = directory / "spark-pipeline.yml"
    text = specification.read_text().replace("http://127.0.0.1:8080", broker.url)
    specification.write_text(re.sub(r"file:///tmp/[\w-]+", f"file://{tmp_path}/storage", text))
    client.create_topic("orders-of-example")
    source = directory / "transformations" / "orders.py"
    source.write_text(source.read_text().replace('topics="orders"', 'topics="orders-of-example"'))
    client.publish_many("orders-of-example", [b'{"id": "a", "amount": 20}', b'{"id": "b", "amount": 150}'])
    command = machines.start(
        *(str(Path(sys.executable).with_name("spark-pipelines")), "run", "--spec", str(specification)),
        *("--conf", "spark.sql.catalogImplementation=hive"),
        *("--conf", f"spark.sql.warehouse.dir={tmp_path}/warehouse"),
    )
    assert command.wait(_PATIENCE_S) == 0, machines.log(0)[-3000:]
    (found,) = client.read("large-orders", 0)
    assert (found.key, json.loads(found.value)) == (b"b", {"id": "b", "amount": 150})
