"""A single node that stands still for longer than a session, as a laptop that sleeps: it has no peer to lose."""

from __future__ import annotations

import threading
import time

import httpx
from tests.acceptance.conftest import NodeMaker


def test_a_single_node_takes_writes_right_after_it_stood_still(make_node: NodeMaker, topic: str) -> None:
    node = make_node(cluster__session_timeout_ms=1000).start()
    with httpx.Client(base_url=node.http_url, timeout=60) as client:
        client.post("/v1/topics", json={"name": topic}).raise_for_status()
        client.post(f"/v1/topics/{topic}/publish", json={"value": "before"}).raise_for_status()
        node.pause()
        answers: list[httpx.Response] = []
        waiting = threading.Thread(
            target=lambda: answers.append(client.post(f"/v1/topics/{topic}/publish", json={"value": "meanwhile"}))
        )
        waiting.start()
        time.sleep(3)  # this is what is tested: a process that stands still, in real time
        node.resume()
        waiting.join()
        answers += [client.post(f"/v1/topics/{topic}/publish", json={"value": str(at)}) for at in range(50)]
        assert [answer.status_code for answer in answers] == [200] * 51, answers[0].text
        assert client.get("/readyz").status_code == 200
