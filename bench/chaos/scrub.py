"""The last scrub: every node reads all it keeps once more, so that damage nobody has come upon is copied anew.

What is left on the disks after that is what the nodes could not see, and counts as lost.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any, Final

from bench.chaos.cluster import Cluster, Node, wait_for

LIMIT_S: Final = 60.0
HEALED_LIMIT_S: Final = 90.0
_PATH: Final = "/v1/storage/scrub"


def scrub_all(cluster: Cluster) -> list[str]:
    """Have every node of Penstock check everything, and wait until no damage is left; what went wrong."""
    if cluster.software.name != "penstock":
        return []
    asked = [(node, _ask(cluster, node, "POST")) for node in cluster.running]
    troubles = [f"{node} cannot be asked to scrub" for node, answer in asked if answer is None]
    for node, answer in asked:
        if answer is not None and not wait_for(_is_done(cluster, node, answer["asked_round"]), LIMIT_S):
            troubles.append(f"{node} has not scrubbed everything within {LIMIT_S:.0f} s")
    for node, answer in asked:
        if answer is not None and not wait_for(_is_sound(cluster, node), HEALED_LIMIT_S):
            troubles.append(f"{node} keeps damaged replicas {HEALED_LIMIT_S:.0f} s after that was found")
    return troubles


def _is_done(cluster: Cluster, node: Node, asked_round: int) -> Callable[[], bool]:
    return lambda: (_ask(cluster, node, "GET") or {"completed_round": -1})["completed_round"] >= asked_round


def _is_sound(cluster: Cluster, node: Node) -> Callable[[], bool]:
    return lambda: (_ask(cluster, node, "GET") or {"damaged_partitions": -1})["damaged_partitions"] == 0


def _ask(cluster: Cluster, node: Node, method: str) -> dict[str, Any] | None:
    try:
        status, body = node.ask(method, _PATH, cluster.watcher)
        found: dict[str, Any] = json.loads(body) if status < 300 else {}
    except (OSError, http.client.HTTPException, ValueError):
        return None
    return found or None
