"""How long to wait before the next try: longer each time, and never the same for everybody."""

from __future__ import annotations

import random
from typing import Final

BASE_SECONDS: Final = 0.05
CAP_SECONDS: Final = 2.0

_CHANCE: Final = random.Random()  # shared: seeding one takes longer than many a call


class Backoff:
    """Pauses that double up to a cap. Each is drawn from its upper half, so that clients do not come back together."""

    def __init__(
        self, base_s: float = BASE_SECONDS, cap_s: float = CAP_SECONDS, chance: random.Random | None = None
    ) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._chance = chance or _CHANCE
        self._tries = 0

    def next(self) -> float:
        """Seconds to wait before the next try."""
        pause_s = min(self._cap_s, self._base_s * 2.0 ** min(self._tries, 32))
        self._tries += 1
        return pause_s * self._chance.uniform(0.5, 1.0)

    def reset(self) -> None:
        """It worked; the next failure is the first again."""
        self._tries = 0
