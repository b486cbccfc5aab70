"""The network between nodes and clients: a bridge, a namespace for each node, and packets that are dropped on purpose.

Node N is 198.18.0.N (a range set aside for tests, RFC 2544) in the namespace ``chaos-N``. Clients are in this program's
own namespace, at 198.18.0.254; what only watches the cluster speaks from 198.18.0.253, so that cutting off clients does
not blind it.
A cut is always at the receiver: "node 2 does not hear node 1".
"""

from __future__ import annotations

from collections.abc import Iterable

from bench.chaos.machine import MachineError, run

BRIDGE = "chaos"
CLIENTS = 254
WATCHER = 253
_CHAIN = "INPUT"


def address_of(number: int) -> str:
    return f"198.18.0.{number}"


def namespace_of(number: int) -> str:
    return f"chaos-{number}"


class Network:
    """One bridge; nodes are plugged in as they come."""

    def __init__(self) -> None:
        self._plugged: set[int] = set()
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        for number in (CLIENTS, WATCHER):
            run("ip", "address", "add", f"{address_of(number)}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")

    def plug(self, number: int) -> None:
        """A namespace for node `number`, with one end of a cable in it and the other in the bridge."""
        if number in self._plugged:
            return
        namespace = namespace_of(number)
        run("ip", "netns", "add", namespace)
        run("ip", "link", "add", f"node{number}", "type", "veth", "peer", "name", "eth0", "netns", namespace)
        run("ip", "link", "set", f"node{number}", "master", BRIDGE, "up")
        run("ip", "-n", namespace, "address", "add", f"{address_of(number)}/24", "dev", "eth0")
        run("ip", "-n", namespace, "link", "set", "eth0", "up")
        run("ip", "-n", namespace, "link", "set", "lo", "up")
        self._plugged.add(number)

    def deafen(self, hearer: int, speakers: Iterable[int]) -> None:
        """Node `hearer` gets nothing more from any of `speakers`."""
        for speaker in speakers:
            self._rule("-A", hearer, "-s", address_of(speaker), "-j", "DROP")

    def cut(self, some: Iterable[int], others: Iterable[int]) -> None:
        """Neither side hears the other. Clients may be among them: what they say is dropped at the node."""
        for one in some:
            for other in others:
                self._cut_pair(one, other)

    def _cut_pair(self, one: int, other: int) -> None:
        if CLIENTS in (one, other):
            node = other if one == CLIENTS else one
            self._rule("-A", node, "-s", address_of(CLIENTS), "-j", "DROP")
            self._rule("-A", node, "-d", address_of(CLIENTS), "-j", "DROP", chain="OUTPUT")
            return
        self.deafen(one, [other])
        self.deafen(other, [one])

    def lose(self, hearer: int, share: float) -> None:
        """Node `hearer` loses this share of all packets, whoever sent them, but those of the watcher."""
        self._rule("-A", hearer, "-s", address_of(WATCHER), "-j", "ACCEPT")
        self._rule("-A", hearer, "-m", "statistic", "--mode", "random", "--probability", f"{share:.3f}", "-j", "DROP")

    def unplug(self, number: int) -> None:
        run("ip", "link", "set", f"node{number}", "down")

    def replug(self, number: int) -> None:
        run("ip", "link", "set", f"node{number}", "up")

    def heal(self) -> None:
        """Every cable in, no rule left."""
        for number in sorted(self._plugged):
            self.replug(number)
            for chain in (_CHAIN, "OUTPUT"):
                run("iptables", "-w", "-F", chain, namespace=namespace_of(number))

    def _rule(self, verb: str, number: int, *words: str, chain: str = _CHAIN) -> None:
        if number not in self._plugged:
            raise MachineError(f"there is no node {number} in the network")
        run("iptables", "-w", verb, chain, *words, namespace=namespace_of(number))
