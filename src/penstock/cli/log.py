"""``penstock log``: the files of a log, inspected from outside. Nothing is changed, and no node is needed."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.master_keys import key_options, source_of
from penstock.cli.options import output_option
from penstock.cli.output import Output, count_of, echo_json, echo_table, printable
from penstock.storage.encryption_note import is_encrypted
from penstock.storage.files import DiskFiles, Files

if TYPE_CHECKING:
    from penstock.storage.encryption.keys import KeySource
    from penstock.storage.inspect import BatchFacts, LogReport, RecordFacts, SegmentReport

_METADATA: Final = "metadata"  # the directory of the metadata log, and the beginning of those set aside
# What the metadata keeps of credentials: good for guessing passwords at leisure, and of no use to people.
_SECRETS: Final = re.compile(rb'("(?:salt|stored_key|server_key|secret_hash)":)"[^"]*"')


@click.group()
def log() -> None:
    """Inspect the files of a log."""


@log.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--verify", is_flag=True, help="Also check the records in batches; exit code 1 if anything is damaged.")
@click.option("--batches", is_flag=True, help="Print every batch instead.")
@click.option("--records", is_flag=True, help="Print every record instead.")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Print from this offset on.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Print N of each log at most.")
@output_option
@key_options
def inspect(
    directory: Path,
    verify: bool,
    batches: bool,
    records: bool,
    offset: int,
    limit: int | None,
    out: Output,
    master_key_file: Path | None,
    master_key_env: str | None,
    master_key_command: str | None,
    config: Path | None,
) -> int:
    """Show what the logs under DIRECTORY contain, and what is wrong with them.

    DIRECTORY is a partition's, or any above it, such as a topic's or the whole data directory. It may be in use by a
    node; what is being written at that moment looks like a torn tail. Logs that are encrypted at rest need the master
    keys.
    """
    if batches and records:
        raise click.UsageError("--batches and --records exclude each other.")
    directories = sorted({path.parent for path in directory.rglob("*.log")})
    if not directories:
        raise CommandError(f"There is no log in {directory}: no file there ends in .log.", Exit.NOT_FOUND)
    files = _files(directories, source_of(master_key_file, master_key_env, master_key_command, config))
    exit_code = _summarize(files, directories, verify, out) if verify or not (batches or records) else Exit.OK
    for found in directories if batches or records else ():
        _dump(files, found, records, offset, limit, out)
    return exit_code


def _files(directories: list[Path], source: KeySource | None) -> Files:
    """The disk, or what the master keys show of it; nothing is repaired."""
    disk = DiskFiles()
    if source is None:
        logs = (path for directory in directories for path in sorted(directory.glob("*.log")))
        if (sealed := next((path for path in logs if is_encrypted(disk, path)), None)) is not None:
            raise CommandError(
                f"{sealed} is encrypted. Give --master-key-file, --master-key-env, --master-key-command or the "
                "--config of its node."
            )
        return disk
    from penstock.storage.encryption.files import EncryptedFiles

    return EncryptedFiles(disk, source.load(), is_encrypting=False, is_repairing=False)


def _summarize(files: Files, directories: list[Path], verify: bool, out: Output) -> Exit:
    from penstock.storage.inspect import inspect_log

    reports = [inspect_log(files, found, decodes_records=verify) for found in directories]
    if out.is_table:
        echo_table(_SEGMENT_COLUMNS, [_row(report, segment) for report in reports for segment in report.segments])
    else:
        for report in reports:
            echo_json(_as_json(report))
    problems = [(report, problem) for report in reports for problem in report.problems]
    for report, problem in problems:
        click.echo(f"{report.directory}: {problem}", err=True)
    if problems and verify:
        click.echo(f"Damaged: {count_of(len(problems), 'problem')} in {count_of(len(reports), 'log')}.", err=True)
        return Exit.FAILURE
    return Exit.OK


_SEGMENT_COLUMNS = ("log", "base", "next", "bytes", "batches", "records", "from", "to", "state")


def _row(report: LogReport, segment: SegmentReport) -> list[object]:
    return [
        "/".join(report.directory.parts[-2:]),
        segment.base_offset,
        segment.next_offset,
        segment.size_bytes,
        segment.batches,
        segment.records,
        _time(segment.first_timestamp) or "-",
        _time(segment.max_timestamp) or "-",
        _state(segment),
    ]


def _state(segment: SegmentReport) -> str:
    damaged = sum(hole.end - hole.start for hole in segment.holes)
    parts = [
        f"{count_of(damaged, 'byte')} damaged" if damaged else "",
        f"torn tail of {count_of(segment.torn_tail_bytes, 'byte')}" if segment.torn_tail_bytes else "",
        "see below" if segment.problems and not damaged else "",
        "no index" if not segment.has_index else "",
    ]
    return ", ".join(part for part in parts if part) or "good"


def _as_json(report: LogReport) -> dict[str, object]:
    return {
        "directory": str(report.directory),
        "start_offset": report.start_offset,
        "end_offset": report.end_offset,
        "size_bytes": report.size_bytes,
        "batches": report.batches,
        "records": report.records,
        "corrupt_bytes": report.corrupt_bytes,
        "torn_tail_bytes": report.torn_tail_bytes,
        "epochs": [epoch._asdict() for epoch in report.epochs],
        "problems": report.problems,
        "segments": [_segment_json(segment) for segment in report.segments],
    }


def _segment_json(segment: SegmentReport) -> dict[str, object]:
    return {
        "base_offset": segment.base_offset,
        "next_offset": segment.next_offset,
        "size_bytes": segment.size_bytes,
        "batches": segment.batches,
        "records": segment.records,
        "first_timestamp": _time(segment.first_timestamp),
        "max_timestamp": _time(segment.max_timestamp),
        "has_index": segment.has_index,
        "holes": [hole._asdict() for hole in segment.holes],
        "torn_tail_bytes": segment.torn_tail_bytes,
        "problems": segment.problems,
    }


# -- dumps -------------------------------------------------------------------------------------------------------------


def _dump(files: Files, directory: Path, records: bool, offset: int, limit: int | None, out: Output) -> None:
    """Every batch or record on a line of its own; a dump can be long, so nothing waits for the end of it."""
    from penstock.storage.inspect import dump_batches, dump_records

    lines: Iterator[dict[str, object]]
    is_metadata = directory.resolve().name.startswith(_METADATA)
    if records:
        found = dump_records(files, directory, offset=offset, limit=limit)
        lines = (_record_json(facts, hides_secrets=is_metadata) for facts in found)
    else:
        lines = (_batch_json(facts) for facts in dump_batches(files, directory, offset=offset, limit=limit))
    place: dict[str, object] = {"directory": str(directory)}
    for line in lines:
        if out.is_table:
            click.echo(
                "  ".join(f"{name}={printable(str(value))}" for name, value in line.items() if value is not None)
            )
        else:
            echo_json(place | line)


def _batch_json(facts: BatchFacts) -> dict[str, object]:
    header = facts.header
    return {
        "segment": facts.segment,
        "position": facts.position,
        "size_bytes": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.count,
        "base_timestamp": _time(header.base_timestamp),
        "max_timestamp": _time(header.max_timestamp),
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "codec": header.codec.name.lower(),
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "marker": None if facts.marker is None else facts.marker.name,
    }


def _record_json(facts: RecordFacts, *, hides_secrets: bool) -> dict[str, object]:
    record = facts.record
    value = record.value
    if hides_secrets and value is not None:
        value = _SECRETS.sub(rb'\1"..."', value)
    line: dict[str, object] = {"offset": record.offset, "timestamp": _time(record.timestamp)}
    if facts.batch.marker is not None:
        return line | {"marker": facts.batch.marker.name, "producer_id": facts.batch.header.producer_id}
    for name, data in (("key", record.key), ("value", value)):
        line |= _twin(name, data)
    if record.headers:
        line["headers"] = [{"name": name, **_twin("value", data)} for name, data in record.headers]
    return line


def _twin(name: str, data: bytes | None) -> dict[str, object]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _time(timestamp_ms: int) -> str | None:
    if timestamp_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
