"""Known bugs of the quorum's driver and store: what leaves too early, and what a crash may take away."""

from __future__ import annotations

from typing import Final

from sim.planting import Mutant

_DRIVER: Final = "penstock.consensus.quorum.driver"
_STORE: Final = "penstock.consensus.quorum.store"
_MACHINE: Final = "penstock.consensus.quorum.machine"
_LOG: Final = "penstock.storage.log"
_RECOVERY: Final = "penstock.storage.recovery"

DRIVER: Final = (
    Mutant(
        "promises leave with the messages",
        _DRIVER,
        "        for message in effects.messages:\n",
        "        for message in effects.messages + effects.promises:\n",
    ),
    Mutant(
        "a promise overtakes the write that it rests on",
        _DRIVER,
        "            if not self._is_writing and not self._to_write:\n",
        "            if True:\n",
    ),
    Mutant(
        "entries are written and not synced",
        _STORE,
        "            self._log.sync()\n            self._promised.note",
        "            self._promised.note",
    ),
    Mutant(
        "terms and votes are not written",
        _STORE,
        "            self._save_hard_state(hard_states[-1])\n",
        "            self.hard_state = hard_states[-1]\n",
    ),
    Mutant(
        "the first of several terms is kept, not the last",
        _STORE,
        "self._save_hard_state(hard_states[-1])",
        "self._save_hard_state(hard_states[0])",
    ),
    Mutant(
        "says how far the log reaches before it does",
        _STORE,
        "            self._log.sync()\n            self._promised.note(self._log.end_offset)\n",
        "            self._promised.note(self._log.end_offset)\n            self._log.sync()\n",
    ),
    Mutant(
        "cuts entries and still says that they are there",
        _STORE,
        "        if (self._promised.index or 0) >= index:\n            self._promised.note(index - 1)\n",
        "",
    ),
    Mutant(
        "adds entries without cutting those in their place",
        _STORE,
        "        if entry.index <= self._log.end_offset:\n            self._cut(entry.index)\n",
        "        if entry.index <= self._log.end_offset:\n            return\n",
    ),
    Mutant(
        "refuses to start over what nobody was told of",
        _STORE,
        "if self._promised.index is None or self._promised.index >= index:",
        "if True:",
    ),
    Mutant(
        "believes what a failed sync left in memory",
        _RECOVERY,
        "                    segment.file.patch(found[0], source.at(found[0], found[1].size))\n",
        "                    pass\n",
    ),
    Mutant(
        "forgets that a sync failed",
        _LOG,
        "        note_failed_sync(self.files, self.directory)\n",
        "",
    ),
    Mutant(
        "applies what a snapshot stands for once more",
        _MACHINE,
        "        self.applied_index = snapshot.index\n",
        "        self.applied_index = 0\n",
    ),
    Mutant(
        "forgets a snapshot that was installed",
        _STORE,
        "                self._install(work.installed)\n",
        "                pass\n",
    ),
    Mutant(
        "takes a snapshot for installed before the log is cut",
        _STORE,
        "        if self._align(snapshot):\n",
        "        self.snapshot = snapshot\n        if self._align(snapshot):\n",
    ),
)
