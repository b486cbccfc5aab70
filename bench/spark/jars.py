"""Spark's own Kafka connector, from Maven Central: the newest that is there, which Spark's next version runs too.

The part of it that deals with tokens is an older one, because no newer is there; it does nothing here. The jars are
named one by one, as in the compatibility runs: what the connector needs beyond them comes with Spark.
"""

from __future__ import annotations

from pathlib import Path

from bench.install import ensure_command
from bench.kafka import maven
from bench.targets import CACHE

VERSION = "4.2.0"
JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def connector_jars() -> list[Path]:
    """The connector and what it needs; fetched once and kept."""
    home = CACHE / f"spark-connector-{VERSION}"
    done = home / "jars" / "complete"
    if not done.exists():
        ensure_command("mvn", "maven")
        home.mkdir(parents=True, exist_ok=True)
        dependencies = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version>{_ALONE}</dependency>"
            for group, artifact, version in JARS
        )
        head = "<modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>connector</artifactId>"
        rest = f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies>"
        (home / "pom.xml").write_text(f"<project>{head}{rest}</project>\n")
        maven(home, "dependency:copy-dependencies", f"-DoutputDirectory={home / 'jars'}")
        done.touch()
    return sorted((home / "jars").glob("*.jar"))
