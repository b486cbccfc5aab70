"""Logs looked at from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.exits import Exit
from penstock.cli.main import run
from penstock.records import Record, accept_batch, encode_batch
from penstock.storage.config import LogConfig
from penstock.storage.files import DiskFiles
from penstock.storage.log import Log

START_MS = 1_738_324_800_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of five batches in several segments, closed in good order."""
    path = tmp_path / "logs" / "orders" / "0"
    log = Log.open(DiskFiles(), path, LogConfig(segment_bytes=1024))
    for number in range(5):
        value = b"\xff" * 400 if number == 4 else b"v" * 400
        headers = (("h", b"x"), ("h", None))
        batch = encode_batch(
            [Record(0, START_MS + number, b"k%d" % number, value, headers), Record(1, START_MS, None, None)]
        )
        view = memoryview(batch)
        log.append(view, accept_batch(view), 0)
    log.close()
    return path


def lines(capfd: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def damage(directory: Path) -> None:
    segment = min(directory.glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)


def test_a_sound_log_is_summed_up(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "inspect", str(directory), "--verify"]) == Exit.OK
    [report] = lines(capfd)
    assert (report["start_offset"], report["end_offset"]) == (0, 10)
    assert (report["batches"], report["records"], report["problems"]) == (5, 10, [])
    assert len(report["segments"]) > 1
    assert report["segments"][0]["first_timestamp"] == "2025-01-31T12:00:00.000Z"


def test_a_directory_above_shows_every_log_in_it(
    directory: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Log.open(DiskFiles(), directory.with_name("1"), LogConfig()).close()
    assert run(["log", "inspect", str(tmp_path)]) == Exit.OK
    assert [report["directory"] for report in lines(capfd)] == [str(directory), str(directory.with_name("1"))]


def test_a_table_has_a_row_for_each_segment(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "inspect", str(directory), "-o", "table"]) == Exit.OK
    heading, *rows = capfd.readouterr().out.splitlines()
    assert heading.split()[:4] == ["LOG", "BASE", "NEXT", "BYTES"]
    assert len(rows) == len(list(directory.glob("*.log")))
    assert all(row.startswith("orders/0") and "good" in row for row in rows)


def test_damage_is_told_and_fails_only_a_verification(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    damage(directory)
    assert run(["log", "inspect", str(directory)]) == Exit.OK
    assert "hold no correct batch" in capfd.readouterr().err
    assert run(["log", "inspect", str(directory), "--verify", "-o", "table"]) == Exit.FAILURE
    captured = capfd.readouterr()
    assert "damaged" in captured.out
    assert "Damaged: " in captured.err


def test_a_torn_tail_is_no_damage(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with max(directory.glob("*.log")).open("ab") as file:
        file.write(b"torn")
    assert run(["log", "inspect", str(directory), "--verify"]) == Exit.OK
    [report] = lines(capfd)
    assert report["torn_tail_bytes"] == 4


def test_batches_are_dumped(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "inspect", str(directory), "--batches", "--offset", "3", "--limit", "2"]) == Exit.OK
    batches = lines(capfd)
    assert [(batch["base_offset"], batch["records"], batch["codec"]) for batch in batches] == [
        (2, 2, "none"),
        (4, 2, "none"),
    ]


def test_records_are_dumped(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "inspect", str(directory), "--records", "--offset", "8"]) == Exit.OK
    first, second = lines(capfd)
    assert (first["offset"], first["key"]) == (8, "k4")
    assert "value_base64" in first
    assert first["headers"] == [{"name": "h", "value": "x"}, {"name": "h", "value": None}]
    assert (second["offset"], second["key"], second["value"]) == (9, None, None)


def test_a_dump_for_people_is_a_line_each(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "inspect", str(directory), "--records", "--limit", "1", "-o", "table"]) == Exit.OK
    assert capfd.readouterr().out.startswith("offset=0  timestamp=2025-01-31T12:00:00.000Z  key=k0  value=vvv")


def test_a_directory_without_logs_is_not_found(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "inspect", str(tmp_path)]) == Exit.NOT_FOUND
    assert "There is no log in" in capfd.readouterr().err
    assert run(["log", "inspect", str(tmp_path / "nowhere")]) == Exit.USAGE
    assert run(["log", "inspect", str(tmp_path), "--batches", "--records"]) == Exit.USAGE


def test_looking_changes_nothing(directory: Path) -> None:
    damage(directory)
    before = {path: path.read_bytes() for path in directory.iterdir()}
    run(["log", "inspect", str(directory), "--verify", "--records"])
    assert {path: path.read_bytes() for path in directory.iterdir()} == before
