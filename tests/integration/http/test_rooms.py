"""Health, metrics, the description and the status page, on a real socket."""

from __future__ import annotations

import re
import socket

import httpx
import jsonschema
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from penstock.config.settings import MetricsSettings
from penstock.doors.rest import HttpConfig, HttpServer
from penstock.errors import LogFailed, StartupError
from penstock.operations.services import Services

from .conftest import DoorInThread, OpenDoor


def test_a_healthy_node_is_live_and_ready(client: httpx.Client) -> None:
    assert client.get("/livez").json() == {"status": "ok"}
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ok")
    assert client.head("/livez").content == b""


def test_a_failed_log_makes_the_node_unready_and_is_named(open_door: OpenDoor) -> None:
    door = open_door()
    door.client.post("/v1/topics", json={"name": "t", "partitions": 1})

    def fail(broker: object) -> None:
        door.broker.partition("t", 0).log.failure = LogFailed("The disk is gone.")

    door.look(fail)
    ready = door.client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["reasons"] == [
        {"code": "log_failed", "detail": "The disk is gone.", "topic": "t", "partition": 0}
    ]
    assert door.client.get("/livez").status_code == 200
    assert door.client.get("/v1/admin/health").json()["status"] == "unready"
    refused = door.client.post("/v1/topics/t/publish", json={"value": "x"})
    assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "log_failed", "1")


def test_metrics_tell_what_went_through(client: httpx.Client, topic: str) -> None:
    client.post(f"/v1/topics/{topic}/batch", json={"messages": [{"value": "x", "partition": 1}] * 3})
    client.get(f"/v1/topics/{topic}/messages?partition=1&limit=2")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, sample.labels.get("topic"), sample.labels.get("partition")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["penstock_messages_produced_total", topic, None] == 3
    assert samples["penstock_messages_consumed_total", topic, None] == 2
    assert samples["penstock_log_size_bytes", topic, "1"] == samples["penstock_bytes_produced_total", topic, None] > 0
    assert samples["penstock_log_segments", topic, "0"] == 1
    assert samples["penstock_log_corrupt_bytes", topic, "0"] == 0
    assert samples["penstock_log_append_latency_seconds_count", None, None] > 0
    assert samples["penstock_produce_latency_seconds_count", None, None] > 0
    assert samples["penstock_build_info", None, None] == 1
    assert samples["process_resident_memory_bytes", None, None] > 0


def test_metrics_come_as_openmetrics_where_asked(client: httpx.Client) -> None:
    answer = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert list(parse_openmetrics(answer.text))


def test_many_partitions_are_shown_by_topic(open_door: OpenDoor) -> None:
    client = open_door(HttpConfig(port=0, metrics=MetricsSettings(partition_labels_max=5))).client
    client.post("/v1/topics", json={"name": "t", "partitions": 6})
    text = client.get("/metrics").text
    assert 'penstock_log_segments{topic="t"} 6.0' in text
    assert "partition=" not in text


def test_the_admin_rooms_show_the_node(client: httpx.Client, topic: str) -> None:
    client.post(f"/v1/topics/{topic}/publish", json={"value": "x"})
    cluster = client.get("/v1/admin/cluster").json()
    assert cluster["nodes"][0]["endpoints"] == [{"door": "kafka", "host": "127.0.0.1", "port": 9092}]
    assert cluster["controller"] == 1
    (figures,) = [at for at in client.get("/v1/admin/metrics").json()["topics"] if at["topic"] == topic]
    assert (figures["messages"], figures["partitions"]) == (1, 3)


def test_answers_are_as_the_description_says(client: httpx.Client, topic: str) -> None:
    description = client.get("/openapi.json").json()
    publish = {"key": "k", "value": {"a": 1}, "headers": {"h": ["1", None]}, "timestamp": "2026-01-01T00:00:00Z"}
    base = f"/v1/topics/{topic}"
    calls = [
        ("POST", "/v1/topics", "/v1/topics", {"name": topic, "partitions": 1}),
        ("POST", "/v1/topics", "/v1/topics", {"name": topic}),
        ("GET", "/v1/topics", "/v1/topics", None),
        ("POST", "/v1/topics/{topic}/publish", f"{base}/publish", publish),
        ("POST", "/v1/topics/{topic}/publish", f"{base}/publish", {"value_base64": "/w=="}),
        ("POST", "/v1/topics/{topic}/publish", f"{base}/publish", {"nonsense": 1}),
        ("POST", "/v1/topics/{topic}/batch", f"{base}/batch", {"messages": [publish, {"value": 1, "partition": 9}]}),
        ("GET", "/v1/topics/{topic}/messages", f"{base}/messages", None),
        ("GET", "/v1/topics/{topic}/messages", f"{base}/messages?offset=99", None),
        ("PATCH", "/v1/topics/{topic}", base, {"configs": {"retention.ms": 5}}),
        ("POST", "/v1/topics/{topic}/partitions", f"{base}/partitions", {"partitions": 2}),
        ("GET", "/v1/topics/{topic}", base, None),
        ("DELETE", "/v1/topics/{topic}", base, None),
        ("GET", "/livez", "/livez", None),
        ("GET", "/readyz", "/readyz", None),
        ("GET", "/v1/admin/health", "/v1/admin/health", None),
        ("GET", "/v1/admin/metrics", "/v1/admin/metrics", None),
        ("GET", "/v1/admin/cluster", "/v1/admin/cluster", None),
    ]
    for method, route, url, body in calls:
        answer = client.request(method, url, json=body)
        described = description["paths"][route][method.lower()]["responses"]
        assert str(answer.status_code) in described, (method, url, answer.status_code)
        if answer.status_code == 204:
            continue
        content = described[str(answer.status_code)]["content"][answer.headers["content-type"]]
        schema = {**content["schema"], "components": description["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json())


def test_the_status_page_needs_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assets = re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text)
    assert assets
    for asset in assets:
        found = client.get(asset)
        assert found.status_code == 200
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", found.text)
        again = client.get(asset, headers={"if-none-match": found.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_a_port_in_use_is_named(door: DoorInThread) -> None:
    second = HttpServer(Services.of(door.broker), HttpConfig(port=door.server.port))
    with pytest.raises(StartupError, match=rf"{door.server.port} is in use.*--http"):
        door.run(second.start())


def test_a_host_that_does_not_exist_is_named(door: DoorInThread) -> None:
    with pytest.raises(StartupError, match=r"no-such-host\.invalid"):
        door.run(HttpServer(Services.of(door.broker), HttpConfig(host="no-such-host.invalid", port=0)).start())


def test_a_stopped_door_gives_its_port_back(open_door: OpenDoor) -> None:
    door = open_door()
    port = door.server.port
    door.run(door.server.stop())
    with socket.create_server(("127.0.0.1", port)):
        pass
