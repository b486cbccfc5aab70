"""Who is to read what: pure functions from what members want, and have by the last target, to the next target.

Both are deterministic, so that the same members always lead to the same target. ``uniform`` gives everybody the same
number of partitions, as far as subscriptions allow, and moves as few as that takes. ``range`` gives each member a run
of neighbouring partitions of every topic, so that members get the same ones of topics that are alike; it moves more.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import cycle
from typing import Final, NamedTuple

Place = tuple[str, int]  # topic id, or for assignors of clients its name, and partition
Target = dict[str, frozenset[Place]]  # by member


class GroupSubscriber(NamedTuple):
    """A member as an assignor sees it: the ids of the topics it wants, and the instance it stands for."""

    topics: frozenset[str]
    instance_id: str | None = None


Assignor = Callable[[Mapping[str, GroupSubscriber], Mapping[str, Collection[Place]], Mapping[str, int]], Target]


# -- range -------------------------------------------------------------------------------------------------------------


def assign_ranges(
    members: Mapping[str, GroupSubscriber], previous: Mapping[str, Collection[Place]], partitions: Mapping[str, int]
) -> Target:
    """Neighbouring partitions of each topic; static members come first, so that a restart changes nothing."""
    del previous  # a range follows from the order of members alone
    found: dict[str, list[Place]] = {member_id: [] for member_id in members}
    order = _in_order(members)
    for topic_id, count in partitions.items():
        readers = [member_id for member_id in order if topic_id in members[member_id].topics]
        if not readers:
            continue
        share, rest = divmod(count, len(readers))
        first = 0
        for at, member_id in enumerate(readers):
            end = first + share + (at < rest)
            found[member_id] += [(topic_id, index) for index in range(first, end)]
            first = end
    return {member_id: frozenset(places) for member_id, places in found.items()}


def _in_order(members: Mapping[str, GroupSubscriber]) -> list[str]:
    """As Kafka's Java client puts them: static members first, by instance, then the others by id."""
    return sorted(members, key=lambda name: (members[name].instance_id is None, members[name].instance_id or name))


# -- round robin -------------------------------------------------------------------------------------------------------


def assign_in_turn(
    members: Mapping[str, GroupSubscriber], previous: Mapping[str, Collection[Place]], partitions: Mapping[str, int]
) -> Target:
    """All partitions are dealt like cards; who does not want a topic is passed over."""
    del previous  # whatever they had
    found: dict[str, list[Place]] = {member_id: [] for member_id in members}
    dealing = cycle(_in_order(members))
    wanted = frozenset[str]().union(*(member.topics for member in members.values()))
    for topic in sorted(wanted & partitions.keys()):
        for index in range(partitions[topic]):
            found[next(taker for taker in dealing if topic in members[taker].topics)].append((topic, index))
    return {member_id: frozenset(places) for member_id, places in found.items()}


# -- uniform -----------------------------------------------------------------------------------------------------------


def assign_uniformly(
    members: Mapping[str, GroupSubscriber], previous: Mapping[str, Collection[Place]], partitions: Mapping[str, int]
) -> Target:
    """As evenly as subscriptions allow, moving as little as possible."""
    if not members:
        return {}
    if len({subscriber.topics for subscriber in members.values()}) == 1:
        return _assign_alike(members, previous, partitions)
    return _Balance(members, previous, partitions).target()


def _assign_alike(
    members: Mapping[str, GroupSubscriber], previous: Mapping[str, Collection[Place]], partitions: Mapping[str, int]
) -> Target:
    """Everybody wants the same topics, so everybody gets the same number, or one more while there is a rest."""
    topics = next(iter(members.values())).topics
    places = [
        (topic_id, index) for topic_id in sorted(topics & partitions.keys()) for index in range(partitions[topic_id])
    ]
    valid = set(places)
    share, rest = divmod(len(places), len(members))
    order = sorted(members)
    kept: dict[str, list[Place]] = {}
    taken: set[Place] = set()
    has_extra: set[str] = set()
    for member_id in order:
        mine = sorted(place for place in previous.get(member_id, ()) if place in valid and place not in taken)
        if len(mine) > share and rest:  # who has more already is the one to have more
            has_extra.add(member_id)
            rest -= 1
        kept[member_id] = mine[: share + (member_id in has_extra)]
        taken.update(kept[member_id])
    for member_id in order:
        if rest and member_id not in has_extra:
            has_extra.add(member_id)
            rest -= 1
    needy = deque(member_id for member_id in order if len(kept[member_id]) < share + (member_id in has_extra))
    for place in places:
        if place in taken:
            continue
        member_id = needy.popleft()  # in turns, so that each topic is spread over many
        kept[member_id].append(place)
        if len(kept[member_id]) < share + (member_id in has_extra):
            needy.append(member_id)
    return {member_id: frozenset(mine) for member_id, mine in kept.items()}


