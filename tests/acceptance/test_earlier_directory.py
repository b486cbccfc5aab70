"""A data directory written by an earlier release opens, and everything in it is there: `tests/data` holds one.

It was written by one node over REST: 20 messages with keys and headers in `orders`, a committed and an aborted joint
transaction there, ten jobs of which the queue group `workers` acked three, rejected one, nacked one and held one, a
group `readers` with offsets, and a schedule for the year 2100.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import httpx
from tests.support.node import Node

WRITTEN = Path(__file__).parents[1] / "data" / "directory-2026-11-18.tar.xz"


def test_what_an_earlier_release_wrote_is_there(tmp_path: Path) -> None:
    with tarfile.open(WRITTEN) as written:
        written.extractall(tmp_path, filter="data")
    node = Node(tmp_path / "node", data_dir=tmp_path / "data").start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{node.http_port}", timeout=60) as rest:
            messages = [
                message
                for partition in (0, 1)
                for message in rest.get(
                    "/v1/topics/orders/messages", params={"partition": partition, "offset": "earliest", "limit": 100}
                ).json()["messages"]
            ]
            numbered = {message["key"]: message for message in messages if message["key"] != "tx"}
            assert {key: message["value"] for key, message in numbered.items()} == {
                f"k{n}": f'{{"n":{n}}}' for n in range(20)
            }
            assert numbered["k7"]["headers"] == {"h": "7"}
            assert [message["value"] for message in messages if message["key"] == "tx"] == ["committed"]
            (group,) = rest.get("/v1/queues/jobs").json()["groups"]
            assert group["group"] == "workers"
            assert group["settings"]["tries"] == "2"
            assert (group["partitions"][0]["committed"], group["partitions"][0]["end"]) == (4, 10)
            letters = rest.get("/v1/queues/jobs/dead-letters").json()["dead_letters"]
            assert [letter["value"] for letter in letters] == ["job 3"]
            assert {each["group"] for each in rest.get("/v1/groups").json()["groups"]} == {"readers", "workers"}
            (schedule,) = rest.get("/v1/schedules").json()["schedules"]
            assert (schedule["id"], schedule["due"], schedule["value"]) == (
                "new-century",
                "2100-01-01T00:00:00Z",
                "later",
            )
    finally:
        node.stop()
