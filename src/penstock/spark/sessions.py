"""A Spark session that is tuned for Penstock. Everything also works on any other session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import InvalidConfig
from penstock.spark.machine.java import ensure_java
from penstock.spark.machine.python import ensure_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ALWAYS: Final = {
    # Arrow batches between the JVM and Python go through a Unix socket: 40 ms less for every micro-batch.
    "spark.python.unix.domain.socket.enabled": "true",
    # Only what a query's filters leave is read. Other sources see no change.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}
_LOCAL: Final = {
    # Names of machines that do not resolve keep a local session from starting.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Files of a checkpoint are written aside and renamed into place. With checksums beside them, Hadoop starts twenty
    # processes (`readlink`, `chmod`) for each micro-batch, and without them ten; and there is only one thing to rename.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
_TESTING: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.streaming.pollingDelay": "20ms",
}


def session(
    app: str = "penstock", master: str | None = "local[*]", *, testing: bool = False, **conf: object
) -> SparkSession:
    """A session for Penstock, or the one that is there already, with these settings where they can still be made.

    ``master`` is where it runs; None leaves that to ``spark-submit``. ``testing`` makes it start and answer quickly and
    not fast in the long run. ``conf`` are settings by Spark's own names: ``**{"spark.sql.shuffle.partitions": 8}``. If
    the machine has no Java, the packaged one is used.
    """
    strange = [name for name in conf if not name.startswith("spark.")]
    if strange:
        raise InvalidConfig(f"{strange[0]!r} is no setting of Spark; their names begin with `spark.`.")
    ensure_java()
    from pyspark.sql import SparkSession

    ensure_python(is_local=_is_local(master))
    builder: Any = SparkSession.builder.appName(app)
    for name, value in {**_settings(master, testing=testing), **conf}.items():
        builder = builder.config(name, _text(value))
    if master is not None:
        builder = builder.master(master)
    spark: SparkSession = builder.getOrCreate()
    return spark


def _settings(master: str | None, *, testing: bool) -> dict[str, str]:
    settings = dict(_ALWAYS)
    if _is_local(master):
        settings |= _LOCAL
        # Spark's default of 200 is for clusters; here it would be hundreds of tasks for every little shuffle.
        settings["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
    return settings | _TESTING if testing else settings


def _is_local(master: str | None) -> bool:
    return master is not None and master.startswith("local")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
