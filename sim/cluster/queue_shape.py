"""How queues are used in a simulated cluster: which groups there are, who works for them, and what they are held to."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from penstock.priorities import PRIORITIES, Headers, with_priority
from sim.cluster.history import Place

PLAIN: Final = "plain"
KEYED: Final = "keyed"  # the group whose messages keep the order of their keys
RESULTS: Final[Place] = ("results", 0)  # where workers publish what they made of a message
KEYS: Final = 3
TENANT: Final = "tenant"  # a header
_TENANTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShape:
    """Groups, each with so many workers. Times are short, so that leases end and retries come within a history."""

    groups: tuple[str, ...] = (PLAIN,)
    workers: int = 2
    tries: int = 3
    has_transactions: bool = False
    visibility_timeout_ms: int = 1_000
    has_lanes: bool = False
    fair_by: str = ""
    boost_ms: int = 500

    @classmethod
    def of_seed(cls, seed: int) -> QueueShape | None:
        """Lanes are drawn apart, so that a history without them is as it was before there were any."""
        found = cls.drawn(Random(f"queues {seed}"))
        return None if found is None else found.with_lanes(Random(f"lanes {seed}"))

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

    def with_lanes(self, random: Random) -> QueueShape:
        """The same, with lanes, fairness or both in half of all cases."""
        has_lanes, fair_by = random.choice(
            (*((False, ""),) * 6, *((True, ""),) * 3, (True, "key"), (True, f"header:{TENANT}"), (False, "key"))
        )
        return replace(self, has_lanes=has_lanes, fair_by=fair_by, boost_ms=random.choice((0, 500, 30_000)))

    @property
    def has_shares(self) -> bool:
        return self.has_lanes or bool(self.fair_by)

    @property
    def topic_settings(self) -> dict[str, str]:
        """What the topic says of all groups."""
        if not self.has_shares:
            return {}
        return {
            "queue.lanes": "on" if self.has_lanes else "off",
            "queue.lane.boost.ms": str(self.boost_ms),
            "queue.fair.by": self.fair_by,
        }

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


def headers_of(producer: str, number: int) -> Headers:
    """The tenant and the priority of a producer's nth message, by chance but always the same; every few have none."""
    lot = zlib.crc32(f"{producer}/{number}".encode())
    headers: Headers = ((TENANT, b"%d" % ((lot >> 8) % _TENANTS)),)
    return with_priority(headers, PRIORITIES[lot % len(PRIORITIES)]) if lot >> 16 & 7 else headers
