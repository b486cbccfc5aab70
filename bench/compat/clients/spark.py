"""Spark with its own Kafka connector: PySpark in an environment of its own, the connector's jars from Maven Central.

The jars are named one by one: what the connector needs beyond them comes with Spark itself. Spark and connector have to
be of the same version, and the connector tells the versions of the other two.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.compat.steps import INSTALL_LIMIT_S, PROGRAMS, run
from bench.install import ensure_command
from bench.kafka import maven
from bench.targets import CACHE

VERSION = "4.0.0"
JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", VERSION),
    ("org.apache.kafka", "kafka-clients", "3.9.0"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
JOB_LIMIT_S = 240.0


class Spark:
    """PySpark and its connector, in the cache."""

    name = "spark"
    _home = CACHE / "compat" / f"spark-{VERSION}"

    def install(self) -> str:
        ensure_command("java", "default-jre-headless")
        self._install_python()
        self._install_jars()
        return VERSION

    def _install_python(self) -> None:
        python = self._home / "venv" / "bin" / "python"
        done = self._home / "venv" / "complete"
        if done.exists():
            return
        run([sys.executable, "-m", "venv", "--clear", self._home / "venv"])
        run([python, "-m", "pip", "install", "--quiet", f"pyspark=={VERSION}"], limit_s=INSTALL_LIMIT_S)
        done.touch()

    def _install_jars(self) -> None:
        done = self._home / "jars" / "complete"
        if done.exists():
            return
        ensure_command("mvn", "maven")
        dependencies = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version>{_ALONE}</dependency>"
            for group, artifact, version in JARS
        )
        head = "<modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>spark-jars</artifactId>"
        text = (
            f"<project>{head}<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies>"
        )
        (self._home / "pom.xml").write_text(f"{text}</project>\n")
        maven(self._home, "dependency:copy-dependencies", f"-DoutputDirectory={self._home / 'jars'}")
        done.touch()

    def job(self, bootstrap: str, prefix: str, scratch: Path) -> list[str]:
        """Run the connector's program on the topics of that prefix; each line of its output is a check in JSON."""
        jars = ",".join(str(path) for path in sorted((self._home / "jars").glob("*.jar")))
        command = [self._home / "venv" / "bin" / "python", PROGRAMS / "spark" / "connector.py"]
        arguments = ["--bootstrap", bootstrap, "--prefix", prefix, "--jars", jars, "--scratch", str(scratch)]
        return run([*command, *arguments], limit_s=JOB_LIMIT_S)
