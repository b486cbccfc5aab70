"""How queues are used in a simulated cluster: which groups there are, who works for them, and what they are held to."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from penstock.testing.simulation.cluster.history import Place

PLAIN: Final = "plain"
KEYED: Final = "keyed"  # the group whose messages keep the order of their keys
RESULTS: Final[Place] = ("results", 0)  # where workers publish what they made of a message
KEYS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShape:
    """Groups, each with so many workers. Times are short, so that leases end and retries come within a history."""

    groups: tuple[str, ...] = (PLAIN,)
    workers: int = 2
    tries: int = 3
    has_transactions: bool = False
    visibility_timeout_ms: int = 1_000

    @classmethod
    def drawn(cls, random: Random) -> QueueShape | None:
        """Some histories have no queues: they cost time, and others are about other things."""
        if random.random() < 0.6:
            return None
        return cls(
            groups=random.choice(((PLAIN,), (KEYED,), (PLAIN, KEYED))),
            workers=random.choice((1, 2, 3)),
            tries=random.choice((2, 3, 3, 5)),
            has_transactions=random.random() < 0.4,
            visibility_timeout_ms=random.choice((400, 1_000, 3_000)),
        )

    def settings(self, group: str) -> dict[str, str]:
        """A group's own."""
        return {
            "order": "key" if group == KEYED else "none",
            "tries": str(self.tries),
            "visibility.timeout.ms": str(self.visibility_timeout_ms),
            "retry.base.ms": "50",
            "retry.cap.ms": "400",
        }


def key_of(producer: str, number: int) -> bytes | None:
    """The key of a producer's nth message; every few have none."""
    turn = number % (KEYS + 1)
    return None if turn == KEYS else f"{producer}-{turn}".encode()
