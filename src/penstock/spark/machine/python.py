"""The Python of Spark's workers, on the machine of the session.

Spark has its workers import PySpark from an archive, where bytecode is never kept: every process compiles it anew, for
a second. The same modules are installed beside Penstock. So workers are started by a script that takes the archives out
of the path, and they are there in a third of the time; on a busy machine Spark would give some of them up otherwise.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from penstock.spark.connection import DAEMON
from penstock.spark.machine.scripts import place_script

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
