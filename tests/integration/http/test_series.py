"""Series of joint transactions over real HTTP: each number is committed once, and the last run is the one to write."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest
from tests.integration.http.conftest import DoorInThread

from penstock.config.settings import TransactionSettings
from penstock.doors.rest import HttpConfig
from penstock.records import Record, encode_batch

PARTITIONS = 3
MSGPACK = "application/vnd.penstock+msgpack"


class Job:
    """A job that writes numbers of a series, in one of its lives."""

    def __init__(self, client: httpx.Client, topic: str, series: str, run: str = "run-1") -> None:
        self.client, self.topic, self.series, self.run = client, topic, series, run
        self.sent: dict[tuple[str, int], int] = {}

    def post(self, verb: str, **body: Any) -> httpx.Response:
        return self.client.post(f"/v1/series/{self.series}/{verb}", json={"run": self.run, **body})

    def begin(self, number: int, writer: str | None = None, **body: Any) -> dict[str, Any]:
        answer = self.post("begin", number=number, writer=writer, **body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def batch(self, begun: dict[str, Any], partition: int, *values: str, **changed: Any) -> bytes:
        at = (begun["transaction"], partition)
        records = [Record(number, 1_000, None, value.encode()) for number, value in enumerate(values)]
        fields: dict[str, Any] = {
            "producer_id": begun["producer_id"],
            "producer_epoch": begun["producer_epoch"],
            "base_sequence": self.sent.get(at, 0),
            "is_transactional": True,
        }
        self.sent[at] = fields["base_sequence"] + len(values)
        return bytes(encode_batch(records, **(fields | changed)))

    def send(self, begun: dict[str, Any], writer: str, *batches: tuple[int, bytes]) -> list[list[Any]]:
        answer = self.post_batches(begun["transaction"], writer, batches)
        assert answer.status_code == 200, answer.text
        found: list[list[Any]] = msgspec.msgpack.decode(answer.content)
        return found

    def post_batches(self, transaction: str, writer: str, batches: Any) -> httpx.Response:
        headers = {"Penstock-Transaction": transaction, "Penstock-Writer": writer, "Content-Type": MSGPACK}
        body = msgspec.msgpack.encode(list(batches))
        return self.client.post(f"/v1/topics/{self.topic}/batches", content=body, headers=headers)

    def write(self, number: int, writer: str, *values: str) -> dict[str, Any]:
        """Stage values, to the partitions in turn."""
        begun = self.begin(number, writer)
        for at, value in enumerate(values):
            ((offset, *_),) = self.send(begun, writer, (at % PARTITIONS, self.batch(begun, at % PARTITIONS, value)))
            assert offset >= 0
        return begun

    def commit(self, number: int, begun: dict[str, Any] | None, *writers: str) -> httpx.Response:
        transaction = None if begun is None else begun["transaction"]
        return self.post("commit", number=number, transaction=transaction, writers=list(writers))

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/v1/series/{self.series}").json()
        return found

    def seen(self) -> list[str]:
        """Every message that a reader of committed messages gets."""
        found = []
        for index in range(PARTITIONS):
            answer = self.client.get(f"/v1/topics/{self.topic}/messages", params={"partition": index, "limit": 1000})
            found += [message["value"] for message in answer.json()["messages"]]
        return sorted(found)


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def repeated(answer: httpx.Response) -> bool:
    assert answer.status_code == 200, answer.text
    found: bool = answer.json()["repeated"]
    return found


def job_of(client: httpx.Client) -> Job:
    topic, series = f"topic-{uuid4().hex[:8]}", f"spark-query:{uuid4()}"
    answer = client.post("/v1/topics", json={"name": topic, "partitions": PARTITIONS})
    assert answer.status_code == 201, answer.text
    return Job(client, topic, series)


@pytest.fixture
def job(door: DoorInThread) -> Job:
    return job_of(door.client)


def another_life(job: Job, run: str) -> Job:
    return Job(job.client, job.topic, job.series, run)


def test_what_is_staged_is_seen_with_the_commit_and_once(job: Job) -> None:
    begun = job.write(0, "a", "1", "2", "3", "4")
    assert job.seen() == []
    assert not repeated(job.commit(0, begun, "a"))
    assert job.seen() == ["1", "2", "3", "4"]
    assert repeated(job.commit(0, begun, "a"))
    assert job.seen() == ["1", "2", "3", "4"]


def test_attempts_that_are_not_named_are_never_seen(job: Job) -> None:
    begun = job.write(0, "task-0.1", "lost")
    other = job.write(0, "task-0.2", "kept")
    assert other["transaction"] == begun["transaction"]
    assert other["producer_id"] != begun["producer_id"]
    job.commit(0, begun, "task-0.2")
    assert job.seen() == ["kept"]


def test_a_number_that_is_committed_is_not_written_again(job: Job) -> None:
    job.commit(4, job.write(4, "a", "first"), "a")
    later = another_life(job, "run-2")
    for number in (0, 3, 4):
        assert later.begin(number, "a")["state"] == "committed"
        assert repeated(later.commit(number, None))
    assert job.describe()["committed"] == 4
    assert job.seen() == ["first"]


def test_numbers_go_on(job: Job) -> None:
    for number in range(5):
        job.commit(number, job.write(number, "a", str(number)), "a")
    assert job.seen() == list("01234")
    assert job.describe() | {"transaction": "-"} == {
        "series": job.series,
        "committed": 4,
        "number": 4,
        "run": "run-1",
        "transaction": "-",
        "state": "committed",
    }


def test_a_newer_run_takes_over_and_the_older_one_is_refused(job: Job) -> None:
    left = job.write(0, "a", "left behind")
    later = another_life(job, "run-2")
    begun = later.write(0, "a", "right")
    assert problem(job.commit(0, left, "a")) == (409, "series_fenced")
    assert problem(job.post("begin", number=0)) == (409, "series_fenced")
    assert problem(job.post("begin", number=1)) == (409, "series_fenced")
    batch = (0, job.batch(left, 0, "too late"))
    assert problem(job.post_batches(left["transaction"], "a", [batch])) == (409, "transaction_ended")
    assert not repeated(later.commit(0, begun, "a"))
    assert problem(job.commit(0, left, "a")) == (409, "series_fenced")
    assert job.seen() == ["right"]


def test_what_an_older_run_left_open_holds_nobody_back(job: Job) -> None:
    """Readers wait for what is open before them; the newer run must not have to wait for a timeout."""
    job.write(0, "a", "left behind")
    later = another_life(job, "run-2")
    later.commit(0, later.write(0, "a", "right"), "a")
    assert job.seen() == ["right"]


def test_a_number_without_rows_is_committed_all_the_same(job: Job) -> None:
    assert not repeated(job.commit(0, None))
    assert repeated(job.commit(0, None))
    assert job.describe()["committed"] == 0
    job.commit(1, job.write(1, "a", "row"), "a")
    assert job.seen() == ["row"]


def test_an_abort_ends_what_is_open_and_the_number_can_be_written_again(job: Job) -> None:
    begun = job.write(0, "a", "no")
    for _ in range(2):
        assert job.post("abort", number=0).status_code == 204
    assert problem(job.commit(0, begun, "a")) == (409, "transaction_ended")
    job.commit(0, job.write(0, "a", "yes"), "a")
    assert job.post("abort", number=0).status_code == 204
    assert job.seen() == ["yes"]


def test_what_nobody_commits_is_aborted_after_its_time(job: Job) -> None:
    begun = job.begin(0, "a", timeout_ms=1_500)
    job.send(begun, "a", (0, job.batch(begun, 0, "orphan")))
    deadline = time.monotonic() + 60
    while job.describe()["state"] != "aborted":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert problem(job.commit(0, begun, "a")) == (409, "transaction_ended")
    assert problem(job.commit(0, begun)) == (409, "transaction_ended")
    again = job.write(0, "a", "again")
    assert again["transaction"] != begun["transaction"]
    job.commit(0, again, "a")
    assert job.seen() == ["again"]


def test_metrics_tell_how_series_stand(job: Job) -> None:
    before = series_metrics(job.client)
    plain = job.client.post("/v1/transactions", json={}).json()["transaction"]
    assert series_metrics(job.client) == before, "a transaction of no series"
    job.client.post(f"/v1/transactions/{plain}/abort", json={})
    job.write(0, "a", "left behind")
    assert grown(job, before) == {"open": 1}
    later = another_life(job, "run-2")
    begun = later.write(0, "a", "right")
    assert grown(job, before) == {"open": 1, "aborted fenced": 1}
    later.commit(0, begun, "a")
    later.commit(0, begun, "a")
    later.write(1, "a", "no")
    later.post("abort", number=1)
    later.begin(2, "a", timeout_ms=1_000)
    deadline = time.monotonic() + 60
    while grown(job, before).get("open"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert grown(job, before) == {"committed": 1, "aborted fenced": 1, "aborted client": 1, "aborted timeout": 1}


def series_metrics(client: httpx.Client) -> dict[str, int]:
    """What the metrics say of series, by what it is."""
    found: dict[str, int] = {}
    for line in client.get("/metrics").text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("penstock_series_"):
            words = re.findall(r"penstock_series_([a-z]+?)(?:_total)?(?:\{reason=\"(\w+)\"\})?$", name)
            found[" ".join(words[0]).strip()] = int(float(value))
    return found


def grown(job: Job, before: dict[str, int]) -> dict[str, int]:
    now = series_metrics(job.client)
    return {name: value - before[name] for name, value in now.items() if value != before[name]}


def test_a_batch_that_is_sent_again_is_written_once(job: Job) -> None:
    begun = job.begin(0, "a")
    batches = [(index, job.batch(begun, index, f"{index}-{number}")) for number in range(8) for index in range(2)]
    first = job.send(begun, "a", *batches)
    assert all(result[0] >= 0 for result in first)
    again = job.send(begun, "a", *batches)
    assert {result[1] for result in again if result[0] == -1} <= {"duplicate_sequence"}
    assert [result[0] for result in again[-10:]] == [result[0] for result in first[-10:]]
    job.commit(0, begun, "a")
    assert job.seen() == sorted(f"{index}-{number}" for number in range(8) for index in range(2))


def test_what_is_behind_batches_that_were_stored_before_is_written(job: Job) -> None:
    """A call that was cut short is sent whole: being told of duplicates must not stand for those behind them."""
    begun = job.begin(0, "a")
    batches = [(0, job.batch(begun, 0, str(number))) for number in range(9)]
    job.send(begun, "a", *batches[:7])
    results = job.send(begun, "a", *batches)
    assert [result[0] for result in results[-2:]] == [7, 8]
    job.commit(0, begun, "a")
    assert job.seen() == [str(number) for number in range(9)]


@pytest.mark.parametrize(
    "changed",
    [
        {"is_transactional": False},
        {"producer_id": 123_456_789},
        {"producer_epoch": 1},
        {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1, "is_transactional": False},
    ],
)
def test_batches_of_anybody_else_are_refused(job: Job, changed: dict[str, Any]) -> None:
    begun = job.begin(0, "a")
    ((offset, code, _),) = job.send(begun, "a", (0, job.batch(begun, 0, "foreign", **changed)))
    assert (offset, code) == (-1, "invalid_record")


def test_bad_calls_are_refused(job: Job) -> None:
    begun = job.begin(0, "a")
    batch = (PARTITIONS, job.batch(begun, 0, "nowhere"))
    assert problem(job.post_batches(begun["transaction"], "a", [batch])) == (404, "unknown_partition")
    assert problem(job.post_batches("nothing", "a", [])) == (404, "transaction_not_found")
    assert problem(job.commit(0, begun, "nobody")) == (422, "unknown_writer")
    assert problem(job.post("begin", number=-1))[0] == 422
    assert problem(job.client.get("/v1/series/nothing")) == (404, "transaction_not_found")
    assert problem(job.client.post("/v1/series/a%20b/begin", json={"number": 0, "run": "r"}))[0] == 422
    answer = job.client.post(
        f"/v1/topics/{job.topic}/batches",
        content=msgspec.msgpack.encode([]),
        headers={"Penstock-Transaction": begun["transaction"], "Penstock-Sequence": "0", "Content-Type": MSGPACK},
    )
    assert answer.status_code == 400


def test_everything_is_remembered_over_a_restart(tmp_path: Path) -> None:
    before = DoorInThread(tmp_path, HttpConfig(port=0))
    job = job_of(before.client)
    job.commit(0, job.write(0, "a", "zero"), "a")
    begun = job.write(1, "a", "one")
    late = another_life(job, "run-0")
    before.close()

    after = DoorInThread(tmp_path, HttpConfig(port=0))
    try:
        job.client = late.client = after.client
        assert job.begin(0)["state"] == "committed"
        assert job.seen() == ["zero"]
        assert not repeated(job.commit(1, begun, "a"))
        assert job.seen() == ["one", "zero"]
        late.begin(2)
        assert problem(job.post("begin", number=2)) == (409, "series_fenced")
    finally:
        after.close()


def test_a_series_is_forgotten_long_after_its_last_number(tmp_path: Path) -> None:
    config = TransactionSettings(joint_results_retention_ms=0, single_retention_ms=0, series_retention_ms=3_600_000)
    door = DoorInThread(tmp_path, HttpConfig(port=0), transactions=config)
    try:
        single, several = job_of(door.client), job_of(door.client)
        single.commit(0, single.write(0, "a", "x"), "a")
        for number in range(3):
            several.commit(number, several.write(number, "a", "x"), "a")
        door.look(lambda broker: [shard.expire() for shard in broker.joint.loaded_shards()])
        assert problem(single.client.get(f"/v1/series/{single.series}")) == (404, "transaction_not_found")
        assert several.describe()["committed"] == 2
        assert door.look(lambda broker: len(broker.joint.all_transactions())) == 1
    finally:
        door.close()
