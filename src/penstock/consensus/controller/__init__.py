"""What the controller decides: each function looks at the metadata and a command, and returns the records to commit.

Nothing here writes, waits or knows the time. The records become facts when the metadata log has them; an error raised
here means that nothing happened.
"""

from __future__ import annotations

from penstock.consensus.controller.decisions import Decision, decide
from penstock.consensus.controller.draft import ControllerView, MetadataDraft, Rules
from penstock.consensus.controller.topics import (
    PARTITIONS_MAX,
    PRODUCER_IDS_AT_ONCE,
    TopicSpec,
    add_partitions,
    configure_topic,
    create_topic,
    delete_topic,
    reserve_producer_ids,
)

__all__ = [
    "PARTITIONS_MAX",
    "PRODUCER_IDS_AT_ONCE",
    "ControllerView",
    "Decision",
    "MetadataDraft",
    "Rules",
    "TopicSpec",
    "add_partitions",
    "configure_topic",
    "create_topic",
    "decide",
    "delete_topic",
    "reserve_producer_ids",
]
