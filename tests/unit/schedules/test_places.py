"""Where schedules are, by id and by period, against plain dicts."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.features.schedules.far import Far, Identities, Periods, digest_of, shard_of_id


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 32))
def test_ids_lead_to_their_numbers(seed: int) -> None:
    random = Random(seed)
    # Few digests in few arrays, so that tags and arrays are shared.
    digests = [random.randrange(3) << 52 | random.randrange(3) << 28 | random.randrange(4) for _ in range(12)]
    digests += [digest_of(str(random.random())) for _ in range(20)]
    identities = Identities()
    twin: set[tuple[int, int]] = set()  # what cannot be told apart is the same
    for number in range(200):
        digest = random.choice(digests)
        if random.random() < 0.6:
            identities.add(digest, number)
            twin.add((digest >> 28, number))
        else:
            for found in identities.find(digest)[:1]:
                assert identities.remove(digest, found)
                twin.remove((digest >> 28, found))
            assert not identities.remove(digest, 1_000)
        assert identities.find(digest) == sorted(number for known, number in twin if known == digest >> 28)
        assert len(identities) == len(twin)
    assert sorted(identities.numbers()) == sorted(number for _, number in twin)
    copy = Identities()
    for place, columns in identities.pack():
        copy.unpack(place, columns)
    assert all(copy.find(digest) == identities.find(digest) for digest in digests)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1 << 39)), max_size=60),
    st.integers(1, 10),
    st.lists(st.integers(0, 5), max_size=3),
)
def test_periods_lead_to_their_places(entries: list[tuple[int, int]], rows: int, dropped: list[int]) -> None:
    periods = Periods()
    for period, offset in entries:
        periods.add(period, offset)
    for period in dropped:
        periods.drop(period)
    left = [entry for entry in entries if entry[0] not in dropped]
    assert len(periods) == len(left)
    assert periods.first == min((period for period, _ in left), default=None)
    copy = Periods()
    for piece in periods.pack(rows):
        copy.unpack(piece)
    for made in (periods, copy):
        assert [(p, o) for p in made.periods() for o in made.offsets(p)] == sorted(left, key=lambda entry: entry[0])
    periods.sweep(lambda offset: offset % 2 == 0)
    live = {entry for entry in left if entry[1] % 2 == 0}
    assert {(p, o) for p in periods.periods() for o in periods.offsets(p)} == live


def test_places_that_mean_nothing_do_not_pile_up() -> None:
    far = Far()
    for offset in range(50_000):
        if offset:
            far.remove(7, offset - 1)
        far.add(7, offset, offset % 20)
    assert len(far) == 1
    assert len(far.places) < 5_000
    assert 49_999 in far.offsets(49_999 % 20)


def test_what_was_sent_together_is_in_one_shard_and_the_rest_is_spread() -> None:
    for stem in ("kafka:6f1c:0:17:0", "py-0a1b2c"):
        assert len({shard_of_id(f"{stem}:{number}", 8) for number in range(100)}) == 1
    assert {shard_of_id(f"py-{stem}:0", 8) for stem in range(200)} == set(range(8))
    assert {shard_of_id(f"order:{number}", 8) for number in range(200)} == set(range(8)), "ids of others count whole"
    assert {shard_of_id(f"py-{number}", 8) for number in range(200)} == set(range(8))
