"""Batches that no consumer can read, though nothing is wrong with their checksum: as a broken producer makes them."""

from __future__ import annotations

from penstock.records import Codec, Record, encode_batch
from penstock.records.header import HEADER_BYTES, seal


def poisoned(*values: str, at_ms: int = 0, key: bytes | None = None) -> bytearray:
    """A compressed batch of these values whose compressed bytes are damaged, and sealed after that."""
    batch = encode_batch(
        [Record(at, at_ms, key, value.encode(), ()) for at, value in enumerate(values)], codec=Codec.ZSTD
    )
    batch[HEADER_BYTES:] = bytes(len(batch) - HEADER_BYTES)
    seal(batch)
    return batch
