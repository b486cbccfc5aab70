"""Known bugs of looking for damage that nobody reads."""

from __future__ import annotations

from typing import Final

from sim.planting import Mutant

_SCRUB: Final = "penstock.partitions.scrub"
_FETCHER: Final = "penstock.partitions.replication.fetcher"
_LOG: Final = "penstock.storage.log"
_RECOVERY: Final = "penstock.storage.recovery"

SCRUB: Final = (
    Mutant(
        "the scrub does not look at sealed segments",
        _SCRUB,
        "        due = [segment for segment in settled if is_asked or self._is_due(segment, now)]\n",
        "        due = [segment for segment in settled if is_asked and not segment.is_sealed]\n",
    ),
    Mutant(
        "what was written in this life is never checked",
        _SCRUB,
        "return now - segment.scrubbed_at >= self._interval_s",
        "return False",
    ),
    Mutant(
        "readers step over what is damaged",
        _LOG,
        "            if not self._is_lost(damage):\n                raise self._damaged(damage)\n",
        "            continue\n",
    ),
    Mutant(
        "a segment that was cut where a batch ends counts as whole",
        _RECOVERY,
        "lacks_bytes = stated > segment.size and not may_cut",
        "lacks_bytes = False",
    ),
    Mutant(
        "an offset that nothing proves is believed",
        _RECOVERY,
        "        if unproven is not None:\n            segment.note_misdated(unproven)\n",
        "",
    ),
    Mutant(
        "a damaged replica is cut while it may still be elected",
        _FETCHER,
        "or self._copying.may_lead(partition):",
        "or self._copying.is_in_sync(partition):",
    ),
    Mutant(
        "a damaged replica is cut while it is being taken in",
        _FETCHER,
        "        self._leaving[partition] = self._following[partition]\n",
        "        if not self._copying.may_lead(partition):\n"
        "            return self._cut(partition, self._following[partition])\n"
        "        self._leaving[partition] = self._following[partition]\n",
    ),
)