class _Balance:
    """Members want different topics. Topics with the same readers make up a pool; balance is sought pool by pool.

    Even means: no reader of a partition has two or more fewer than its owner. Each move makes the sum of the squares of
    all loads smaller, so there is an end to moving.
    """

    def __init__(
        self,
        members: Mapping[str, GroupSubscriber],
        previous: Mapping[str, Collection[Place]],
        partitions: Mapping[str, int],
    ) -> None:
        self._partitions = partitions
        readers: dict[str, list[str]] = defaultdict(list)
        for member_id in sorted(members):
            for topic_id in members[member_id].topics & partitions.keys():
                readers[topic_id].append(member_id)
        pools: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for topic_id in sorted(readers):
            pools[tuple(readers[topic_id])].append(topic_id)
        # Who can be served by few comes first: the others can still be evened out with what many can serve.
        self._pools = sorted(pools.items(), key=lambda pool: (len(pool[0]), pool[1]))
        self._pool_of = {topic_id: at for at, (_, topics) in enumerate(self._pools) for topic_id in topics}
        # What each member has, by pool: stacks, of which the last is the first to go.
        self._held: dict[str, dict[int, list[Place]]] = {member_id: defaultdict(list) for member_id in members}
        self._load = dict.fromkeys(members, 0)
        self._taken: set[Place] = set()
        for member_id in sorted(members):
            for place in sorted(previous.get(member_id, ())):
                is_there = place[0] in self._pool_of and place[1] < partitions[place[0]]
                if is_there and place[0] in members[member_id].topics and place not in self._taken:
                    self._give(member_id, place)

    def target(self) -> Target:
        for at, (readers, topics) in enumerate(self._pools):
            self._fill(readers, topics)
            self._even_out(at, readers)
        has_moved = True
        while has_moved:
            has_moved = False
            for at, (readers, _) in enumerate(self._pools):
                has_moved |= self._even_out(at, readers)
        return {
            member_id: frozenset(place for stack in by_pool.values() for place in stack)
            for member_id, by_pool in self._held.items()
        }

    def _give(self, member_id: str, place: Place) -> None:
        self._held[member_id][self._pool_of[place[0]]].append(place)
        self._load[member_id] += 1
        self._taken.add(place)

    def _fill(self, readers: tuple[str, ...], topics: list[str]) -> None:
        heap = [(self._load[member_id], member_id) for member_id in readers]
        heapify(heap)
        for topic_id in topics:
            for index in range(self._partitions[topic_id]):
                if (topic_id, index) not in self._taken:
                    load, member_id = heap[0]
                    self._give(member_id, (topic_id, index))
                    heapreplace(heap, (load + 1, member_id))

    def _even_out(self, pool: int, readers: tuple[str, ...]) -> bool:
        """Move partitions of a pool from the busiest to the idlest; whether any was moved."""
        load = self._load
        idlest = [(load[member_id], member_id) for member_id in readers]
        busiest = [(-load[member_id], member_id) for member_id in readers if self._held[member_id].get(pool)]
        heapify(idlest)
        heapify(busiest)
        has_moved = False
        while busiest and idlest:
            less, receiver = idlest[0]
            more, giver = busiest[0]
            if less != load[receiver]:  # it gave or got something since it was put here
                heapreplace(idlest, (load[receiver], receiver))
            elif -more != load[giver] or not self._held[giver][pool]:
                heappop(busiest)
                if self._held[giver][pool]:
                    heappush(busiest, (-load[giver], giver))
            elif load[giver] - load[receiver] < 2:
                break
            else:
                self._held[receiver][pool].append(self._held[giver][pool].pop())
                load[giver] -= 1
                load[receiver] += 1
                has_moved = True
        return has_moved


# -- which one ---------------------------------------------------------------------------------------------------------

ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniformly, "range": assign_ranges}
DEFAULT_ASSIGNOR: Final = "uniform"
# Those that every client of the classic protocol knows, in a hosted member's order of preference. The member that leads
# a group does the sharing, be it a hosted one or a client's, and both must come to the same result.
CLIENT_ASSIGNORS: Final[Mapping[str, Assignor]] = {"range": assign_ranges, "roundrobin": assign_in_turn}


def choose_assignor(wishes: Iterable[str | None]) -> str:
    """The assignor that most members ask for; the default where none asks."""
    votes = Counter(wish for wish in wishes if wish is not None)
    if not votes:
        return DEFAULT_ASSIGNOR
    most = max(votes.values())
    return min((name for name, count in votes.items() if count == most), key=list(ASSIGNORS).index)
