"""Deficit round robin: who is served next, and how much, so that everybody gets a share by weight.

In each round every source that has something gets its weight as credit, and is served as long as it has credit. What
was served is charged when it really was, not when it was planned, so a plan that nobody takes costs nothing. A source
that goes without service for ``boost_ms`` although it has something is *boosted*: it comes before all others, once, and
pays for that later. A source that has nothing saves no credit up.

Ranked sources are few. They are served by rank in each round, the lowest number first, and one that comes in the middle
of a round gets what is left of its credit for that round. Others may be many. They are served in the order in which
they came, and whoever comes waits for the next round: so a crowd of newcomers cannot keep a round from ending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

DEFAULT_BOOST_MS: Final = 30_000


class Served(NamedTuple):
    """So much is to be served to a source."""

    source: int
    amount: int


class Shares:
    """Sources by number. ``weight_of`` is the credit that one gets in each round, at least 1."""

    def __init__(
        self, weight_of: Callable[[int], int], *, is_ranked: bool = False, boost_ms: float = DEFAULT_BOOST_MS
    ) -> None:
        self._weight_of = weight_of
        self._is_ranked = is_ranked
        self._boost_ms = boost_ms
        self._amounts: dict[int, int] = {}  # of those that have something, in the order in which they came
        self._credits: dict[int, int] = {}  # of the same
        self._since_ms: dict[int, int] = {}  # when each was served last or came; the longest ago first
        self._rich: dict[int, None] = {}  # those with credit
        self._left: dict[int, int] = {}  # the credit of ranked ones that have nothing any more, in this round
        self.total = 0

    def __len__(self) -> int:
        return len(self._amounts)

    def amount_of(self, source: int) -> int:
        return self._amounts.get(source, 0)

    # -- what happens -------------------------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> None:
        """Whatever there is came now."""
        self._since_ms = dict.fromkeys(self._since_ms, now_ms)

    def add(self, source: int, amount: int, now_ms: int) -> None:
        """A source has more."""
        self.total += amount
        if source in self._amounts:
            self._amounts[source] += amount
            return
        self._amounts[source] = amount
        self._since_ms[source] = now_ms
        self._credit(source, self._left.pop(source, self._weight_of(source)) if self._is_ranked else 0)
        self._renew()

    def take(self, source: int, amount: int) -> None:
        """A source has less, though it was not served."""
        self.total -= amount
        left = self._amounts[source] - amount
        assert left >= 0, "it never had so much"
        if left:
            self._amounts[source] = left
            return
        if self._is_ranked:
            self._left[source] = self._credits[source]
        del self._amounts[source], self._credits[source], self._since_ms[source]
        self._rich.pop(source, None)
        self._renew()

    def serve(self, source: int, amount: int, now_ms: int) -> None:
        """A source was served."""
        del self._since_ms[source]
        self._since_ms[source] = now_ms
        self._credit(source, self._credits[source] - amount)
        self.take(source, amount)
        self._renew()

    def _credit(self, source: int, credit: int) -> None:
        self._credits[source] = credit
        if credit > 0:
            self._rich[source] = None
        else:
            self._rich.pop(source, None)

    def _renew(self) -> None:
        """Begin another round if nobody has credit; several at once if everybody is deep in debt."""
        if self._rich or not self._amounts:
            return
        self._left.clear()
        rounds = min(-credit // self._weight_of(source) + 1 for source, credit in self._credits.items())
        for source, credit in list(self._credits.items()):
            self._credit(source, credit + rounds * self._weight_of(source))

    # -- planning -----------------------------------------------------------------------------------------------------

    def is_boosted(self, source: int, now_ms: int) -> bool:
        """Whether a source has waited too long."""
        return source in self._since_ms and now_ms - self._since_ms[source] >= self._boost_ms

    def plan(self, limit: int, now_ms: int) -> list[Served]:
        """Whom to serve now, in order: up to ``limit``, and less only if there is not more. Nothing changes by it."""
        planned: dict[int, int] = {}
        limit = self._boost(planned, min(limit, self.total), now_ms)
        rich = sorted(self._rich) if self._is_ranked else list(self._rich)
        for source in rich:
            if limit <= 0:
                break
            credit = self._credits[source] - planned.get(source, 0)
            limit -= self._plan(planned, source, min(credit, limit))
        if limit > 0:
            self._plan_rounds(planned, limit)
        return [Served(source, amount) for source, amount in planned.items()]

    def _boost(self, planned: dict[int, int], limit: int, now_ms: int) -> int:
        """Plan those first that waited too long, as little as lets nobody else of them wait; what is left."""
        for source, since_ms in self._since_ms.items():
            if limit <= 0 or now_ms - since_ms < self._boost_ms:
                break
            limit -= self._plan(planned, source, 1)
        return limit

    def _plan(self, planned: dict[int, int], source: int, amount: int) -> int:
        before = planned.get(source, 0)
        amount = min(amount, self._amounts[source] - before)
        if amount > 0:
            planned[source] = before + amount
        return max(0, amount)

    def _plan_rounds(self, planned: dict[int, int], limit: int) -> None:
        """Go on as if the rounds to come were there already."""
        sources = sorted(self._amounts) if self._is_ranked else list(self._amounts)
        owed = {source: min(self._credits[source] - planned.get(source, 0), 0) for source in sources}
        while limit > 0:
            sources = [source for source in sources if planned.get(source, 0) < self._amounts[source]]
            # Whole rounds that everybody can use are planned at once.
            rounds = max(1, self._rounds(sources, planned, owed, limit))
            for source in sources:
                owed[source] += rounds * self._weight_of(source)
                if owed[source] > 0 and limit > 0:
                    amount = self._plan(planned, source, min(owed[source], limit))
                    owed[source] -= amount
                    limit -= amount

    def _rounds(self, sources: list[int], planned: dict[int, int], owed: dict[int, int], limit: int) -> int:
        if all(owed[source] < 0 for source in sources):  # nobody is served before this many
            return min(-owed[source] // self._weight_of(source) for source in sources) + 1
        usable = [limit // sum(map(self._weight_of, sources))]
        for source in sources:
            left = self._amounts[source] - planned.get(source, 0) - owed[source]
            usable.append(left // self._weight_of(source))
        return min(usable)


class NestedShares:
    """Shares within shares: an outer source is chosen by the outer ones, and who of it is served by its own.

    The lowest ``bits`` of a source tell the outer one, the rest the inner one.
    """

    def __init__(self, outer: Shares, inner: Sequence[Shares], bits: int) -> None:
        self._outer = outer
        self._inner = inner
        self._bits = bits
        self._mask = (1 << bits) - 1

    @property
    def total(self) -> int:
        return self._outer.total

    def begin(self, now_ms: int) -> None:
        for shares in (self._outer, *self._inner):
            shares.begin(now_ms)

    def amount_of(self, source: int) -> int:
        return self._inner[source & self._mask].amount_of(source >> self._bits)

    def add(self, source: int, amount: int, now_ms: int) -> None:
        self._outer.add(source & self._mask, amount, now_ms)
        self._inner[source & self._mask].add(source >> self._bits, amount, now_ms)

    def take(self, source: int, amount: int) -> None:
        self._outer.take(source & self._mask, amount)
        self._inner[source & self._mask].take(source >> self._bits, amount)

    def serve(self, source: int, amount: int, now_ms: int) -> None:
        self._outer.serve(source & self._mask, amount, now_ms)
        self._inner[source & self._mask].serve(source >> self._bits, amount, now_ms)

    def is_boosted(self, source: int, now_ms: int) -> bool:
        outer, inner = source & self._mask, source >> self._bits
        return self._outer.is_boosted(outer, now_ms) or self._inner[outer].is_boosted(inner, now_ms)

    def plan(self, limit: int, now_ms: int) -> list[Served]:
        return [
            Served(source << self._bits | outer, amount)
            for outer, share in self._outer.plan(limit, now_ms)
            for source, amount in self._inner[outer].plan(share, now_ms)
        ]
