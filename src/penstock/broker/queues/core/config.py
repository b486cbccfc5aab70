"""What one queue group is held to: the settings of its topic, and what the group itself says otherwise.

The settings are the cluster's, since topics have them; see `penstock.cluster.queue_config`.
"""

from __future__ import annotations

from penstock.cluster.queue_config import Lanes, Order, QueueSettings, Retention

__all__ = ["Lanes", "Order", "QueueSettings", "Retention"]
