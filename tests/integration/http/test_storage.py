"""The scrub over REST, on a node that has the only copy: damage is told in every place, and nothing is deleted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx

from penstock.config.settings import ScrubSettings

from .conftest import OpenDoor, calm


def scrub(client: httpx.Client) -> dict[str, Any]:
    """Have everything checked, and wait for it."""
    asked = client.post("/v1/storage/scrub")
    assert asked.status_code == 202
    for _ in range(600):
        found: dict[str, Any] = client.get("/v1/storage/scrub").json()
        if found["completed_round"] >= asked.json()["asked_round"]:
            return found
        time.sleep(0.05)
    raise AssertionError(f"the scrub does not end: {found}")


def test_damage_to_the_only_copy_is_told_everywhere_and_kept(open_door: OpenDoor) -> None:
    door = open_door(partitions=calm(scrub=ScrubSettings(interval_ms=0), fsync_interval_ms=20))
    client = door.client
    client.post("/v1/topics", json={"name": "t", "partitions": 1, "configs": {"segment.bytes": "2048"}})
    for number in range(30):
        client.post("/v1/topics/t/publish", json={"value": f"{number} " + "." * 200}).raise_for_status()
    directory: Path = door.look(lambda broker: broker.partition("t", 0).log.directory)
    sound = scrub(client)
    assert sound["completed_at_ms"]
    assert sound["checked_bytes"] > 2048
    assert (sound["is_on"], sound["damaged_segments"], sound["damaged_partitions"]) == (False, 0, 0)
    assert client.get("/readyz").json()["status"] == "ok"

    segment = sorted(directory.glob("*.log"))[1]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    found = scrub(client)
    assert (found["damaged_segments"], found["damaged_partitions"]) == (1, 1)
    assert found["corrupt_bytes"] > 0
    health = client.get("/readyz").json()
    codes = {each["code"] for each in health["warnings"]} - {"lost_records"}  # which is told a moment later
    assert (health["status"], codes) == ("degraded", {"corrupt_bytes"})
    metrics = client.get("/metrics").text
    assert "penstock_scrub_damage_total 1.0" in metrics
    assert "penstock_scrub_last_round_timestamp_seconds" in metrics
    [node] = client.get("/v1/nodes").json()["nodes"]
    assert (node["corrupt_bytes"], node["scrubbed_at_ms"]) == (found["corrupt_bytes"], found["completed_at_ms"])
    assert segment.read_bytes() == data, "the only copy stays as it is"
    assert scrub(client)["damaged_segments"] == 1, "the same damage is found once"
