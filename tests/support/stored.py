"""What a node has on its disk: the batches as their producers made them."""

from __future__ import annotations

from tests.support.node import Node

from penstock.records import BatchHeader, Codec, iter_batches
from penstock.records.header import CODEC_MASK


def stored_batches(node: Node, topic: str) -> list[BatchHeader]:
    """The header of every batch of a topic, partition by partition."""
    paths = sorted((node.data_dir / "logs" / topic).glob("*/*.log"))
    return [header for path in paths for _, header in iter_batches(memoryview(path.read_bytes()))]


def codec_name(header: BatchHeader) -> str:
    return Codec(header.attributes & CODEC_MASK).name.lower()
