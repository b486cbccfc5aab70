"""Where the files of a pipeline are: paths of this machine, and URIs of any file system that Spark knows.

A place is a text, and a URI stays one: as a path, ``s3a://bucket/lake`` would be a directory of that name here. What
Spark reads and writes is handed to Spark as it is. What we read and write ourselves is either on this machine (a path
or ``file:``), or goes through Spark's own file systems, which a session by Connect does not give us.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from penstock.errors import InvalidPipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipelines.definition import Definition

PLAN: Final = "plan.json"  # of a restore, in its checkpoint

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_YES: Final = True  # overwrite, or with all that is in it
_QUERY_FILES: Final = ("metadata", "offsets", "commits")  # by which the directory of a streaming query is known


def is_uri(place: str) -> bool:
    return _URI.match(place) is not None


def absolute(place: str, base: Path) -> str:
    """A place as it is meant seen from a directory. URIs stay as they are."""
    return place if is_uri(place) else str(base / place)


def beside(definition: Definition, place: str) -> str:
    """A place as it is meant in a pipeline's file: seen from where the file is."""
    return place if not definition.file else absolute(place, Path(definition.file).resolve().parent)


def within(place: str, name: str) -> str:
    """Something in a directory."""
    return f"{place.rstrip('/')}/{name}"


def local_path(place: str) -> Path | None:
    """The path on this machine, if it is there: a path, or a ``file:`` URI without a host."""
    if not is_uri(place):
        return Path(place)
    parts = urlsplit(place)
    return (
        Path(url2pathname(parts.path)) if parts.scheme.lower() == "file" and parts.netloc in ("", "localhost") else None
    )


def on_this_machine(place: str, what: str) -> Path:
    """The path of something that we write ourselves; `InvalidPipeline` where that cannot be done."""
    path = local_path(place)
    if path is None:
        raise InvalidPipeline(f"{what} cannot be at {place}: give a path or a file:/// URI. {HOW_TO_REACH}")
    return path


HOW_TO_REACH: Final = "Object stores and HDFS have to be mounted, on the driver and on every executor."


class Checkpoint:
    """The directory in which a pipeline keeps how far it is, wherever that is."""

    def __init__(self, place: str, spark: SparkSession) -> None:
        self.place = place
        self._spark = spark
        self._path = local_path(place)

    def read(self, name: str) -> bytes | None:
        """A file of it, if there is one."""
        if self._path is not None:
            path = self._path / name
            return path.read_bytes() if path.exists() else None
        files, at = self._remote(name)
        if not files.exists(at):
            return None
        stream = files.open(at)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, name: str, content: bytes) -> None:
        """Put a file into it, as a whole."""
        if self._path is not None:
            self._path.mkdir(parents=True, exist_ok=True)
            written = self._path / f"{name}.new"
            written.write_bytes(content)
            written.rename(self._path / name)
            return
        files, at = self._remote(name)
        _, written = self._remote(f"{name}.new")
        stream = files.create(written, _YES)
        stream.write(bytearray(content))
        stream.close()
        if not files.rename(written, at):
            raise InvalidPipeline(f"{within(self.place, name)} could not be written.")

    @property
    def is_new(self) -> bool:
        """Whether no query has begun with it yet."""
        if self._path is not None:
            return not any(self._path.glob("*/offsets/*"))
        files, at = self._remote("")
        return not files.exists(at) or not any(each.isDirectory() for each in files.listStatus(at))

    def forget(self) -> bool:
        """Remove what runs left in it, and nothing else; whether there was anything."""
        if self._path is not None:
            return self._forget_local(self._path)
        files, at = self._remote("")
        if not files.exists(at):
            return False
        found = False
        for status in files.listStatus(at):
            child = status.getPath()
            names = {each.getPath().getName() for each in files.listStatus(child)} if status.isDirectory() else set()
            if _is_query(names) or child.getName() == PLAN:
                found = bool(files.delete(child, _YES)) or found
        return found

    def _forget_local(self, path: Path) -> bool:
        if not hasattr(self._spark, "sparkContext") and not path.exists():
            raise InvalidPipeline(
                f"Over Spark Connect the checkpoint {self.place} is on the server's machine: remove it there, or give "
                "another --checkpoint."
            )
        found = False
        for child in path.iterdir() if path.is_dir() else ():
            if child.is_dir() and _is_query({each.name for each in child.iterdir()}):
                shutil.rmtree(child)
                found = True
            elif child.name == PLAN:
                child.unlink()
                found = True
        return found

    def _remote(self, name: str) -> tuple[Any, Any]:
        """Spark's file system for the checkpoint, and a path in it."""
        if not hasattr(self._spark, "sparkContext"):
            raise InvalidPipeline(
                f"Over Spark Connect the checkpoint {self.place} can only be used by queries: give a path, or use "
                "--master."
            )
        at = self._jvm.org.apache.hadoop.fs.Path(within(self.place, name) if name else self.place)
        return at.getFileSystem(self._context._jsc.hadoopConfiguration()), at

    @property
    def _context(self) -> Any:
        return self._spark.sparkContext

    @property
    def _jvm(self) -> Any:
        return self._context._jvm


def _is_query(names: set[str]) -> bool:
    return not names.isdisjoint(_QUERY_FILES)
