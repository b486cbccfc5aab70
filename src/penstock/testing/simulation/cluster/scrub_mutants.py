"""Known bugs of looking for damage that nobody reads."""

from __future__ import annotations

from typing import Final

from penstock.testing.simulation.planting import Mutant

_SCRUB: Final = "penstock.broker.scrub"
_FETCHER: Final = "penstock.broker.replication.fetcher"
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
        "a segment that was cut where a batch ends counts as whole",
        _RECOVERY,
        "lacks_bytes = stated > segment.size and not may_cut",
        "lacks_bytes = False",
    ),
    Mutant(
        "a damaged replica is cut while it may still be elected",
        _FETCHER,
        "if self._copying.may_lead(partition):",
        "if self._copying.is_in_sync(partition):",
    ),
)
