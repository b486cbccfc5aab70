"""Known bugs of schedules. The seeds and the stories have to catch them."""

from __future__ import annotations

from typing import Final

from sim.planting import Mutant

_DAY_CLOCK: Final = "penstock.machines.clocks"
_DELIVERY: Final = "penstock.features.schedules.leading.firing"
_FIRING: Final = "penstock.features.schedules.leading.firing"
_JOURNAL: Final = "penstock.features.schedules.leading.shard"
_RULES: Final = "penstock.features.schedules.machine"
_SCHEDULES: Final = "penstock.features.schedules.machine"
_STATE: Final = "penstock.features.schedules.state"
_UPKEEP: Final = "penstock.features.schedules.leading.shard"

ONCE: Final = (
    Mutant(
        "schedules are fired without numbers",
        _DELIVERY,
        "            producer_id=self.granted.producer_id,\n            producer_epoch=self.granted.epoch,\n"
        "            base_sequence=self.granted.sequence,\n",
        "",
    ),
    Mutant(
        "a new leader does not repeat unfinished firings",
        _FIRING,
        "        for event in self._shard.machine.unfinished():\n            target =",
        "        for event in self._shard.machine.unfinished()[:0]:\n            target =",
    ),
    Mutant(
        "a new leader takes unfinished firings for done",
        _STATE,
        "        self.firings[event.number] = Outstanding(event, tuple(slots))\n        following =",
        "        self.firings[event.number] = Outstanding(event, tuple(slots))\n"
        "        if not self.near.wheel.is_due:\n"
        "            self._end_firing(Fired(event.number, len(slots)))\n"
        "        following =",
    ),
    Mutant(
        "a producer's epoch is not raised after a refusal",
        _STATE,
        "(firing.epoch + 1, 0)\n",
        "self.targets[firing.topic_id, firing.partition]\n",
    ),
    Mutant(
        "a period is loaded twice",
        _SCHEDULES,
        "        for offset, schedule in found:\n            digest = digest_of(schedule.id)\n"
        "            if state.far.has(digest, offset):\n                state.far.remove(digest, offset)\n",
        "        for offset, schedule in (*found, *found):\n            digest = digest_of(schedule.id)\n"
        "            if state.far.has(digest, offset) or True:\n                state.far.remove(digest, offset)\n",
    ),
)

TIME: Final = (
    Mutant(
        "schedules are early by a tick",
        _DAY_CLOCK,
        "        return self._shown_ms\n",
        "        return self._shown_ms + 10\n",
    ),
)

LOGS: Final = (
    Mutant(
        "schedules are not synced",
        _JOURNAL,
        "        is_durable = self._syncs and not all(isinstance(change.event, Fired) for change in changes)\n",
        "        is_durable = False\n",
    ),
    Mutant(
        "a snapshot leaves out the ids of what is near",
        _STATE,
        '        pieces += [("m", place, columns) for place, columns in self.near.identities.pack()]\n',
        "",
    ),
    Mutant(
        "what was added last is not read",
        _STATE,
        "            self.apply(event, offset, at_ms)\n        self._add_all(added)\n",
        "            self.apply(event, offset, at_ms)\n",
    ),
    Mutant(
        "a snapshot leaves out what is far",
        _STATE,
        '        pieces += [("o", 0, columns) for columns in self.far.places.pack(_PLACES_OF_PART)]\n',
        "",
    ),
    Mutant(
        "a snapshot forgets the numbers of producers",
        _STATE,
        "                targets=[(*target, *numbers) for target, numbers in self.targets.items()],\n",
        "                targets=[],\n",
    ),
    Mutant(
        "a log is cut before what it has to tell is carried on",
        _UPKEEP,
        "if end <= start or not await carry(shard, start, end):",
        "if end <= start:",
    ),
)

ANSWERS: Final = (
    Mutant(
        "what is being fired can be cancelled",
        _SCHEDULES,
        "if slot is not None and self._state.near.kinds[slot] == FIRING:",
        "if slot is not None and self._state.near.kinds[slot] == FIRING_AGAIN:",
    ),
)

SCHEDULES: Final[tuple[Mutant, ...]] = ONCE + TIME + LOGS + ANSWERS
