"""What encryption at rest costs the log: appends and reads of one partition, plain and encrypted, in one process.

``python -m bench.encryption`` prints a line for each size of batch. It measures the storage alone, where the cost is;
a node has its share of protocol work on top, so that what producers notice is less. Time is of the processor: disks
and other work on the machine change nothing about the comparison.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Final

from penstock.records import Record, encode_batch, parse_header
from penstock.storage.config import LogConfig
from penstock.storage.encryption.files import EncryptedFiles
from penstock.storage.encryption.keys import MasterKeys
from penstock.storage.files import DiskFiles, Files
from penstock.storage.log import Log

_TOTAL_BYTES: Final = 64 << 20
_APPENDS_MAX: Final = 100_000
_READ_BYTES: Final = 1 << 20


def _measure(files: Files, directory: Path, value_bytes: int) -> tuple[float, float]:
    """MB for each second of processor time: appended, with a sync for each MiB, and read back."""
    batch = encode_batch([Record(0, 1, None, os.urandom(value_bytes), ())])
    count = min(_APPENDS_MAX, _TOTAL_BYTES // len(batch))
    log = Log.open(files, directory, LogConfig())
    header = parse_header(batch)
    began, unsynced = time.process_time(), 0
    for _ in range(count):
        log.append(memoryview(batch), header, 0)
        unsynced += len(batch)
        if unsynced >= _READ_BYTES:
            log.sync()
            unsynced = 0
    log.sync()
    written = time.process_time()
    offset = 0
    while offset < log.end_offset and (found := log.read(offset, _READ_BYTES, log.end_offset)) is not None:
        found.read()
        offset = found.next_offset
    done = time.process_time()
    megabytes = count * len(batch) / 1e6
    return megabytes / (written - began), megabytes / (done - written)


def main() -> None:
    keys = MasterKeys({1: os.urandom(32)})
    print(f"{'batch':>8} {'append plain':>13} {'encrypted':>10} {'read plain':>11} {'encrypted':>10}   (MB/s)")
    for value_bytes in (100, 1_000, 16_000, 250_000):
        with tempfile.TemporaryDirectory() as made:
            plain = _measure(DiskFiles(), Path(made) / "plain", value_bytes)
            sealed = _measure(EncryptedFiles(DiskFiles(), keys), Path(made) / "sealed", value_bytes)
        print(f"{value_bytes:>8} {plain[0]:>13.1f} {sealed[0]:>10.1f} {plain[1]:>11.1f} {sealed[1]:>10.1f}")


if __name__ == "__main__":
    main()
