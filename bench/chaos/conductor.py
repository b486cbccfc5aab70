"""The conductor: faults by the schedule, healed in time, and the clients kept at work meanwhile."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.chaos.cluster import ClusterError
from bench.chaos.faults import KINDS, Arena, Fault
from bench.chaos.faults.fault import NothingToHit
from bench.chaos.history import now
from bench.chaos.machine import MachineError
from bench.chaos.schedule import Entry

STEP_S = 0.1
WHOLE_LIMIT_S = 90.0
REVIVALS_MAX = 3


@dataclass
class Happening:
    """A fault as it happened."""

    kind: str
    detail: str
    began_at: float
    healed_at: float | None = None
    whole_at: float | None = None


@dataclass
class Trouble:
    """Something that the cluster, or a part of this program, did not manage."""

    at: float
    text: str


@dataclass
class Conductor:
    """Plays a schedule on an arena."""

    arena: Arena
    tend: Callable[[], None]
    say: Callable[[str], None]
    on_progress: Callable[[float, str], None]
    happenings: list[Happening] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    _active: list[tuple[float, Fault, Happening]] = field(default_factory=list)
    _revivals: Counter[int] = field(default_factory=Counter)
    _began: float = 0.0
    _last_begun: float = 0.0

    def play(self, schedule: Sequence[Entry], length_s: float) -> None:
        """Everything that fits into `length_s`, and a healed cluster at the end."""
        self._began = time.monotonic()
        late_s = 0.0  # a fault that had to wait for a whole cluster moves all that follow
        for entry in schedule:
            self._pass_time(min(self._began + entry.at_s + late_s, self._began + length_s))
            self._begin(entry)
            late_s = max(late_s, self._last_begun - self._began - entry.at_s)
            if time.monotonic() - self._began + entry.hold_s > length_s:
                break
        self._pass_time(self._began + length_s)
        self._heal_all()
        self._wait_until_whole("at the end")

    def _pass_time(self, until: float) -> None:
        while time.monotonic() < until:
            self._turn()
            time.sleep(STEP_S)
        self._turn()

    def _turn(self) -> None:
        self.tend()
        for due, fault, happening in list(self._active):
            if time.monotonic() >= due:
                self._heal(fault, happening)
        if not self._active and self.arena.watch.seems_whole():
            self._note_whole()
        names = ", ".join(happening.kind for _, _, happening in self._active) or "quiet"
        self.on_progress(time.monotonic() - self._began, names)

    def _note_whole(self) -> None:
        for happening in self.happenings:
            if happening.whole_at is None and happening.healed_at is not None:
                happening.whole_at = now()

    def _begin(self, entry: Entry) -> None:
        kind = KINDS[entry.kind]
        if kind.needs == "network":
            self._heal_all(lambda happening: KINDS[happening.kind].needs == "network")
        if kind.wants_whole:
            self._heal_all()
            if not self._wait_until_whole(f"before {entry.kind}"):
                self._last_begun = time.monotonic()
                return
        self._last_begun = time.monotonic()
        fault = kind.make(self.arena, random.Random(entry.salt))
        happening = Happening(entry.kind, "", now())
        self.happenings.append(happening)
        try:
            happening.detail = fault.inject()
        except NothingToHit as reason:
            self.happenings.remove(happening)
            self.say(f"{entry.kind} left out: {reason}")
            return
        except (ClusterError, MachineError, OSError) as error:
            happening.detail = f"failed: {error}"
            self._trouble(f"{entry.kind}: {error}")
        self.say(f"{entry.kind}: {happening.detail}")
        self._active.append((time.monotonic() + entry.hold_s, fault, happening))

    def _heal(self, fault: Fault, happening: Happening) -> None:
        self._active = [each for each in self._active if each[1] is not fault]
        try:
            fault.heal()
        except (ClusterError, MachineError, OSError) as error:
            self._trouble(f"healing {happening.kind}: {error}")
        happening.healed_at = now()
        self.say(f"{happening.kind} healed after {happening.healed_at - happening.began_at:.1f} s")

    def _heal_all(self, matches: Callable[[Happening], bool] = lambda _: True) -> None:
        for _, fault, happening in reversed(
            self._active.copy()
        ):  # what began last may keep an earlier one from healing
            if matches(happening):
                self._heal(fault, happening)

    def _wait_until_whole(self, when: str) -> bool:
        asked_at = time.monotonic()

        def is_whole() -> bool:
            self._turn()
            return self.arena.watch.is_whole()

        self._revive()
        deadline = asked_at + WHOLE_LIMIT_S
        while not is_whole():
            if time.monotonic() > deadline:
                self._trouble(f"not whole within {WHOLE_LIMIT_S:.0f} s {when}: {self._describe()}")
                return False
            self._revive()
            time.sleep(STEP_S)
        self._note_whole()
        self.arena.damaged.clear()
        return True

    def _revive(self) -> None:
        """Start a node that ended by itself again. If no fault explains it, that is no small matter."""
        for node in self.arena.cluster.nodes.values():
            if node.is_running or node.number in self.arena.taken or self._revivals[node.number] >= REVIVALS_MAX:
                continue
            if node.number in self.arena.damaged:
                self.say(f"{node} refuses to start with damaged files; it gets an empty disk: {node.log_tail(1)[:200]}")
                shutil.rmtree(node.place.data_dir)
                self.arena.damaged.discard(node.number)
            else:
                self._revivals[node.number] += 1
                self._trouble(f"{node} had ended by itself\n{node.log_tail(8)}")
            self.arena.cluster.launch(node)
            time.sleep(1.0)

    def _describe(self) -> str:
        view = self.arena.watch.view()
        if view is None:
            return "nobody answers"
        gone = [f"{topic}-{p}" for (topic, p), leader in view.leaders.items() if leader < 0]
        behind = [
            f"{topic}-{p} {sorted(view.in_sync[topic, p])} of {sorted(view.replicas[topic, p])}"
            for topic, p in view.leaders
            if view.in_sync[topic, p] != view.replicas[topic, p]
        ]
        return f"nodes {sorted(view.nodes)}, without leader: {gone}, not in step: {behind}"

    def _trouble(self, text: str) -> None:
        self.troubles.append(Trouble(now(), text))
        self.say(f"! {text}")
