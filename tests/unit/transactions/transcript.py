"""Scenarios as text: each line an event, and under it, indented, what comes of it.

    init A                      a producer starts; it remembers who it is told to be
    init A timeout=5s as=1/0    with its own timeout; going on as somebody it was before (KIP-360)
    add A orders/0 bills/1      about to write there (first protocol), or writing there for the first time (second)
    verify A orders/0           a partition asks whether A may write to it
    commit A · abort A          in the first protocol; ``commit2`` and ``abort2`` in the second
    terminate · expire · describe
    pass 3s                     time goes by, in ticks of 50 ms
    stick orders/0 · free       a partition takes no markers; all do again
    disk full|fine|slow|sync|broken   what the log does; ``slow`` commits nothing until ``sync``
    restart · resign            a new process reads the log; or somebody else takes over
    exhaust                     A's producer id has no epochs left but the last, as after 32,766 restarts

``A~3`` speaks in epoch 3 instead of its own, ``A@7`` as producer 7. Expected text is written by running the tests with
PENSTOCK_REWRITE=1, and then read by a person.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from tests.unit.transactions.journal import MemoryJournal, MemoryMarkers

from penstock.config.settings import TransactionSettings
from penstock.errors import NotCoordinator, PenstockError
from penstock.features.transactions.coordinator import TransactionShard
from penstock.features.transactions.epochs import EPOCH_MAX
from penstock.features.transactions.markers import EndMarker
from penstock.features.transactions.messages import AddToTransaction, End, Init, Terminate, Verify, Where
from penstock.features.transactions.records import TransactionChange, TransactionKey, from_record
from penstock.machines.messages import ProducerIdentity, Rejected, Request
from penstock.partitions.stats import TransactionStats

NAME = "x"
TICK_MS = 50
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 24 * 3_600_000}


def milliseconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text)
    assert match, f"not a duration: {text}"
    return int(match[1]) * _UNITS[match[2]]


def place(text: str) -> Where:
    topic, index = text.split("/")
    return topic, int(index)


def spelled(producer: ProducerIdentity) -> str:
    return f"{producer.producer_id}/{producer.epoch}"


class Transcript:
    """Plays a scenario line by line."""

    def __init__(self) -> None:
        self.config = TransactionSettings()
        self.journal = MemoryJournal()
        self.stats = TransactionStats()
        self.now_ms = 0
        self.producers: dict[str, ProducerIdentity] = {}
        self.out: list[str] = []
        self._seen = 0
        self._fresh = 0
        self._epoch = 0
        self.shard = self._start()

    def play(self, line: str) -> list[str]:
        """Do what a line says, and return what came of it."""
        self.out = []
        verb, *words = line.split()
        getattr(self, f"do_{verb}")(*words)
        self._note_records()
        return self.out

    def _start(self) -> TransactionShard:
        self.markers = MemoryMarkers(self._on_marker)
        self._epoch += 1
        shard = TransactionShard(
            self.journal,
            self.config,
            self.markers,
            self.stats,
            lambda: self.now_ms,
            lambda: self.now_ms,
            lambda work: work(),
            epoch=self._epoch,
        )
        shard.open(shard.read_log())
        return shard

    def _producer(self, word: str) -> tuple[str, ProducerIdentity]:
        match = re.fullmatch(r"(\w+?)(?:@(-?\d+))?(?:~(-?\d+))?", word)
        assert match, f"not a producer: {word}"
        known = self.producers.get(match[1], ProducerIdentity(-1, -1))
        producer_id = known.producer_id if match[2] is None else int(match[2])
        return match[1], ProducerIdentity(producer_id, known.epoch if match[3] is None else int(match[3]))

    def _ask(self, who: str, request: Request[Any], told: Callable[[Any], str]) -> None:
        def reply(answer: Any) -> None:
            self._note_records()
            text = f"refused: {answer.error.code}" if isinstance(answer, Rejected) else told(answer)
            self.out.append(f"{who}: {text}")

        try:
            self.shard.ask(NAME, request, reply)
        except PenstockError as error:
            self.out.append(f"{who}: refused: {error.code}")

    # -- producers ----------------------------------------------------------------------------------------------------

    def do_init(self, name: str, *options: str) -> None:
        chosen = dict(option.split("=", 1) for option in options)
        expected = None
        if "as" in chosen:
            expected = ProducerIdentity(*map(int, chosen["as"].split("/")))
        self._fresh += 1

        def told(answer: ProducerIdentity) -> str:
            self.producers[name] = answer
            return f"is {spelled(answer)}"

        timeout_ms = milliseconds(chosen.get("timeout", "60s"))
        self._ask(name, Init(timeout_ms=timeout_ms, fresh_producer_id=self._fresh, expected=expected), told)

    def do_add(self, word: str, *places: str) -> None:
        name, producer = self._producer(word)
        self._ask(name, AddToTransaction(producer, frozenset(map(place, places))), lambda _: "added")

    def do_verify(self, word: str, *places: str) -> None:
        name, producer = self._producer(word)

        def told(missing: frozenset[Where]) -> str:
            return "may write" if not missing else f"not in: {' '.join(f'{t}/{i}' for t, i in sorted(missing))}"

        self._ask(name, Verify(producer, frozenset(map(place, places))), told)

    def _end(self, word: str, *, is_commit: bool, bumps: bool) -> None:
        name, producer = self._producer(word)
        self._fresh += bumps

        def told(answer: ProducerIdentity) -> str:
            if bumps:
                self.producers[name] = answer
            return f"{'committed' if is_commit else 'aborted'}, is {spelled(answer)}"

        request = End(producer=producer, is_commit=is_commit, bumps=bumps, fresh_producer_id=self._fresh)
        self._ask(name, request, told)

    def do_commit(self, word: str) -> None:
        self._end(word, is_commit=True, bumps=False)

    def do_abort(self, word: str) -> None:
        self._end(word, is_commit=False, bumps=False)

    def do_commit2(self, word: str) -> None:
        self._end(word, is_commit=True, bumps=True)

    def do_abort2(self, word: str) -> None:
        self._end(word, is_commit=False, bumps=True)

    def do_terminate(self) -> None:
        self._ask("operator", Terminate(), lambda _: "aborted")

    def do_exhaust(self, name: str) -> None:
        stored = self.shard.machines[NAME].stored
        assert stored is not None
        last = msgspec.structs.replace(stored, producer_epoch=EPOCH_MAX - 1)
        self.journal.append([TransactionChange(TransactionKey(NAME), last)], self.now_ms)
        self.producers[name] = last.producer
        self.do_restart()

    def do_expire(self) -> None:
        self.shard.expire()

    def do_describe(self) -> None:
        found = self.shard.machines.get(NAME)
        self.out.append("nobody has this id" if found is None else repr(found)[1:-1])

    # -- time and faults ----------------------------------------------------------------------------------------------

    def do_pass(self, duration: str) -> None:
        end_ms = self.now_ms + milliseconds(duration)
        step_ms = TICK_MS if milliseconds(duration) <= _UNITS["h"] else _UNITS["h"]
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + step_ms, end_ms)
            before = len(self.out)
            self.shard.tick()
            self._note_records()
            if len(self.out) > before:
                self.out[before:] = [f"{line}, at {self.now_ms / 1000:g} s" for line in self.out[before:]]

    def do_stick(self, *places: str) -> None:
        self.markers.stuck |= set(map(place, places))

    def do_free(self) -> None:
        self.markers.stuck.clear()
        self.markers.go_on()

    def do_disk(self, what: str) -> None:
        self.journal.is_full = what == "full"
        if what == "slow":
            self.journal.is_slow = True
        elif what == "sync":
            self.journal.commit()
        elif what == "broken":
            self.journal.fail()
        elif what == "fine":
            self.journal.is_slow = False

    def do_restart(self) -> None:
        self.journal.crash()
        self._seen = len(self.journal.records)
        self.shard = self._start()
        self._note_records()
        self.do_describe()

    def do_resign(self) -> None:
        self.shard.close(NotCoordinator("Somebody else leads."))

    # -- what came out ------------------------------------------------------------------------------------------------

    def _on_marker(self, where: Where, marker: EndMarker) -> None:
        self._note_records()
        what = "commit" if marker.is_commit else "abort"
        self.out.append(f"marker: {where[0]}/{where[1]} {what} of {spelled(marker.producer)}")

    def _note_records(self) -> None:
        self._seen = min(self._seen, len(self.journal.records))
        for record in self.journal.records[self._seen :]:
            stored = from_record(record).value
            if stored is None:
                self.out.append("log: the id is gone")
                continue
            places = " ".join(f"{topic}/{at}" for topic, indexes in stored.partitions.items() for at in indexes)
            told = [stored.state.value, spelled(stored.producer), places]
            told += [f"then {spelled(stored.successor)}" if stored.successor != stored.producer else ""]
            told += [f"({stored.reason.value})" if stored.reason else ""]
            self.out.append(f"log: {' '.join(word for word in told if word)}")
        self._seen = len(self.journal.records)
