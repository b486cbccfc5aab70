"""For your tests as for ours: a real broker in your process, one on virtual time, and twins of the ports in memory.

`LocalBroker` has real doors on free ports. `VirtualBroker` has a clock that you move and a disk that you can crash.
With pytest both are fixtures: ``penstock``, ``penstock_url``, ``virtual_penstock``. Names are loaded when they are
first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.features.queues.core.messages import ReceiptOutcome as Fate
    from penstock.features.queues.leases import LeasedRecord as LeasedMessage
    from penstock.testing.local import LocalBroker
    from penstock.testing.virtual import BrokerDown, StoredMessage, VirtualBroker

_HOMES = {
    "BrokerDown": "penstock.testing.virtual.BrokerDown",
    "Fate": "penstock.features.queues.core.messages.ReceiptOutcome",
    "LeasedMessage": "penstock.features.queues.leases.LeasedRecord",
    "LocalBroker": "penstock.testing.local.LocalBroker",
    "StoredMessage": "penstock.testing.virtual.StoredMessage",
    "VirtualBroker": "penstock.testing.virtual.VirtualBroker",
}

__all__ = ["BrokerDown", "Fate", "LeasedMessage", "LocalBroker", "StoredMessage", "VirtualBroker"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock.testing' has no attribute {name!r}")
    from penstock.extras import needs

    with needs("server", "A broker for tests"):
        module, _, attribute = home.rpartition(".")
        found = getattr(import_module(module), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
