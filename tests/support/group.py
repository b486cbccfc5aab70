"""A consumer group of real processes, a producer that feeds it, and the rules of at-least-once to hold it to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer
from tests.support.nursery import die_with_parent

ROOT = Path(__file__).parents[2]


class Got(NamedTuple):
    """A message that a member wrote down."""

    at: float
    partition: int
    offset: int
    value: str


@dataclass
class Story:
    """A member's diary, read back."""

    got: list[Got] = field(default_factory=list)
    assigned: list[tuple[float, frozenset[int]]] = field(default_factory=list)
    revoked: list[tuple[float, frozenset[int]]] = field(default_factory=list)
    committed: list[tuple[float, int, int]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Story:
        story = cls()
        lines = path.read_text().split("\n") if path.exists() else []
        for line in lines[:-1]:  # what follows the last line break was cut by a crash, or is nothing
            at, kind, *rest = line.split(" ")
            if kind == "got":
                story.got.append(Got(float(at), int(rest[0]), int(rest[1]), rest[2]))
            elif kind in ("assigned", "revoked"):
                moves = story.assigned if kind == "assigned" else story.revoked
                moves.append((float(at), frozenset(int(each) for each in rest if each)))
            else:
                story.committed.append((float(at), int(rest[0]), int(rest[1])))
        return story

    def held_before(self, moment: float) -> frozenset[int]:
        """The partitions that it had right before a moment."""
        held: frozenset[int] = frozenset()
        for at, is_given, partitions in sorted(
            [(at, True, each) for at, each in self.assigned] + [(at, False, each) for at, each in self.revoked]
        ):
            if at < moment:
                held = held | partitions if is_given else held - partitions
        return held

    def given_at(self, message: Got) -> float:
        """When the member was last given the partition that a message came from."""
        return max((at for at, partitions in self.assigned if message.partition in partitions and at <= message.at))


class Member:
    """One process in the group."""

    def __init__(self, diary: Path, command: list[str]) -> None:
        self._diary = diary
        with diary.with_suffix(".log").open("ab") as out:
            self._child = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                preexec_fn=die_with_parent,
            )

    @property
    def story(self) -> Story:
        return Story.read(self._diary)

    def crash(self) -> None:
        self._child.kill()
        self._child.wait()

    def leave(self) -> None:
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            self._child.wait(20)

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    def log_tail(self, characters: int = 400) -> str:
        """The last of what it said, beside its diary."""
        return self._diary.with_suffix(".log").read_text(errors="replace").strip()[-characters:]


class Fleet:
    """The members of one group, those that are gone included."""

    def __init__(self, directory: Path, bootstrap: str, group: str, topic: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._common = ["--bootstrap", bootstrap, "--group", group, "--topic", topic]
        self.members: list[Member] = []

    def join(self, client: str, strategy: str, instance: str | None = None) -> Member:
        program = [sys.executable, "-m", "tests.support.group_member", "--client", client, "--strategy", strategy]
        return self.start(program if instance is None else [*program, "--instance", instance])

    def start(self, program: Iterable[str]) -> Member:
        """Let any program join that keeps a diary and takes the options of ``group_member``."""
        diary = self._directory / f"member-{len(self.members)}.diary"
        self.members.append(Member(diary, [*program, *self._common, "--diary", str(diary)]))
        return self.members[-1]

    def end(self) -> None:
        for member in self.members:
            if member.is_running:
                member.crash()

    @property
    def stories(self) -> list[Story]:
        return [member.story for member in self.members]

    def values(self) -> set[str]:
        return {message.value for story in self.stories for message in story.got}


class Feed:
    """Produces numbered messages to every partition until it is told to stop."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, pause_s: float = 0.01) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})
        self._topic = topic
        self._partitions = partitions
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self.sent: set[str] = set()
        self._failures: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(self._pause_s):
            for partition in range(self._partitions):
                value = f"{partition}:{number}"
                self._producer.produce(
                    self._topic, value.encode(), partition=partition, on_delivery=self._note_delivery
                )
                self.sent.add(value)
            number += 1
            self._producer.poll(0)

    def _note_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(f"{message.value()!r}: {error}")

    def stop(self) -> set[str]:
        """Everything that was sent, now that all of it is in the log."""
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(30) == 0, "some messages were never answered"
        assert not self._failures, f"{len(self._failures)} messages were refused, such as {self._failures[0]}"
        return self.sent


def wait_until(what: str, is_so: Callable[[], bool], patience_s: float = 90.0, each_s: float = 0.05) -> None:
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {patience_s:.0f} s: {what}"
        time.sleep(each_s)


def check_at_least_once(sent: set[str], stories: Iterable[Story]) -> int:
    """Nothing was skipped, and what came twice had not been committed when its partition was given away; how many did.

    A member asks for the committed offset after it was given a partition, so every commit that was answered before
    that has to count.
    """
    stories = list(stories)
    got = [message for story in stories for message in story.got]
    missing = sent - {message.value for message in got}
    assert not missing, f"{len(missing)} messages were skipped, such as {sorted(missing)[:5]}"
    commits: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for story in stories:
        for at, partition, offset in story.committed:
            commits[partition].append((at, offset))
    for story in stories:
        previous: dict[tuple[int, float], int] = {}
        for message in story.got:
            given_at = story.given_at(message)
            assert message.offset > previous.get((message.partition, given_at), -1), "out of order"
            previous[message.partition, given_at] = message.offset
            for at, offset in commits[message.partition]:
                assert at >= given_at or offset <= message.offset, (
                    f"{message} came again although {offset} was committed {given_at - at:.3f} s before"
                )
    return len(got) - len({(message.partition, message.offset) for message in got})
