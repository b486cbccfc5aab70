"""Changes of membership: a further node joins and is removed again, by the commands that an operator would use."""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass

from bench.chaos.cluster import ClusterError, Node, wait_for
from bench.chaos.faults.fault import Arena, Kind
from bench.targets import REPO

COMMAND_LIMIT_S = 120


@dataclass
class JoinAndLeave:
    """A further node joins, takes partitions, is drained and removed."""

    arena: Arena
    chance: random.Random
    node: Node | None = None

    def inject(self) -> str:
        number = max(self.arena.numbers) + 1
        self.node = self.arena.cluster.place(number)
        self.arena.cluster.start(self.node)
        if not wait_for(lambda: self._is_listed(number), 30.0):
            raise ClusterError(f"node {number} serves, but is not listed")
        self._command("rebalance")
        self.arena.meanwhile()
        if not self.arena.watch.wait_until_whole(60.0, self.arena.meanwhile):
            raise ClusterError(f"the cluster did not become whole after node {number} had joined")
        return f"node {number} joined"

    def heal(self) -> None:
        if self.node is None:
            return
        number = self.node.number
        self.arena.watch.wait_until_whole(60.0, self.arena.meanwhile)  # an operator waits for that too
        self._command("drain", str(number))
        self.arena.meanwhile()
        self._command("remove", str(number), "--yes")
        self.node.terminate()
        self.arena.cluster.remove(number)

    def _is_listed(self, number: int) -> bool:
        self.arena.meanwhile()
        view = self.arena.watch.view()
        return view is not None and number in view.nodes

    def _command(self, *words: str) -> None:
        cluster = self.arena.cluster
        serving = [node for node in cluster.running if node is not self.node and cluster.is_serving(node)]
        if not serving:
            raise ClusterError(f"no node is there to be told: cluster {' '.join(words)}")
        login = cluster.login
        url = f"{login.scheme}://{serving[0].place.http}"
        command = [str(REPO / ".venv/bin/penstock"), "cluster", *words, "--url", url, *login.options]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise ClusterError(f"penstock cluster {' '.join(words)} has not ended in {COMMAND_LIMIT_S:g} s") from None
        if done.returncode:
            raise ClusterError(f"penstock cluster {' '.join(words)} failed: {done.stderr or done.stdout}")


KINDS = [Kind("join-and-leave", JoinAndLeave, (5, 15), "cluster commands", wants_whole=True)]
