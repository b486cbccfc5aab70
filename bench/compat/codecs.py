"""The scenario "codecs": a topic of one partition, written idempotently with every codec, read back in order.

It is read in every way that the client knows: by partition, and as the only member of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from bench.compat.brokers import Running
from bench.compat.steps import Result, StepFailedError, step
from penstock.records import Codec, iter_batches
from penstock.records.header import CODEC_MASK

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LINES_A_CODEC = 500

Reader = Callable[[str, str, int], list[str]]


@runtime_checkable
class Writes(Protocol):
    """A client that writes lines to a topic and reads them back."""

    name: str

    def create(self, bootstrap: str, topic: str) -> None: ...
    def produce(self, bootstrap: str, topic: str, codec: str, lines: Sequence[str]) -> None: ...

    @property
    def readers(self) -> Mapping[str, Reader]:
        """Each way to read a whole topic of one partition, by name: (bootstrap, topic, count) to values."""


def play(client: Writes, broker: Running) -> Iterator[Result]:
    topic = f"compat-{client.name}"
    lines = {codec: [f"{codec} {number} ".ljust(100, "x") for number in range(LINES_A_CODEC)] for codec in CODECS}
    yield step(client.name, "create topic", partial(client.create, broker.bootstrap, topic))
    written: list[str] = []
    for codec in CODECS:
        result = step(
            client.name, f"produce {codec}", partial(client.produce, broker.bootstrap, topic, codec, lines[codec])
        )
        written += lines[codec] if result.passed else []
        yield result
    yield step(client.name, "codecs are used", partial(_check_stored, broker.files_of(topic, 0)))
    for name, reader in client.readers.items():
        yield step(client.name, f"read by {name}", partial(_compare, reader, broker.bootstrap, topic, written))


def _compare(reader: Reader, bootstrap: str, topic: str, written: list[str]) -> str:
    read = reader(bootstrap, topic, len(written))
    if read == written:
        return f"{len(read)} in order"
    if sorted(read) == sorted(written):
        raise StepFailedError("everything is there, but not in order")
    first = next(
        (n for n, (a, b) in enumerate(zip(read, written, strict=False)) if a != b), min(len(read), len(written))
    )
    raise StepFailedError(f"read {len(read)} of {len(written)}; they differ from line {first} on")


def _check_stored(directory: Path) -> str:
    """Clients drop a codec, or idempotence, without a word where they think that a broker cannot do it."""
    files = [path.read_bytes() for path in sorted(directory.glob("*.log"))]
    headers = [header for data in files for _, header in iter_batches(memoryview(data))]
    found = {Codec(header.attributes & CODEC_MASK).name.lower() for header in headers}
    if found != set(CODECS):
        raise StepFailedError(f"the stored batches have only these codecs: {', '.join(sorted(found))}")
    if not all(header.is_idempotent for header in headers):
        raise StepFailedError("some stored batches come from a producer without an id")
    return f"{len(headers)} batches"
