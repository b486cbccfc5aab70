"""The schedule follows from its seed; figures follow from the history; a diary keeps what was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.chaos.__main__ import parse
from bench.chaos.faults import KINDS
from bench.chaos.figures import AFTER_S, Figures, longest_silence, per_second
from bench.chaos.history import Committed, Diary, Ended, Polled, Send, Sent, id_of, read_all, text_of
from bench.chaos.schedule import QUIET_AT_END_S, QUIET_AT_START_S, make_schedule
from bench.chaos.watch import View

HOLDS = {name: kind.hold_s for name, kind in KINDS.items()}


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert make_schedule(7, 10, HOLDS, 4) == make_schedule(7, 10, HOLDS, 4)
    assert make_schedule(7, 10, HOLDS, 4) != make_schedule(8, 10, HOLDS, 4)


def test_the_order_in_which_kinds_are_named_does_not_matter() -> None:
    assert make_schedule(7, 10, HOLDS, 4) == make_schedule(7, 10, dict(reversed(HOLDS.items())), 4)


@pytest.mark.parametrize("seed", range(20))
def test_faults_are_healed_before_the_end_and_held_as_long_as_their_kind_says(seed: int) -> None:
    entries = make_schedule(seed, 10, HOLDS, 4)
    assert entries[0].at_s == QUIET_AT_START_S
    assert [entry.at_s for entry in entries] == sorted(entry.at_s for entry in entries)
    for entry in entries:
        shortest, longest = HOLDS[entry.kind]
        assert shortest - 0.001 <= entry.hold_s <= longest + 0.001
        assert entry.at_s + entry.hold_s <= 600 - QUIET_AT_END_S + 0.01


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_has_its_turn_before_any_has_its_second(seed: int) -> None:
    kinds = [entry.kind for entry in make_schedule(seed, 30, HOLDS, 4)]
    assert len(set(kinds[: len(HOLDS)])) == len(HOLDS)


def test_the_rate_is_about_what_was_asked_for() -> None:
    counts = [len(make_schedule(seed, 60, HOLDS, 4)) for seed in range(5)]
    assert all(180 <= count <= 320 for count in counts), counts


def test_no_kinds_no_faults() -> None:
    assert make_schedule(1, 10, {}, 4) == []


def test_the_longest_silence_is_looked_for_from_the_fault_until_a_while_after() -> None:
    steady = [n / 10 for n in range(1000)]
    assert longest_silence(steady, 20, 30, 99) == pytest.approx(0.1)
    gap = [at for at in steady if not 22 < at < 27]
    assert longest_silence(gap, 20, 30, 99) == pytest.approx(5.0)
    assert longest_silence(gap, 40, 50, 99) == pytest.approx(0.1), "that was another fault's"
    assert longest_silence([], 20, 30, 99) == 10 + AFTER_S
    assert longest_silence([], 20, 30, 32) == 12, "nobody asked for more"


def test_achievements_are_counted_by_the_second() -> None:
    assert per_second([0.5, 10.2, 10.9, 12.0, 99.0], 10.0, 3.0) == [2, 0, 1, 0]


def test_operations_are_counted_by_outcome() -> None:
    figures = Figures.of(
        [
            Send("p-0", "t", 0, 1.0),
            Sent("p-0", "ok", 2.0, 0),
            Sent("p-1", "info", 1.5),
            Sent("p-2", "info", 1.5, error="KafkaError{code=_PURGE_QUEUE,val=-152}"),
            Ended("w:0", "commit", "ok", 3.0),
            Ended("w:1", "abort", "ok", 4.0),
            Committed("g", "t", 0, 1, "info", 4.0),
            Polled("c", "committed", 5.0, [("t", 0, 0, "p-0"), ("t", 0, 1, "p-1")]),
        ]
    )
    assert figures.outcomes["send"] == {"ok": 1, "info": 1, "withdrawn": 1}
    assert (figures.outcomes["commit"], figures.outcomes["abort"]) == ({"ok": 1}, {"ok": 1})
    assert figures.acked_at == [2.0]
    assert figures.records_read == 2


def test_a_message_tells_whether_it_is_whole() -> None:
    text = text_of("p.0-17")
    assert id_of(text) == "p.0-17"
    for damaged in (text[:-1], text + b"x", text.replace(b"p.0-17", b"p.0-18"), b"", text[:-1] + b"?"):
        assert id_of(damaged).startswith("damaged-")
    assert len({len(text_of(f"p.0-{n}")) for n in range(50)}) > 20, "messages are of many sizes"


def test_a_diary_gives_back_what_was_written_but_for_a_torn_last_line(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "a.diary")
    events = [Send("p-0", "t", 0, 1.0), Polled("c", "committed", 5.0, [("t", 0, 3, "p-0")], "g")]
    diary.write(*events)
    diary.close()
    with (tmp_path / "a.diary").open("ab") as file:
        file.write(b'{"type":"send","id":"p-1"')
    assert list(read_all(tmp_path.glob("*.diary"))) == events


def test_a_cluster_is_whole_when_everybody_is_there_and_in_step() -> None:
    both = frozenset({1, 2})
    view = View(1, both, {("t", 0): 1}, {("t", 0): both}, {("t", 0): both})
    assert view.is_whole({"t": 1}, both)
    assert not view.is_whole({"t": 2}, both), "a partition is missing"
    assert not view.is_whole({"t": 1}, both | {3}), "a node is missing"
    assert not View(1, both, {("t", 0): -1}, {("t", 0): both}, {("t", 0): both}).is_whole({"t": 1}, both)
    assert not View(1, both, {("t", 0): 1}, {("t", 0): frozenset({1})}, {("t", 0): both}).is_whole({"t": 1}, both)


@pytest.mark.parametrize("arguments", [["--faults", "earthquake"], ["--minutes", "0"], ["dance"], ["--target", "x"]])
def test_bad_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)


def test_faults_can_be_chosen() -> None:
    assert parse(["--faults", "kill-node,disk-full"]).faults == ["kill-node", "disk-full"]
    assert parse([]).faults == list(KINDS)
