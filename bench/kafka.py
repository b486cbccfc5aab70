"""Apache Kafka from Maven Central, as a single KRaft node.

The jars come through the ordinary `mvn` client by coordinates, into `.cache/kafka-VERSION/libs`. The broker runs as
Kafka's own `kafka-server-start.sh` would run it (heap, G1 flags) with the values of its shipped `server.properties`,
so that the comparison is with Kafka as people get it, not with one we tuned down.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from bench.install import ensure_command
from bench.process import BrokerError, BrokerProcess, answers_api_versions, free_port
from bench.targets import CACHE, Node, Target

# The heap and flags of kafka-server-start.sh and kafka-run-class.sh (4.x).
JVM_FLAGS = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
]
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"

POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>kafka-libs</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version></dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.4</version>
    </dependency>
  </dependencies>
</project>
"""

LOG4J = """rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
"""

# Kafka's shipped server.properties, but for addresses, paths, and the last two lines: deleted files really go at once
# (60 s by default, 30 s after the start at the earliest), so that a workload does not pay for the one before it.
PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={data}
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
log.segment.delete.delay.ms=500
log.initial.task.delay.ms=500
"""


@dataclass(frozen=True, slots=True)
class Kafka:
    """Apache Kafka; `version` None is the newest release.

    `extra` are properties over the shipped ones, with `{broker}` and `{controller}` for its ports.
    """

    name: str
    description: str
    version: str | None = None
    extra: str = ""
    ready_limit_s: float = 60
    nodes: int = 1

    def prepare(self) -> str:
        ensure_command("java", "default-jre-headless")
        return fetch(self.version)

    def start(self, directory: Path) -> Node:
        home = CACHE / f"kafka-{fetch(self.version)}"
        broker, controller = free_port(), free_port()
        data = directory / "data"
        config = directory / "server.properties"
        config.write_text((PROPERTIES + self.extra).format(broker=broker, controller=controller, data=data))
        (directory / "log4j2.properties").write_text(LOG4J)
        java = ["java", "-cp", f"{home}/libs/*", f"-Dlog4j2.configurationFile={directory}/log4j2.properties"]
        format_storage(java, config)
        command = [*java, *JVM_FLAGS, "kafka.Kafka", str(config)]
        process = BrokerProcess(command, directory / "broker.log", os.environ, directory)
        try:
            ready_s = process.wait_until(lambda: answers_api_versions(broker), self.ready_limit_s)
        except BaseException:
            process.stop()
            raise
        return Node(broker, data, process, ready_s)


def format_storage(java: list[str], config: Path) -> None:
    """What `kafka-storage.sh format --standalone` does."""
    command = [*java, "kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER_ID, "-c", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise BrokerError(f"storage format failed: {done.stdout}{done.stderr}")


def fetch(version: str | None) -> str:
    """Make sure that the jars of `version` are in the cache, and give the version.

    None takes the newest release already in the cache, and asks Maven when there is none.
    """
    version = version or newest_cached()
    if version is None or version == "newest":
        version = newest_release()
    home = CACHE / f"kafka-{version}"
    if (home / "complete").exists():
        return version
    ensure_command("mvn", "maven")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    (home / "pom.xml").write_text(POM.format(version=version))
    maven(home, "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={home / 'libs'}")
    (home / "complete").touch()
    return version


def newest_cached() -> str | None:
    versions = [path.parent.name.removeprefix("kafka-") for path in CACHE.glob("kafka-*/complete")]
    return max(versions, key=version_key, default=None)


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def newest_release() -> str:
    """The newest release that Maven Central lists for the broker's artifact."""
    ensure_command("mvn", "maven")
    CACHE.mkdir(exist_ok=True)
    maven(CACHE, "dependency:get", "-Dartifact=org.apache.kafka:kafka_2.13:RELEASE:pom", "-Dtransitive=false")
    listing = CACHE / "maven/org/apache/kafka/kafka_2.13"
    found = [ElementTree.parse(path).findtext("versioning/release") for path in listing.glob("maven-metadata-*.xml")]
    with contextlib.suppress(ValueError):
        return max((v for v in found if v), key=version_key)
    raise BrokerError("Maven lists no release of org.apache.kafka:kafka_2.13")


def maven(directory: Path, *arguments: str) -> None:
    command = ["mvn", "-q", "-B", f"-Dmaven.repo.local={CACHE / 'maven'}", *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise BrokerError(f"mvn {arguments[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def kafka_targets(version: str | None) -> list[Target]:
    return [
        Kafka("kafka", "as shipped: no fsync, the page cache is its durability", version),
        Kafka("kafka+fsync", "log.flush.interval.messages=1", version, "log.flush.interval.messages=1\n"),
    ]
