"""For your tests as for ours: a real broker in your process, one on virtual time, and twins of the ports in memory.

`LocalBroker` has real doors on free ports. `VirtualBroker` has a clock that you move and a disk that you can crash.
With pytest both are fixtures: ``penstock``, ``penstock_url``, ``virtual_penstock``. Names are loaded when they are
first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.broker.queues.core.messages import Fate
    from penstock.broker.queues.leases import LeasedMessage
    from penstock.testing.local import LocalBroker
    from penstock.testing.virtual import BrokerDown, StoredMessage, VirtualBroker

_HOMES = {
    "BrokerDown": "penstock.testing.virtual",
    "Fate": "penstock.broker.queues.core.messages",
    "LeasedMessage": "penstock.broker.queues.leases",
    "LocalBroker": "penstock.testing.local",
    "StoredMessage": "penstock.testing.virtual",
    "VirtualBroker": "penstock.testing.virtual",
}

__all__ = ["BrokerDown", "Fate", "LeasedMessage", "LocalBroker", "StoredMessage", "VirtualBroker"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock.testing' has no attribute {name!r}")
    from penstock.extras import needs

    with needs("server", "A broker for tests"):
        found = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
