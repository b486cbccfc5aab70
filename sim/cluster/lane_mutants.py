"""Known bugs of lanes and of fairness. The stories, and some of the seeds, have to catch them."""

from __future__ import annotations

from typing import Final

from sim.planting import Mutant

_LABELS: Final = "penstock.features.queues.leading.sources"
_LANES: Final = "penstock.features.queues.core.supply"
_ORIGINS: Final = "penstock.features.dead_letters.letters"
_SHARES: Final = "penstock.features.queues.core.shares"

LANES: Final = (
    Mutant(
        "no lane is ever boosted",
        _SHARES,
        "        limit = self._boost(planned, min(limit, self.total), now_ms)\n",
        "        limit = min(limit, self.total)\n",
    ),
    Mutant(
        "what is served is charged to nobody",
        _SHARES,
        "        self._credit(source, self._credits[source] - amount)\n",
        "",
    ),
    Mutant(
        "lanes hand out what a former leader has leased",
        _LANES,
        "                for gap in self._rows.gaps(*each):\n                    self.pool.release(*gap)\n",
        "                self.pool.release(*each)\n",
    ),
    Mutant(
        "what fails leaves its lane for good",
        _LANES,
        "            self._due.add(max(first, self._seen_to), last)\n        self.pool.release(first, last)\n",
        "            self._due.add(max(first, self._seen_to), last)\n",
    ),
    Mutant(
        "all tenants are one",
        _LABELS,
        "    return None if value is None else label_of(value)\n",
        "    return None\n",
    ),
    Mutant(
        "a dead letter loses its priority",
        _ORIGINS,
        "    return record._replace(headers=record.headers + told)\n",
        '    kept = tuple(pair for pair in record.headers if pair[0] != "penstock-priority")\n'
        "    return record._replace(headers=kept + told)\n",
    ),
)
