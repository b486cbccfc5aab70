"""Recovery on damaged files: a log opens or says why not, and never serves bytes that nobody wrote.

What no checksum covers, the base offset and the leader epoch of a batch, may be wrong in what is served; all else is
as it was appended.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from bench.fuzzing.mutation import mutate
from bench.fuzzing.part import Finding, memory_limit, scratch_directory, time_limit
from penstock.errors import OffsetOutOfRange, PenstockError
from penstock.records import Codec, Record, encode_batch, iter_batches, parse_header
from penstock.storage.config import LogConfig
from penstock.storage.files import DiskFiles, Files
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles

_CASES = 20
_CASE_LIMIT_S = 10.0
_PROTECTED_FROM = 16  # magic, checksum and everything after them; the length before them is checked by where it leads
_READS_MAX = 2_000


class Recovery:
    """A log of a few segments, closed or crashed, with one or several of its files damaged."""

    name = "recovery"

    def __init__(self) -> None:
        self.refusals: Counter[str] = Counter()  # errors on purpose, by class: most cases must not end in one

    def run(self, seed: int) -> int:
        rng = random.Random(seed)
        with memory_limit():
            for case in range(_CASES):
                if rng.random() < 0.9:
                    self._case(rng, MemoryFiles(seed=seed), Path("/log"), case)
                else:
                    self._on_disk(rng, case)
        return _CASES

    def _on_disk(self, rng: random.Random, case: int) -> None:
        with scratch_directory() as directory:
            self._case(rng, DiskFiles(), directory / "log", case)

    def _case(self, rng: random.Random, files: Files, directory: Path, case: int) -> None:
        config = LogConfig(segment_bytes=rng.choice((400, 2_000, 10_000)), index_interval_bytes=rng.choice((64, 4096)))
        written = _write(rng, files, directory, config)
        damage = _damage(rng, files, directory)
        told = f"case {case} on {type(files).__name__} after {damage}"
        with time_limit(_CASE_LIMIT_S, f"recovery in {told}"):
            try:
                log = Log.open(files, directory, config)
                _read_everything(log, written, told)
                _append(rng, log)
                log.close()
                _read_everything(Log.open(files, directory, config), written, told)
            except PenstockError as error:
                self.refusals[type(error).__name__] += 1
            except Finding:
                raise
            except Exception as error:
                raise Finding(f"{error!r} in {told}") from error

    def close(self) -> None:
        """Nothing is kept."""


def _batch(rng: random.Random, number: int) -> bytearray:
    value = b"%d " % number + rng.randbytes(rng.choice((0, 10, 300)))
    records = [Record(at, 1_700_000_000_000 + number, b"key", value, ()) for at in range(rng.randint(1, 4))]
    return encode_batch(
        records, codec=rng.choice(list(Codec)), producer_id=number % 2, producer_epoch=0, base_sequence=number * 4
    )


def _append(rng: random.Random, log: Log) -> None:
    batch = memoryview(_batch(rng, 1_000_000))
    log.append(batch, parse_header(batch), leader_epoch=9)


def _write(rng: random.Random, files: Files, directory: Path, config: LogConfig) -> set[bytes]:
    """A log with something in it; the protected part of every batch."""
    log = Log.open(files, directory, config)
    written: set[bytes] = set()
    for number in range(rng.randrange(40)):
        batch = memoryview(_batch(rng, number))
        log.append(batch, parse_header(batch), leader_epoch=number // 10)
        written.add(bytes(batch[_PROTECTED_FROM:]))
        if rng.random() < 0.3:
            log.sync()
    if rng.random() < 0.2 and log.end_offset:
        log.delete_files(log.trim(rng.randrange(log.end_offset + 1)))
    if rng.random() < 0.5:
        log.close()
    else:
        log.sync()
    return written


def _damage(rng: random.Random, files: Files, directory: Path) -> str:
    names = sorted(entry.name for entry in files.entries(directory))
    damaged = [rng.choice(names) for _ in range(rng.choice((1, 1, 2, 4)))]
    for name in damaged:
        path = directory / name
        if rng.random() < 0.1:
            files.remove(path)
            continue
        if not files.exists(path):
            continue
        file = files.open(path)
        data = mutate(rng, file.read(0, file.size))
        file.truncate(0)
        file.write(data)
        file.sync()
    if rng.random() < 0.05:
        stray = files.open(
            directory / f"{rng.randrange(1 << 40):020}.{rng.choice(('log', 'index', 'producers'))}", create=True
        )
        stray.write(rng.randbytes(rng.randrange(300)))
        stray.sync()
    return ", ".join(damaged)


def _read_everything(log: Log, written: set[bytes], told: str) -> None:
    offset = log.start_offset
    for _ in range(_READS_MAX):
        if offset >= log.end_offset:
            return
        try:
            found = log.read(offset, 1_000, log.end_offset)
        except OffsetOutOfRange as error:
            raise Finding(f"the log does not know its own offset {offset}: {error.message} in {told}") from error
        if found is None:
            return
        next_offset = offset
        for batch in _batches(found.read(), told):
            header = parse_header(batch)
            next_offset = max(next_offset, header.next_offset)
            if bytes(batch[_PROTECTED_FROM:]) not in written and header.leader_epoch != 9:
                raise Finding(f"bytes nobody wrote were served at offset {header.base_offset} in {told}")
        if next_offset == offset:
            raise Finding(f"reading does not get past offset {offset} in {told}")
        offset = next_offset
    raise Finding(f"reading does not end in {told}")


def _batches(data: bytes, told: str) -> list[memoryview]:
    view = memoryview(data)
    try:
        found = [view[position : position + header.size] for position, header in iter_batches(view)]
    except PenstockError as error:
        raise Finding(f"what was served is not a run of batches ({error.message}) in {told}") from error
    if sum(map(len, found)) != len(data):
        raise Finding(f"what was served ends in the middle of a batch in {told}")
    return found
